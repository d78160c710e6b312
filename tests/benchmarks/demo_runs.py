"""Run the demo many times, hold every verdict against the job's own clock, and print the score.

    python tests/benchmarks/demo_runs.py --runs 10 --output tests/benchmarks/results/demo_runs.json

Half a minute a run. Nothing else should run on the machine: whatever does is contention, and is found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLOCK = re.compile(r"own clock: ([\d.]+) s a step(?: before the fault, ([\d.]+) s with it)?")


def run_demo(fault: str, rank: int, folder: Path) -> dict[str, Any]:
    """Return what one demo said and what the job's clock said."""
    verdict_path = folder / "verdict.json"
    verdict_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rootwalk.graph", "demo", "--fault", fault]
    command += ["--fault-rank", str(rank), "--json", str(verdict_path)]
    began_s = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    clock = CLOCK.search(done.stdout)
    if clock is None or not verdict_path.exists():
        return {"fault": fault, "rank": rank, "is_right": False, "error": done.stderr[-2000:]}
    verdict = json.loads(verdict_path.read_text(encoding="utf-8"))
    healthy_s = float(clock[1])
    result: dict[str, Any] = {
        "fault": fault,
        "rank": rank,
        "is_right": done.returncode == 0,
        "outcome": verdict["outcome"],
        "clock_healthy_s": healthy_s,
        "run_s": round(time.monotonic() - began_s, 1),
    }
    result["found"] = [
        [item["reason"], item["subject"]["rank"], (item["subject"]["aggressor"] or {}).get("name")]
        for item in verdict["findings"]
    ]
    if clock[2] is None or not verdict["findings"]:
        return result
    slowdown_s = float(clock[2]) - healthy_s
    finding = verdict["findings"][0]
    measured_s = verdict["step_s"] - verdict["healthy_step_s"]
    return result | {
        "clock_slowdown_s": round(slowdown_s, 4),
        "share_s": finding["seconds"]["share"],
        "share_ratio": round(finding["seconds"]["share"] / slowdown_s, 3),
        "predicted_ratio": round(verdict["predicted_step_s"] / healthy_s, 3),
        "unexplained_ratio": round(verdict["unexplained_s"] / measured_s, 3),
        "band": finding["confidence"]["band"],
        "onset_step": finding["onset"]["step"],
    }


def score(results: list[dict[str, Any]]) -> list[str]:
    """Return the score as lines."""
    lines = []
    faulty = [result for result in results if result["fault"] != "none"]
    healthy = [result for result in results if result["fault"] == "none"]
    if faulty:
        told = [result for result in faulty if "share_ratio" in result]
        lines.append(f"right: {sum(r['is_right'] for r in faulty)} of {len(faulty)}")
        for name, low, high in (
            ("share_ratio", 0.8, 1.2),
            ("predicted_ratio", 0.9, 1.1),
            ("unexplained_ratio", -0.15, 0.15),
        ):
            values = [result[name] for result in told]
            inside = sum(low <= value <= high for value in values)
            lines.append(
                f"{name} within [{low}, {high}]: {inside} of {len(faulty)};"
                f" median {statistics.median(values):.3f},"
                f" {min(values):.3f} to {max(values):.3f}"
            )
    if healthy:
        right = sum(result["is_right"] for result in healthy)
        lines.append(f"no fault, healthy: {right} of {len(healthy)}")
    return lines


def main() -> int:
    """Run, print a line a run, write the results, print the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10, help="runs of each fault (default 10)")
    parser.add_argument("--output", type=Path, help="file for the results (JSON)")
    parser.add_argument("--faults", nargs="+", default=["cpu_contention", "none"])
    arguments = parser.parse_args()
    ranks = min(max(len(os.sched_getaffinity(0)), 2), 8)
    results = []
    with tempfile.TemporaryDirectory(prefix="rootwalk-runs-") as name:
        for number in range(arguments.runs):
            for fault in arguments.faults:
                result = run_demo(fault, number % ranks, Path(name))
                results.append(result)
                print(json.dumps(result), flush=True)
    machine = f"{platform.system()} {platform.release()}, {len(os.sched_getaffinity(0))} cores"
    report = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "results": results}
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("\n".join(score(results)))
    return 0 if all(result["is_right"] for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
