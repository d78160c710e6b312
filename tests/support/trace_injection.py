"""Put a slowdown into a recorded trace: some workers' computations take longer, and all that waits for them moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from rootwalk.graph.operations.graph import OperationGraph
from rootwalk.graph.operations.replay import replay_operations, replay_times

FloatArray = npt.NDArray[np.float64]


def even_stages(graph: OperationGraph) -> OperationGraph:
    """Return a job in which every stage takes what the middle one does, each type of computation; else as recorded."""
    rows = graph.operations
    factor = np.ones(graph.work_s.size)
    for kind in np.unique(rows.type[~rows.is_communication]).tolist():
        of_kind = rows.type == kind
        usual_s = {
            stage: float(np.median(graph.work_s[of_kind & (rows.stage == stage)]))
            for stage in np.unique(rows.stage[of_kind]).tolist()
        }
        middle_s = float(np.median(list(usual_s.values())))
        for stage, stage_s in usual_s.items():
            if stage_s > 0.0:
                factor[of_kind & (rows.stage == stage)] = middle_s / stage_s
    return replace(graph, work_s=graph.work_s * factor)


def slower_work(graph: OperationGraph, factors: Mapping[int, float]) -> FloatArray:
    """Return the seconds of every operation with some workers' computations longer, (operations,)."""
    rows = graph.operations
    factor = np.ones(graph.work_s.size)
    for rank, value in factors.items():
        factor[(rows.rank == rank) & ~rows.is_communication] = value
    return np.asarray(factor * graph.work_s, dtype=np.float64)


def step_seconds(graph: OperationGraph, factors: Mapping[int, float]) -> FloatArray:
    """Return what each step takes with some workers slower, (steps,)."""
    work_s = slower_work(graph, factors)
    times = replay_operations(graph, work_s[:, None], graph.delay_s[:, None])
    return np.asarray(times[:, 0], dtype=np.float64)


def write_slower(graph: OperationGraph, factors: Mapping[int, float], path: Path) -> None:
    """Write the trace of a job in which some workers compute longer.

    Args:
        graph: The job as recorded.
        factors: On the seconds of each computation of a worker, by rank.
        path: Of the Parquet file.
    """
    rows = graph.operations
    start_s, end_s = replay_times(graph, slower_work(graph, factors), graph.delay_s)
    columns = {
        "dp_rank": rows.replica,
        "stage": rows.stage,
        "rank": rows.rank,
        "step": rows.step,
        "optype": np.array(rows.types)[rows.type],
        "start_ts": start_s + 1.0,
        "duration": np.maximum(end_s - start_s, 0.0),
        "seq_id": rows.sequence,
        "mb_id": rows.micro_batch,
    }
    parquet.write_table(pa.table(columns), path)
