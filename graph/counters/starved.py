"""Transfers that are slower because a rank's threads wait for a CPU: that is neither the network's nor theirs alone.

    main         ____|^^^^^^^^       waits for a CPU longer, for at least half of what transfers lost
    collectives  ____|^^^^^^^^       and so do these threads: who stands in the way of both is the host's affair

Who that is only the scheduler's own records tell; where they are missing the transfers are left unexplained.
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.counters.movement import Movement
from rootwalk.graph.counters.rule import Counter, Formula, Kind, any_of
from rootwalk.graph.counters.seen import MIN_OVERLAP, Movements
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.model import EdgePayload
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["REFUTED", "STARVED_COUNTERS", "is_starved", "refute"]

# The attribute of an edge that names what speaks against its cause.
REFUTED: Final = "refuted_by"
# So much of what transfers lost explains them.
_MIN_EXPLAINED: Final = 0.5


def _waiting(role: TrainingThreadRole) -> Counter:
    """Return the time for which threads of one role of a rank waited for a CPU."""
    return Counter(
        Signal.THREAD_TIME,
        "sched",
        Kind.MORE,
        Formula.SECONDS,
        (
            any_of(semconv.TRAINING_THREAD_ROLE, role.value),
            any_of(semconv.TRAINING_THREAD_STATE, semconv.TrainingThreadState.RUNNABLE.value),
        ),
        is_of_rank=True,
    )


STARVED_COUNTERS: Final = (
    _waiting(TrainingThreadRole.COLLECTIVE),
    _waiting(TrainingThreadRole.MAIN),
)


def is_starved(watched: Movements, end: Edge) -> bool:
    """Return whether slower transfers are those of a rank whose training thread waits for a CPU as well.

    Args:
        watched: How counters moved, `STARVED_COUNTERS` among them.
        end: A cause.
    """
    attributes = end.payload.attributes
    if attributes["reason"] != Reason.UNKNOWN_NET:
        return False
    least_s = _MIN_EXPLAINED * float(attributes["share_s"] or 0.0)
    collectives, main = (watched.of(counter) for counter in STARVED_COUNTERS)

    def waited(movement: Movement | None) -> bool:
        if movement is None:
            return False
        return movement.overlap >= MIN_OVERLAP and movement.growth >= least_s

    return any(waited(moved) and waited(main.get(place)) for place, moved in collectives.items())


def refute(graph: DependencyGraph, end: Edge) -> None:
    """Write down that threads which wait for a CPU speak against a cause: `score` leaves it out."""
    payload = end.payload
    attributes = {**payload.attributes, REFUTED: str(Signal.THREAD_TIME)}
    refuted = EdgePayload(payload.kind, payload.seconds, payload.evidence_ids, attributes)
    graph.add_edge(end.source, end.target, refuted)
