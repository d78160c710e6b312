"""The sources of a verdict beside the steps of a job: hangs, recorded operations, flows, metrics alone.

The first that has something to say of a job is asked; without any the steps are (`diagnosis`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rootwalk.graph.flows.diagnosis import conclude_flow, read_flow_records
from rootwalk.graph.flows.store import FlowRecords
from rootwalk.graph.hangs.diagnosis import HangCase, conclude_hang, read_hang
from rootwalk.graph.metrics.diagnosis import MetricCase, conclude_metrics, read_metrics
from rootwalk.graph.model import Verdict
from rootwalk.graph.operations.diagnosis import (
    OperationCase,
    conclude_operations,
    read_operation_case,
)
from rootwalk.graph.reasons.priors import Priors

__all__ = ["SourceCase", "conclude_source", "read_source"]

SourceCase = HangCase | OperationCase | FlowRecords | MetricCase


def read_source(
    connection: Any, job: str | None, steps: tuple[int, int] | None
) -> SourceCase | None:
    """Return what is known of a job from elsewhere than its steps; None where its steps are to be judged.

    Raises:
        ConfigError: If the store has several jobs and none is named.
    """
    hang = read_hang(connection, job) if steps is None else None
    if hang is not None and hang.answers:
        return hang
    if (operations := read_operation_case(connection, job, steps)) is not None:
        return operations
    flow = read_flow_records(connection, job) if steps is None else None
    if flow is not None:  # perhaps with dumps in which nothing hangs
        return flow if hang is None else flow.with_quality(hang.quality)
    return read_metrics(connection, job, steps)


def conclude_source(store_path: Path, case: SourceCase, priors: Priors) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    if isinstance(case, HangCase):
        return conclude_hang(store_path, case)
    if isinstance(case, OperationCase):
        return conclude_operations(store_path, case, priors)
    if isinstance(case, FlowRecords):
        return conclude_flow(store_path, case)
    return conclude_metrics(store_path, case)
