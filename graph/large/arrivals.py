"""When every rank came to every collective: what tells in a job of thousands of ranks whom the others waited for.

    rank 0  |.......[~~~~~~~~]        a member's lateness is how long after the mean of its group it came;
    rank 1  |...............[]        rank 1 is late here, and late in no other job of these two

Owns lateness and the choice of the ranks whose records are read. Pure: a few columns of all ranks in, numbers out.

Source:
    Method C4 and C12: the walk needs the raw operations of the groups that it visits, and representatives of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray, StepRows, ThreadState

__all__ = [
    "Arrivals",
    "choose_ranks",
    "lateness_s",
    "own_excess_s",
    "unread_wait_s",
    "waits_for",
]

# So many of the ranks that were late or busy longer than before are read.
SUSPECTS: Final = 4
# So many are read whatever they did: to compare with, and to see what all have in common.
REPRESENTATIVES: Final = 4
MIN_CHOSEN: Final = 8
COMMUNICATORS_AT_ONCE: Final = 4
# Knuth's multiplicative hash: ranks in an order that no layout repeats.
_SCATTER: Final = 2_654_435_761


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row per rank and collective: `group` is the same number on all members, `start_s` on the aligned clock."""

    rank: IntArray
    step: IntArray
    group: IntArray
    communicator: IntArray
    size: IntArray
    start_s: FloatArray

    def lacking(self) -> tuple[IntArray, int]:
        """Return the groups that lack a member's record, and how many groups there are."""
        if not self.group.size:
            return np.zeros(0, dtype=np.int64), 0
        present = np.bincount(self.group)
        is_known = self.size > 0
        lacks = np.unique(self.group[is_known & (present[self.group] != self.size)])
        return lacks, int(np.count_nonzero(present))


def lateness_s(arrivals: Arrivals, steps: IntArray, rank_count: int) -> FloatArray:
    """Return how long after the mean of its groups each rank came per step, (ranks,), seconds, at least 0.

    Args:
        arrivals: Of all ranks.
        steps: Numbers of the steps that count.
        rank_count: One more than the largest rank.
    """
    chosen = np.isin(arrivals.step, steps)
    group, start_s = arrivals.group[chosen], arrivals.start_s[chosen]
    if not group.size:
        return np.zeros(rank_count)
    present = np.bincount(group)
    mean_s = np.bincount(group, start_s) / np.maximum(present, 1)
    late_s = np.maximum(start_s - mean_s[group], 0.0)
    total_s = np.bincount(arrivals.rank[chosen], late_s, rank_count)
    return np.asarray(total_s / max(steps.size, 1), dtype=np.float64)


def own_excess_s(
    steps: StepRows, history: IntArray, window: IntArray, rank_count: int
) -> FloatArray:
    """Return how much longer than before each rank's main thread was busy or held up, (ranks,), seconds per step.

    What it was blocked in without a known reason does not count: that is where the victims wait. Without a history
    the ranks are compared with each other.

    Args:
        steps: Of all ranks.
        history: Numbers of the healthy steps, may be empty.
        window: Numbers of the steps in question.
        rank_count: One more than the largest rank.
    """
    others = [state for state in ThreadState if state is not ThreadState.BLOCKED]
    busy_s = np.nan_to_num(steps.states[:, others]).sum(axis=1)

    def mean_of(numbers: IntArray) -> FloatArray:
        chosen = np.isin(steps.step, numbers)
        total_s = np.bincount(steps.rank[chosen], busy_s[chosen], rank_count)
        count = np.bincount(steps.rank[chosen], minlength=rank_count)
        return np.asarray(total_s / np.maximum(count, 1), dtype=np.float64)

    now_s = mean_of(window)
    return now_s - (mean_of(history) if history.size else np.median(now_s))


def choose_ranks(
    suspicion_s: FloatArray,
    before: Arrivals,
    now: Arrivals,
    wanted: IntArray,
    always: list[int],
    count: int,
    growth_s: float,
) -> IntArray:
    """Return the ranks whose records are read, in order: suspects, representatives, and whom those waited for.

    Args:
        suspicion_s: By rank, (ranks,); the largest are suspects.
        before: Arrivals of all ranks in healthy steps, may be empty.
        now: Arrivals of all ranks in steps in question.
        wanted: Ranks that have records, in order.
        always: Ranks that are read whatever they did.
        count: How many at most.
        growth_s: A wait that changed by less per step in all collectives of a communicator does not matter.
    """
    ordered = wanted[np.lexsort((wanted, -suspicion_s[wanted].round(6)))]
    scattered = wanted[np.argsort(wanted * _SCATTER % (1 << 32), kind="stable")]
    chosen = dict.fromkeys(always)
    chosen |= dict.fromkeys(ordered[:SUSPECTS].tolist())
    chosen |= dict.fromkeys(scattered[:REPRESENTATIVES].tolist())
    while len(chosen) < count:
        found = _waited_for(before, now, np.array(list(chosen)), growth_s)
        new = [rank for rank in found.tolist() if rank not in chosen]
        if not new:
            break
        chosen |= dict.fromkeys(new[: count - len(chosen)])
    for rank in scattered.tolist():
        if len(chosen) >= min(count, REPRESENTATIVES + MIN_CHOSEN):
            break
        chosen[rank] = None
    return np.array(sorted(chosen), dtype=np.int64)


