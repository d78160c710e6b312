"""Hold a window that the job's own history lets pass against its peers, and against time that is no work.

    rank 0   |## work ##|~~ waits ~~|## work ##|~~ waits ~~|      since the first step: history knows nothing else
    rank 1   |######### work #######|######### work #######|

    step     _|_______|_______|_______|_______|_______|____      every so many steps: history has as many

A bad node is bad from the first step, and what comes every so many steps was always there. The reference is then the
median step of the healthiest ranks, without the time in which threads did not get to work (`measures.LOST_STATES`).

Owns which window is asked about, and which findings of it stand: what costs enough, and was no single burst. That a
rank has more to do than its peers, which is said where everything else is excluded, has to be so in most steps since
the job began, among ranks that do the same, and on CPUs that are as fast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rootwalk.graph.align import is_symmetric
from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.columns import FloatArray, JobData, ThreadState
from rootwalk.graph.cpu_speed import slower_than_peers
from rootwalk.graph.detect import MIN_HISTORY_STEPS, cold_steps
from rootwalk.graph.reasons import Reason
from rootwalk.graph.score import ScoredFinding
from rootwalk.graph.spikes import spike_limit_s

__all__ = ["MIN_LOST_RATIO", "ask_peers", "lost_ratio", "since_the_start", "that_stand"]

# Part of a step below which nothing is claimed where there is no onset that shows it.
MIN_LOST_RATIO: Final = 0.05
# Steps in which what comes now and then is looked for: five of one that comes every hundred steps.
MAX_WINDOW_STEPS: Final = 500
# A burst lasts no longer than this part of the window; what remains without the worst such stretch is no burst.
BURST_RATIO: Final = 0.2
MIN_WITHOUT_BURST: Final = 0.5
# What a rank has in three of four steps is this part of its mean at least.
LASTING_QUANTILE: Final = 0.25
MIN_LASTING_RATIO: Final = 0.5
# What comes every so many steps of one rank is its own: so often at least, and so much of the gaps alike.
MIN_OCCASIONS: Final = 4
MIN_REGULAR_RATIO: Final = 0.75
GAP_SLACK_STEPS: Final = 1
# The job's steps are cut into so many parts; in all but one of them the rank has to be behind by half of what it costs.
PARTS: Final = 5
MIN_PARTS: Final = 4
MIN_PART_RATIO: Final = 0.5
# A slower CPU that explains this part of what a rank runs longer is what makes it late, and may pass.
MIN_EXPLAINED: Final = 0.5
# Reasons for which nothing speaks but that everything else is excluded.
_BY_EXCLUSION: Final = frozenset(
    {
        Reason.WORK_IMBALANCE,
        Reason.GLOBAL_SLOW,
        Reason.CPU_FREQ,
        Reason.UNKNOWN_HOST,
        Reason.UNKNOWN_NET,
        Reason.UNKNOWN_GPU,
    }
)
_MESSAGES: Final = frozenset({"send", "recv", "isend", "irecv"})


def lost_ratio(step_s: FloatArray) -> float:
    """Return which part of the time of some steps, (steps,), is what single slow ones took longer than the others."""
    if step_s.size < MIN_HISTORY_STEPS:
        return 0.0
    is_slow = step_s > spike_limit_s(step_s)
    usual_s = float(step_s[~is_slow].mean())
    return float((step_s[is_slow] - usual_s).sum() / step_s.sum())


def ask_peers(clock: StepClock, quiet: Question, *, is_asked: bool) -> Question:
    """Return the question whether ranks of a quiet window differ, or lose time that is no work.

    Args:
        clock: The job's step clock.
        quiet: The window as its history lets it pass.
        is_asked: Whether somebody named its steps; else a longer one is asked about where single steps cost much.
    """
    if is_asked:
        return replace(quiet, history=(), limit_s=None)
    start = max(min(cold_steps(clock.step_s), quiet.stop - 1), quiet.stop - MAX_WINDOW_STEPS)
    is_long = lost_ratio(clock.step_s[start : quiet.stop]) >= MIN_LOST_RATIO
    return replace(
        quiet, start=min(start, quiet.start) if is_long else quiet.start, history=(), limit_s=None
    )


def since_the_start(clock: StepClock, question: Question) -> Question:
    """Return a question whose slowdown has been there since the job ran at all: history would show its onset."""
    return replace(question, onset=min(cold_steps(clock.step_s), question.start))


def that_stand(
    scored: tuple[ScoredFinding, ...],
    analysis: Analysis,
    data: JobData,
    clock: StepClock,
    question: Question,
) -> tuple[ScoredFinding, ...]:
    """Return the findings that stand without an onset.

    Args:
        scored: What the graph supports.
        analysis: The window against its peers.
        data: The job's telemetry.
        clock: The job's step clock.
        question: The window.
    """
    least_s = MIN_LOST_RATIO * analysis.counterfactual.ideal_s

    def stands(one: ScoredFinding) -> bool:
        share_s = one.finding.seconds.share or 0.0
        by_step_s = _by_step(analysis, one)
        if share_s < least_s or _is_burst(by_step_s):
            return False
        if one.finding.reason not in _BY_EXCLUSION:
            return True
        rank = one.finding.subject.rank
        if rank is None:  # a profile shows in every step that nothing was there to compute
            return bool(data.inputs) and one.finding.reason == Reason.UNKNOWN_HOST
        if rank not in _with_peers(data, clock, question):
            return False
        if _is_periodic(by_step_s):
            return True
        if not _is_lasting(by_step_s):
            return False
        return one.finding.reason != Reason.WORK_IMBALANCE or (
            not _is_slower_cpu(data, analysis, rank, share_s)
            and _is_behind_throughout(data, clock, rank, share_s)
        )

    return tuple(one for one in scored if stands(one))


def _by_step(analysis: Analysis, one: ScoredFinding) -> FloatArray:
    """Return the seconds of a finding's cause in each step of the window."""
    window = analysis.window
    column = analysis.amounts.column(analysis.causes[one.cause], window.kind.size)
    steps = np.maximum(window.step, 0)
    return np.bincount(steps, column, len(window.step_numbers)).astype(np.float64)


def _is_burst(by_step_s: FloatArray) -> bool:
    """Return whether most of the seconds lie in one stretch of the window; of few steps nobody can say."""
    if by_step_s.size < MIN_HISTORY_STEPS:
        return False
    length = max(round(by_step_s.size * BURST_RATIO), 1)
    sums = np.concatenate([[0.0], np.cumsum(by_step_s)])
    worst_s = float((sums[length:] - sums[:-length]).max())
    return float(sums[-1]) - worst_s < MIN_WITHOUT_BURST * float(sums[-1])


def _is_lasting(by_step_s: FloatArray) -> bool:
    """Return whether most steps have their part of the seconds."""
    level_s = float(np.quantile(by_step_s, LASTING_QUANTILE))
    return level_s >= MIN_LASTING_RATIO * float(by_step_s.mean())


def _is_periodic(by_step_s: FloatArray) -> bool:
    """Return whether the seconds come in single steps, every so many of them."""
    worst_s = float(by_step_s.max())
    high = np.flatnonzero(by_step_s > worst_s / 2.0)
    rest_s = float(np.delete(by_step_s, high).sum())
    gaps = np.diff(high)
    if high.size < MIN_OCCASIONS or rest_s > MIN_WITHOUT_BURST * float(by_step_s.sum()):
        return False
    usual = float(np.median(gaps))
    regular = np.abs(gaps - usual) <= (GAP_SLACK_STEPS if usual > 2.0 * GAP_SLACK_STEPS else 0)
    return usual > 1.0 and float(regular.mean()) >= MIN_REGULAR_RATIO


def _with_peers(data: JobData, clock: StepClock, question: Question) -> frozenset[int]:
    """Return the ranks that do what some other does: not those that pass on each other's results.

    Stages of a pipeline differ by design. Ranks are of one stage where a communicator without messages joins them, and
    none with messages does.
    """
    steps = clock.numbers[question.start : question.stop]
    rows = data.collectives
    inside = np.flatnonzero(np.isin(rows.step, steps))
    members: dict[int, set[int]] = {}
    has_messages: set[int] = set()
    for row in inside.tolist():
        communicator = int(rows.communicator[row])
        if rows.operation[row] in _MESSAGES:
            has_messages.add(communicator)
        elif not is_symmetric(rows.operation[row]):
            continue
        members.setdefault(communicator, set()).add(int(rows.rank[row]))
    everybody = frozenset(int(rank) for rank in np.unique(data.steps.rank))
    if not has_messages:
        return everybody
    passing = [members[one] for one in has_messages]
    alike = [
        ranks
        for one, ranks in members.items()
        if one not in has_messages and all(len(ranks & others) < 2 for others in passing)
    ]
    return frozenset(rank for ranks in alike if len(ranks) > 1 for rank in ranks)


def _is_slower_cpu(data: JobData, analysis: Analysis, rank: int, share_s: float) -> bool:
    """Return whether a rank runs longer because its CPU is slower than its peers'."""
    window = analysis.window.step_numbers
    slowdown = slower_than_peers(data.probes, rank, sorted(analysis.window.lane_end), window)
    mine = (data.steps.rank == rank) & np.isin(data.steps.step, window)
    running_s = float(np.nan_to_num(data.steps.states[mine, ThreadState.RUNNING]).mean())
    return running_s * slowdown / (1.0 + slowdown) >= MIN_EXPLAINED * share_s


def _is_behind_throughout(data: JobData, clock: StepClock, rank: int, share_s: float) -> bool:
    """Return whether a rank worked longer than its peers in nearly every part of the job; yes where nobody measured.

    A machine lends a core less for some seconds at a time. What a rank does longer than the fastest of its peers for as
    long as the job runs is its own.
    """
    numbers = np.array(clock.numbers[cold_steps(clock.step_s) :], dtype=np.int64)
    steps = data.steps
    running_s = steps.states[:, ThreadState.RUNNING]
    if np.isnan(running_s[steps.rank == rank]).any():
        return True
    behind = 0
    parts = min(PARTS, numbers.size)
    for part in np.array_split(numbers, max(parts, 1)):
        inside = np.isin(steps.step, part) & ~np.isnan(running_s)
        level_s = {
            int(one): float(np.median(running_s[inside & (steps.rank == one)]))
            for one in np.unique(steps.rank[inside])
        }
        others = [level for one, level in level_s.items() if one != rank]
        if others and level_s.get(rank, 0.0) - min(others) >= MIN_PART_RATIO * share_s:
            behind += 1
    return behind >= min(MIN_PARTS, parts)
