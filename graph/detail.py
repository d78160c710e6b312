"""Which steps of a slow window were told whole: an agent that costs too much tells less of the later ones.

    step         40 ... 60 | 61 ... 69
    collectives  | | | | | |                 from 61 on a rank's waits for the others look like its own
    waits        | | | |                     and from 55 on nobody knows when they ended
    window       [________]

A window of which some steps were told whole is judged by these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rootwalk.graph.analysis import Question, StepClock
from rootwalk.graph.columns import JobData
from rootwalk.graph.detect import MEDIAN_STEPS

__all__ = ["told_whole"]


def told_whole(data: JobData, clock: StepClock, question: Question) -> Question:
    """Return the question without the last steps of which a rank told less than of those before.

    That is no collective at all, or not what its thread waited for.

    Args:
        data: Telemetry of history and window.
        clock: The job's step clock.
        question: Which steps. It stays as it is where fewer than five of them would be left.
    """
    window = np.array(clock.numbers[question.start : question.stop])
    history = [clock.numbers[position] for position in question.history]
    if not history:
        return question
    rows, steps = data.collectives, data.steps
    tells_waits = ~np.isnan(steps.told_wait_s)
    stop = window.size
    for rank in np.unique(steps.rank).tolist():
        for told in (rows.step[rows.rank == rank], steps.step[(steps.rank == rank) & tells_waits]):
            if np.isin(history, told).all():
                whole = np.flatnonzero(np.isin(window, told))
                stop = min(stop, int(whole[-1]) + 1 if whole.size else 0)
    if not MEDIAN_STEPS <= stop < window.size:
        return question
    return replace(question, stop=question.start + stop)
