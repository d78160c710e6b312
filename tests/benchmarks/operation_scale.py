"""Time and memory of `diagnose` for jobs of which every operation is recorded, up to 10,240 ranks, and its answer.

    python operation_scale.py [--sizes 64 1024 10240] [--causes worker stage] [--folder BIG_DISK]

Each job is an operation trace of 16 steps in pipeline and data parallelism, 8 stages and 8 micro-batches, 47 operations
of a rank in a step, imported as a user would. One worker's computations, or a stage's, take longer. Each diagnosis is a
process of its own: its seconds include its start, its memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyarrow import parquet

from support.diagnosis_cost import LIMIT_BYTES, LIMITS_S, diagnose
from support.pipelines import PipelineJob

STAGES = 8
STEPS = 16
# Computations vary by so much between replicas, steps and micro-batches.
SPREAD = 0.02
CULPRIT = (3, 2)
FACTOR = 1.5
REASONS = {"worker": "SLOW_COMPUTE", "stage": "STAGE_IMBALANCE"}


def make_job(ranks: int, cause: str) -> PipelineJob:
    """Return a job of so many ranks with one cause."""
    chance = random.Random(ranks)  # noqa: S311
    replicas = ranks // STAGES
    spread = [
        [[1.0 + SPREAD * chance.random() for _ in range(8)] for _ in range(replicas)]
        for _ in range(STEPS)
    ]
    return PipelineJob(
        replicas=replicas,
        stages=STAGES,
        micro_batches=8,
        steps=STEPS,
        forward_s=0.01,
        backward_s=0.02,
        reduce_s=0.005,
        clip_s=0.001,
        optimizer_s=0.002,
        slow={CULPRIT: FACTOR} if cause == "worker" else {},
        stage_factor={CULPRIT[1]: FACTOR} if cause == "stage" else {},
        data_factor=lambda step, replica, batch: spread[step][replica][batch],
    )


def write_store(job: PipelineJob, store: Path) -> int:
    """Import the trace of a job into a new store; return how many operations it has."""
    trace, meta = job.write(store.parent, next(job.rows_by_step()))
    operations = 0
    with parquet.ParquetWriter(trace, parquet.read_schema(trace)) as writer:
        for rows in job.rows_by_step():
            writer.write_table(pa.Table.from_pylist(rows))
            operations += len(rows)
    command = ["import", "oplog", str(trace), "--meta", str(meta), "--store", str(store), "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "rootwalk.graph", *command], check=True, stdout=subprocess.DEVNULL
    )
    trace.unlink()
    return operations


def measure(ranks: int, cause: str, folder: Path, count: int) -> dict[str, Any]:
    """Return one row of the report: the best of some diagnoses of one store, which other work disturbs least."""
    job = make_job(ranks, cause)
    place = folder / f"operations-{ranks}-{cause}"
    place.mkdir(parents=True, exist_ok=True)
    store, counted = place / "store.duckdb", place / "operations"
    if not counted.exists():
        store.unlink(missing_ok=True)
        counted.write_text(str(write_store(job, store)), encoding="utf-8")
    load = os.getloadavg()[0]
    runs = [diagnose(store) for _ in range(count)]
    best = min(runs, key=lambda run: run["seconds"])
    verdict = best["verdict"]
    named = [
        {
            "reason": finding["reason"],
            "rank": finding["subject"]["rank"],
            "stage": finding["subject"]["stage"],
            "share_s": finding["seconds"]["share"],
        }
        for finding in verdict["findings"]
    ]
    culprit = job.rank(*CULPRIT) if cause == "worker" else None
    return {
        "ranks": ranks,
        "cause": cause,
        "culprit": culprit,
        "operations": int(counted.read_text(encoding="utf-8")),
        "runs": count,
        "load": round(load, 1),
        "seconds": round(best["seconds"], 2),
        "cpu_s": round(min(run["cpu_s"] for run in runs), 2),
        "peak_bytes": max(run["verdict"]["cost"]["peak_rss_bytes"] for run in runs),
        "outcome": verdict["outcome"],
        "named": named,
        "is_right": [(one["reason"], one["rank"]) for one in named] == [(REASONS[cause], culprit)],
    }


def main() -> int:
    """Measure all sizes; return 1 where a verdict is wrong or a limit is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024, 10240], help="ranks")
    parser.add_argument("--causes", nargs="+", choices=REASONS, default=list(REASONS))
    parser.add_argument("--runs", type=int, default=3, help="diagnoses of each store (default 3)")
    parser.add_argument(
        "--folder", type=Path, help="keep the stores here, and use those that are here"
    )
    parser.add_argument("--output", type=Path, help="write the report here as JSON")
    arguments = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for ranks in arguments.sizes:
            for cause in arguments.causes:
                row = measure(ranks, cause, folder, arguments.runs)
                limit_s = LIMITS_S.get(ranks, float("inf"))
                row["is_within"] = row["seconds"] <= limit_s and row["peak_bytes"] <= LIMIT_BYTES
                print(
                    f"{ranks:>6} ranks ({row['operations']:,} operations): {row['seconds']:.1f} s"
                    f" ({row['cpu_s']:.1f} s of CPU), {row['peak_bytes'] / 1e9:.2f} GB,"
                    f" {row['outcome']}: {row['named']}, {'right' if row['is_right'] else 'WRONG'}"
                    f"{'' if row['is_within'] else ', over the limit'}",
                    flush=True,
                )
                rows.append(row)
    if arguments.output:
        report = {
            "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB",
            "limits_s": LIMITS_S,
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(not row["is_right"] or not row["is_within"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
