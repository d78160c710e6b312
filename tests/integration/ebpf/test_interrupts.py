"""The interrupt program on this kernel, against interrupts that the tests cause."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from rootwalk.ebpf.interrupts import LOCAL_HOOKS, InterruptReader, InterruptTotal
from rootwalk.ebpf.reader import Cause, Place
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingInterruptKind as Kind
from rootwalk.instrumentation.semconv import TrainingThreadRole as Role
from support import workloads
from support.puppet import puppet
from support.slow_packets import COUNT, slow_packets

# They need a CPU that others want at any moment, the kernel among them; one try in which nobody did decides.
pytestmark = [
    pytest.mark.bpf,
    pytest.mark.flaky(reruns=2),
    pytest.mark.skipif(os.cpu_count() == 1, reason="interrupts: needs two CPUs"),
]

TRIES = 10
CALLS = 997
NET_RX = 3
CALL_SINGLE = 3
# The first thread keeps one CPU busy without Python's lock, and for the moment that counts nothing takes it from there;
# the second asks the kernel for a memory barrier on every CPU where a thread of this process runs: one interrupt of the
# first thread a call.
BARRIERS = f"""
import ctypes, os, sys, threading, time, zlib
libc = ctypes.CDLL(None)
data = bytes(50_000_000)
libc.syscall(324, 16, 0, 0)  # membarrier: register
def second():
    os.sched_setaffinity(0, {{%d}})
    print("ready", flush=True)
    for _ in sys.stdin:
        os.sched_setscheduler(os.getpid(), os.SCHED_FIFO, os.sched_param(1))
        time.sleep(0.05)
        for _ in range({CALLS}): libc.syscall(324, 8, 0, 0)
        os.sched_setscheduler(os.getpid(), os.SCHED_OTHER, os.sched_param(0))
        print("done", flush=True)
    os._exit(0)
threading.Thread(target=second, daemon=True).start()
os.sched_setaffinity(0, {{%d}})
while True: zlib.crc32(data)
"""
# A thread that nothing but interrupts can take from its CPU, and that sees by its clock for how long each did.
SPIN = """
import os, time
os.sched_setaffinity(0, {%d})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
clock = time.monotonic_ns
def turn():
    last, jumped = clock(), 0
    end = last + 700_000_000
    while last < end:
        now = clock()
        if now - last > 100_000: jumped += now - last
        last = now
    return str(jumped)
"""


@dataclass
class Watch:
    """A reader, and the table of watched processes that it shares."""

    targets: Targets
    reader: InterruptReader

    def watch(self, pid: int, slot: int = 1) -> None:
        """Follow a process as a rank."""
        self.targets.watch(pid, slot)
        self.reader.watch(pid, slot)

    def read(self) -> dict[tuple[Role, Kind, int], InterruptTotal]:
        """Return the sums of slot 1."""
        return {(t.role, t.kind, t.number): t for t in self.reader.totals() if t.slot == 1}


@pytest.fixture
def watch(targets: Targets) -> Iterator[Watch]:
    reader = InterruptReader(Place(targets=targets))
    yield Watch(targets, reader)
    reader.close()


def other_cpu() -> int:
    return min(os.sched_getaffinity(0))


def called(cpu: int) -> int:
    """Return how often a CPU was called by others since it started, by the kernel's own account."""
    lines = Path("/proc/interrupts").read_text().splitlines()
    (line,) = (line for line in lines if line.split()[0] == "CAL:")
    return int(line.split()[1 + lines[0].split().index(f"CPU{cpu}")])


def grown(
    before: dict[tuple[Role, Kind, int], InterruptTotal],
    after: dict[tuple[Role, Kind, int], InterruptTotal],
    key: tuple[Role, Kind, int],
) -> tuple[int, int]:
    """Return how many there were of one interrupt, and how long they took, ns."""
    first, last = before.get(key), after[key]
    return last.interrupts - (first.interrupts if first else 0), last.stolen_ns - (
        first.stolen_ns if first else 0
    )


def stolen_from_first(totals: dict[tuple[Role, Kind, int], InterruptTotal]) -> int:
    """Return what all interrupts took from first threads, ns."""
    return sum(total.stolen_ns for total in totals.values() if total.role is Role.MAIN)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="interrupts: needs vectors of x86")
def test_calls_of_another_cpu_are_counted_one_by_one(watch: Watch) -> None:
    cpu = workloads.last_cpu()
    code = BARRIERS % (other_cpu(), cpu)
    with puppet(code) as process:
        watch.watch(process.pid)
        workloads.wait_until(lambda: bool(watch.read()))
        before = after = watch.read()
        for _ in range(TRIES):
            called_before = called(cpu)
            before = watch.read()
            process.turn()
            after = watch.read()
            if called(cpu) - called_before == CALLS:
                break  # the thread was there each time, and nobody else called
    count, stolen_ns = grown(before, after, (Role.MAIN, Kind.LOCAL, CALL_SINGLE))
    assert count == CALLS
    assert stolen_ns > 0
    assert not [key for key in after if key[0] is Role.LOADER_WORKER]
    assert not any(watch.reader.losses().values())


