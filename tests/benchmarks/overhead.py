"""What watching costs: CPU time a rank and step by where it is spent, at each level; and the same training without.

    python tests/benchmarks/overhead.py --pairs 6

    BPF programs   the kernel's own statistics of each program, switched on for the whole run
    probe traps    user probes that the agent has set; this version sets none
    agent          its process, while ranks train: start and end are left out
    in-process     a stopwatch around every hook (timed_rank.py), in a run of its own without an agent

Two ranks of the example with 52 collectives a step (many_collectives.py). The pairs are runs with and without Rootwalk
in turn, on the job's own clock, because the speed of a shared machine drifts by more than the effect.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hook_costs

from rootwalk.ebpf.control import ask_agents
from rootwalk.graph.commands.agent import DEFAULT_BUDGET_RATIO

SCRIPT = Path(__file__).with_name("many_collectives.py")
BPF_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
RANKS = 2
COLD_STEPS = 20
JOB = "overhead"
ASK_EVERY_S = 0.5
# Two-sided 95 % of Student's t, by the number of pairs less one.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
# With it no detail is ever given up: then it is the whole level that is measured. Pairs keep the usual one.
NO_BUDGET = 1.0
LIMIT_US = {0: 1000.0, 1: 3000.0}


@dataclass
class LevelCost:
    """What one level costs: CPU time in us a rank and step.

    Attributes:
        level: 0, 1 or 2.
        step_s: Median step by the job's own clock.
        programs_us: By BPF program.
        agent_us: The agent's process.
        in_process_us: All hooks of a rank.
        probe_traps: User probes of the agent that were hit.
        agent_bytes: Most resident memory of the agent.
        events: Records from the kernel.
        sent_bytes: Bytes of spans.
        dropped: What was lost, by reason.
        is_lowered: The agent gave up detail to keep its budget: then it is not this level that was measured.
    """

    level: int
    step_s: float
    programs_us: dict[str, float] = field(default_factory=dict)
    agent_us: float = 0.0
    in_process_us: float = 0.0
    probe_traps: int = 0
    agent_bytes: int = 0
    events: float = 0.0
    sent_bytes: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)
    is_lowered: bool = False

    @property
    def total_us(self) -> float:
        return sum(self.programs_us.values()) + self.agent_us + self.in_process_us


class CostWatch:
    """Asks the agent of our run for its cost while it runs, as `rootwalk check` does."""

    def __init__(self) -> None:
        self.costs: list[dict[str, Any]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> CostWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            for answer in ask_agents({}):
                ranks = [one for one in answer.get("ranks", ()) if one["job"] == JOB]
                if ranks and answer["cost"].get("rank_steps", 0) >= COLD_STEPS * RANKS:
                    self.costs.append(answer["cost"])


@contextmanager
def bpf_statistics() -> Iterator[None]:
    """Keep the kernel's statistics on, and leave them as they were."""
    if os.geteuid() != 0 or not BPF_STATISTICS.exists():
        yield
        return
    before = BPF_STATISTICS.read_text(encoding="ascii")
    BPF_STATISTICS.write_text("1", encoding="ascii")
    try:
        yield
    finally:
        BPF_STATISTICS.write_text(before, encoding="ascii")


