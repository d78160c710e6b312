"""What live detection costs: CPU of one look at a healthy job, the share of a core that follows, and of a diagnosis.

    python tests/benchmarks/live_detection.py [--ranks 64] [--step-s 0.3]

A job of known steps is written beside a watcher in this process; only the watcher's own CPU time counts. New steps come
as they do from a receiver that flushes every two seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.growing_store import GrowingStore, Watched
from support.jobs import Fault, Job

FLUSH_S = 2.0
HEALTHY_STEPS = 240
FAULT_STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.3, help="what a step stands for, s")
    arguments = parser.parse_args()
    every = max(round(FLUSH_S / arguments.step_s), 1)
    fault = Fault("contention", arguments.ranks - 1, 0.060, HEALTHY_STEPS)
    steps = HEALTHY_STEPS + FAULT_STEPS
    job = Job(ranks=arguments.ranks, steps=steps, jitter_ratio=0.05, faults=(fault,))
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(GrowingStore(Path(folder) / "s.duckdb", job))
        watched.run(100, every)
        costs_s: list[float] = []
        while watched.growing.next_step < HEALTHY_STEPS:
            costs_s.append(look(watched, every))
        cost_s = sum(costs_s) / len(costs_s)
        interval_s = max(watched.watcher.interval_s, FLUSH_S)
        print(f"{arguments.ranks} ranks, {len(costs_s)} looks at a healthy job")
        print(f"a look       {cost_s * 1e3:.1f} ms of CPU, the longest {max(costs_s) * 1e3:.1f} ms")
        print(
            f"a minute     {60 * cost_s / interval_s:.2f} s of CPU, {cost_s / interval_s:.2%} of a core"
        )
        cpu_s = took_s = 0.0
        while not watched.told:
            began_s = time.perf_counter()
            cpu_s = look(watched, 1)
            took_s = time.perf_counter() - began_s
        print(f"named        after {watched.told[0][0] - HEALTHY_STEPS + 1} slow steps")
        print(f"a diagnosis  {cpu_s:.2f} s of CPU, {took_s:.2f} s")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"memory       {peak_bytes / 1e6:.0f} MB with the simulation")


def look(watched: Watched, steps: int) -> float:
    """Let steps come in and look once; return the look's CPU time, s."""
    watched.growing.grow(steps)
    began_s = time.process_time()
    watched.watcher.poll()
    return time.process_time() - began_s


if __name__ == "__main__":
    main()
