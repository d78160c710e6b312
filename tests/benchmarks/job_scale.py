"""Time and memory of `diagnose` for live jobs of up to 10,240 ranks, and whether it names what was injected.

    python job_scale.py [--sizes 64 1024 10240] [--operations 50 500] [--faults contention] [--folder BIG_DISK]

Each job has 28 healthy steps and a window of 16 in which one rank is slowed; `support.large_jobs` says what it looks
like. How much longer its steps are is known from the same job, simulated without the fault. Each diagnosis is a process
of its own: its seconds include its start, its memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.diagnosis_cost import LIMIT_BYTES, LIMITS_S, diagnose
from support.large_jobs import FAULTS, LargeJob, longer_s, write_large_job

# Beyond so many spans a store takes longer to make than its diagnosis is worth.
MAX_SPANS = 60_000_000


def judge(job: LargeJob, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what the verdict says beside what was done to the job."""
    named = [
        {
            "reason": finding["reason"],
            "rank": finding["subject"]["rank"],
            "share_s": finding["seconds"]["share"],
            "band": finding["confidence"]["band"],
        }
        for finding in verdict["findings"]
    ]
    if job.fault is None:
        return {
            "outcome": verdict["outcome"],
            "named": named,
            "is_right": verdict["outcome"] == "healthy",
        }
    right = [
        one for one in named if (one["rank"], one["reason"]) == (job.culprit, FAULTS[job.fault][1])
    ]
    return {
        "outcome": verdict["outcome"],
        "named": named,
        "is_right": len(named) == 1 and len(right) == 1,
        "longer_s": longer_s(job),
        "victims": verdict["victims"]["count"],
    }


def measure(job: LargeJob, folder: Path, count: int) -> dict[str, Any]:
    """Return one row of the report: the best of some diagnoses of one store, which other work disturbs least."""
    path = folder / f"{job.ranks}-{job.operations}-{job.fault}.duckdb"
    began_s = time.perf_counter()
    if not path.exists():
        building = path.with_suffix(".building")
        building.unlink(missing_ok=True)
        write_large_job(building, job)
        building.rename(path)
    write_s = time.perf_counter() - began_s
    load = os.getloadavg()[0]
    runs = [diagnose(path) for _ in range(count)]
    best = min(runs, key=lambda run: run["seconds"])
    cost = best["verdict"]["cost"]
    return {
        "ranks": job.ranks,
        "operations": job.operations,
        "fault": job.fault,
        "culprit": job.culprit,
        "spans": count_spans(path),
        "store_bytes": path.stat().st_size,
        "write_s": round(write_s, 1),
        "runs": count,
        "load": round(load, 1),
        "seconds": round(best["seconds"], 2),
        "cpu_s": round(min(run["cpu_s"] for run in runs), 2),
        "peak_bytes": max(run["verdict"]["cost"]["peak_rss_bytes"] for run in runs),
        "diagnose_s": cost["diagnose_s"],
        **judge(job, best["verdict"]),
    }


def count_spans(path: Path) -> int:
    """Return how many spans a store has."""
    from rootwalk.otel_receiver import store

    return int(store.query_store(path, "SELECT count(*) FROM spans")[2][0][0])


def describe(row: dict[str, Any]) -> str:
    """Return one row as a line."""
    named = "; ".join(f"{n['reason']} rank {n['rank']} {n['share_s']:.3f} s" for n in row["named"])
    return (
        f"{row['ranks']:>6} ranks, {row['operations']} operations ({row['spans']:,} spans): {row['seconds']:.1f} s"
        f" ({row['cpu_s']:.1f} s of CPU), {row['peak_bytes'] / 1e9:.2f} GB, {row['outcome']}: {named or 'nobody'}"
        f" (injected: {row['fault']} on rank {row['culprit']}, {row.get('longer_s', 0.0):.3f} s),"
        f" {'right' if row['is_right'] else 'WRONG'}"
    )


def main() -> int:
    """Measure all sizes; return 1 where a verdict is wrong or a limit is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 1024, 10240], help="ranks")
    parser.add_argument(
        "--operations", type=int, nargs="+", default=[50, 500], help="50, 500 or both"
    )
    parser.add_argument(
        "--faults", nargs="+", default=["contention"], help=f"of {', '.join(FAULTS)}, none"
    )
    parser.add_argument("--runs", type=int, default=3, help="diagnoses of each store (default 3)")
    parser.add_argument(
        "--folder", type=Path, help="keep the stores here, and use those that are here"
    )
    parser.add_argument(
        "--output", type=Path, help="write the report here as JSON; rows of other sizes stay"
    )
    arguments = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for operations in arguments.operations:
            for ranks in arguments.sizes:
                for fault in arguments.faults:
                    job = replace(
                        LargeJob(ranks),
                        operations=operations,
                        fault=None if fault == "none" else fault,
                    )
                    if job.ranks * operations * (job.history + job.window) > MAX_SPANS:
                        print(
                            f"{ranks:>6} ranks, {operations} operations: not measured, the store would be too large"
                        )
                        continue
                    row = measure(job, folder, arguments.runs)
                    print(describe(row), flush=True)
                    rows.append(row)
    if arguments.output:
        save(arguments.output, rows)
    over = [
        r for r in rows if r["operations"] == 50 and r["seconds"] > LIMITS_S.get(r["ranks"], 1e9)
    ]
    for row in over:
        print(
            f"over the limit: {row['ranks']} ranks took {row['seconds']} s, not {LIMITS_S[row['ranks']]:g} s"
        )
    return (
        1
        if over or any(not row["is_right"] or row["peak_bytes"] > LIMIT_BYTES for row in rows)
        else 0
    )


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows into a report, in place of those of the same size and fault."""
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["operations"], row["ranks"], str(row["fault"])

    measured = {key(row) for row in rows}
    kept = [row for row in known if key(row) not in measured]
    report = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB",
        "limits_s": LIMITS_S,
        "rows": sorted([*kept, *rows], key=key),
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