def _waited_for(before: Arrivals, now: Arrivals, chosen: IntArray, growth_s: float) -> IntArray:
    """Return which unread ranks came last where those that are read waited longer or less than before.

    One rank for each of the few communicators in which the time changed most: where it grew, somebody who is late now;
    where it shrank, somebody for whom they would wait again without the cause.
    """
    grown_s, last_ranks = _growth(before, now, chosen)
    order = np.argsort(-np.abs(grown_s).round(6), kind="stable")[:COMMUNICATORS_AT_ONCE]
    order = order[np.abs(grown_s[order]) > growth_s]
    return np.unique(last_ranks[(grown_s[order] > 0.0).astype(np.int64), order])


def unread_wait_s(before: Arrivals, now: Arrivals, chosen: IntArray, growth_s: float) -> float:
    """Return how much longer than before the chosen ranks wait per step for ranks that are not read, seconds.

    0 where `choose_ranks` came to its end; what is left where it came to its bound instead. A wait for a rank that is
    not read looks like a slow transfer.

    Args:
        before: Arrivals of all ranks in healthy steps, may be empty.
        now: Arrivals of all ranks in steps in question.
        chosen: The ranks that are read.
        growth_s: Of a communicator, less than this does not matter.
    """
    grown_s, _ = _growth(before, now, chosen)
    return float(grown_s[grown_s > growth_s].sum())


def _growth(before: Arrivals, now: Arrivals, chosen: IntArray) -> tuple[FloatArray, IntArray]:
    """Return by communicator how much longer than before its chosen members wait for others per step, (communicators,).

    And who came last in the longest of these waits, (2, communicators): before, and now; -1 for nobody.
    """
    ranks = [arrivals.rank.max(initial=0) for arrivals in (before, now)]
    is_chosen = np.zeros(int(max(*ranks, chosen.max())) + 1, dtype=np.bool_)
    is_chosen[chosen] = True
    numbers = [arrivals.communicator.max(initial=-1) for arrivals in (before, now)]
    shape = (2, int(max(numbers)) + 1)
    waited_s, last_ranks = np.zeros(shape), np.full(shape, -1, dtype=np.int64)
    for side, arrivals in enumerate((before, now)):
        gap_s, communicator, last = _gaps(arrivals, is_chosen)
        steps = np.unique(arrivals.step).size
        waited_s[side] = np.bincount(communicator, gap_s, shape[1]) / max(steps, 1)
        order = np.lexsort((last, gap_s.round(9), communicator))
        last_ranks[side, communicator[order]] = last[order]
    return waited_s[1] - waited_s[0], last_ranks


def _gaps(arrivals: Arrivals, is_chosen: BoolArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Return how long the chosen of each group waited for one that is not, with communicator and that one."""
    mine = is_chosen[arrivals.rank]
    touched = np.zeros(int(arrivals.group.max(initial=-1)) + 1, dtype=np.bool_)
    touched[arrivals.group[mine]] = True
    rows = np.flatnonzero(touched[arrivals.group])
    _, group = np.unique(arrivals.group[rows], return_inverse=True)
    start_s, chosen = arrivals.start_s[rows], mine[rows]
    order = np.lexsort((arrivals.rank[rows], start_s, group))
    last = order[np.flatnonzero(np.diff(group[order], append=-1))]
    own_s = np.full(last.size, -np.inf)
    np.maximum.at(own_s, group[chosen], start_s[chosen])
    gap_s = np.where(chosen[last], 0.0, start_s[last] - own_s)
    return gap_s, arrivals.communicator[rows][last], arrivals.rank[rows][last]


def waits_for(arrivals: Arrivals, culprit: int, steps: IntArray) -> dict[int, FloatArray]:
    """Return how long each rank waited for one that came last, (steps,) seconds by rank."""
    mine = arrivals.group[arrivals.rank == culprit]
    rows: BoolArray = np.isin(arrivals.group, mine) & np.isin(arrivals.step, steps)
    group, start_s, rank = arrivals.group[rows], arrivals.start_s[rows], arrivals.rank[rows]
    last_s = np.full(int(group.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(last_s, group, start_s)
    own_s = np.full(last_s.size, np.inf)
    of_culprit = rank == culprit
    np.minimum.at(own_s, group[of_culprit], start_s[of_culprit])
    is_last = own_s >= last_s
    waited_s = np.where(is_last[group], last_s[group] - start_s, 0.0)
    result: dict[int, FloatArray] = {}
    numbers, position = np.unique(rank, return_inverse=True)
    column = np.searchsorted(steps, arrivals.step[rows])
    total_s = np.zeros((numbers.size, steps.size))
    np.add.at(total_s, (position, column), waited_s)
    for index, number in enumerate(numbers.tolist()):
        if number != culprit and total_s[index].any():
            result[number] = total_s[index]
    return result
