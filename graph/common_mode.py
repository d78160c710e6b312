"""Tell a slowdown of the job from one of its machines: what all ranks lose alike counts when it lasts.

    step time   ____|^^^|_______________       every rank runs longer for a while: a neighbour of the virtual machine,
                  seconds                      a clock that falls, memory that others use
    step time   ____|^^^^^^^^^^^^^^^^^^^       a new release, a power limit: it stays
                  more than a minute

A history of fifty steps knows nothing of what comes every few minutes, so it cannot say that such a stretch is unusual.
What one rank or one process did is another matter: its peers are the comparison, and a few steps say enough.

Source:
    Measured on a shared virtual machine: within a day the same healthy job took 0.19 to 0.30 s a step.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.columns import JobData
from rootwalk.graph.detect import MIN_HISTORY_STEPS, MIN_RATIO
from rootwalk.graph.reasons import Reason

__all__ = ["is_passing", "shared_s"]

# What all ranks have alike is named when it has lasted for so long and for so many steps.
MIN_LASTING_S = 60.0
MIN_LASTING_STEPS = MIN_HISTORY_STEPS


def is_passing(
    data: JobData, clock: StepClock, question: Question, analysis: Analysis, onset: int
) -> bool:
    """Return whether a slow window is nothing but what all ranks have alike, and has not lasted yet.

    Args:
        data: Telemetry on the aligned clock.
        clock: The job's step clock.
        question: The window, with a history.
        analysis: What it costs.
        onset: Position of the first slow step; the window may hold the last ones only.
    """
    lasted_s = float(clock.end_s[question.stop - 1] - clock.start_s[onset])
    if lasted_s >= MIN_LASTING_S and question.stop - onset >= MIN_LASTING_STEPS:
        return False
    step_s = clock.step_s
    healthy_s = float(np.median(step_s[list(question.history)]))
    window_s = float(step_s[question.start : question.stop].mean())
    common_s = shared_s(data, analysis)
    return common_s > 0.0 and window_s - common_s <= MIN_RATIO * healthy_s


def shared_s(data: JobData, analysis: Analysis) -> float:
    """Return the seconds of a step that no rank and no process is to blame for.

    On one host the transfers are its own doing too: they are copies in its memory.
    """
    reasons = {Reason.GLOBAL_SLOW}
    if len({row.host_id for row in data.ranks}) < 2:
        reasons.add(Reason.UNKNOWN_NET)
    shares = zip(analysis.causes, analysis.counterfactual.share, strict=False)
    return sum(share for key, share in shares if key.reason in reasons and key.rank is None)
