"""The scheduler program on this kernel, by either loader, against processes whose behaviour is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.bcc_backend import BCC
from rootwalk.ebpf.core_backend import OLD_PROGRAM, CoreBackend
from rootwalk.ebpf.events import EventFlag, SchedEvent, ThreadExit, ThreadRecord, ThreadState
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.targets import CORE, Loader
from support import workloads
from support.bpf_programs import LoneBackend, list_bpf_programs, skip_without

# They measure a CPU that other processes of the machine may want at any moment: one quiet try of three decides.
pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

WINDOW_S = 1.5


# They stop themselves where the test has something to do.
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
THREAD_COUNT = 10_000
THREADS = f"""
import os, signal, threading, time
{STOP}
threading.stack_size(65536)
over = threading.Event()
for _ in range({THREAD_COUNT}):
    threading.Thread(target=over.wait, daemon=True).start()
{STOP}
over.set()
time.sleep(60)
"""
NAP_COUNT, LAST_NAP_COUNT = 60_000, 113
NAPS = f"""
import os, signal, time
{STOP}
for _ in range({NAP_COUNT}):
    time.sleep(0.00003)
{STOP}
for _ in range({LAST_NAP_COUNT}):
    time.sleep(0.001)
"""
LOADERS = [CORE, pytest.param(BCC, marks=pytest.mark.long)]  # BCC compiles for seconds


# Where the kernel is newer than 5.17 the program for older ones is tried too: it needs less.
PROGRAMS = [
    pytest.param((CORE, None), id="core"),
    pytest.param((CORE, OLD_PROGRAM), id="core_5_15", marks=pytest.mark.variant),
    pytest.param((BCC, None), id="bcc", marks=pytest.mark.long),
]


@pytest.fixture(params=PROGRAMS)
def backend(request: pytest.FixtureRequest) -> Iterator[LoneBackend]:
    loader, program = request.param
    skip_without(loader)
    opened = LoneBackend(loader, program)
    yield opened
    opened.close()


def started(backend: CoreBackend, pid: int) -> ThreadRecord:
    """Return the main thread's record once it has switched a few times."""
    workloads.wait_until(
        lambda: pid in backend.threads() and backend.threads()[pid].totals.switches > 3
    )
    return backend.threads()[pid]


def watched(backend: CoreBackend, pid: int) -> tuple[ThreadRecord, ThreadRecord, list[SchedEvent]]:
    """Return a thread's record before and after the window, and the events between the two."""
    before = started(backend, pid)
    time.sleep(WINDOW_S)
    after = backend.threads()[pid]
    return before, after, events_between(backend, before, after)


def events_between(
    backend: CoreBackend, before: ThreadRecord, after: ThreadRecord
) -> list[SchedEvent]:
    """Return what was told and lies between two records."""
    return [
        event
        for event in backend.read()
        if isinstance(event, SchedEvent)
        and event.start_ns >= before.since_ns
        and event.end_ns <= after.since_ns
    ]


def cpu_time_ns(pid: int) -> int:
    """Return the CPU time of a process with one thread, by the kernel's own account."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


def ran_or_waited_ns(pid: int) -> int:
    """Return for how long a process with one thread has run or wanted to, by the kernel's own account."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(ran) + int(waited)


def difference(before: ThreadRecord, after: ThreadRecord) -> tuple[int, ...]:
    return tuple(y - x for x, y in zip(before.totals, after.totals, strict=True))


