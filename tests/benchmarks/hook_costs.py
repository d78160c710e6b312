"""What the hooks cost inside the training processes: CPU time of each hook, a call and a step, on real training.

    python tests/benchmarks/hook_costs.py --steps 200

Two ranks of the example under torchrun, nobody reading the rings, once with Python's garbage collector off and once as
it is by default. Every hook's own CPU time is measured in the rank, the stopwatch's own cost subtracted
(`timed_rank.py`). What PyTorch spends on calling a Python hook from C++ is outside of the hook and not in it;
tests/benchmarks/overhead.py compares whole runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rootwalk.instrumentation.shared_ring import ring_directory

RANK = Path(__file__).with_name("timed_rank.py")
RANKS = 2
COLD_STEPS = 20
HEAD = ("hook", "calls a step", "us a call", "us a step", "% of step", "stopwatch us")


@dataclass(frozen=True)
class HookCost:
    """One hook on one rank and step, means over all of them; CPU time in us. The stopwatch's is subtracted."""

    hook: str
    calls_per_step: float
    us_per_call: float
    us_per_step: float
    percent_of_step: float
    stopwatch_us: float


@dataclass(frozen=True)
class RunCost:
    """One run; `step_s` is the median step by the job's own clock."""

    collector: str
    ranks: int
    steps: int
    step_s: float
    hooks: list[HookCost]
    total_us_per_step: float
    total_percent_of_step: float


def measure(steps: int, collector: str, *, collectives: str = "few", level: int = 1) -> RunCost:
    """Train once and return what the hooks cost.

    Args:
        steps: How many are measured.
        collector: Python's garbage collector, on or off.
        collectives: many for 52 a step, few for PyTorch's own buckets.
        level: As the ranks are started with.
    """
    prefix = "rootwalk-bench-"  # beside the folders of real rings, in memory
    with tempfile.TemporaryDirectory(prefix=prefix, dir=ring_directory().parent) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
        command += [str(RANK), str(folder), collector, str(COLD_STEPS), collectives]
        command += ["--bind-cores", "--steps", str(steps + COLD_STEPS), "--step-log", str(folder)]
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "ROOTWALK_"))
        }
        own = {"ROOTWALK_JOB": "instrumentation", "ROOTWALK_RING_DIRECTORY": str(folder / "rings")}
        own["ROOTWALK_LEVEL"] = str(level)
        subprocess.run(command, env=environment | own, capture_output=True, check=True)
        seconds = [
            json.loads(line)["seconds"]
            for path in folder.glob("rank*.jsonl")
            for line in path.read_text(encoding="utf-8").splitlines()[COLD_STEPS:]
        ]
        ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    step_s = statistics.median(seconds)
    hooks = [_cost(hook, [rank[hook] for rank in ranks], steps, step_s) for hook in ranks[0]]
    hooks = [cost for cost in hooks if cost.calls_per_step]
    total_us = sum(cost.us_per_step for cost in hooks)
    return RunCost(collector, RANKS, steps, step_s, hooks, total_us, total_us / step_s / 1e4)


def _cost(hook: str, watches: list[dict[str, list[int]]], steps: int, step_s: float) -> HookCost:
    own_ns = [ns for watch in watches for ns in watch["own_ns"]]
    empty_ns = [ns for watch in watches for ns in watch["empty_ns"]]
    calls_per_step = (len(own_ns) + len(empty_ns)) / (steps * len(watches))
    stopwatch_us = statistics.mean(empty_ns) / 1e3 if empty_ns else 0.0
    us_per_call = statistics.mean(own_ns) / 1e3 - stopwatch_us if own_ns else 0.0
    us_per_step = us_per_call * calls_per_step
    percent = us_per_step / step_s / 1e4
    return HookCost(hook, calls_per_step, us_per_call, us_per_step, percent, stopwatch_us)


def print_run(run: RunCost) -> None:
    """Print one run as a table."""
    print(
        f"\ngarbage collector {run.collector}: {run.ranks} ranks, {run.steps} steps of"
        f" {run.step_s * 1e3:.0f} ms; the stopwatch's own time is subtracted"
    )
    print(f"{HEAD[0]:22}" + "".join(f"{title:>14}" for title in HEAD[1:]))
    for cost in run.hooks:
        print(
            f"{cost.hook:22}{cost.calls_per_step:14.2f}{cost.us_per_call:14.2f}"
            f"{cost.us_per_step:14.1f}{cost.percent_of_step:14.4f}{cost.stopwatch_us:14.2f}"
        )
    print(f"{'total':50}{run.total_us_per_step:14.1f}{run.total_percent_of_step:14.4f}")


def main() -> int:
    """Measure, print, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200, help="steps a run (default 200)")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    runs = []
    for collector in ("off", "on"):
        runs.append(measure(arguments.steps, collector))
        print_run(runs[-1])
    if arguments.output is not None:
        text = json.dumps({"runs": [asdict(run) for run in runs]}, indent=1)
        arguments.output.write_text(text + "\n", encoding="utf-8")
        print(f"\nwrote {arguments.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
