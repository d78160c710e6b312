"""Run cases until each has so many runs that count; print a line a run, keep the results.

    PYTHONPATH=tests python -m gauntlet                         as many runs as the goals want
    PYTHONPATH=tests python -m gauntlet --case cpu_hog --case quota --runs 1 --keep /tmp/stores
    PYTHONPATH=tests python -m gauntlet --devices --runs 1      devices that stand-ins play
    PYTHONPATH=tests python -m gauntlet --gpu --runs 1          a real GPU

A run is a real training job of half a minute. Runs that are there already count: stopped, it goes on where it was. A
run in which the fault took no effect is invalid, is kept as that, and is repeated up to twice. So is one in which this
harness failed. Where the job was well and no verdict is there, the run counts, and is wrong. What cannot be had on a
machine is tried again on another day. Nothing else should run on the machine: a run during which others were busy is
given up and not kept.
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

from gauntlet.case import Case, load_cases
from gauntlet.device_cases import DEVICE_CASES, without_nvml
from gauntlet.goals import find_wanted
from gauntlet.gpu_cases import GPU_CASES
from gauntlet.hang import VerdictError, diagnose_dumps, run_hang
from gauntlet.job import Run, run_job
from gauntlet.judge import (
    find_invalid,
    find_word,
    is_right,
    judge,
    judge_hang,
    judge_no_verdict,
)
from gauntlet.naive import ask_naive_rules
from gauntlet.neighbours import MachineBusyError, await_quiet
from gauntlet.results import (
    DEVICE_RESULTS,
    GPU_RESULTS,
    RESULTS,
    add_run,
    count_done,
    describe_gpus,
    describe_machine,
    is_refused_today,
    read_runs,
)
from rootwalk.instrumentation.errors import RootwalkError, UnavailableError
from support.live_check import check_store

VARIANTS: dict[str, tuple[str, ...]] = {
    "all sensors": (),
    "without bpf": ("--without", "bpf"),
    "without instrumentation": ("--without", "instrumentation"),
    "without nvml": ("--without", "nvml"),
}
MAX_REPEATS = 2
# A hang that nobody watches is told by its dumps alone: no sensor is there that could be taken away.
UNWATCHED_VARIANTS = ("all sensors", "without nvml")
NOT_WATCHED = "nobody watches this job live: its dumps are all there is"
# What goes wrong in this harness: a disk that is full, a tool that fails, a log without steps.
HARNESS_ERRORS = (OSError, subprocess.SubprocessError, statistics.StatisticsError)
# Of an error, the last characters.
MOST_WORDS = 2000
# A quick case is run so often while it is wrong.
ATTEMPTS = 2
# The quick cases are enough while the job and its verdict stay within this, s; what is left over is left out.
CI_BUDGET_S = 240.0


def run_once(name: str, case: Case, rank: int, variant: str, keep: Path | None) -> dict[str, Any]:
    """Run a case once; return the row for its results.

    Raises:
        MachineBusyError: If strangers kept the machine busy: this is no run.
    """
    row: dict[str, Any] = {"variant": variant, "rank": rank, **describe_machine()}
    if case.not_here is not None:
        return row | {"not_run": case.not_here}
    if case.hang is not None and not case.profile_hz and variant not in UNWATCHED_VARIANTS:
        return row | {"not_run": NOT_WATCHED}
    run_and_judge = slow_once if case.hang is None else hang_once
    try:
        if case.workload.is_on_gpu:
            row["machine"] += f", {describe_gpus()}"
        with tempfile.TemporaryDirectory(prefix="gauntlet-") as text:
            return row | run_and_judge(name, case, rank, variant, Path(text), keep)
    except UnavailableError as error:
        return row | {"not_run": str(error)}
    except HARNESS_ERRORS as error:
        return row | {"invalid": f"harness: {error}"[-MOST_WORDS:]}


def slow_once(
    name: str, case: Case, rank: int, variant: str, folder: Path, keep: Path | None
) -> dict[str, Any]:
    """Run a case that ends once; return what is added to its row."""
    began_s = time.monotonic()
    try:
        run = run_job(case, rank, folder, VARIANTS[variant])
    except (UnavailableError, MachineBusyError):
        raise
    except RootwalkError as error:
        return {"invalid": str(error)[-MOST_WORDS:]}
    row = describe_run(case, run)
    verdict = folder / "verdict.json"
    if verdict.exists():
        row |= judge(case, run, rank, json.loads(verdict.read_text(encoding="utf-8")))
        row["naive"] = ask_naive_rules(case, run, rank, folder)
        row["violations"] = check_store(folder / "store.duckdb")
    else:
        row |= judge_no_verdict()
    row["run_s"] = round(time.monotonic() - began_s, 1)
    if keep is not None and find_word(row | {"variant": variant}) != "right":
        keep_run(folder, keep / f"{name}-{variant.replace(' ', '-')}-{int(time.time())}")
    return row


def describe_run(case: Case, run: Run) -> dict[str, Any]:
    """Return what the row of a run says before any verdict is read."""
    times, effect = run.times, run.effect
    return {
        "healthy_s": round(times.healthy_s, 4),
        "faulty_s": None if times.faulty_s is None else round(times.faulty_s, 4),
        "effect": None if effect is None else [round(effect.amount, 3), effect.unit],
        "others_cores": round(run.others_cores, 2),
        "slow_stretch": round(run.slow_stretch, 2),
        "added": round(run.added, 3),
        "slow_cpu": round(run.slow_cpu, 2),
        "invalid": find_invalid(case, run),
    }


def hang_once(
    name: str, case: Case, rank: int, variant: str, folder: Path, keep: Path | None
) -> dict[str, Any]:
    """Run a case that hangs once; return what is added to its row."""
    began_s = time.monotonic()
    try:
        run = run_hang(case, rank, folder, VARIANTS[variant])
    except UnavailableError:
        raise
    except RootwalkError as error:
        return {"invalid": str(error)[-MOST_WORDS:]}
    row: dict[str, Any] = {"invalid": run.find_invalid(), "dumps": run.dumps, "named_s": None}
    try:
        row |= judge_hang(case, rank, diagnose_dumps(folder))
        if row["top1"] and run.begun_unix_s is not None:
            row["named_s"] = round(time.time() - run.begun_unix_s, 1)
    except VerdictError as error:
        row |= judge_no_verdict() | {"error": str(error)[-MOST_WORDS:]}
    row["run_s"] = round(time.monotonic() - began_s, 1)
    if keep is not None and find_word(row | {"variant": variant}) != "right":
        keep_run(folder, keep / f"{name}-{variant.replace(' ', '-')}-{int(time.time())}")
    return row


def keep_run(folder: Path, copy: Path) -> None:
    """Copy what is needed to look at a verdict again, as far as it is there."""
    copy.mkdir(parents=True)
    for name in ("store.duckdb", "verdict.json", "output.txt"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy)
    for name in ("steps", "dumps"):
        if (folder / name).exists():
            shutil.copytree(folder / name, copy / name)


def tell(name: str, row: dict[str, Any]) -> str:
    """Return a run in a line."""
    if row.get("not_run"):
        return f"{name:32} not run: {row['not_run']}"
    if row.get("invalid"):
        said = f"; verdict: {row['found'] or row['outcome']}" if "outcome" in row else ""
        return f"{name:32} INVALID: {row['invalid']}{said}"
    word = find_word(row)
    word = "WRONG" if word == "wrong" else word
    clock = (
        "" if "healthy_s" not in row else f"{row['healthy_s']:.3f} -> {row['faulty_s'] or 0:.3f} s"
    )
    said = row["found"] or row["outcome"]
    share = "" if "share_error" not in row else f" share {row['share_error']:+.0%}"
    against = f"; against the registry: {row['violations']}" if row.get("violations") else ""
    return f"{name:32} {word} rank {row['rank']} {clock} {said}{share} ({row['run_s']} s){against}"


def bring_to(name: str, case: Case, wanted: int, options: argparse.Namespace) -> None:
    """Run a case until it has so many runs that count; a run on a busy machine is none."""
    variant, output, keep = options.variant, options.results, options.keep
    repeats = 0
    while True:
        runs = [run for run in read_runs(name, output) if run["variant"] == variant]
        if count_done(runs, variant) >= wanted or is_refused_today(runs, variant):
            return
        rank = (len(runs) + 1) % case.workload.ranks
        try:
            if case.hang is None:
                await_quiet(options.wait_s)
            row = run_once(name, case, rank, variant, keep)
        except MachineBusyError as error:
            print(f"{name:32} given up: {error}", flush=True)
            return
        add_run(name, row, output)
        print(tell(name, row), flush=True)
        if row.get("invalid") is not None:
            repeats += 1
            if repeats > MAX_REPEATS:
                return


def check_quick(cases: dict[str, Case]) -> int:
    """Run the quick cases, a wrong one twice; return 1 when one is wrong twice that was right before.

    Telemetry that is against the registry fails at once.
    """
    failed = []
    began_s = time.monotonic()
    for name, case in cases.items():
        before = [run for run in read_runs(name) if run["variant"] == "all sensors"]
        if not any(is_right(run) for run in before):
            print(f"{name:32} left out: it has not been right before")
            continue
        if time.monotonic() - began_s > CI_BUDGET_S:
            print(f"{name:32} left out: {CI_BUDGET_S:.0f} s are over")
            continue
        wrong = 0
        for _ in range(ATTEMPTS):
            try:
                row = run_once(name, case, 1, "all sensors", None)
            except MachineBusyError as error:
                print(f"{name:32} given up: {error}")
                break
            print(tell(name, row), flush=True)
            if row.get("violations"):
                failed.append(name)
            if row.get("not_run") or row.get("violations") or is_right(row):
                break
            # A run in which the fault took no effect says nothing of the verdict.
            wrong += row.get("invalid") is None
            if wrong == ATTEMPTS:
                failed.append(name)
    if failed:
        print(f"wrong twice and right before, or against the registry: {', '.join(failed)}")
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this one")
    parser.add_argument(
        "--runs", type=int, help="runs that count, of each (as many as the goals want)"
    )
    parser.add_argument("--variant", choices=VARIANTS, default="all sensors")
    parser.add_argument(
        "--devices", action="store_true", help="the cases of devices that stand-ins play"
    )
    parser.add_argument("--gpu", action="store_true", help="the cases of a real GPU")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy wrong runs there")
    parser.add_argument(
        "--wait-s",
        type=float,
        default=60,
        metavar="S",
        help="wait so long for a quiet machine (60)",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--ci", action="store_true", help="only the quick cases; results are not kept"
    )
    arguments = parser.parse_args()
    usual = GPU_RESULTS if arguments.gpu else DEVICE_RESULTS if arguments.devices else RESULTS
    arguments.results = arguments.results or usual
    return arguments


def choose_cases(arguments: argparse.Namespace) -> dict[str, Case]:
    """Return the cases that there are, as they are to be judged."""
    if arguments.gpu:
        return GPU_CASES
    cases = DEVICE_CASES if arguments.devices else load_cases()
    if arguments.variant == "without nvml":
        blind = {name: without_nvml(case) for name, case in cases.items()}
        return {name: case for name, case in blind.items() if case is not None}
    return cases


def main() -> int:
    """Run what was asked for."""
    arguments = parse_arguments()
    cases = choose_cases(arguments)
    unknown = [name for name in arguments.case if name not in cases]
    if unknown:
        sys.stderr.write(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}\n")
        return 2
    chosen = {n: c for n, c in cases.items() if not arguments.case or n in arguments.case}
    if arguments.list:
        for name, case in chosen.items():
            print(f"{name:32} {case.text}")
        return 0
    if len(os.sched_getaffinity(0)) < 2:
        sys.stderr.write("cannot run: saw one core; needs two, one a rank\n")
        return 1
    if arguments.ci:
        return check_quick({name: case for name, case in chosen.items() if case.is_quick})
    wanted = {n: arguments.runs or find_wanted(c, arguments.variant) for n, c in chosen.items()}
    for number in range(1, max(wanted.values(), default=0) + 1):
        for name, case in chosen.items():
            bring_to(name, case, min(number, wanted[name]), arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
