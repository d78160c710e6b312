"""Run the demo many times, hold every verdict against the job's own clock, and keep and print the score.

    python tests/benchmarks/demo_runs.py --output tests/benchmarks/results/demo_runs.json
    python tests/benchmarks/demo_runs.py --faults python_gc --runs 2

Half a minute a run. A fault that was run replaces its earlier runs in the output file; the other faults stay there.
Nothing else should run on the machine: whatever does is contention, and is found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FAULTS = ("cpu_contention", "cpu_quota", "data_loader", "python_gc", "none")
CLOCK = re.compile(r"own clock: ([\d.]+) s a step(?: before the fault, ([\d.]+) s with it)?")
# What counts as close: share within 20 % of the slowdown, prediction within 10 % of the healthy step, and unexplained
# within 15 % of the slowdown.
CLOSE = {
    "share_ratio": (0.8, 1.2),
    "predicted_ratio": (0.9, 1.1),
    "unexplained_ratio": (-0.15, 0.15),
}


def run_demo(fault: str, rank: int, folder: Path) -> dict[str, Any]:
    """Return what one demo said and what the job's clock said."""
    verdict_path = folder / "verdict.json"
    verdict_path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "rootwalk.graph", "demo", "--fault", fault]
    command += ["--fault-rank", str(rank), "--json", str(verdict_path)]
    began_s, began_stolen_s = time.monotonic(), read_stolen_s()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    clock = CLOCK.search(done.stdout)
    if clock is None or not verdict_path.exists():
        return {"rank": rank, "is_right": False, "error": done.stderr[-2000:]}
    verdict = json.loads(verdict_path.read_text(encoding="utf-8"))
    faulty_s = None if clock[2] is None else float(clock[2])
    result: dict[str, Any] = {"rank": rank, "is_right": done.returncode == 0}
    result["run_s"] = round(time.monotonic() - began_s, 1)
    result["stolen_s"] = round(read_stolen_s() - began_stolen_s, 2)
    return result | measure(verdict, float(clock[1]), faulty_s)


def read_stolen_s() -> float:
    """Return the CPU time that a hypervisor has taken from this machine, on all cores; 0 where it does not say."""
    ticks = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    return int(ticks[8]) / os.sysconf("SC_CLK_TCK") if len(ticks) > 8 else 0.0


def measure(verdict: dict[str, Any], healthy_s: float, faulty_s: float | None) -> dict[str, Any]:
    """Return what a verdict says beside the job's own clock.

    Args:
        verdict: As `--json` writes it.
        healthy_s: The clock's median step before the fault.
        faulty_s: The clock's mean step with the fault, None without one.
    """
    result: dict[str, Any] = {"outcome": verdict["outcome"], "clock_healthy_s": healthy_s}
    result["found"] = [
        [item["reason"], item["subject"]["rank"], (item["subject"]["aggressor"] or {}).get("name")]
        for item in verdict["findings"]
    ]
    if faulty_s is None or not verdict["findings"]:
        return result
    slowdown_s = faulty_s - healthy_s
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


def score(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the score of one fault's runs; a ratio that no run has is left out."""
    result: dict[str, Any] = {"runs": len(runs), "right": sum(run["is_right"] for run in runs)}
    for name, (low, high) in CLOSE.items():
        values = [run[name] for run in runs if name in run]
        if values:
            result[name] = {
                "median": round(statistics.median(values), 3),
                "lowest": min(values),
                "highest": max(values),
                "close": sum(low <= value <= high for value in values),
            }
    bands = [run["band"] for run in runs if run["is_right"] and "band" in run]
    if bands:
        result["bands"] = {band: bands.count(band) for band in sorted(set(bands))}
    return result


def tell_score(fault: str, result: dict[str, Any]) -> list[str]:
    """Return a score as lines."""
    lines = [f"{fault}: right {result['right']} of {result['runs']}"]
    for name, (low, high) in CLOSE.items():
        if name in result:
            ratio = result[name]
            lines.append(
                f"  {name} within [{low}, {high}]: {ratio['close']} of {result['runs']};"
                f" median {ratio['median']:.3f}, {ratio['lowest']:.3f} to {ratio['highest']:.3f}"
            )
    return lines


def keep_store(folder: Path, copy: Path) -> None:
    """Copy the store that the last demo left in a folder, if it left one."""
    for store in folder.glob("*.duckdb"):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store, copy)


def save(report: dict[str, Any], output: Path) -> None:
    """Write the report, with the faults of an earlier one that this one lacks."""
    earlier = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    together = earlier | report
    ordered = {name: together[name] for name in FAULTS if name in together}
    output.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run, print a line a run, write the results after each, print the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="runs of each fault (default 5)")
    parser.add_argument(
        "--healthy-runs", type=int, default=10, help="runs without a fault (default 10)"
    )
    parser.add_argument("--output", type=Path, help="file for the results (JSON)")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS, metavar="FAULT")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="copy the store of every wrong run there"
    )
    arguments = parser.parse_args()
    ranks = min(max(len(os.sched_getaffinity(0)), 2), 8)
    counts = {
        name: arguments.healthy_runs if name == "none" else arguments.runs
        for name in arguments.faults
    }
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rootwalk-runs-") as name:
        for number in range(max(counts.values())):
            for fault in [fault for fault, count in counts.items() if number < count]:
                run = run_demo(fault, number % ranks, Path(name))
                print(json.dumps({"fault": fault} | run), flush=True)
                if arguments.keep is not None and not run["is_right"]:
                    keep_store(Path(name), arguments.keep / f"{fault}-{number}.duckdb")
                runs = [*report.get(fault, {}).get("results", []), run]
                report[fault] = describe_machine() | {"score": score(runs), "results": runs}
                if arguments.output is not None:
                    save(report, arguments.output)
    for fault, entry in report.items():
        print("\n".join(tell_score(fault, entry["score"])))
    is_right = all(entry["score"]["right"] == entry["score"]["runs"] for entry in report.values())
    return 0 if is_right else 1


def describe_machine() -> dict[str, Any]:
    """Return when and where the runs are made."""
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.system()} {platform.release()}, {cores} cores"
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine}


if __name__ == "__main__":
    raise SystemExit(main())
