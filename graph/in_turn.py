"""Work that moves from rank to rank: in each step another one has more, and no rank is the slow one.

    rank 0 |####|    |    |####|        rank 0 |####|####|####|####|
    rank 1 |    |####|    |    |        rank 1 |####|####|####|####|
    rank 2 |    |    |####|    |        rank 2 |####|####|####|####|
          the work follows the data        all have become slower

Over a window both look alike, as each rank has lost as much as the others. In a step they do not.
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.series import chance_of_at_most

# Fewer steps do not tell a lot that is drawn anew from a rank that is late.
MIN_STEPS = 12.0
# What all ranks have at once, or each of them in most of its steps, is theirs together from this part on.
MIN_COMMON_RATIO = 0.5
# A lot that falls on all ranks alike gives some rank that many steps at least this rarely.
MIN_PROBABILITY = 0.01


def is_in_turn(excess_s: FloatArray) -> bool:
    """Return whether what ranks do more moves between them, as by a lot that falls on all of them alike.

    Args:
        excess_s: By how much each rank was above its reference in each step, (ranks, steps), seconds; below it counts.
    """
    ranks = len(excess_s)
    mean_s = float(excess_s.mean()) if excess_s.size else 0.0
    if ranks < 2 or mean_s <= 0.0:
        return False
    # What a rank has in three of four of its steps.
    lasting_s = np.quantile(excess_s, 0.25, axis=1)
    at_once_s = float(np.maximum(excess_s.min(axis=0), 0.0).mean())
    if max(float(lasting_s.min()), at_once_s) >= MIN_COMMON_RATIO * mean_s:
        return False
    worst = int(excess_s.sum(axis=1).argmax())
    if float(lasting_s[worst]) >= MIN_COMMON_RATIO * float(excess_s[worst].mean()):
        return False
    # Who has most in a step leads by what it has above the least. Squared, steps in which all are alike hardly count.
    lead = (excess_s.max(axis=0) - excess_s.min(axis=0)) ** 2
    counted = float(lead.sum()) ** 2 / float((lead**2).sum())
    if counted < MIN_STEPS:
        return False
    parts = np.bincount(excess_s.argmax(axis=0), lead, ranks) / float(lead.sum())
    draws, most = round(counted), round(float(parts.max()) * counted)
    return ranks * (1.0 - chance_of_at_most(most - 1, draws, 1.0 / ranks)) >= MIN_PROBABILITY