@pytest.mark.long
def test_time_is_what_the_thread_itself_sees(watch: Watch) -> None:
    """The thread looks at its clock all the time: what interrupts took is where the clock jumps.

    Two packets may come as one, and what a hypervisor takes from the CPU is a jump that the kernel does not see.
    """
    cpu = workloads.last_cpu()
    with slow_packets(other_cpu(), cpu, 180) as packets, puppet(SPIN % cpu) as process:
        watch.watch(process.pid)
        before = after = watch.read()
        jumped_ns: object = None
        count = packets_ns = stolen_ns = 0
        for _ in range(TRIES):
            time.sleep(0.4)  # others want this CPU too
            before = watch.read()
            packets.begin()
            jumped_ns = pytest.approx(int(process.turn()), rel=0.05)
            packets.wait_for("sent")
            after = watch.read()
            count, packets_ns = grown(before, after, (Role.MAIN, Kind.SOFT, NET_RX))
            stolen_ns = stolen_from_first(after) - stolen_from_first(before)
            if count == COUNT and stolen_ns == jumped_ns:
                break
        process.turn()  # a spell is told once another begins; the clock's ticks end that of the packets
        spells = list(watch.reader.spells())
    assert count == COUNT
    assert stolen_ns == jumped_ns
    assert COUNT * 100_000 < packets_ns <= stolen_ns
    # The same by spells.
    assert {(spell.cause, spell.slot) for spell in spells} == {(Cause.INTERRUPT, 1)}
    assert all(spell.lost_ns <= spell.end_ns - spell.start_ns for spell in spells)
    assert all(x.end_ns <= y.start_ns for x, y in pairwise(spells))
    lost_ns = sum(spell.lost_ns for spell in spells)
    assert lost_ns == pytest.approx(stolen_from_first(after), rel=0.05)
    assert not any(watch.reader.losses().values())


@pytest.mark.long
def test_soft_interrupts_are_told_whole_though_the_clock_ticks_inside_them(watch: Watch) -> None:
    """Each takes longer than the time of one spell: the clock's tick inside it does not end that."""
    cpu = workloads.last_cpu()
    with slow_packets(other_cpu(), cpu, 500) as packets, puppet(SPIN % cpu) as process:
        watch.watch(process.pid)
        list(watch.reader.spells())
        before = watch.read()
        packets.begin()
        process.turn()
        packets.wait_for("sent")
        process.turn()  # a spell is told once another begins
        after = watch.read()
        spells = list(watch.reader.spells())
    count, packets_ns = grown(before, after, (Role.MAIN, Kind.SOFT, NET_RX))
    assert packets_ns > 20_000_000 * count
    lost_ns = sum(spell.lost_ns for spell in spells)
    assert lost_ns == pytest.approx(stolen_from_first(after) - stolen_from_first(before), rel=0.05)
    assert all(x.end_ns <= y.start_ns for x, y in pairwise(spells))


def test_measurements_tell_role_kind_and_name(watch: Watch) -> None:
    with workloads.python(workloads.burn(workloads.last_cpu())) as process:
        watch.watch(process.pid)
        workloads.wait_until(lambda: len(watch.read()) > 1)
        found = list(watch.reader.measurements())
    assert {one.metric for one in found} == {"training.thread.interrupt.time"}
    assert {one.slot for one in found} == {1}
    assert {one.attributes["training.thread.role"] for one in found} == {"main"}
    assert all(one.value > 0 for one in found)
    names = {one.attributes["training.interrupt.name"] for one in found}
    assert names & {"TIMER", "RCU", "SCHED", "local_timer", "arch_timer"}


def test_children_are_told_apart(watch: Watch) -> None:
    burn = "\nimport os, time\nif os.fork(): os.wait()\nelse:\n  while True: pass\n"
    with workloads.python(f"import time; time.sleep(0.3)\n{burn}") as process:
        watch.watch(process.pid)
        workloads.wait_until(lambda: Role.LOADER_WORKER in {key[0] for key in watch.read()})
        found = watch.read()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), 9)
    ran_ns = sum(total.stolen_ns for key, total in found.items() if key[0] is Role.LOADER_WORKER)
    assert ran_ns > 0


def test_a_rank_that_has_ended_leaves_nothing_behind(watch: Watch) -> None:
    with workloads.python(workloads.burn(workloads.last_cpu())) as process:
        watch.watch(process.pid)
        workloads.wait_until(lambda: bool(watch.read()))
        maps = watch.reader._object.maps
        assert maps["totals"].items()
        watch.targets.forget(process.pid)
        watch.reader.forget(process.pid)
        assert watch.read() == {}
        watch.read()
        assert maps["totals"].items() == []
        assert maps["windows"].items() == []


def test_a_kernel_without_vectors_of_its_own(watch: Watch, tmp_path: Path) -> None:
    """As on arm64: their hooks are left out, and the others serve."""
    reader = InterruptReader(Place(tmp_path, watch.targets))  # there, no hook is known
    try:
        loaded = {name for name, _ in reader._object._loaded_programs()}
        assert loaded == {"on_irq_begin", "on_irq_end", "on_soft_begin", "on_soft_end"}
        assert not loaded & LOCAL_HOOKS.keys()
    finally:
        reader.close()
        reader.close()


def test_without_bpf_it_says_so() -> None:
    with pytest.raises(UnavailableError) as caught:
        InterruptReader(Place())
    assert caught.value.reason == "NO_BPF"
