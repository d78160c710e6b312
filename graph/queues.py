"""A rank's own threads that queue for a CPU as they always do, while everything on the machine takes longer.

    before   | thread A runs | main thread waits for A |
    now      | thread A runs, slower  | waits for A as much longer |       all ranks lose time: GLOBAL_SLOW

All threads of slower CPUs are slower, so who waits behind them waits longer. That is a part of what all ranks lose, and
no fault of the rank's threads, unless the queue has grown beyond what healthy steps show, or costs more than the rest.
"""

from __future__ import annotations

from rootwalk.graph.model import Finding
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.graph.score import ScoredFinding

__all__ = ["without_usual_queues"]

# Robust sigmas of the healthy steps' queues that a queue of another kind is above.
MIN_SIGMAS = 2.0


def without_usual_queues(scored: tuple[ScoredFinding, ...]) -> tuple[ScoredFinding, ...]:
    """Return the findings without queues of a rank's own threads that what slows all ranks has made longer."""
    common_s = sum(
        one.finding.seconds.share or 0.0
        for one in scored
        if one.finding.reason == Reason.GLOBAL_SLOW
    )
    return tuple(one for one in scored if not _is_usual(one.finding, common_s))


def _is_usual(finding: Finding, common_s: float) -> bool:
    if finding.reason != Reason.THREAD_OVERSUBSCRIPTION:
        return False
    if (finding.seconds.share or 0.0) >= common_s:
        return False
    sigmas = [view.z for view in finding.evidence if view.signal == Signal.OWN]
    return any(z is not None and z < MIN_SIGMAS for z in sigmas)
