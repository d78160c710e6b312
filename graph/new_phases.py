"""Find phases that healthy steps did not have, and how much of their time came on top of the others'.

    healthy     | load | forward | backward | step |                  a checkpoint is new, and all of it is on top
    window      | save | load | forward | backward | step |
    window      | load | evaluation | backward | step |               in place of forward: nothing is on top

What a healthy step never had cost nothing there: without this it would be held against itself, and cost nothing here.
Owns when a region counts as new. What is rare may be missing from a short history by chance, and is not new.

Source:
    Exact binomial test of two rates (Przyborowski and Wilenski 1940).
"""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray
from rootwalk.graph.lanes import STEP_GAP
from rootwalk.graph.series import chance_of_at_most, median_rows

__all__ = ["MIN_REFERENCE_STEPS", "added_parts", "is_new_alone"]

# Seen in fewer healthy steps, a region may be new; in as many, those say what it usually takes.
MIN_REFERENCE_STEPS = 3
# A region that comes as often as ever is missing from the history as clearly as this once in a hundred windows.
MAX_CHANCE = 0.01
# A region of which less came on top stands in the place of another: which of its states are new, nobody knows.
MIN_ADDED = 0.5


def added_parts(
    before_s: FloatArray, now_s: FloatArray, regions: dict[tuple[int, str, int], int]
) -> FloatArray:
    """Return which part of each region's time came on top of a healthy step: 0 for what healthy steps had.

    Args:
        before_s: Work of each region in healthy steps, (regions, steps), NaN where it was absent.
        now_s: The same in the window.
        regions: Numbers of the regions, by rank, phase or gap, and ordinal.
    """
    parts = np.zeros(len(regions))
    by_rank: dict[int, list[int]] = {}
    told: set[int] = set()
    seen, seen_now = (~np.isnan(before_s)).sum(axis=1), (~np.isnan(now_s)).sum(axis=1)
    for (rank, name, _), number in regions.items():
        by_rank.setdefault(rank, []).append(number)
        if name != STEP_GAP and seen[number] >= MIN_REFERENCE_STEPS:
            told.add(rank)
    is_new = np.array(
        [
            few < MIN_REFERENCE_STEPS
            and _chance_of_few(int(few), int(many), before_s.shape[1], now_s.shape[1]) < MAX_CHANCE
            for few, many in zip(seen, seen_now, strict=True)
        ],
        dtype=np.bool_,
    )
    # A rank that told no phases in healthy steps has no new ones: it only tells more.
    for rank in told:
        mine = np.array(by_rank[rank], dtype=np.int64)
        for number in mine[is_new[mine]].tolist():
            at = ~np.isnan(now_s[number])
            parts[number] = _part_on_top(before_s[mine], now_s[mine][:, at], is_new[mine])
    return parts


def is_new_alone(
    added: FloatArray, regions: dict[tuple[int, str, int], int], ranks: set[int]
) -> BoolArray:
    """Return which regions are new on their rank and not on every one: no other rank has that in common with it.

    Args:
        added: Of each region, what `added_parts` says.
        regions: Their numbers.
        ranks: All ranks of the window.
    """
    new_on: dict[tuple[str, int], set[int]] = {}
    for (rank, phase, ordinal), number in regions.items():
        if added[number] > 0.0:
            new_on.setdefault((phase, ordinal), set()).add(rank)
    is_alone = np.zeros(len(regions), dtype=np.bool_)
    for (rank, phase, ordinal), number in regions.items():
        others = new_on.get((phase, ordinal), ranks)
        is_alone[number] = rank in others and others != ranks
    return is_alone


def _chance_of_few(few: int, many: int, steps_before: int, steps_now: int) -> float:
    """Return how probably at most `few` of all steps with something lie in the history, were it equally frequent."""
    if not steps_before or not steps_now:
        return 1.0
    return chance_of_at_most(few, few + many, steps_before / (steps_before + steps_now))


def _part_on_top(before_s: FloatArray, now_s: FloatArray, is_new: BoolArray) -> float:
    """Return the part of one rank's new regions that its other regions did not give up.

    Args:
        before_s: Its regions in healthy steps, NaN where absent.
        now_s: Its regions in the steps of the window in which one is new.
        is_new: Which of them are.
    """
    usual_s = median_rows(np.nan_to_num(before_s))
    median_s = median_rows(np.nan_to_num(now_s))
    new_s = float(median_s[is_new].sum())
    given_up_s = float(np.maximum(usual_s - median_s, 0.0)[~is_new].sum())
    part = 1.0 - given_up_s / new_s if new_s > 0.0 else 0.0
    return part if part >= MIN_ADDED else 0.0
