"""Work that a main thread gives to the rank's other threads: what it waits for them is that work, up to its size.

    before   main   |======== computes ========|
    after    main   |==|  behind its own  |  blocked  |     its own threads compute what it did before,
             others    |===== on the same CPU =====|        and the rank is late by what that takes longer

With more threads than CPUs the main thread runs less and waits more. Only the difference makes the rank late.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.charge_case import ChargeCase
from rootwalk.graph.columns import FloatArray

__all__ = ["give_away"]


def give_away(case: ChargeCase, work: FloatArray, own: FloatArray, lost: FloatArray) -> FloatArray:
    """Set off what main threads ran less against what they waited for their own threads; return what was set off.

    Args:
        case: The window.
        work: How much longer the main threads ran, (regions, steps), seconds; less than 0 where they ran less.
        own: How much longer they stood behind their rank's own threads; what was given away is added, in place.
        lost: How much longer they were blocked, cause not seen; waits for work that was given away leave it, in place.

    Returns:
        The part of `work` that was given away, (regions, steps), seconds, nowhere more than 0 for a rank as a whole.
    """
    given = np.zeros_like(work)
    for rank in case.ranks:
        mine = case.rank_of_region == rank
        less_s, own_s = -case.total_s(work, rank), case.total_s(own, rank)
        if less_s <= 0.0 or own_s <= 0.0:
            continue
        lost_s = max(case.total_s(lost, rank), 0.0)
        waited_s = min(lost_s, less_s)
        waited = lost[mine] * (waited_s / lost_s if lost_s > 0.0 else 0.0)
        given[mine] = work[mine] * min((own_s + waited_s) / less_s, 1.0)
        own[mine] += waited + given[mine]
        lost[mine] -= waited
    return given
