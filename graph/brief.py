"""A short slowdown that is over: what is told by exclusion alone does not stand.

    step time   _______|^^^^|________     cost less than ten healthy steps, and is gone
                       11 steps

    rank 1   ________######    its CPU is slower, since 4 s: as brief, or about to stay

That a rank ran longer with nobody in its way is more work in a fault that stays, or that cost much. In a burst it may
as well be what no sensor sees: another guest of the machine that takes memory bandwidth, say. A CPU that was slower for
a moment is what such a guest does to it, and nobody can do anything about: before it has been so for longer than guests
make it no rank is named for it, so a clock that stays low is told a little later. Nor does what was seen stand where
that explains less than half of the slow stretch. Whoever names a stretch of steps gets the likeliest cause all the
same.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.analysis import Question, StepClock
from rootwalk.graph.columns import JobData, ThreadState
from rootwalk.graph.cpu_speed import probe_times
from rootwalk.graph.model import Finding
from rootwalk.graph.reasons import Reason
from rootwalk.graph.score import ScoredFinding
from rootwalk.graph.spikes import BURST_COST_STEPS

__all__ = ["without_guesses"]

# What was seen has to explain so much of such a burst: a rank that runs longer is in more of its neighbours' way, too.
MIN_TOLD_RATIO = 0.5
# Reasons that nothing speaks for but that everything else is excluded, and what passes by itself.
_FLEETING = frozenset(
    {
        Reason.CPU_FREQ,
        Reason.WORK_IMBALANCE,
        Reason.GLOBAL_SLOW,
        Reason.UNKNOWN_HOST,
        Reason.UNKNOWN_NET,
        Reason.UNKNOWN_GPU,
    }
)
# On a virtual machine of two CPUs one ran a third slower than at its best 2,891 times in 7.2 hours of CPUs: 466 times
# for 4 s and more, 61 for 10 s, 2 for 20 s.
LASTING_S = 20.0
# What a slower CPU costs explains this part of what its rank loses.
MIN_EXPLAINED = 0.5


def without_guesses(
    scored: tuple[ScoredFinding, ...], data: JobData, clock: StepClock, question: Question
) -> tuple[ScoredFinding, ...]:
    """Return the findings that stand in a slow stretch: of one that is brief and over those that more speaks for.

    Args:
        scored: What the graph supports.
        data: The job's telemetry.
        clock: The job's step clock.
        question: The stretch; nobody named it.
    """
    if not question.history:
        return scored
    healthy_s = float(np.median(clock.step_s[list(question.history)]))
    lost_s = clock.step_s[question.start : question.stop] - healthy_s
    if not question.is_open and float(lost_s.sum()) < BURST_COST_STEPS * healthy_s:
        seen = tuple(one for one in scored if one.finding.reason not in _FLEETING)
    else:
        seen = _without_passing(scored, data, clock, question)
        if len(seen) == len(scored):
            return scored
    told_s = sum(one.finding.seconds.share or 0.0 for one in seen)
    return seen if told_s >= MIN_TOLD_RATIO * float(lost_s.mean()) else ()


def _without_passing(
    scored: tuple[ScoredFinding, ...], data: JobData, clock: StepClock, question: Question
) -> tuple[ScoredFinding, ...]:
    """Return the findings but for those of ranks whose CPUs are slower, and have not been for long."""
    onset = question.start if question.onset is None else question.onset
    if float(clock.end_s[question.stop - 1] - clock.start_s[onset]) >= LASTING_S:
        return scored
    history = [clock.numbers[i] for i in question.history]
    window = clock.numbers[question.start : question.stop]

    def is_passing(finding: Finding) -> bool:
        rank = finding.subject.rank
        if rank is None or finding.reason not in _FLEETING:
            return False
        times = probe_times(data.probes, rank, history, window)
        slowdown = 0.0 if times is None else times.slowdown
        mine = (data.steps.rank == rank) & np.isin(data.steps.step, list(window))
        if slowdown <= 0.0 or not mine.any():
            return False
        running_s = float(data.steps.states[mine, ThreadState.RUNNING].mean())
        slower_s = running_s * slowdown / (1.0 + slowdown)
        return slower_s >= MIN_EXPLAINED * (finding.seconds.share or 0.0)

    return tuple(one for one in scored if not is_passing(one.finding))
