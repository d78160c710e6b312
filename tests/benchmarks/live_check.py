"""What real jobs send, held against the registry: names, types, units, required attributes.

    PYTHONPATH=tests python tests/benchmarks/live_check.py [STORE ...]

Without stores, short jobs run one after the other into stores of their own. What the verdicts say is not looked at,
so the machine need not be quiet. Records of other producers and the receiver's own metrics are not checked.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gauntlet.case import load_cases
from gauntlet.job import EXAMPLES, run_job
from gauntlet.workloads import DDP_SHORT
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import RootwalkError
from support.command import run_rootwalk, torchrun
from support.live_check import SENT, check_store, count_store

STORE = "store.duckdb"
# The demo takes no fewer.
DEMO_STEPS = 60
RANKS, STEPS = 2, 30
SCRIPT_OPTIONS = ("--steps", str(STEPS), "--layers", "2", "--workers", "1")
CASE, CASE_RANK = "log_slow_pipe", 1
# No more of a job's own words than this, from their end.
MOST_WORDS = 1500


@dataclass(frozen=True, slots=True)
class Job:
    """A job that leaves a store in the folder that it is given."""

    name: str
    run: Callable[[Path], None]


def list_jobs() -> list[Job]:
    """Return the jobs in the order in which they run."""
    jobs = [Job("demo", run_demo)]
    # The most detail for one of them; what is on by default for the others.
    for name, options in (("ddp", ("--level", "2")), ("fsdp", ()), ("moe", ()), ("pipeline", ())):
        jobs.append(Job(f"train_{name}.py", script_runner(f"train_{name}.py", options)))
    return [*jobs, Job(f"gauntlet {CASE}", run_case)]


def run_demo(folder: Path) -> None:
    """Run the demo with as few steps as it takes; its verdict may be wrong."""
    sizes = ("--steps", str(DEMO_STEPS), "--ranks", str(RANKS))
    run_command(folder, "demo", *sizes, "--store", STORE, allowed=(0, 1))


def script_runner(script: str, options: tuple[str, ...]) -> Callable[[Path], None]:
    """Return what runs a script of the examples under `rootwalk run`, with options of that."""

    def run(folder: Path) -> None:
        command = torchrun(RANKS, *SCRIPT_OPTIONS, script=EXAMPLES / script)
        run_command(
            folder, "run", *options, "--job", "live-check", "--store", STORE, "--", *command
        )

    return run


def run_case(folder: Path) -> None:
    """Run a case of the gauntlet, shorter and with whoever else uses the machine."""
    case = replace(load_cases()[CASE], workload=DDP_SHORT)
    run_job(case, CASE_RANK, folder, (), max_cores=math.inf)


def run_command(folder: Path, *arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run a command of Rootwalk in a folder.

    Raises:
        RootwalkError: If it ends with another code than the allowed ones, or leaves no store.
    """
    done = run_rootwalk(*arguments, cwd=folder, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    if done.returncode not in allowed or not (folder / STORE).exists():
        said = (done.stdout + done.stderr)[-MOST_WORDS:]
        raise RootwalkError(f"cannot check: the job ended with {done.returncode}: {said}")


def check(name: str, store: Path, took: str = "") -> bool:
    """Print a line for a store, then its violations; return whether all is well and there was something to check."""
    try:
        violations, (spans, points, logs) = check_store(store), count_store(store)
    except RootwalkError as error:
        print(f"{name:24} {error}", flush=True)
        return False
    checked = f"{spans:7} spans {points:6} data points {logs:4} log records"
    print(f"{name:24}{checked} {len(violations):3} violations{took}", flush=True)
    for line in violations:
        print(f"  {line}")
    if not spans + points + logs:
        print("  nothing of Rootwalk's own is in this store")
        return False
    return not violations


def check_job(job: Job) -> bool:
    """Run a job and check its store; return whether all is well."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="live-check-") as text:
        folder = Path(text)
        try:
            job.run(folder)
        except RootwalkError as error:
            print(f"{job.name:24} {error}", flush=True)
            return False
        return check(job.name, folder / STORE, f" ({time.monotonic() - began_s:.0f} s)")


def tell_seen() -> str:
    """Return how much of the registry was in what was checked."""
    kinds = (("span", semconv.SPANS), ("metric", semconv.METRICS), ("event", semconv.EVENTS))
    seen = (
        f"{sum(f'{k} {name}' in SENT for name in names)} of {len(names)} {k}s" for k, names in kinds
    )
    return f"seen of the registry: {', '.join(seen)}"


def main() -> int:
    """Check stores, or those of jobs of our own; return 1 when anything is against the registry."""
    parser = argparse.ArgumentParser(
        description="Hold what stores have received against the registry; without stores, run"
        " the demo, the example scripts and a gauntlet case for it."
    )
    parser.add_argument("stores", nargs="*", type=Path, metavar="STORE", help="check only these")
    stores: list[Path] = parser.parse_args().stores
    are_well = [check(store.name, store) for store in stores]
    are_well += [check_job(job) for job in list_jobs() if not stores]
    print(tell_seen())
    return 0 if all(are_well) else 1


if __name__ == "__main__":
    sys.exit(main())
