"""What the step logs of a job's ranks say, which its script writes by a clock of its own: a line a step."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

# Imports and first touch are over.
WARM_STEPS = 10
# So many steps are a stretch, and it takes so many before it to say what is usual.
STRETCH_STEPS, USUAL_STEPS = 10, 20


def find_stretch(logs: Path) -> float:
    """Return how much longer the steps of some stretch took, on every rank, than those before it, as a part."""
    return min(
        (slowest_stretch(read_seconds(path)) for path in logs.glob("rank*.jsonl")), default=0.0
    )


def find_added(logs: Path, onset_step: int | None) -> float:
    """Return how much longer the middle step after some step took than that before it, on the rank of the most."""
    if onset_step is None:
        return 0.0
    ranks = [read_seconds(path) for path in logs.glob("rank*.jsonl")]
    return max(
        (
            statistics.median(step_s[onset_step + 1 :])
            / statistics.median(step_s[WARM_STEPS:onset_step])
            - 1.0
            for step_s in ranks
        ),
        default=0.0,
    )


def read_seconds(log: Path) -> list[float]:
    """Return the times of a rank's steps, s, in order."""
    return [json.loads(line)["seconds"] for line in log.read_text("utf-8").splitlines()]


def slowest_stretch(step_s: list[float]) -> float:
    """Return how much longer the middle of some stretch of steps took than what is usual before it; 0 for few."""
    warm_s = step_s[WARM_STEPS:]
    return max(
        (
            statistics.median(warm_s[start : start + STRETCH_STEPS])
            / statistics.median(warm_s[:start])
            - 1.0
            for start in range(USUAL_STEPS, len(warm_s) - STRETCH_STEPS + 1)
        ),
        default=0.0,
    )


def count_steps(log: Path) -> int:
    """Return how many steps a rank has written down."""
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
