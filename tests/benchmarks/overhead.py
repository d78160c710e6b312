"""What watching costs: the same training with and without Rootwalk, in turn, on the job's own clock.

    python tests/benchmarks/overhead.py --pairs 6

Prints the median step of each run, the paired ratio with its standard error, and the CPU time of the agent and of the
kernel programs per rank and step. Pairs, because the speed of a shared machine drifts by more than the effect.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rootwalk.examples

EXAMPLE = Path(next(iter(rootwalk.examples.__path__))) / "train_ddp.py"
BPF_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
COLD_STEPS = 10


def train(folder: Path, steps: int, ranks: int, *, is_watched: bool) -> float:
    """Run the example once; return its median step by its own clock, s."""
    log = folder / "log"
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
    command += [str(EXAMPLE), "--bind-cores", "--steps", str(steps), "--step-log", str(log)]
    if is_watched:
        watch = [sys.executable, "-m", "rootwalk.graph", "run", "--store", "s.duckdb"]
        command = [*watch, "--job", "overhead", "--json", "v.json", "--", *command]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    seconds: dict[int, float] = {}
    for path in log.glob("rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            seconds[entry["step"]] = max(seconds.get(entry["step"], 0.0), entry["seconds"])
    return statistics.median(value for step, value in seconds.items() if step >= COLD_STEPS)


def query(folder: Path, sql: str) -> list[dict[str, Any]]:
    """Return rows from the store of the last watched run."""
    command = [sys.executable, "-m", "rootwalk.graph", "sql", "s.duckdb", sql, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> int:
    """Print a line a pair, then the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs (default 6)")
    parser.add_argument("--steps", type=int, default=100, help="steps a run (default 100)")
    arguments = parser.parse_args()
    ranks = min(max(len(os.sched_getaffinity(0)), 2), 8)
    ratios, watched, agent_s, bpf_s, agent_bytes = [], [], [], [], []
    if os.geteuid() == 0 and BPF_STATISTICS.exists():
        BPF_STATISTICS.write_text("1")
    try:
        for number in range(arguments.pairs):
            with tempfile.TemporaryDirectory(prefix="rootwalk-overhead-") as name:
                folder = Path(name)
                order = [False, True] if number % 2 == 0 else [True, False]
                median_s = {
                    flag: train(folder, arguments.steps, ranks, is_watched=flag) for flag in order
                }
                rows = query(
                    folder,
                    "SELECT name, sum(value) AS value FROM (SELECT name, attributes, max(value) AS value"
                    " FROM metrics WHERE name IN"
                    " ('rootwalk.agent.cpu.time', 'rootwalk.bpf.run.time', 'rootwalk.agent.memory.usage')"
                    " GROUP BY name, attributes) GROUP BY name",
                )
            cost = {row["name"]: row["value"] for row in rows}
            agent_s.append(cost.get("rootwalk.agent.cpu.time", 0.0))
            bpf_s.append(cost.get("rootwalk.bpf.run.time", 0.0))
            agent_bytes.append(cost.get("rootwalk.agent.memory.usage", 0.0))
            ratios.append(median_s[True] / median_s[False] - 1)
            watched.append(median_s[True])
            print(
                f"without {median_s[False]:.4f} s, with {median_s[True]:.4f} s: {ratios[-1]:+.2%}",
                flush=True,
            )
    finally:
        if os.geteuid() == 0 and BPF_STATISTICS.exists():
            BPF_STATISTICS.write_text("0")
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    rank_steps = ranks * arguments.steps
    print(
        f"step time {statistics.mean(ratios):+.2%} ± {error:.2%} (standard error, {len(ratios)} pairs)"
        f" at {statistics.mean(watched):.3f} s a step on {ranks} ranks"
    )
    print(
        f"per rank and step: agent {statistics.mean(agent_s) / rank_steps * 1e3:.2f} ms CPU (its start included),"
        f" kernel programs {statistics.mean(bpf_s) / rank_steps * 1e3:.2f} ms;"
        f" agent memory {max(agent_bytes) / 1e6:.0f} MB"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
