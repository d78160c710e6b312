"""Loader workers on this kernel: when they ran, against the kernel's own account of their CPU time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.core_backend import CoreBackend
from rootwalk.ebpf.discovery import RankProcess, find_descendants, read_start_ticks
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.watched import WatchedRank, WatchedRanks
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.step_spans import ThreadTimes
from support import workloads
from support.bpf_programs import LoneBackend
from support.rings import identity

# They measure CPUs that other processes of the machine may want at any moment: one quiet try of three decides.
pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

WINDOW_S = 1.0
# A first process that waits all the time, and its children; they end with it.
FAMILY = """
import os, time
first = os.getpid()
time.sleep({delay})
for number in range({children}):
    if os.fork() == 0:
        os.sched_setaffinity(0, {{{cpu}}})
        while os.getppid() == first:
{body}
        os._exit(0)
while True: time.sleep(0.005)
"""
BUSY_AND_ASLEEP = """
            end = time.monotonic() + 0.02
            while time.monotonic() < end: pass
            time.sleep(0.02)
"""
ASLEEP = """
            time.sleep(0.01)
"""
# Its first thread waits while another one works: zlib lets go of the interpreter lock.
BUSY_THREAD = """
            import threading, zlib
            data = bytes(2_000_000)
            work = lambda: [zlib.crc32(data) for _ in range(60)] and time.sleep(0.02)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
"""


def family(body: str, children: int = 1, delay_s: float = 0.3) -> str:
    return FAMILY.format(body=body, children=children, cpu=workloads.last_cpu(), delay=delay_s)


@pytest.fixture
def backend() -> Iterator[CoreBackend]:
    try:
        opened = LoneBackend()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    yield opened
    opened.close()


def watch(ranks: WatchedRanks, target: subprocess.Popen[bytes]) -> WatchedRank:
    who = replace(identity(), pid=target.pid)
    return ranks.watch(RankProcess(who, read_start_ticks(target.pid) or 0))


def account_ns(pids: list[int]) -> int:
    """Return the CPU time of processes and all their threads, by the kernel's own account; exact when they wait."""
    paths = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    ended_ns = 0
    for pid in pids:  # threads that have ended count in clock ticks of 10 ms only
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ended_ns += (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(sum(int(path.read_text().split()[0]) for path in paths), ended_ns)


def measure(
    backend: CoreBackend, ranks: WatchedRanks, rank: WatchedRank, children: list[int]
) -> tuple[ThreadTimes, int, int]:
    """Return what is told of a window, the children's CPU time by the kernel, and what that leaves out, ns."""

    def take() -> None:
        ranks.look()
        ranks.take(backend.read())

    take()
    taken_ns, before_ns, start = workloads.taken_ns(), account_ns(children), time.monotonic_ns()
    while time.monotonic_ns() < start + WINDOW_S * 1e9:
        time.sleep(0.1)
        take()
    end, after_ns = time.monotonic_ns(), account_ns(children)
    take()
    assert rank.partition is not None
    times = rank.partition.main_times(start, end)
    assert times is not None
    return times, after_ns - before_ns, workloads.taken_ns() - taken_ns


@pytest.mark.parametrize(
    ("body", "count", "least_share"),
    [
        (BUSY_AND_ASLEEP, 1, 0.05),
        (BUSY_AND_ASLEEP, 4, 0.1),
        (ASLEEP, 2, 0.0),
        (BUSY_THREAD, 1, 0.05),
    ],
    ids=["half", "four on one cpu", "asleep", "threads inside"],
)
def test_cpu_time_of_children_is_the_kernels(
    backend: CoreBackend, body: str, count: int, least_share: float
) -> None:
    ranks = WatchedRanks(Readers(scheduler=backend), None)
    with workloads.python(family(body, count)) as target:
        rank = watch(ranks, target)
        workloads.wait_until(lambda: len(find_descendants(target.pid)) == count)
        children = find_descendants(target.pid)
        time.sleep(0.2)
        times, account, taken = measure(backend, ranks, rank, children)
    running_ns, waited_ns = times.loader_running_ns, times.blocked_loader_running_ns
    assert running_ns is not None
    assert waited_ns is not None
    assert times.running_ns is not None
    workloads.check_ran(running_ns, account, taken, 0.06, 25_000_000)
    assert running_ns >= least_share * WINDOW_S * 1e9
    # The children share one CPU, so one at most runs; the main thread waits nearly all of the time. Short waits are
    # told in sums of 5 to 10 ms, which are spread evenly: that is right to 1 %.
    spread_ns = 0.01 * WINDOW_S * 1e9
    awake_ns = times.running_ns + times.runnable_ns
    assert running_ns - awake_ns - spread_ns <= waited_ns <= running_ns


def test_children_that_were_there_before_are_found(backend: CoreBackend) -> None:
    ranks = WatchedRanks(Readers(scheduler=backend), None)
    with workloads.python(family(BUSY_AND_ASLEEP, 2, delay_s=0.0)) as target:
        workloads.wait_until(lambda: len(find_descendants(target.pid)) == 2)
        begin = time.monotonic_ns()
        rank = watch(ranks, target)
        children = find_descendants(target.pid)
        time.sleep(0.3)
        times, account, taken = measure(backend, ranks, rank, children)
        assert rank.partition is not None
        first = rank.partition.main_times(begin, begin + 1_000_000)
    assert times.loader_running_ns is not None
    workloads.check_ran(times.loader_running_ns, account, taken, 0.06, 25_000_000)
    assert first is None or first.loader_running_ns is None  # before they were followed


def test_child_that_has_waited_since_long_does_not_run(backend: CoreBackend) -> None:
    # The wait has begun when the rank is found and does not end: no event ever tells of it.
    ranks = WatchedRanks(Readers(scheduler=backend), None)
    body = "\n            time.sleep(30)\n"
    with workloads.python(family(body, 1, delay_s=0.0)) as target:
        workloads.wait_until(lambda: len(find_descendants(target.pid)) == 1)
        children = find_descendants(target.pid)
        workloads.wait_until(lambda: workloads.state_of(children[0]) == "S")
        rank = watch(ranks, target)
        times, _, _ = measure(backend, ranks, rank, children)
        assert (times.loader_running_ns, times.blocked_loader_running_ns) == (0, 0)
        os.kill(children[0], 9)
