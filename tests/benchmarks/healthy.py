"""How many generated healthy runs are called healthy.

    python tests/benchmarks/healthy.py [--runs 1000] [--first SEED] [--output FILE]

Every run is a store with a job of `support.healthy_jobs`, diagnosed as a user would. Runs of several calls with one
file count together. Returns 1 when any of them is not `healthy`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from rootwalk.graph.diagnosis import diagnose
from support.healthy_jobs import healthy_job, read_workers
from support.jobs import write_job


def measure(seed: int) -> dict[str, Any] | None:
    """Return what is said of one run, None for a healthy one."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = diagnose(write_job(Path(folder) / "store.duckdb", healthy_job(seed)))
    if verdict.outcome == "healthy" and not verdict.findings:
        return None
    found = [[f.reason, f.subject.rank, f.seconds.share] for f in verdict.findings]
    return {"seed": seed, "outcome": str(verdict.outcome), "found": found}


def main() -> int:
    """Measure some runs and add them to those of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--output", type=Path, help="JSON file to write, or to add to")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.runs)
    wrong = []
    for done, seed in enumerate(seeds, 1):
        said = measure(seed)
        if said is not None:
            wrong.append(said)
            print(said, flush=True)
        if done % 50 == 0:
            print(f"{done - len(wrong)} of {done} healthy", flush=True)
    print(f"{len(seeds) - len(wrong)} of {len(seeds)} healthy")
    if arguments.output is not None:
        save(arguments.output, seeds, wrong)
    return 1 if wrong else 0


def save(path: Path, seeds: range, wrong: list[dict[str, Any]]) -> None:
    """Add runs to a file; those of the same seeds take the place of the earlier ones."""
    known = json.loads(path.read_text("utf-8")) if path.exists() else {"seeds": [], "wrong": []}
    kept = sorted({*known["seeds"], *seeds})
    others = [item for item in known["wrong"] if item["seed"] not in seeds]
    report = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "workers": len(read_workers()),
        "runs": len(kept),
        "healthy": len(kept) - len(wrong) - len(others),
        "wrong": sorted(others + wrong, key=lambda item: int(item["seed"])),
        "seeds": kept,
    }
    path.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
