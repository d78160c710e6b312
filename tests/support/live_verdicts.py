"""Verdicts and episodes by hand, for what happens to findings over time."""

from __future__ import annotations

from dataclasses import replace

from rootwalk.graph.live.track import EpisodeSpan
from rootwalk.graph.model import (
    Confidence,
    Finding,
    FindingVictims,
    Lost,
    Onset,
    Outcome,
    Seconds,
    Subject,
    Verdict,
    Window,
)
from rootwalk.graph.verdict import empty_verdict

NS = 1_000_000_000


def make_finding(
    reason: str = "CPU_QUOTA", rank: int = 1, onset_step: int = 40, share_s: float = 0.060
) -> Finding:
    """A finding about one rank; its id tells reason, rank and onset step."""
    return Finding(
        id=f"{reason}/{rank}/{onset_step}",
        state="open",
        kind="slow",
        method="walk",
        severity="critical",
        reason=reason,
        layer="operating_system",
        owner="platform",
        subject=Subject(f"node-of-{rank}", rank, (rank,), "host-0", None, None, None, None),
        pattern="fixed",
        onset=Onset(onset_step, onset_step * NS),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(share_s, share_s, share_s),
        predicted_step_s=0.120,
        lost=Lost(1, share_s, share_s, None),
        confidence=Confidence("high", 0.9, 1.0, 1.0),
        victims=FindingVictims(0, None),
        chain=(),
        evidence=(),
        excluded=(),
        action_code="RAISE_LIMIT",
        action="raise it",
    )


def make_verdict(*findings: Finding, first_step: int = 40, job: str = "j1") -> Verdict:
    """A verdict about steps from one on; without findings it has not enough evidence."""
    return replace(
        empty_verdict(job, 0, 2, ()),
        window=Window(first_step * NS, None, first_step, None),
        outcome=Outcome.FINDING if findings else Outcome.INSUFFICIENT_EVIDENCE,
        findings=findings,
    )


def make_episode(first_step: int, last_step: int, *, is_open: bool = True) -> EpisodeSpan:
    """An episode that was detected at its fifth step, one step a second."""
    return EpisodeSpan(first_step, last_step, is_open, first_step * NS, (first_step + 5) * NS)