def train(
    folder: Path, steps: int, level: int | None, budget_ratio: float = DEFAULT_BUDGET_RATIO
) -> float:
    """Run the example once, watched at a level or not at all; return its median step by its own clock, s."""
    log = folder / "log"
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
    command += [str(SCRIPT), "--bind-cores", "--steps", str(steps), "--step-log", str(log)]
    if level is not None:
        watch = [sys.executable, "-m", "rootwalk.graph", "run", "--store", "s.duckdb"]
        watch += ["--level", str(level), "--job", JOB, "--json", "v.json"]
        command = [*watch, "--budget-ratio", str(budget_ratio), "--", *command]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    seconds: dict[int, float] = {}
    for path in log.glob("rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            seconds[entry["step"]] = max(seconds.get(entry["step"], 0.0), entry["seconds"])
    return statistics.median(value for step, value in seconds.items() if step >= COLD_STEPS)


def measure_level(level: int, steps: int) -> LevelCost:
    """Train once with an agent and once with a stopwatch; return what the level costs."""
    with (
        tempfile.TemporaryDirectory(prefix="rootwalk-overhead-") as name,
        bpf_statistics(),
        CostWatch() as watch,
    ):
        step_s = train(Path(name), steps, level, NO_BUDGET)
    cost = LevelCost(level, step_s)
    if len(watch.costs) > 1:
        first, last = watch.costs[0], watch.costs[-1]
        count = max(last["rank_steps"] - first["rank_steps"], 1)
        cost.programs_us = {
            program: (seconds - first["program_s"].get(program, 0.0)) / count * 1e6
            for program, seconds in sorted(last["program_s"].items())
        }
        cost.agent_us = (last["cpu_s"] - first["cpu_s"]) / count * 1e6
        cost.events = (last["events"] - first["events"]) / count
        cost.sent_bytes = (last["sent_bytes"] - first["sent_bytes"]) / count
        cost.agent_bytes = max(one["resident_bytes"] or 0 for one in watch.costs)
        cost.dropped = {why: lost for why, lost in last["dropped"].items() if lost}
        cost.is_lowered = any(one["lowered"] for one in watch.costs)
    run = hook_costs.measure(steps, "on", collectives="many", level=level)
    cost.in_process_us = run.total_us_per_step
    return cost


def print_level(cost: LevelCost) -> None:
    """Print one level as a table."""
    print(
        f"\nlevel {cost.level}: {RANKS} ranks, steps of {cost.step_s * 1e3:.0f} ms; us a rank-step"
    )
    programs = sum(cost.programs_us.values())
    print(f"  BPF programs  {programs:8.0f}")
    for program, spent_us in cost.programs_us.items():
        print(f"    {program:<16}{spent_us:8.1f}")
    print(f"  probe traps   {cost.probe_traps:8d}  (no user probe is set)")
    print(f"  agent         {cost.agent_us:8.0f}")
    print(f"  in-process    {cost.in_process_us:8.0f}")
    limit = LIMIT_US.get(cost.level)
    against = "" if limit is None else f"  (limit {limit:.0f})"
    print(f"  all           {cost.total_us:8.0f}{against}")
    print(
        f"  agent memory {cost.agent_bytes / 1e6:.0f} MB; {cost.events:.0f} events and {cost.sent_bytes:.0f} bytes"
        f" a rank-step; dropped: {cost.dropped or 'nothing'}"
    )
    if cost.is_lowered:
        print(
            "  the agent lowered its detail to keep its budget: not all of this level was measured"
        )


def compare(pairs: int, steps: int) -> list[float]:
    """Train with and without Rootwalk in turn; return by how much longer each pair's step was."""
    ratios = []
    for number in range(pairs):
        median_s = {}
        for level in (None, 1) if number % 2 == 0 else (1, None):
            with tempfile.TemporaryDirectory(prefix="rootwalk-overhead-") as name:
                median_s[level] = train(Path(name), steps, level)
        ratios.append(median_s[1] / median_s[None] - 1)
        print(
            f"without {median_s[None]:.4f} s, with {median_s[1]:.4f} s: {ratios[-1]:+.2%}",
            flush=True,
        )
    return ratios


def main() -> int:
    """Print a table a level, a line a pair, and the upper bound; save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--levels", type=int, nargs="*", default=[0, 1, 2], help="(default 0 1 2)")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs (default 6)")
    parser.add_argument("--steps", type=int, default=100, help="steps a run (default 100)")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    costs = []
    for level in arguments.levels:
        costs.append(measure_level(level, arguments.steps))
        print_level(costs[-1])
    ratios = compare(arguments.pairs, arguments.steps)
    interval = None
    if len(ratios) > 1:
        half = (
            T95[min(len(ratios) - 2, len(T95) - 1)] * statistics.stdev(ratios) / len(ratios) ** 0.5
        )
        mean = statistics.mean(ratios)
        interval = (mean - half, mean + half)
        print(
            f"step time {mean:+.2%}, 95 % interval {interval[0]:+.2%} to {interval[1]:+.2%} ({len(ratios)} pairs)"
        )
    if arguments.output is not None:
        machine = f"{platform.system()} {platform.release()}, {len(os.sched_getaffinity(0))} cores"
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "ranks": RANKS,
            "limits_us": {str(level): limit for level, limit in LIMIT_US.items()},
            "levels": [asdict(c) for c in costs],
            "ratios": ratios,
            "interval": interval,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
