"""Run jobs that lose time from the start or now and then, and quiet ones; print a line a run and keep every row.

    PYTHONPATH=tests python -m gauntlet.start --case start_work --runs 3
    PYTHONPATH=tests python -m gauntlet.start --quiet --runs 10 --keep /tmp/runs

One job at a time: each keeps two cores busy. Runs are added to the results; nothing is run again because it was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gauntlet.judge import SLOW_RATIO, VAGUE_OF_ALL
from gauntlet.neighbours import MAX_CORES, MachineBusyError, Neighbours
from gauntlet.results import add_run, describe_machine
from gauntlet.start.cases import CASES, StartCase
from gauntlet.start.published import START_RESULTS
from gauntlet.step_logs import find_stretch
from support.command import torchrun

SCRIPT = Path(__file__).with_name("training.py")
DEADLINE_S = 400.0
HOG = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
FAULT_RANK = 1
POLL_S = 0.1


def run_once(case: StartCase, folder: Path) -> dict[str, Any]:
    """Run a case once; return its row without what every row has.

    Args:
        case: The case.
        folder: Empty, for everything.
    """
    job = torchrun(case.ranks, "--folder", str(folder), *case.options(), script=SCRIPT)
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "start"]
    command += ["--store", str(folder / "store.duckdb"), "--json", str(folder / "verdict.json")]
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | os.environ
    hog: subprocess.Popen[bytes] | None = (
        start_hog() if case.fault == "hog" and not case.onset else None
    )
    neighbours, began_s = Neighbours(), time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        running = subprocess.Popen(
            [*command, "--", *job], cwd=folder, env=environment, stdout=output, stderr=output
        )
        try:
            while running.poll() is None and time.monotonic() - began_s < DEADLINE_S:
                time.sleep(POLL_S)
                neighbours.look()
                neighbours.check(MAX_CORES)
                if case.fault == "hog" and hog is None and count_steps(folder) >= case.onset:
                    hog = start_hog()
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait(30)
            if hog is not None:
                hog.kill()
                hog.wait()
    if not (folder / "verdict.json").exists():
        said = (folder / "output.txt").read_text("utf-8", errors="replace")
        return {"invalid": f"no verdict: {said[-500:]}"}
    verdict = json.loads((folder / "verdict.json").read_text("utf-8"))
    return judge(case, verdict, folder) | {"step_median_s": median_step_s(folder)}


def start_hog() -> subprocess.Popen[bytes]:
    """Start a process that keeps the core of the rank busy."""
    cores = sorted(os.sched_getaffinity(0))
    return subprocess.Popen([sys.executable, "-c", HOG, str(cores[FAULT_RANK % len(cores)])])


def count_steps(folder: Path) -> int:
    """Return how many steps the first rank has done."""
    log = folder / "rank0.jsonl"
    return len(log.read_text("utf-8").splitlines()) if log.exists() else 0


def median_step_s(folder: Path) -> float | None:
    """Return what the job's own clock says of its steps, s."""
    log = folder / "rank0.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    times = [json.loads(line)["seconds"] for line in lines]
    return round(statistics.median(times), 5) if times else None


def judge(case: StartCase, verdict: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return whether a verdict is right, and what it said.

    Args:
        case: What was run.
        verdict: As `--json` has it.
        folder: With the job's own step logs.
    """
    found = [
        (one["reason"], one["subject"]["rank"], one["seconds"]["share"], one["confidence"]["band"])
        for one in verdict["findings"]
    ]
    stretch = find_stretch(folder)
    row: dict[str, Any] = {
        "invalid": None,
        "slow_stretch": round(stretch, 2),
        "outcome": verdict["outcome"],
        "found": found,
        "step_s": verdict["step_s"],
        "healthy_step_s": verdict["healthy_step_s"],
    }
    if case.is_quiet:
        # All that may be said is that all ranks became slower, where the job's own clock says so too.
        may_say = {VAGUE_OF_ALL} if stretch >= SLOW_RATIO else set()
        said = [one for one in found if one[0] not in may_say or one[1] is not None]
        return row | {"right": not said, "blames": bool(said)}
    rank = None if case.fault == "load" else 1
    is_named = [one for one in found[:1] if one[0] in case.reasons and rank in (one[1], None)]
    blames = any(one[1] not in (None, rank) for one in found) and case.fault != "load"
    return row | {"right": bool(is_named), "blames": blames}


def main() -> int:
    """Run what is asked for; return 1 when a run that counts is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=sorted(CASES), default=[])
    parser.add_argument("--quiet", action="store_true", help="the quiet shapes only")
    parser.add_argument("--faults", action="store_true", help="the others only")
    parser.add_argument("--runs", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, help="folder for the files of all runs")
    parser.add_argument("--no-results", action="store_true", help="print only, add no row")
    arguments = parser.parse_args()
    names = arguments.case or [
        name
        for name, case in CASES.items()
        if (case.is_quiet or not arguments.quiet) and not (case.is_quiet and arguments.faults)
    ]
    wrong = 0
    for number in range(arguments.runs):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as text:
                folder = Path(text)
                try:
                    row = run_once(CASES[name], folder)
                except MachineBusyError as error:
                    row = {"invalid": str(error)}
                row = {"variant": "all sensors", "number": number, **describe_machine(), **row}
                if arguments.keep is not None:
                    copy = arguments.keep / f"{name}-{int(time.time())}"
                    copy.mkdir(parents=True)
                    for file in folder.iterdir():
                        if file.is_file():
                            shutil.copy(file, copy)
            if not arguments.no_results:
                add_run(name, row, START_RESULTS)
            word = "right" if row.get("right") else "WRONG"
            said = {key: row.get(key) for key in ("outcome", "found", "step_s", "healthy_step_s")}
            print(f"{name}: {row['invalid'] or word} {said}", flush=True)
            wrong += row["invalid"] is None and row.get("right") is False
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