def test_partition_adds_up_and_names_the_hog(backend: CoreBackend) -> None:
    cpu = workloads.last_cpu()
    with (
        workloads.python(workloads.burn(cpu)) as target,
        workloads.python(workloads.burn(cpu)) as hog,
    ):
        backend.watch(target.pid, 1)
        # Until they are bound both can run at once: on an emulated machine the interpreter starts slowly.
        workloads.wait_until(
            lambda: all(os.sched_getaffinity(process.pid) == {cpu} for process in (target, hog))
        )
        taken_before_ns = workloads.taken_ns()
        before = started(backend, target.pid)
        hog_before_ns = cpu_time_ns(hog.pid)
        time.sleep(WINDOW_S)
        after = backend.threads()[target.pid]
        # Asked before the events are read: on an emulated machine that takes a tenth of a second.
        hog_ns = cpu_time_ns(hog.pid) - hog_before_ns
        taken_ns = workloads.taken_ns() - taken_before_ns
        events = events_between(backend, before, after)
    running, runnable, blocked, blocked_io, stopped, foreign, own, kernel, idle, _ = difference(
        before, after
    )
    wall = after.since_ns - before.since_ns
    assert running + runnable + blocked + blocked_io + stopped == pytest.approx(wall, rel=0.01)
    assert foreign + own + kernel + idle == pytest.approx(runnable, rel=0.01)
    assert runnable > 0.2 * wall
    assert own == 0
    ran_by_pid: dict[int, int] = defaultdict(int)
    for event in events:
        for runner in event.runners:
            ran_by_pid[runner.tgid] += runner.ran_ns
    assert max(ran_by_pid, key=ran_by_pid.__getitem__) == hog.pid
    # The target always runs or waits: all that the kernel says the hog ran, it ran in the target's place.
    workloads.check_ran(ran_by_pid[hog.pid], hog_ns, taken_ns, 0.05)
    assert backend.losses()["bpf_ring_full"] == 0


def test_storm_of_short_stays_is_still_attributed(backend: CoreBackend) -> None:
    # Two processes wake each other over pipes, a million switches a second, where the target wants to run.
    cpu = workloads.last_cpu()
    with (
        workloads.python(workloads.burn(cpu)) as target,
        workloads.python(workloads.ping_pong(cpu)) as pair,
    ):
        backend.watch(target.pid, 1)
        time.sleep(0.2)
        before, after, events = watched(backend, target.pid)
    _, runnable, _, _, _, foreign, own, kernel, idle, _ = difference(before, after)
    assert foreign + own + kernel + idle == pytest.approx(runnable, rel=0.02)
    assert any(runner.tgid == pair.pid for event in events for runner in event.runners)


def test_events_give_the_same_partition_as_the_kernels_sums(backend: CoreBackend) -> None:
    cpu = workloads.last_cpu()
    partition = RankPartition("core", 0)
    with workloads.python(workloads.burn(cpu)) as target, workloads.python(workloads.burn(cpu)):
        backend.watch(target.pid, 1)
        before, after, events = watched(backend, target.pid)
    for event in events:
        partition.add(event)
    times = partition.main_times(before.since_ns, after.since_ns)
    assert times is not None
    running, runnable, *_ = difference(before, after)
    assert times.running_ns == pytest.approx(running, rel=0.01)
    assert times.runnable_ns == pytest.approx(runnable, rel=0.01)


# Before everybody else, where that is allowed: then its CPU is seldom taken on a busy machine.
NAPPER = """
import contextlib, os, sys, time
os.sched_setaffinity(0, {%d})
with contextlib.suppress(OSError):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
for line in sys.stdin:
    print("naps", flush=True)
    time.sleep(0.1)
    end = time.thread_time() + 0.4
    while time.thread_time() < end: pass
    print("ran", flush=True)
"""


def preemptions(pid: int) -> int:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "nonvol" in x)
    return int(line.split()[1])


