"""Transfers that are slower because a rank's threads wait for a CPU: that is neither the network's nor theirs alone.

    main         ____|^^^^^^^^       waits for a CPU longer, for at least half of what transfers lost
    collectives  ____|^^^^^^^^       and so do these threads: who stands in the way of both is the host's affair

Who that is only the scheduler's own records tell; where they are missing the transfers are left unexplained. So are
those that no counter speaks of, where a rank loses more time on its host, unseen by what: that may lie in them too.
Round trips speak for no network then, nor segments sent again: whoever is held up acknowledges late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rootwalk.graph.columns import EXACT_SENSORS, StepRows
from rootwalk.graph.counters.movement import Movement
from rootwalk.graph.counters.programs import COLLECTIVES_WAITING, MAIN_WAITING
from rootwalk.graph.counters.rule import Counter
from rootwalk.graph.counters.seen import MIN_OVERLAP, Movements, Seen, rank_of, reason_of
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.reasons import Reason, Signal

__all__ = ["REFUTED", "is_beside_unseen", "is_of_peer", "is_starved", "refute", "starved_counters"]

# The attribute of an edge that names what speaks against its cause.
REFUTED: Final = "refuted_by"
# So much of what transfers lost explains them.
_MIN_EXPLAINED: Final = 0.5
# A training thread that is blocked behind others for so much stands in the queue itself for a part of that alone.
_MIN_BESIDE: Final = 0.1
# What a connection counts whose other end acknowledges late: by probes for a lost tail, segments sent again too.
_LATE_PEER: Final = frozenset({Signal.ROUND_TRIP, Signal.RETRANSMITTED})


def starved_counters(ends: Iterable[Edge]) -> tuple[Counter, ...]:
    """Return what is to be read for `is_starved`; nothing where no transfer is in question."""
    is_asked = any(reason_of(end) is Reason.UNKNOWN_NET for end in ends)
    return (COLLECTIVES_WAITING, MAIN_WAITING) if is_asked else ()


def is_starved(watched: Movements, end: Edge, ends: Iterable[Edge]) -> bool:
    """Return whether slower transfers are those of a rank whose training thread waits for a CPU as well.

    Args:
        watched: How counters moved, `starved_counters` among them.
        end: A cause.
        ends: Every cause, itself among them: a rank that lost as much on its host, unseen by what, waits less itself.
    """
    if reason_of(end) is not Reason.UNKNOWN_NET:
        return False
    share_s = _share_s(end)
    least_s = _MIN_EXPLAINED * share_s
    unseen = [e for e in ends if reason_of(e) is Reason.UNKNOWN_HOST]
    losers = {rank_of(e) for e in unseen if _share_s(e) >= least_s}
    main = watched.of(MAIN_WAITING)

    def waited(movement: Movement | None, least_s: float) -> bool:
        if movement is None:
            return False
        return movement.overlap >= MIN_OVERLAP and movement.growth >= least_s

    def main_s(rank: int | None) -> float:
        return _MIN_BESIDE * share_s if rank in losers else least_s

    return any(
        waited(moved, least_s) and waited(main.get(place), main_s(place.rank))
        for place, moved in watched.of(COLLECTIVES_WAITING).items()
    )


def is_beside_unseen(steps: StepRows, end: Edge, ends: Iterable[Edge]) -> bool:
    """Return whether slower transfers may be those of a rank that loses more on its host, its threads hardly seen.

    Args:
        steps: Every rank's, with what saw its threads.
        end: A cause.
        ends: Every cause, itself among them.
    """
    if reason_of(end) is not Reason.UNKNOWN_NET:
        return False
    more = [e for e in ends if reason_of(e) is Reason.UNKNOWN_HOST and _share_s(e) > _share_s(end)]
    ranks = zip(steps.rank.tolist(), steps.sensor, strict=True)
    seen = {rank for rank, sensor in ranks if sensor in EXACT_SENSORS}
    return any(rank_of(e) not in seen for e in more)


def is_of_peer(seen: Seen) -> bool:
    """Return whether a counter of a network moves as well where the process at the other end is held up."""
    return seen.counter.signal in _LATE_PEER


def _share_s(end: Edge) -> float:
    return float(end.payload.attributes["share_s"] or 0.0)


def refute(graph: DependencyGraph, end: Edge) -> None:
    """Write down that threads which wait for a CPU speak against a cause: `score` leaves it out."""
    attributes = {**end.payload.attributes, REFUTED: str(Signal.THREAD_TIME)}
    graph.add_edge(end.source, end.target, replace(end.payload, attributes=attributes))
