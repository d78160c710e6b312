"""Transfers that are slower because a rank's threads wait for a CPU: that is neither the network's nor theirs alone.

    main         ____|^^^^^^^^       waits for a CPU longer, for at least half of what transfers lost
    collectives  ____|^^^^^^^^       and so do these threads: who stands in the way of both is the host's affair

Who that is only the scheduler's own records tell; where they are missing the transfers are left unexplained. So are
those that no counter speaks of, where a rank loses more time on its host, unseen by what: that may lie in them too.
Round trips speak for no network then, nor segments sent again: whoever is held up acknowledges late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rootwalk.graph.columns import EXACT_SENSORS, StepRows
from rootwalk.graph.counters.movement import Movement
from rootwalk.graph.counters.programs import COLLECTIVES_WAITING, MAIN_WAITING
from rootwalk.graph.counters.rule import Counter
from rootwalk.graph.counters.seen import MIN_OVERLAP, Movements, Seen, rank_of, reason_of
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.reasons import Reason, Signal

__all__ = [
    "REFUTED",
    "is_beside_unseen",
    "is_of_peer",
    "is_starved",
    "refute",
    "starved_counters",
    "unseen_losses",
]

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


def unseen_losses(steps: StepRows, ends: Iterable[Edge]) -> dict[int, float]:
    """Return what ranks lose on their hosts, unseen by what, where nobody saw every switch of their threads, s a step.

    Args:
        steps: Every rank's, with what saw its threads.
        ends: Every cause.
    """
    lost = {rank_of(e): _share_s(e) for e in ends if reason_of(e) is Reason.UNKNOWN_HOST}

    def is_watched(rank: int) -> bool:
        rows = np.flatnonzero(steps.rank == rank).tolist()
        return any(steps.sensor[row] in EXACT_SENSORS for row in rows)

    return {rank: s for rank, s in lost.items() if rank is not None and not is_watched(rank)}


def is_starved(watched: Movements, end: Edge, unseen: Mapping[int, float]) -> bool:
    """Return whether slower transfers are those of a rank whose training thread waits for a CPU as well.

    Args:
        watched: How counters moved, `starved_counters` among them.
        end: A cause.
        unseen: `unseen_losses`: a training thread that is blocked for as much waits less for a CPU itself.
    """
    if reason_of(end) is not Reason.UNKNOWN_NET:
        return False
    share_s = _share_s(end)
    least_s = _MIN_EXPLAINED * share_s
    main = watched.of(MAIN_WAITING)

    def waited(movement: Movement | None, least_s: float) -> bool:
        if movement is None:
            return False
        return movement.overlap >= MIN_OVERLAP and movement.growth >= least_s

    def main_s(rank: int | None) -> float:
        is_blocked = rank is not None and unseen.get(rank, 0.0) >= least_s
        return _MIN_BESIDE * share_s if is_blocked else least_s

    return any(
        waited(moved, least_s) and waited(main.get(place), main_s(place.rank))
        for place, moved in watched.of(COLLECTIVES_WAITING).items()
    )


def is_beside_unseen(end: Edge, unseen: Mapping[int, float]) -> bool:
    """Return whether slower transfers may be those of a rank of `unseen_losses`, which loses more on its host."""
    is_transfer = reason_of(end) is Reason.UNKNOWN_NET
    return is_transfer and max(unseen.values(), default=0.0) > _share_s(end)


def is_of_peer(seen: Seen) -> bool:
    """Return whether a counter of a network moves as well where the process at the other end is held up."""
    return seen.counter.signal in _LATE_PEER


def _share_s(end: Edge) -> float:
    return float(end.payload.attributes["share_s"] or 0.0)


def refute(graph: DependencyGraph, end: Edge) -> None:
    """Write down that threads which wait for a CPU speak against a cause: `score` leaves it out."""
    attributes = {**end.payload.attributes, REFUTED: str(Signal.THREAD_TIME)}
    graph.add_edge(end.source, end.target, replace(end.payload, attributes=attributes))
