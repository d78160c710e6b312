"""Healthy jobs, as many as a test wants: made-up ranks and steps, whose work varies as that of real workers does.

    real worker   1.00 0.98 1.03 1.01 | 0.99 1.02 ...    seconds of a phase in each step, over the worker's median
    made-up rank  0.99 1.02 ... | 1.00 0.98 ...          blocks of them in another order: neighbours stay neighbours

The workers are those of two production jobs in tests/data/straggleranalysis that were not to blame: all of ST (its
last stage has more work in every step, which a worker's own median takes out) and all of AR but the slow one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt

from support.jobs import Job

__all__ = ["Worker", "healthy_job", "read_workers"]

DATA = Path(__file__).parents[1] / "data" / "straggleranalysis"
# Trace, and the worker that its authors say is slow.
TRACES = (("trace-ST.parquet", None), ("trace-AR.parquet", 0))
# Steps of a worker that stay together.
BLOCK_STEPS = 8
SKEW_S = 0.05


@dataclass(frozen=True)
class Worker:
    """A real worker: what its forward and backward passes took in each step, over their medians, (steps,) each."""

    name: str
    forward: npt.NDArray[np.float64]
    backward: npt.NDArray[np.float64]


@cache
def read_workers() -> tuple[Worker, ...]:
    """Return the real workers, in the order of their ranks."""
    workers = []
    for name, slow in TRACES:
        query = (
            "SELECT rank, optype, list(s ORDER BY step) FROM (SELECT rank, optype, step, sum(duration) AS s"
            " FROM read_parquet(?) WHERE optype IN ('forward-compute', 'backward-compute') GROUP BY ALL)"
            " GROUP BY rank, optype ORDER BY rank, optype"
        )
        rows = duckdb.execute(query, [str(DATA / name)]).fetchall()
        for backward, forward in zip(rows[::2], rows[1::2], strict=True):
            if backward[0] != slow:
                series = [np.array(row[2]) / np.median(row[2]) for row in (forward, backward)]
                workers.append(Worker(f"{name[6:8]} rank {backward[0]}", *series))
    return tuple(workers)


def _resampled(
    draw: np.random.Generator, series: npt.NDArray[np.float64], steps: int
) -> npt.NDArray[np.float64]:
    """Return as many steps as asked for, in blocks of neighbouring ones of a real series."""
    starts = draw.integers(0, series.size, steps // BLOCK_STEPS + 1)
    places = (starts[:, None] + np.arange(BLOCK_STEPS)) % series.size
    return np.asarray(series[places.ravel()[:steps]], dtype=np.float64)


def healthy_job(seed: int) -> Job:
    """Return a job in which nothing is wrong: 2 to 16 ranks on 1 to 4 hosts, 50 to 150 steps."""
    draw = np.random.default_rng([20_261_123, seed])
    ranks = int(draw.choice([2, 4, 8, 16], p=[0.4, 0.3, 0.2, 0.1]))
    hosts = int(draw.choice([count for count in (1, 2, 4) if count <= ranks]))
    steps = int(draw.integers(50, 151)) if ranks <= 4 else int(draw.integers(50, 81))
    workers = read_workers()
    factors: dict[tuple[int, str], npt.NDArray[np.float64]] = {}
    for rank in range(ranks):
        worker = workers[int(draw.integers(len(workers)))]
        for phase in ("data_load", "forward", "backward", "backward 2", "optimizer"):
            series = worker.backward if phase.startswith("backward") else worker.forward
            factors[rank, phase] = _resampled(draw, series, steps)
    return Job(
        ranks=ranks,
        hosts=hosts,
        steps=steps,
        seed=seed,
        skew_s=tuple(draw.normal(0.0, SKEW_S, hosts).tolist()),
        # Of the hosts' usual differences: half a per cent of the forward pass, in either rank's favour.
        extra_s={rank: float(draw.normal(0.0, 0.00015)) for rank in range(ranks)},
        gc_s=0.002 if draw.random() < 0.5 else None,
        loader_s=0.02 if draw.random() < 0.5 else None,
        has_cgroup=bool(draw.random() < 0.5),
        factor=lambda step, rank, phase: float(factors[rank, phase][step]),
    )
