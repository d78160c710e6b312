"""A finding with its life: when it was detected, named and closed, over which steps, and when two of them are the same.

    step time  ____|^^^^^^^^^^^^^^^^^^|____
                onset  detected  named  closed          the id is the one that it was first named by

Plain data below the diagnosis, which reads the times; `track` decides what opens and closes, `store` keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ONSET_SLACK_STEPS", "Exemplar", "LiveFinding", "find_same"]

# An onset is a change point between two levels: with more of the episode seen it moves by a few steps, at most by the
# five of the running median that found it.
ONSET_SLACK_STEPS = 5


class Exemplar(NamedTuple):
    """A rank's part of a slow step, to point at: ids as hex, Unix ns."""

    trace_id: str
    span_id: str
    step: int
    start_unix_ns: int
    end_unix_ns: int


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """One finding of live detection; times are Unix ns of the watching process, the onset's of the telemetry.

    `first_step` and `last_step` are the steps of its episode that were seen, `rank` and `host` None where no single one
    is to blame, `closed_unix_ns` None while it is open. `text` is the verdict's first line about it, `verdict` the
    whole verdict as JSON that spoke of it last.
    """

    job: str
    attempt: int
    id: str
    reason: str
    node: str
    layer: str | None
    owner: str
    severity: str
    confidence: str
    rank: int | None
    host: str | None
    share_s: float | None
    first_step: int
    last_step: int
    onset_unix_ns: int | None
    detected_unix_ns: int
    named_unix_ns: int
    closed_unix_ns: int | None
    text: str
    verdict: str

    @property
    def is_open(self) -> bool:
        """Whether its slowdown goes on."""
        return self.closed_unix_ns is None

    @property
    def is_hang(self) -> bool:
        """Whether it is about a job that stands still, not about slow steps."""
        if '"hang"' not in self.verdict:
            return False
        return bool(json.loads(self.verdict).get("kind") == "hang")

    def overlaps(self, first_step: int, last_step: int) -> bool:
        """Return whether steps first to last belong to the same episode, give or take how far an onset moves."""
        return (
            self.first_step - ONSET_SLACK_STEPS <= last_step
            and first_step <= self.last_step + ONSET_SLACK_STEPS
        )


def find_same(
    known: Iterable[LiveFinding], reason: str, node: str, steps: tuple[int, int]
) -> LiveFinding | None:
    """Return which known finding of one job and attempt is this one, the latest where several are.

    Args:
        known: Findings of the same job and attempt.
        reason: Reason code.
        node: Id of the node that is to blame.
        steps: First and last step of the episode.
    """
    same = [f for f in known if (f.reason, f.node) == (reason, node) and f.overlaps(*steps)]
    return max(same, key=lambda f: (f.last_step, f.id), default=None)
