"""What each rank and communicator did in each iteration, from collectives alone; pure.

    iteration      |-------- work --------|==== communication ====|-------- work --------|==== ...
    its time       unknown without clocks, but the same for all ranks
    its work       the rest of it: who communicates least, works longest, and the others wait for it

A rank that waited in one communicator and is late in the next for it has communicated as much as its peers: only who
worked longer has not. So ranks are compared by all of their communication in an iteration, with peers that do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray
from rootwalk.graph.flows.rows import Collectives, FlowRows

__all__ = ["FlowSeries", "build_series"]

# Records whose end is known, of all: below it, iterations are timed by when records were written.
MIN_KNOWN_ENDS: Final = 0.95
# Records that were written at the end of the job, not now and then, make iterations shorter than their communication;
# communication that work hides may be longer than the iteration too, by less.
MIN_PACE_RATIO: Final = 0.5
# A communicator with fewer collectives than iterations times this is not of the pattern (an evaluation, a checkpoint).
MIN_CALLS: Final = 0.5
# Up to so many peers each is compared with the others alone; of more, with the median of all.
MAX_OTHERS: Final = 8


@dataclass(frozen=True, slots=True)
class FlowSeries:
    """Arrays over `ranks` and `communicators`, by iteration; seconds.

    Attributes:
        ranks: Ranks with at least one collective of the pattern.
        peers: Number of the rank's class: those of one class do the same in an iteration, in the same stage.
        spent_s: (ranks, iterations), in collectives.
        late_s: (ranks, iterations), how much less than its peers, NaN without a peer.
        blamed_s: (ranks, iterations), the mean wait of the others in the collectives in which it came last.
        communicators: Numbers of the communicators of the pattern, as in the records.
        volumes: Number of the communicator's class: those of one class move the same in as many calls.
        transfer_s: (communicators, iterations), the shortest parts of its collectives.
        wait_s: (communicators, iterations), the mean waits of the others in its collectives.
        iteration_s: (iterations,), how long each took; None where nobody knows.
        is_timed: Whether `iteration_s` was measured; else it is communication and the mean rest.
    """

    ranks: IntArray
    peers: IntArray
    spent_s: FloatArray
    late_s: FloatArray
    blamed_s: FloatArray
    communicators: IntArray
    volumes: IntArray
    transfer_s: FloatArray
    wait_s: FloatArray
    iteration_s: FloatArray | None
    is_timed: bool


def build_series(rows: FlowRows, collectives: Collectives, iterations: int) -> FlowSeries:
    """Return the series of a job.

    Args:
        rows: Its records; receives count as communication.
        collectives: What they are of.
        iterations: How many there are.
    """
    position, is_kept = _positions(collectives.communicator, iterations)
    member_kept = is_kept[collectives.member_of]
    member_of = collectives.member_of[member_kept]
    ranks, rank = np.unique(collectives.member_rank[member_kept], return_inverse=True)
    at = position[member_of]
    spent = np.zeros((ranks.size, iterations))
    np.add.at(spent, (rank, at), collectives.member_s[member_kept])
    spent += _received(rows, ranks, iterations)
    blamed = np.zeros_like(spent)
    last = np.searchsorted(ranks, collectives.last[is_kept])
    np.add.at(blamed, (last, position[is_kept]), collectives.wait_s[is_kept])
    communicators, communicator = np.unique(collectives.communicator[is_kept], return_inverse=True)
    transfer = np.zeros((communicators.size, iterations))
    waited = np.zeros_like(transfer)
    where = (communicator, position[is_kept])
    np.add.at(transfer, where, collectives.transfer_s[is_kept])
    np.add.at(waited, where, collectives.wait_s[is_kept])
    volume = collectives.volume[is_kept]
    peers = _classes(rank, collectives.volume[member_of], iterations, ranks.size)
    if rows.is_message.any():
        stage = _stages(rank, collectives.communicator[member_of], ranks.size)
        peers = np.unique(np.stack([peers, stage], axis=1), axis=0, return_inverse=True)[1]
        peers = peers.reshape(-1).astype(np.int64)
    seconds, is_timed = _iteration_s(rows, collectives, member_kept, rank, at, spent)
    return FlowSeries(
        ranks=ranks,
        peers=peers,
        spent_s=spent,
        late_s=_late(spent, peers),
        blamed_s=blamed,
        communicators=communicators,
        volumes=_classes(communicator, volume, iterations, communicators.size),
        transfer_s=transfer,
        wait_s=waited,
        iteration_s=seconds,
        is_timed=is_timed,
    )


def _positions(communicator: IntArray, iterations: int) -> tuple[IntArray, BoolArray]:
    """Return the iteration of each collective, by its number in its communicator, and which are of the pattern."""
    position = np.zeros(communicator.size, dtype=np.int64)
    is_kept = np.zeros(communicator.size, dtype=np.bool_)
    order = np.argsort(communicator, kind="stable")
    starts = np.flatnonzero(np.diff(communicator[order], prepend=-1))
    for own in np.split(order, starts[1:]):
        if own.size >= MIN_CALLS * iterations:
            position[own] = np.arange(own.size) * iterations // own.size
            is_kept[own] = True
    return position, is_kept


def _received(rows: FlowRows, ranks: IntArray, iterations: int) -> FloatArray:
    """Return seconds in receives, in which a rank waits for the sender; sends are buffered."""
    found = np.zeros((ranks.size, iterations))
    if "recv" not in rows.operations:
        return found
    receives = rows.is_message & (rows.operation == rows.operations.index("recv"))
    receives &= np.isfinite(rows.duration_s) & np.isin(rows.rank, ranks)
    chosen = np.flatnonzero(receives)
    chosen = chosen[np.lexsort((rows.sequence[chosen], rows.communicator[chosen]))]
    chosen = chosen[np.argsort(rows.end_s[chosen], kind="stable")]
    position, is_kept = _positions(rows.rank[chosen], iterations)
    rank = np.searchsorted(ranks, rows.rank[chosen])
    np.add.at(found, (rank[is_kept], position[is_kept]), rows.duration_s[chosen][is_kept])
    return found


def _classes(owner: IntArray, kind: IntArray, iterations: int, owners: int) -> IntArray:
    """Return a number for each owner, the same for those with the same kinds as often in an iteration."""
    pairs, counts = np.unique(np.stack([owner, kind], axis=1), axis=0, return_counts=True)
    profile: list[list[tuple[int, int]]] = [[] for _ in range(owners)]
    for (one, what), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        profile[one].append((what, round(count / iterations)))
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    return np.array([numbers.setdefault(tuple(p), len(numbers)) for p in profile], dtype=np.int64)


def _stages(rank: IntArray, communicator: IntArray, ranks: int) -> IntArray:
    """Return a number for each rank, the same for those that groups join, the group of all left out.

    Ranks that send messages may be stages of a pipeline, which work differently long with nobody to blame for it; the
    ranks of one stage have their tensor and data groups in common.
    """
    stage = np.arange(ranks)
    pairs = np.unique(np.stack([communicator, rank], axis=1), axis=0)
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    for own in np.split(pairs[:, 1], starts[1:]):
        if own.size < ranks:
            stage[np.isin(stage, stage[own])] = stage[own].min()
    return stage


def _late(spent: FloatArray, peers: IntArray) -> FloatArray:
    late = np.full(spent.shape, np.nan)
    for one in np.unique(peers):
        own = np.flatnonzero(peers == one)
        if own.size < 2:
            continue
        if own.size > MAX_OTHERS:
            late[own] = np.median(spent[own], axis=0) - spent[own]
            continue
        for rank in own.tolist():
            late[rank] = np.median(spent[own[own != rank]], axis=0) - spent[rank]
    return late


def _iteration_s(
    rows: FlowRows,
    collectives: Collectives,
    member_kept: BoolArray,
    rank: IntArray,
    at: IntArray,
    spent: FloatArray,
) -> tuple[FloatArray | None, bool]:
    """Return the time of each iteration, the first without its beginning like the second; and whether measured."""
    ends = np.full(spent.shape, -np.inf)
    np.maximum.at(ends, (rank, at), collectives.member_end_s[member_kept])
    complete = ends[np.isfinite(ends).all(axis=1)]
    if not complete.size or spent.shape[1] < 2:
        return None, False
    if float(rows.is_end_known.mean()) >= MIN_KNOWN_ENDS:
        lengths = np.median(np.diff(complete, axis=1), axis=0)
        return np.concatenate([lengths[:1], lengths]), True
    pace_s = float(np.median(complete[:, -1] - complete[:, 0])) / (spent.shape[1] - 1)
    usual = np.median(spent, axis=0)
    if pace_s < MIN_PACE_RATIO * float(usual.mean()):
        return None, False
    return usual + max(pace_s - float(usual.mean()), 0.0), False
