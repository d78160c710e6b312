"""Communication records of one job as arrays: who was in which operation for how long; and the collectives they are of.

Owns which collectives can be judged: those of which every member has one record with a duration. The member that comes
last finds all others there, so that its part is the transfer, and what others take longer is their wait for it.

Source:
    Method C2, straggler inversion for data that has durations only: wait(m) = duration(m) - min over m of duration(m).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray

__all__ = ["Collectives", "FlowRows", "join_members"]


@dataclass(frozen=True, slots=True)
class FlowRows:
    """One row per rank and operation; times are seconds since `origin_unix_ns` on the hosts' own clocks.

    `communicator` numbers `communicators`, all functions of one together; `series` numbers what counts its calls by
    itself, of which `sequence` is the number. `duration_s` is NaN where only the call is known. `end_s` is no earlier
    than the end, and is the end where `is_end_known`. `peer` is the other rank of a message, -1 where nobody says.
    """

    rank: IntArray
    communicator: IntArray
    series: IntArray
    sequence: IntArray
    operation: IntArray
    size: IntArray
    size_bytes: IntArray
    duration_s: FloatArray
    end_s: FloatArray
    is_end_known: BoolArray
    is_message: BoolArray
    peer: IntArray
    operations: tuple[str, ...]
    communicators: tuple[str, ...]
    origin_unix_ns: int


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives that can be judged, in the order of their ends: arrays over them, and over their members.

    `volume` numbers what is comparable: operation, bytes, number of members. `transfer_s` is the shortest part,
    `wait_s` the mean of what the others took longer, `last` the rank that came last. `member_of` is the collective of
    each member row. `unequal` and `doubled` count those left out: a member's record or its duration is missing, or
    there are several.
    """

    communicator: IntArray
    volume: IntArray
    end_s: FloatArray
    transfer_s: FloatArray
    wait_s: FloatArray
    last: IntArray
    member_of: IntArray
    member_rank: IntArray
    member_s: FloatArray
    member_end_s: FloatArray
    unequal: int
    doubled: int


def _held_by_all(series: IntArray, sequence: IntArray, rank: IntArray) -> BoolArray:
    """Return which rows are not from before a member's records begin: a ring holds only the last ones of its rank."""
    if not series.size:
        return np.zeros(0, dtype=np.bool_)
    members, member = np.unique(np.stack([series, rank], axis=1), axis=0, return_inverse=True)
    first = np.full(len(members), np.iinfo(np.int64).max)
    np.minimum.at(first, member.reshape(-1), sequence)
    begin = np.zeros(int(series.max()) + 1, dtype=np.int64)
    np.maximum.at(begin, members[:, 0], first)
    return np.asarray(sequence >= begin[series])


def join_members(rows: FlowRows) -> Collectives:
    """Return the collectives of some records; messages are none."""
    chosen = np.flatnonzero(~rows.is_message & (rows.size > 1))
    order = np.lexsort((rows.rank[chosen], rows.sequence[chosen], rows.series[chosen]))
    chosen = chosen[order]
    series, sequence, rank = rows.series[chosen], rows.sequence[chosen], rows.rank[chosen]
    held = _held_by_all(series, sequence, rank)
    chosen, series, sequence, rank = chosen[held], series[held], sequence[held], rank[held]
    is_new = np.ones(chosen.size, dtype=np.bool_)
    is_new[1:] = (np.diff(series) != 0) | (np.diff(sequence) != 0)
    group = np.cumsum(is_new) - 1
    first = np.flatnonzero(is_new)
    if not first.size:
        nothing, none = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Collectives(
            *(nothing, nothing, none, none, none, nothing, nothing, nothing, none, none, 0, 0)
        )
    twice = np.zeros(chosen.size, dtype=np.bool_)
    twice[1:] = ~is_new[1:] & (np.diff(rank) == 0)
    is_doubled = np.bincount(group, twice) > 0
    is_known = np.isfinite(rows.duration_s[chosen])
    count = np.bincount(group)
    # A rank of which there is no record at all is in no collective: the others can be compared all the same.
    there = np.unique(np.stack([series, rank], axis=1), axis=0)[:, 0]
    present = np.bincount(there, minlength=int(series.max()) + 1)[series[first]]
    size = np.minimum(rows.size[chosen][first], np.maximum(present, 2))
    is_whole = (count == size) & (np.bincount(group, is_known) == count) & ~is_doubled
    # What is kept, renumbered by its end.
    kept = is_whole[group]
    chosen, rank, group = chosen[kept], rank[kept], group[kept]
    _, group = np.unique(group, return_inverse=True)
    whole = int(is_whole.sum())
    end_s = np.full(whole, -np.inf)
    np.maximum.at(end_s, group, rows.end_s[chosen])
    place = np.empty(whole, dtype=np.int64)
    place[np.argsort(end_s, kind="stable")] = np.arange(whole)
    group = place[group]
    by_group = np.argsort(group, kind="stable")
    chosen, rank, group = chosen[by_group], rank[by_group], group[by_group]
    duration_s = rows.duration_s[chosen]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    transfer_s = np.minimum.reduceat(duration_s, starts) if whole else np.zeros(0)
    shortest = np.lexsort((duration_s, group))
    last = rank[shortest[starts]] if whole else np.zeros(0, dtype=np.int64)
    total_s = np.bincount(group, duration_s, whole)
    members = np.bincount(group, minlength=whole)
    head = chosen[starts] if whole else chosen
    kinds = np.stack([rows.operation[head], rows.size_bytes[head], rows.size[head]], axis=1)
    _, volume = np.unique(kinds, axis=0, return_inverse=True)
    return Collectives(
        communicator=rows.communicator[head],
        volume=volume.reshape(-1).astype(np.int64),
        end_s=np.sort(end_s),
        transfer_s=transfer_s,
        wait_s=(total_s - members * transfer_s) / np.maximum(members - 1, 1),
        last=last,
        member_of=group.astype(np.int64),
        member_rank=rank,
        member_s=duration_s,
        member_end_s=rows.end_s[chosen],
        unequal=int((~is_whole & ~is_doubled).sum()),
        doubled=int(is_doubled.sum()),
    )
