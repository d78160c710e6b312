"""What is wrong with what a job's ranks and agents told, for the verdict's `data_quality`."""

from __future__ import annotations

from rootwalk.graph.agent_cost import AgentCost
from rootwalk.graph.columns import JobData
from rootwalk.graph.model import DataQuality, QualityCode

__all__ = ["dropped", "missing_ranks", "unknown_ends"]


def unknown_ends(data: JobData) -> tuple[DataQuality, ...]:
    """Return an item when the host was not told when collectives completed: who waited is not known then."""
    count = int((~data.collectives.is_end_known).sum())
    if not count:
        return ()
    text = (
        f"{count} collectives without their completion: the host is not told when a device is done"
    )
    return (DataQuality(QualityCode.MISSING_EDGE, text, count),)


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
