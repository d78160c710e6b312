"""What a near miss costs its job: it is switched off and on again, a few steps at a time, and neighbours are compared.

    steps      0 ......... 60 ......... 90   95   100  105  110 ...  190
    near miss  not yet      there        off  on   off  on   off

A machine that is faster now and slower then takes the same of blocks that lie beside each other. On two threads of one
core, spans of 60 steps of healthy jobs differed by 6.5 % (standard deviation over 100 runs of 28 November 2026), which
is more than the 5 % that a near miss may not cost; what is found here varies by half of that (`added` in the results).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gauntlet.case import CanPause, Case, Disturbance
from gauntlet.step_logs import read_seconds
from gauntlet.workloads import HEALTHY_SHARE
from rootwalk.instrumentation.errors import RootwalkError

# So many steps are before the onset, but for what these take of all: with the near miss, and switched off and on.
STEADY_STEPS, ALTERNATING_STEPS = 30, 100
# A job has so many at least, so that there is something before them.
LEAST_STEPS = 190
# Of a block, beside the step in which it is switched.
BLOCK_STEPS = 4
# Of blocks with one on each side; fewer say too little.
LEAST_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Schedule:
    """When what is done to a job, counted in its steps.

    Attributes:
        steps: Of the whole job.
        onset: The disturbance begins after so many.
        alternates: It is switched off and on after so many; None where it stays.
    """

    steps: int
    onset: int
    alternates: int | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """One time that it was switched.

    Attributes:
        is_on: Whether it was there afterwards.
        before: Steps that were done just before.
        after: Steps that were done when it was over: the next one had begun already.
    """

    is_on: bool
    before: int
    after: int


def plan(case: Case, disturbance: Disturbance | None) -> Schedule:
    """Return when what is done to the job of a case."""
    steps = case.workload.steps
    if not case.costs_nothing or not isinstance(disturbance, CanPause):
        return Schedule(steps, int(steps * HEALTHY_SHARE))
    steps = max(steps, LEAST_STEPS)
    alternates = steps - ALTERNATING_STEPS
    return Schedule(steps, alternates - STEADY_STEPS, alternates)


def is_block_over(done: int, switches: Sequence[Switch]) -> bool:
    """Whether it is time to switch again, once so many steps are done."""
    return not switches or done > switches[-1].after + BLOCK_STEPS


def find_cost(logs: Path, switches: Sequence[Switch]) -> float:
    """Return how much longer steps with it took than those beside them without it, as a part, on the rank of the most.

    Of each block the mean step, of all blocks the middle difference: what costs something costs it in every block.

    Args:
        logs: Folder of the ranks' own step logs.
        switches: In order.

    Raises:
        RootwalkError: If there are too few blocks.
    """
    return max(compare_blocks(read_seconds(path), switches) for path in logs.glob("rank*.jsonl"))


def compare_blocks(step_s: Sequence[float], switches: Sequence[Switch]) -> float:
    """Return the middle difference between a block and those on both sides of it, with less without, as a part.

    Args:
        step_s: What each step of a rank took, s.
        switches: In order; steps in which it was switched are in no block.

    Raises:
        RootwalkError: If there are too few blocks.
    """
    # The last one may have ended with the job.
    blocks = [
        (switch.is_on, math.log(statistics.fmean(step_s[switch.after + 1 : following.before])))
        for switch, following in itertools.pairwise(switches)
    ]
    differences = [
        (1 if is_on else -1) * (log_s - (earlier + later) / 2)
        for (_, earlier), (is_on, log_s), (_, later) in zip(
            blocks, blocks[1:], blocks[2:], strict=False
        )
    ]
    if len(differences) < LEAST_BLOCKS:
        raise RootwalkError(
            f"cannot weigh a near miss: saw {len(differences)} blocks of steps with one on each side; needs "
            f"{LEAST_BLOCKS}"
        )
    return math.expm1(statistics.median(differences))
