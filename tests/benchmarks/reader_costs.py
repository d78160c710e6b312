"""CPU time of one look of the readers whose cost no other command tells: /proc's partition, CPU limits, CPU times.

    make bench-readers

Against a process with 64 sleeping threads on this machine; medians of 5 rounds of 400 looks, files and kernel included.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.host.cpu_time import CpuTimeReader
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.proc_backend import OTHER_THREADS_INTERVAL_NS, ProcBackend
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.throttling import RankThrottling

THREADS = 64
ROUNDS = 5
LOOKS = 400
SLEEPERS = f"""
import threading
for _ in range({THREADS} - 1):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
input()
"""


def cost_us(look: Callable[[], object]) -> float:
    """Return the CPU time of one look, us."""
    rounds = []
    look()
    for _ in range(ROUNDS):
        begun_s = time.thread_time()
        for _ in range(LOOKS):
            look()
        rounds.append((time.thread_time() - begun_s) / LOOKS * 1e6)
    return statistics.median(rounds)


def main() -> None:
    """Print a line for each reader."""
    command = [sys.executable, "-c", SLEEPERS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        now_ns = itertools.count(1)
        first = ProcBackend(clock_ns=lambda: next(now_ns))
        due_ns = itertools.count(1, OTHER_THREADS_INTERVAL_NS)
        whole = ProcBackend(clock_ns=lambda: next(due_ns))
        for backend in (first, whole):
            backend.watch(process.pid, 1)
        throttling = RankThrottling(process.pid, CgroupReader())
        cpu = CpuTimeReader(Place())
        rests = {
            "procfs, the main thread": lambda: first.read(),
            f"procfs, all {THREADS} threads": lambda: whole.read(),
            "cgroup, a rank": lambda: throttling.look(time.monotonic_ns),
            f"cpu, {os.cpu_count()} CPUs": lambda: unpaced(cpu),
        }
        for name, look in rests.items():
            print(f"{name:<28}{cost_us(look):>8.1f} us a look")
        process.communicate("\n")


def unpaced(reader: CpuTimeReader) -> object:
    """Return what a reader reads now: its pace would repeat the last reading."""
    reader._pace = Pace()
    return reader.measurements()


if __name__ == "__main__":
    main()
