"""A short slowdown that is over: what is told by exclusion alone does not stand.

    step time   _______|^^^^|________     cost less than ten healthy steps, and is gone
                       11 steps

That a rank ran longer with nobody in its way is more work in a fault that stays, or that cost much. In a burst it may
as well be what no sensor sees: another guest of the machine that takes memory bandwidth, say. A CPU that was slower for
a moment is what such a guest does to it, and nobody can do anything about. Nor does what was seen stand where that
explains less than half of it. Whoever names a stretch of steps gets the likeliest cause all the same.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.analysis import Question, StepClock
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


def without_guesses(
    scored: tuple[ScoredFinding, ...], clock: StepClock, question: Question
) -> tuple[ScoredFinding, ...]:
    """Return the findings that stand in a slow stretch: of one that is brief and over those that more speaks for.

    Args:
        scored: What the graph supports.
        clock: The job's step clock.
        question: The stretch; nobody named it.
    """
    if question.is_open or not question.history:
        return scored
    healthy_s = float(np.median(clock.step_s[list(question.history)]))
    lost_s = clock.step_s[question.start : question.stop] - healthy_s
    if float(lost_s.sum()) >= BURST_COST_STEPS * healthy_s:
        return scored
    seen = tuple(one for one in scored if one.finding.reason not in _FLEETING)
    told_s = sum(one.finding.seconds.share or 0.0 for one in seen)
    return seen if told_s >= MIN_TOLD_RATIO * float(lost_s.mean()) else ()