def test_switch_that_was_not_told_is_made_up_from_runtimes(backend: LoneBackend) -> None:
    """A round in which somebody takes its CPU is not counted: of a run in two parts only the last is made up for."""
    wanted, tries = 3, 60
    command = [sys.executable, "-c", NAPPER % workloads.last_cpu()]
    rounds: list[tuple[ThreadRecord, ThreadRecord]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as napper:
        assert napper.stdin is not None
        assert napper.stdout is not None
        backend.watch(napper.pid, 1)
        before: ThreadRecord | None = None
        for _ in range(tries):
            napper.stdin.write(b"go\n")
            napper.stdin.flush()
            assert napper.stdout.readline() == b"naps\n"
            workloads.wait_until(lambda: workloads.state_of(napper.pid) == "S", period_s=0.001)
            lost = preemptions(napper.pid)
            if before is not None:
                with backend.deaf():
                    time.sleep(0.2)  # it is woken meanwhile, and comes to its CPU
            lost -= preemptions(napper.pid)
            assert napper.stdout.readline() == b"ran\n"
            time.sleep(0.1)  # it waits for the next word
            after = backend.threads()[napper.pid]
            if before is not None and not lost:
                rounds.append((before, after))
            before = after
            if len(rounds) == wanted:
                break
        made_up = backend.made_up_switches()
    assert len(rounds) == wanted
    assert made_up >= wanted
    for before, after in rounds:
        running, runnable, blocked, *_ = difference(before, after)
        lasted_ns = after.since_ns - before.since_ns
        assert running + runnable == pytest.approx(0.4e9, rel=0.05)
        assert running + runnable + blocked == pytest.approx(lasted_ns, rel=0.01)


def test_sleeper_is_blocked(backend: CoreBackend) -> None:
    on_ns = []
    # Long naps: where the kernel is emulated, the way into one and out of it takes a millisecond, which is no sleep.
    nap_s = 0.2
    with workloads.python(workloads.sleeper(nap_s=nap_s)) as target:
        backend.watch(target.pid, 1)
        started(backend, target.pid)
        # Until its first nap the interpreter starts, and waits for the disk that it is read from.
        workloads.wait_until(lambda: backend.threads()[target.pid].totals.blocked_ns >= nap_s * 1e9)
        on_ns.append(ran_or_waited_ns(target.pid))
        before = backend.threads()[target.pid]
        on_ns.append(ran_or_waited_ns(target.pid))
        time.sleep(WINDOW_S)
        on_ns.append(ran_or_waited_ns(target.pid))
        after = backend.threads()[target.pid]
        on_ns.append(ran_or_waited_ns(target.pid))
        events = events_between(backend, before, after)
    blocked = difference(before, after)[2]
    lasted_ns = after.since_ns - before.since_ns
    # The kernel's own count is looked at on both sides of each record: the truth lies between.
    least, most = lasted_ns - (on_ns[3] - on_ns[0]), lasted_ns - (on_ns[2] - on_ns[1])
    assert 0.5 * lasted_ns < least
    assert 0.98 * least <= blocked <= 1.02 * most
    reported = sum(e.end_ns - e.start_ns for e in events if e.state == ThreadState.BLOCKED)
    assert reported == pytest.approx(blocked, rel=0.01)


def test_own_threads_are_own_and_not_foreign(backend: CoreBackend) -> None:
    with workloads.python(workloads.two_threads(workloads.last_cpu())) as target:
        backend.watch(target.pid, 1)

        def threads() -> list[ThreadRecord]:
            return [r for tid, r in backend.threads().items() if tid != target.pid]

        workloads.wait_until(lambda: sum(r.totals.runnable_ns for r in threads()) > 300_000_000)
        totals = [record.totals for record in threads()]
    runnable = sum(total.runnable_ns for total in totals)
    assert sum(total.own_ns for total in totals) > 0.8 * runnable
    assert sum(total.foreign_ns for total in totals) < 0.2 * runnable


def test_stopped_process_is_stopped(backend: CoreBackend) -> None:
    with workloads.python(workloads.sleeper()) as target:
        backend.watch(target.pid, 1)
        started(backend, target.pid)
        os.kill(target.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(target.pid, signal.SIGCONT)
        workloads.wait_until(lambda: backend.threads()[target.pid].totals.stopped_ns > 0)
        stopped_ns = backend.threads()[target.pid].totals.stopped_ns
    assert stopped_ns == pytest.approx(300_000_000, rel=0.3)


def test_children_are_followed_and_their_end_is_told(backend: CoreBackend) -> None:
    code = "import os, time\ntime.sleep(0.3)\nfor _ in range(7):\n os.fork() or os._exit(0)\n os.wait()\ntime.sleep(60)"
    ends: list[ThreadExit] = []

    def seven_ends() -> bool:
        ends.extend(event for event in backend.read() if isinstance(event, ThreadExit))
        return len(ends) >= 7

    with workloads.python(code) as target:
        backend.watch(target.pid, 5)
        workloads.wait_until(seven_ends)
    assert len(ends) == 7
    assert {event.slot for event in ends} == {5}
    assert all(event.flags == EventFlag.INHERITED | EventFlag.LEADER for event in ends)


def test_child_that_becomes_a_rank_of_its_own_is_no_child_any_more(backend: CoreBackend) -> None:
    code = (
        "import os, time\ntime.sleep(0.3)\nfirst = os.getpid()\nos.fork()\n"
        "while first in (os.getpid(), os.getppid()): time.sleep(0.01)"
    )
    with workloads.python(code) as target:
        backend.watch(target.pid, 1)
        workloads.wait_until(lambda: bool(backend.children()))
        (child,) = backend.children()
        backend.watch(child, 2)
        workloads.wait_until(lambda: child in backend.threads())
        record = backend.threads()[child]
    assert (record.slot, record.flags) == (2, EventFlag.LEADER)


def test_nothing_is_read_when_nothing_is_watched(backend: CoreBackend) -> None:
    with workloads.python(workloads.sleeper()) as target:
        backend.watch(target.pid, 1)
        started(backend, target.pid)
        backend.forget(target.pid)
        backend.read()
        time.sleep(0.1)
        assert backend.read() == []


def go_on(pid: int) -> None:
    """Let a process go on that has stopped itself."""
    workloads.wait_until(lambda: workloads.state_of(pid) == "T", deadline_s=60.0)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.variant
def test_ten_thousand_threads(backend: CoreBackend) -> None:
    with workloads.python(THREADS) as target:
        backend.watch(target.pid, 1)
        go_on(target.pid)
        workloads.wait_until(lambda: len(backend.threads()) > THREAD_COUNT, deadline_s=60.0)
        records = backend.threads()
        assert {record.tgid for record in records.values()} == {target.pid}
        go_on(target.pid)
        workloads.wait_until(lambda: list(backend.threads()) == [target.pid], deadline_s=60.0)
        ends = [event for event in backend.read() if isinstance(event, ThreadExit)]
    lost = backend.losses()
    assert lost["bpf_threads_full"] == 0
    assert len(ends) + lost["bpf_ring_full"] >= THREAD_COUNT


@pytest.mark.long
def test_full_ring_is_counted_and_goes_on(backend: CoreBackend) -> None:
    with workloads.python(NAPS) as target:
        backend.watch(target.pid, 1)
        go_on(target.pid)
        workloads.wait_until(lambda: workloads.state_of(target.pid) == "T", deadline_s=60.0)
        first, lost = backend.read(), backend.losses()["bpf_ring_full"]
        go_on(target.pid)
        workloads.wait_until(lambda: workloads.state_of(target.pid) == "Z")
        second = backend.read()
    assert lost > 0  # nobody read, and the ring holds some 30,000 waits
    assert len([one for one in first if isinstance(one, SchedEvent)]) + lost >= NAP_COUNT
    assert backend.losses()["bpf_ring_full"] == lost
    assert len([one for one in second if isinstance(one, SchedEvent)]) >= LAST_NAP_COUNT


def programs_of(pid: int) -> set[int]:
    """Return the ids of the BPF programs that a process holds open."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = entry.read_text(encoding="ascii")
        except OSError:
            continue
        found |= {int(line.split()[1]) for line in text.splitlines() if line[:8] == "prog_id:"}
    return found


@pytest.mark.parametrize("loader", LOADERS, ids=["core", "bcc"])
def test_kill_9_leaves_no_program(loader: Loader) -> None:
    skip_without(loader)
    name = {CORE: "targets.CORE", BCC: "bcc_backend.BCC"}[loader]
    code = (
        "import time\nfrom rootwalk.ebpf import bcc_backend, targets\n"
        "from rootwalk.ebpf.core_backend import CoreBackend\n"
        f"watched = targets.Targets(loader={name})\nbackend = CoreBackend(watched)\ntime.sleep(60)"
    )
    agent = subprocess.Popen([sys.executable, "-c", code])
    try:
        workloads.wait_until(lambda: len(programs_of(agent.pid)) >= 7)
        loaded = programs_of(agent.pid)
        assert loaded <= list_bpf_programs()
    finally:
        agent.kill()
        agent.wait()
    workloads.wait_until(lambda: not loaded & list_bpf_programs())
