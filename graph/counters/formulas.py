"""What the movement of a counter costs a step, seconds, where physics says so.

    running by part     r(now) * (p(now) - p(before))        each second that runs contains the part that is taken
    running by level    r(before) * (f(before) / f(now) - 1) the same cycles at another clock (method C6)
    transfer by level   t(before) * (b(before) / b(now) - 1) the same bytes at another rate; of a round trip, one
                                                              window of bytes each
    timeouts            n * 0.2 s, an upper bound             what is lost is sent again after a time-out at the latest
    page waits          the rank's own waits for pages, as far as they were longer than before; at most 20 ms a page
                        that was read from swap
    swapped pages       an upper bound: the kernel unpacks a page of swap that is kept in memory while the rank runs
    far pages           an upper bound: each page is read as often as caches allow, and no work takes twice as long
    step by level       s(before) * (f(before) / f(now) - 1) an upper bound: as if the device did all of the step
    step by growth      s(before) * (n(now) / n(before) - 1) an upper bound: as if all of the step were work on these

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from rootwalk.graph.counters.rule import Formula

__all__ = ["Cost", "Usual", "cost_of"]

# Linux's shortest time-out of a retransmission (TCP_RTO_MIN); those of RDMA cards are shorter.
LONGEST_WAIT_S = 0.2
# A page from a disk that has to seek for it, and others before it.
LONGEST_PAGE_S = 0.02
# A page of 4 KiB unpacked, charged to its group and mapped, with the fault itself: 8 to 11 us with lzo in the one run,
# on a virtual machine, that it was taken from. Other hosts and compressors were not measured.
SWAPPED_PAGE_S = 1e-5
# 64 lines of a page of 4 KiB, each 0.1 us farther away; memory on another node is at most twice as far.
FAR_PAGE_S = 64 * 1e-7
# What was made in one step is read at most so often in it.
PASSES = 100.0


@dataclass(frozen=True, slots=True)
class Usual:
    """What a rank, or a communicator, did in a step; seconds, None where nobody measured.

    `running_s` of the rank's main thread in slow steps and before them, `transfer_s` of collectives before them,
    `page_wait_s` waits for pages beyond those of healthy steps, `step_before_s` the whole step before them.
    """

    running_s: float | None = None
    running_before_s: float | None = None
    transfer_before_s: float | None = None
    page_wait_s: float | None = None
    step_before_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per step that a movement explains; `is_bound` when it is only the most that it can have cost."""

    seconds: float | None
    is_bound: bool = False


def cost_of(formula: Formula, growth: float, ratio: float, usual: Usual) -> Cost:
    """Return what a movement costs.

    Args:
        formula: Which law.
        growth: How much more a step than before, in the counter's unit; of a part: how much larger the part is.
        ratio: Of a level, or of what each step has some of: by how much it is worse than before, 1 for twice as bad.
        usual: What it acts on.
    """
    match formula:
        case Formula.TIMEOUTS:
            return Cost(growth * LONGEST_WAIT_S, is_bound=True)
        case Formula.SECONDS:
            return Cost(growth)
        case Formula.SECONDS_BOUND:
            return Cost(growth, is_bound=True)
        case Formula.RUNNING_BY_PART:
            return Cost(_times(usual.running_s, growth))
        case Formula.RUNNING_BY_LEVEL:
            return Cost(_times(usual.running_before_s, ratio))
        case Formula.TRANSFER_BY_LEVEL:
            return Cost(_times(usual.transfer_before_s, ratio))
        case Formula.PAGE_WAITS:
            longest_s = growth * LONGEST_PAGE_S
            waited_s = usual.page_wait_s
            return Cost(None if waited_s is None else min(waited_s, longest_s))
        case Formula.SWAPPED_PAGES:
            return Cost(growth * SWAPPED_PAGE_S, is_bound=True)
        case Formula.FAR_PAGES:
            longest_s = growth * PASSES * FAR_PAGE_S
            own_s = usual.running_before_s
            return Cost(None if own_s is None else min(own_s, longest_s), is_bound=True)
        case Formula.STEP_BY_LEVEL | Formula.STEP_BY_GROWTH:
            return Cost(_times(usual.step_before_s, ratio), is_bound=True)
        case _:
            return Cost(None)


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor
