"""Choose the ranks of a large job whose records are read, and make what was read of them a job of its own.

The composition of `arrivals` (who was late) and `store` (a few columns of all ranks). A small job is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph.analysis import Analysis
from rootwalk.graph.columns import CollectiveRows, IntArray, JobData, StepRows, steps_of_ranks
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.large.arrivals import (
    Arrivals,
    choose_ranks,
    lateness_s,
    own_excess_s,
    unread_wait_s,
    waits_for,
)
from rootwalk.graph.large.store import read_arrivals, read_offsets_ns, read_step_size, thinned
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.score import ScoredFinding
from rootwalk.graph.walk import Waits

__all__ = ["Selection", "only_chosen", "select_ranks", "with_all_victims"]

# A job with no more records than this in the steps in question is read whole; one with more as far as it goes.
MAX_RECORDS: Final = 60_000
# However many records a rank has, so many ranks are read: suspects, those beside them, and others to compare with.
MIN_RANKS: Final = 12
# Whom the chosen ranks waited for is found in so many steps of the window, and as many healthy ones.
CLOSURE_STEPS: Final = 3
# Waits that changed by less than this part of the slowdown may be answered for by whoever was read: no cause that costs
# less than a tenth is listed.
MIN_GROWTH_RATIO: Final = 0.03
# More ranks than are needed for a cause that all others wait for: then many causes are at work.
MAX_RANKS: Final = 64
# More ranks than any job has: a larger number is nobody's rank, and no array has a place for it.
MAX_RANK: Final = 1 << 24
# The layer of causes that are told from transfers.
_NETWORK: Final = "network"


@dataclass(frozen=True, slots=True)
class Selection:
    """The ranks whose records are read, (chosen,), of so many, and when all ranks came to the window's collectives.

    `unread_s` is how much longer than before they wait per step for ranks that are not among them.
    """

    ranks: IntArray
    rank_count: int
    arrivals: Arrivals
    steps: IntArray
    unread_s: float = 0.0

    def quality(self) -> tuple[DataQuality, ...]:
        """Return what the verdict has to say of it."""
        read = self.ranks.size
        text = (
            f"records of {read} of {self.rank_count} ranks were read: the latest and busiest, their groups, and others"
            " to compare with"
        )
        if self.unread_s:
            text += f"; they wait {self.unread_s:.3f} s a step for ranks that were not read"
        items = [DataQuality(QualityCode.RANKS_CHOSEN, text, read)]
        lacking, groups = self.arrivals.lacking()
        if lacking.size:
            # The verdict holds the number against the collectives that were read.
            own = self.arrivals.group[np.isin(self.arrivals.rank, self.ranks)]
            told = f"{lacking.size} of {groups} collectives lack a member's record"
            count = int(np.isin(lacking, own).sum())
            items.append(DataQuality(QualityCode.UNEQUAL_MEMBERS, told, count))
        return tuple(items)

    def without_waits(self, scored: tuple[ScoredFinding, ...]) -> tuple[ScoredFinding, ...]:
        """Return findings without slow transfers that may be waits for ranks that were not read."""
        return tuple(
            one
            for one in scored
            if one.finding.layer != _NETWORK or (one.finding.seconds.share or 0.0) > self.unread_s
        )


def select_ranks(
    connection: Any,
    key: JobKey,
    data: JobData,
    history: IntArray,
    window: IntArray,
    slowdown_s: float,
    offset_s_by_rank: dict[int, float],
) -> Selection | None:
    """Return which ranks to read; None for a job that is small enough to be read whole.

    Args:
        connection: To the store.
        key: The job.
        data: Its ranks and steps, on the aligned clock.
        history: Numbers of the healthy steps, may be empty.
        window: Numbers of the steps in question.
        slowdown_s: How much longer than before its steps are; without a history, how long.
        offset_s_by_rank: Of the ranks' clocks.
    """
    ranks = np.unique(data.steps.rank)
    if ranks.size <= MIN_RANKS or not window.size or int(ranks[-1]) >= MAX_RANK or ranks[0] < 0:
        return None
    size = read_step_size(connection, key, int(window[-1]))
    steps = int(window[-1]) - int(min(history.min(initial=window[0]), window[0])) + 1
    if size.spans * steps <= MAX_RECORDS:
        return None
    count = max(MAX_RECORDS * ranks.size // (size.spans * steps), MIN_RANKS)
    if count >= ranks.size:
        return None
    rank_count = int(ranks[-1]) + 1
    stored_ns = read_offsets_ns(connection, key)
    offset_ns = np.zeros(rank_count, dtype=np.int64)
    for row in data.ranks:
        if 0 <= row.rank < rank_count:
            shift_ns = round(offset_s_by_rank.get(row.rank, 0.0) * 1e9)
            offset_ns[row.rank] = shift_ns - stored_ns.get(row.host_id, 0)
    now, before = thinned(window, 2 * size.collectives), thinned(history, 2 * size.collectives)
    now, before = now[-max(now.size, 1) :], before[-max(now.size, 1) :]
    arrivals = read_arrivals(
        connection, key, data.origin_unix_ns, np.concatenate([before, now]), offset_ns
    )
    suspicion_s = own_excess_s(data.steps, history, window, rank_count)
    suspicion_s += lateness_s(arrivals, now, rank_count)
    suspicion_s -= lateness_s(arrivals, before, rank_count)
    last = _last_to_finish(data.steps, int(window[-1]))
    in_question = _of_steps(arrivals, now)
    healthy = _of_steps(arrivals, before[-CLOSURE_STEPS:])
    slow = _of_steps(arrivals, now[-CLOSURE_STEPS:])
    growth_s = MIN_GROWTH_RATIO * max(slowdown_s, 0.0)
    most = min(max(count, MAX_RANKS), ranks.size)
    chosen = choose_ranks(suspicion_s, healthy, slow, ranks, [last], most, growth_s)
    unread_s = unread_wait_s(healthy, slow, chosen, growth_s)
    return Selection(chosen, ranks.size, in_question, now, unread_s)


def _last_to_finish(steps: StepRows, number: int) -> int:
    rows = np.flatnonzero(steps.step == number)
    return int(steps.rank[rows[np.argmax(steps.end_s[rows])]])


def _of_steps(arrivals: Arrivals, steps: IntArray) -> Arrivals:
    rows = np.isin(arrivals.step, steps)
    _, group = np.unique(arrivals.group[rows], return_inverse=True)
    return Arrivals(
        rank=arrivals.rank[rows],
        step=arrivals.step[rows],
        group=group.astype(np.int64),
        communicator=arrivals.communicator[rows],
        size=arrivals.size[rows],
        start_s=arrivals.start_s[rows],
    )


def only_chosen(data: JobData, selection: Selection) -> JobData:
    """Return the job as if it had the chosen ranks alone: their steps, and groups of those who were read."""
    chosen = steps_of_ranks(data.steps, selection.ranks)
    return replace(data, steps=chosen, collectives=_of_read_members(data.collectives))


def _of_read_members(rows: CollectiveRows) -> CollectiveRows:
    """Return collectives as large as what was read of them; who is missing from all was counted before."""
    if not rows.group.size:
        return rows
    return replace(rows, size=np.bincount(rows.group)[rows.group].astype(np.int64))


def with_all_victims(analysis: Analysis, selection: Selection) -> Analysis:
    """Return the analysis with the waits of ranks that were not read: they came first, and a culprit last."""
    waits, numbers = analysis.waits, np.array(analysis.window.step_numbers)
    series = dict(waits.series)
    read = set(selection.ranks.tolist())
    position = np.searchsorted(numbers, selection.steps)
    # Where only the last steps were looked at, the others were like them.
    scale = numbers.size / max(selection.steps.size, 1)
    for culprit in sorted({key.rank for key in analysis.causes if key.rank is not None}):
        for victim, waited_s in waits_for(selection.arrivals, culprit, selection.steps).items():
            if victim not in read:
                whole = np.zeros(numbers.size)
                whole[position] = waited_s * scale
                series[victim, culprit] = whole
    return replace(analysis, waits=Waits(series, waits.heaviest))
