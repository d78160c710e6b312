"""Runs and verdicts of a gauntlet that nobody ran, to be judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gauntlet.case import NOBODY, OTHER, RANK, Case, Effect, Truth
from gauntlet.job import Run
from rootwalk.graph.commands.demo_job import StepTimes
from rootwalk.graph.reasons.contract import CONTRACT

FAULT = Case("a hog", Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)), None)
NEAR = Case("a near miss", Truth(NOBODY), None)
ENOUGH = Effect(5.0, "s", 1.0)


def make_run(added: float = 1.0, effect: Effect | None = ENOUGH, others: float = 0.0) -> Run:
    """Steps of 0.1 s that become longer by a part of themselves."""
    return Run(StepTimes(0.1, 0.1 * (1 + added), 80), effect, 1000.0, others, added=added)


def make_finding(rank: int | None = 1, reason: str = "CPU_CONTENTION") -> dict[str, Any]:
    return {
        "kind": "slow",
        "reason": reason,
        "layer": "operating_system",
        "subject": {"rank": rank, "ranks": [] if rank is None else [rank], "aggressor": None},
        "seconds": {"share": 0.09},
        "onset": {"step": 81},
        "confidence": {"band": "high"},
        "detected_unix_ns": None,
        "named_unix_ns": 1_012_000_000_000,
    }


def make_hang(reason: str, *ranks: int) -> dict[str, Any]:
    subject = {"rank": ranks[0] if len(ranks) == 1 else None, "ranks": list(ranks)}
    return make_finding(reason=reason) | {
        "kind": "hang",
        "layer": CONTRACT[reason][0],
        "subject": subject | {"aggressor": None},
    }


def make_verdict(*findings: dict[str, Any]) -> dict[str, Any]:
    outcome = "finding" if findings else "healthy"
    return {"outcome": outcome, "findings": list(findings), "predicted_step_s": 0.11}


HANG = replace(
    FAULT, truth=Truth(RANK, ("RANK_GONE",), ("application",), kind="hang"), hang="killed"
)


PAIR = Case(
    "a hog here, collections there",
    Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    None,
    also=Truth(OTHER, ("PY_GC",), ("application",)),
)
