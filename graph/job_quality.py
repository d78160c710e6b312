"""What is wrong with what a job's ranks and agents told, for the verdict's `data_quality`."""

from __future__ import annotations

import numpy as np

from rootwalk.graph.agent_cost import AgentCost
from rootwalk.graph.columns import JobData
from rootwalk.graph.model import DataQuality, QualityCode

__all__ = ["bad_times", "dropped", "find_missing", "missing_ranks", "missing_steps", "unknown_ends"]

# Ranks that wait for each other in every step take the same time for many steps, but for a part of the first and the
# last one: of ten, a tenth. Unit: s/s. A prior, fitted on nothing.
MAX_APART_RATIO = 0.1


def find_missing(data: JobData, agents: AgentCost) -> tuple[DataQuality, ...]:
    """Return an item for each kind of what was not told, or not kept: ranks, steps, records."""
    return (*missing_ranks(data), *missing_steps(data), *dropped(agents))


def unknown_ends(data: JobData) -> tuple[DataQuality, ...]:
    """Return an item when the host was not told when collectives completed, or of any: who waited is not known then."""
    count = int((~data.collectives.is_end_known).sum())
    if lacks_hooks(data):
        is_old = any(row.reason == "OLD_TORCH" for row in data.sensors)
        why = "the ranks' PyTorch has no hooks for collectives" if is_old else "no rank reports one"
        text = f"collectives are not seen ({why}): who waited is known by sums at most"
        return (DataQuality(QualityCode.MISSING_EDGE, text, None),)
    if not count:
        return ()
    text = (
        f"{count} collectives without their completion: the host is not told when a device is done"
    )
    return (DataQuality(QualityCode.MISSING_EDGE, text, count),)


def lacks_hooks(data: JobData) -> bool:
    """Return whether ranks wait for each other inside their steps, and no collective says who for whom.

    That is seen in the records alone, whatever PyTorch an agent or this process has: the ranks may run another one, or
    exchange data by other means than PyTorch's process groups. Ranks whose steps take different times do not wait in
    them: what one of them loses is its own.
    """
    if data.collectives.rank.size or np.unique(data.steps.rank).size <= 1:
        return False
    return _share_their_time(data)


def _share_their_time(data: JobData) -> bool:
    """Return whether all ranks take the same time for the same steps, as those that wait for each other do."""
    steps = data.steps
    ranks, row = np.unique(steps.rank, return_inverse=True)
    numbers, column = np.unique(steps.step, return_inverse=True)
    took_s = np.full((ranks.size, numbers.size), np.nan)
    took_s[row, column] = steps.end_s - steps.start_s
    # The later half: ranks begin their first steps at different times.
    common = took_s[:, ~np.isnan(took_s).any(axis=0)]
    total_s = common[:, common.shape[1] // 2 :].sum(axis=1)
    return bool(total_s.max() - total_s.min() <= MAX_APART_RATIO * total_s.max())


def bad_times(count: int) -> tuple[DataQuality, ...]:
    """Return an item where phases end before they start."""
    if not count:
        return ()
    return (DataQuality(QualityCode.BAD_TIME, f"{count} phases end before they start", count),)


def dropped(agents: AgentCost) -> tuple[DataQuality, ...]:
    """Return an item if agents or hooks could not keep all that they saw."""
    count = sum(agents.dropped.values())
    if not count:
        return ()
    reasons = ", ".join(f"{reason} {lost}" for reason, lost in sorted(agents.dropped.items()))
    return (DataQuality(QualityCode.DROPPED, f"{count} records were dropped ({reasons})", count),)


def missing_ranks(data: JobData) -> tuple[DataQuality, ...]:
    """Return an item if ranks have no complete step."""
    if data.world_size is None:
        return ()
    seen = {int(rank) for rank in data.steps.rank}
    missing = [rank for rank in range(data.world_size) if rank not in seen]
    if not missing:
        return ()
    listed = ", ".join(str(rank) for rank in missing[:8]) + (", …" if len(missing) > 8 else "")
    text = f"no complete step from {len(missing)} of {data.world_size} ranks ({listed})"
    return (DataQuality(QualityCode.RANK_MISSING, text, len(missing)),)


def missing_steps(data: JobData) -> tuple[DataQuality, ...]:
    """Return an item if ranks lack steps between their own first and last: what sent them on has dropped some.

    Steps that no rank has are not missed: a loop that counts by tens, or steps that the store has given up.
    """
    if not data.steps.step.size:
        return ()
    # Places among the steps that anybody has, by rank.
    steps, place = np.unique(data.steps.step, return_inverse=True)
    ranks, rank, counts = np.unique(data.steps.rank, return_inverse=True, return_counts=True)
    first, last = np.full(ranks.size, steps.size), np.zeros(ranks.size, dtype=np.int64)
    np.minimum.at(first, rank, place)
    np.maximum.at(last, rank, place)
    lacking = last - first + 1 - counts
    count, total, worst = int(lacking.sum()), int((last - first + 1).sum()), int(lacking.argmax())
    if not count:
        return ()
    text = (
        f"{count} of {total} steps of ranks never came (most of rank {ranks[worst]}: {lacking[worst]}):"
        " something between the job and the store drops telemetry"
    )
    return (DataQuality(QualityCode.DROPPED, text, count),)
