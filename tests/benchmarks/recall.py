"""How often lost time is named, by the part of the job's time that is lost; and how often a quiet job is accused.

    PYTHONPATH=tests python tests/benchmarks/recall.py [--faults 300] [--quiet 300] [--seed 1]

Jobs are drawn at random: ranks, length of a step, noise (independent, in stretches, single slow steps), what one rank
loses time to, from which step on, every so many steps. They are made of spans by `support.jobs`, which knows nothing of
the attribution. A fault is found when its rank and its reason are the first finding; every finding of another rank is a
false accusation. Each run of the benchmark draws its jobs from its seed: no number in Rootwalk was fitted on them.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.results import describe_machine
from rootwalk.graph.diagnosis import diagnose
from support.jobs import HEALTHY_STEP_S, Fault, Job, write_job

RESULTS = Path(__file__).with_name("results") / "recall.json"
REASONS = {
    "contention": "CPU_CONTENTION",
    "work": "WORK_IMBALANCE",
    "stopped": "PROCESS_SUSPENDED",
    "gc": "PY_GC",
    "quota": "CPU_QUOTA",
    "reclaim": "MEM_RECLAIM",
    "write": "BLOCKING_LOG",
}
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
PERIODS = (1, 1, 1, 2, 3, 5, 12, 50)
ONSETS = (0, 0, 3, 30, 100)
# Occasions of a fault that comes every so many steps: what came once or twice is no rhythm.
OCCASIONS = 6


@dataclass(frozen=True, slots=True)
class Drawn:
    """One job, and what is true of it; `kind` is empty for a quiet one."""

    job: Job
    kind: str = ""
    rank: int = 0
    share: float = 0.0
    period: int = 1
    onset: int = 0


class Noise:
    """How much longer each piece of work takes than in the mean: by chance, in stretches, and in single slow steps.

    Args:
        random: Draws it once.
        ranks: Of the job.
        steps: Of the job.
    """

    def __init__(self, random: np.random.Generator, ranks: int, steps: int) -> None:
        self.scale = float(np.exp(random.uniform(np.log(0.05), np.log(8.0))))
        sigma = float(random.uniform(0.01, 0.12))
        self._factor = np.exp(random.normal(0.0, sigma, (ranks, steps)))
        # A machine that is a little slower for some steps, for all of its ranks alike.
        mood = np.cumsum(random.normal(0.0, sigma / 10, steps))
        self._factor *= np.exp(mood - mood.mean())[None, :]
        rare = random.random((ranks, steps)) < float(random.uniform(0.0, 0.01))
        self._factor[rare] *= random.uniform(1.2, 2.0, int(rare.sum()))

    def __call__(self, step: int, rank: int, _phase: str) -> float:
        return self.scale * float(self._factor[rank, step])


def draw(seed: int, *, is_quiet: bool) -> Drawn:
    """Return one job.

    Args:
        seed: Of this job alone.
        is_quiet: Whether nothing is lost in it.
    """
    random = np.random.default_rng(seed)
    ranks = int(random.choice([2, 2, 3, 4, 8]))
    period, onset = int(random.choice(PERIODS)), int(random.choice(ONSETS))
    steps = int(random.integers(60, 200)) if is_quiet else onset + max(OCCASIONS * period, 60)
    noise = Noise(random, ranks, steps)
    options: dict[str, Any] = {"ranks": ranks, "steps": steps, "seed": seed, "gc_s": 0.0}
    options |= {"factor": noise, "has_cgroup": True, "cold_s": 0.5 * noise.scale}
    if is_quiet:
        return Drawn(Job(**options))
    kind, share = str(random.choice(list(REASONS))), float(random.choice(SHARES))
    rank = int(random.integers(ranks))
    seconds = share / (1.0 - share) * HEALTHY_STEP_S * noise.scale * period
    fault = Fault(kind, rank, seconds, onset, period=period)
    return Drawn(Job(**options, faults=(fault,)), kind, rank, share, period, onset)


def judge(drawn: Drawn) -> dict[str, Any]:
    """Diagnose one job; return what was said of it."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = diagnose(write_job(Path(folder) / "s.duckdb", drawn.job))
    named = [(one.reason, one.subject.rank) for one in verdict.findings]
    right = bool(named) and named[0] == (REASONS.get(drawn.kind), drawn.rank)
    others = [one for one in named if one[1] not in (None, drawn.rank if drawn.kind else None)]
    return {
        "kind": drawn.kind,
        "share": drawn.share,
        "period": drawn.period,
        "onset": drawn.onset,
        "ranks": drawn.job.ranks,
        "seed": drawn.job.seed,
        "outcome": str(verdict.outcome),
        "named": named,
        "right": right,
        "accused": bool(others),
        "job_s": (verdict.step_s or 0.0) * drawn.job.steps,
    }


def judge_seed(seed: int, is_quiet: bool) -> dict[str, Any]:
    """Draw one job and judge it."""
    return judge(draw(seed, is_quiet=is_quiet))


def summarise(rows: list[dict[str, Any]], quiet: list[dict[str, Any]]) -> dict[str, Any]:
    """Return recall by share and by rhythm, and accusations of quiet jobs."""
    by_share: dict[str, list[bool]] = collections.defaultdict(list)
    by_rhythm: dict[str, list[bool]] = collections.defaultdict(list)
    by_kind: dict[str, list[bool]] = collections.defaultdict(list)
    for row in rows:
        by_share[f"{row['share']:.2f}"].append(row["right"])
        if row["share"] >= 0.1:
            rhythm = "every step" if row["period"] == 1 else f"every {row['period']} steps"
            by_rhythm[rhythm].append(row["right"])
            by_kind[row["kind"]].append(row["right"])
    hours = sum(row["job_s"] for row in quiet) / 3600.0
    return {
        "recall_by_share": {key: [sum(v), len(v)] for key, v in sorted(by_share.items())},
        "recall_by_rhythm": {key: [sum(v), len(v)] for key, v in sorted(by_rhythm.items())},
        "recall_by_kind": {key: [sum(v), len(v)] for key, v in sorted(by_kind.items())},
        "accused_in_faulty": sum(row["accused"] for row in rows),
        "faulty": len(rows),
        "quiet": len(quiet),
        "quiet_named": sum(bool(row["named"]) for row in quiet),
        "quiet_accused": sum(row["accused"] for row in quiet),
        "quiet_unsure": sum(row["outcome"] == "insufficient_evidence" for row in quiet),
        "quiet_hours": round(hours, 2),
        "wrong_seeds": [row["seed"] for row in rows if row["share"] >= 0.1 and not row["right"]],
        "quiet_named_seeds": [row["seed"] for row in quiet if row["named"]],
    }


def main() -> int:
    """Draw, judge and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--quiet", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-results", action="store_true")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + max(arguments.faults, arguments.quiet))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        faulty = list(
            pool.map(judge_seed, seeds[: arguments.faults], [False] * arguments.faults, chunksize=8)
        )
        quiet = list(
            pool.map(judge_seed, seeds[: arguments.quiet], [True] * arguments.quiet, chunksize=8)
        )
    found = summarise(faulty, quiet) | {"seed": arguments.seed} | describe_machine()
    print(json.dumps(found, indent=1))
    if not arguments.no_results:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
