"""What /proc, /sys and control groups of this machine tell, against what these tests cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.host import HOST_KINDS
from rootwalk.ebpf.host.affinity import AffinityReader
from rootwalk.ebpf.host.cgroup_memory import CgroupMemoryReader
from rootwalk.ebpf.host.cpu_time import CpuTimeReader, parse_modes
from rootwalk.ebpf.host.disks import DisksReader
from rootwalk.ebpf.host.psi import PsiReader, parse_pressure
from rootwalk.ebpf.host.vmstat import VmstatReader
from rootwalk.ebpf.kernel_files import parse_pairs
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingPressureExtent as Extent
from support import hierarchies, workloads
from support.fake_host import Key, told, unhurried
from support.hierarchies import own_group
from support.loop_disk import BLOCK_BYTES, loop_disk, write_directly
from support.memory_group import memory_group

__all__ = ["unhurried"]

pytestmark = pytest.mark.usefixtures("unhurried")

BUSY_S = 1.5
WRITES = 101
KILLS = 3
SLEEPS = 16  # and the wait for the next command makes 17
MIGRATIONS = 13
# Takes orders from its standard input: each is a line of Python, and is answered with "done".
OBEDIENT = """
import os, sys, time
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
# A child that takes more than the group of the test may have.
HOG = 'import subprocess; subprocess.run([sys.executable, "-S", "-c", "bytearray(200_000_000)"])'


def open_reader(kind: type[Reader], place: Place | None = None) -> Reader:
    try:
        return kind(place or Place())  # type: ignore[call-arg]
    except UnavailableError as error:
        pytest.skip(f"{kind.sensor}: {error.reason}")


@contextmanager
def watching(kind: type[Reader], pid: int) -> Iterator[Reader]:
    reader = open_reader(kind)
    reader.watch(pid, 1)
    yield reader
    reader.close()


class Obedient:
    """A process of one thread that does what it is told, one line at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def tell(self, line: str) -> None:
        """Let it execute a line, and wait until it waits for the next one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"
        workloads.wait_until(lambda: workloads.state_of(self.pid) == "S")


@pytest.fixture
def obedient() -> Iterator[Obedient]:
    command = [sys.executable, "-S", "-E", "-c", OBEDIENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        made = Obedient(process)
        made.tell("pass")
        yield made
        process.kill()


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        workloads.wait_until(lambda pid=pid: workloads.state_of(pid) == "T")  # type: ignore[misc]


def pressures(group: Path) -> dict[tuple[str, str], int]:
    """Return the kernel's own totals in microseconds by extent and resource."""
    return {
        (extent.value, resource): total_us
        for resource in ("cpu", "memory")
        for extent, total_us in parse_pressure((group / f"{resource}.pressure").read_text()).items()
    }


def test_pressure_of_two_processes_on_one_cpu() -> None:
    # Both want the same CPU for 1.5 s: one of them always waits. The kernel's own file says the same to the us.
    code = workloads.burn(workloads.last_cpu())
    with (
        own_group(hierarchies.unique("psi"), None) as (group, _),
        workloads.python(code) as one,
        workloads.python(code) as other,
        watching(PsiReader, one.pid) as reader,
    ):
        pids = [one.pid, other.pid]
        stop(pids)
        for pid in pids:
            hierarchies.move(pid, group)
        told(reader)
        before = pressures(group)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        start_s = time.monotonic()
        time.sleep(BUSY_S)
        wall_s = time.monotonic() - start_s
        stop(pids)
        after = pressures(group)
        found = told(reader)
        for process in (one, other):
            process.kill()
            process.wait()
    for (extent, resource), total_us in after.items():
        expected_s = (total_us - before[extent, resource]) / 1e6
        assert found["training.pressure.time", (extent, resource), 1] == pytest.approx(
            expected_s, abs=1e-9
        )
    assert found["training.pressure.time", ("some", "cpu"), 1] == pytest.approx(wall_s, rel=0.05)
    # A page that is read back takes microseconds.
    assert found["training.pressure.time", ("some", "memory"), 1] < 0.01 * wall_s


def test_pressure_of_the_host_lies_between_two_readings_of_the_kernels_file() -> None:
    reader = open_reader(PsiReader)
    file = Path("/proc/pressure/cpu")
    before = parse_pressure(file.read_text())
    found_s = told(reader)["training.pressure.time", ("some", "cpu"), None]
    after = parse_pressure(file.read_text())
    assert before[Extent.SOME] <= round(found_s * 1e6) <= after[Extent.SOME]
    reader.close()


def test_cpu_times_and_memory_events_lie_between_two_readings() -> None:
    cpu, memory = open_reader(CpuTimeReader), open_reader(VmstatReader)
    stat, vmstat = Path("/proc/stat"), Path("/proc/vmstat")
    first, first_events = parse_modes(stat.read_text()), parse_pairs(vmstat.read_text())
    found = {**told(cpu), **told(memory)}
    last, last_events = parse_modes(stat.read_text()), parse_pairs(vmstat.read_text())
    ticks = os.sysconf("SC_CLK_TCK")
    for mode, value in first.items():
        assert value <= found["system.cpu.time", (mode,), None] * ticks + 0.5
        assert found["system.cpu.time", (mode,), None] * ticks <= last[mode] + 0.5
    for key, name in (
        (("system.paging.faults", ("major",), None), "pgmajfault"),
        (("training.host.oom_kills", (), None), "oom_kill"),
    ):
        assert first_events[name] <= found[key] <= last_events[name]


def test_where_a_rank_may_run(obedient: Obedient) -> None:
    cpus = os.sched_getaffinity(0)
    with watching(AffinityReader, obedient.pid) as reader:
        assert told(reader)["training.cpu.allowed", ("main",), 1] == len(cpus)
        obedient.tell(f"os.sched_setaffinity(0, {{{max(cpus)}}})")
        found = told(reader)
    assert found["training.cpu.allowed", ("main",), 1] == 1
    assert found["training.cpu.allowed.cores", (), 1] == 1
    assert found["process.thread.count", (), 1] == 1


def test_two_ranks_of_one_core_share_it(obedient: Obedient) -> None:
    obedient.tell(f"os.sched_setaffinity(0, {{{workloads.last_cpu()}}})")
    with (
        workloads.python(workloads.sleeper()) as other,
        watching(AffinityReader, obedient.pid) as reader,
    ):
        reader.watch(other.pid, 2)
        found = told(reader)
    assert found["training.cpu.allowed.shared_cores", (), 1] == 1


def test_sleeps_of_a_thread_are_its_voluntary_switches(obedient: Obedient) -> None:
    obedient.tell(f"os.sched_setaffinity(0, {{{workloads.last_cpu()}}})")
    key: Key = ("training.thread.context_switches", ("voluntary", "main"), 1)
    with watching(AffinityReader, obedient.pid) as reader:
        before = told(reader)[key]
        obedient.tell(f"[time.sleep(0.001) for _ in range({SLEEPS})]")
        assert told(reader)[key] - before == SLEEPS + 1


def test_moves_of_a_thread_are_its_migrations(obedient: Obedient) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("affinity: needs two CPUs")
    one, other = cpus[0], cpus[-1]
    obedient.tell(f"os.sched_setaffinity(0, {{{one}}})")
    key: Key = ("training.thread.migrations", ("main",), 1)
    with watching(AffinityReader, obedient.pid) as reader:
        before = told(reader).get(key)
        if before is None:
            pytest.skip("affinity: kernel without CONFIG_SCHED_DEBUG")
        move = (
            f"os.sched_setaffinity(0, {{{other}, {one}}}.difference({{[{one}, {other}][n % 2]}}))"
        )
        obedient.tell(f"for n in range({MIGRATIONS}): {move}")
        assert told(reader)[key] - before == MIGRATIONS


def test_thread_with_fewer_cpus_than_the_first(obedient: Obedient) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("affinity: needs two CPUs")
    cpu = workloads.last_cpu()
    pin = f"os.sched_setaffinity(0, {{{cpu}}})"
    obedient.tell(
        "import threading; lock = threading.Lock(); lock.acquire(); ready = threading.Event()"
    )
    run = f"lambda: ({pin}, ready.set(), lock.acquire())"
    obedient.tell(f"threading.Thread(target={run}, daemon=True).start(); ready.wait()")
    with watching(AffinityReader, obedient.pid) as reader:
        found = told(reader)
    assert found["process.thread.count", (), 1] == 2
    assert found["training.cpu.allowed", ("main",), 1] > 1
    assert found["training.cpu.allowed", ("other",), 1] == 1


def test_writes_of_a_disk_are_counted_one_by_one(tmp_path: Path) -> None:
    # A loop device is not physical: this machine is made to say that this one is.
    with loop_disk(tmp_path / "disk", 2 * WRITES * BLOCK_BYTES) as device:
        root = tmp_path / "root"
        (root / "sys/block" / device.name / "device").mkdir(parents=True)
        (root / "proc").symlink_to("/proc")
        reader = open_reader(DisksReader, Place(root))
        before = told(reader)
        write_directly(device, WRITES)
        after = told(reader)
    grown = {key[:2]: after[key] - before[key] for key in after}
    assert grown["system.disk.operations", ("write", device.name)] == WRITES
    assert grown["system.disk.io", ("write", device.name)] == WRITES * BLOCK_BYTES
    assert {attributes[-1] for _, attributes in grown} == {device.name}


def test_kills_in_a_rank_s_group(obedient: Obedient) -> None:
    with memory_group(hierarchies.unique("oom")) as group:
        if group is None:
            pytest.skip("cgroup: NO_CGROUP_ACCESS")
        hierarchies.move(obedient.pid, group)
        with watching(CgroupMemoryReader, obedient.pid) as reader:
            host = open_reader(VmstatReader)
            before_host = told(host)["training.host.oom_kills", (), None]
            assert told(reader)["training.cgroup.memory.events", ("oom_kill",), 1] == 0
            for _ in range(KILLS):
                obedient.tell(HOG)
            found = told(reader)
            after_host = told(host)["training.host.oom_kills", (), None]
        os.kill(obedient.pid, signal.SIGKILL)
    assert found["training.cgroup.memory.events", ("oom_kill",), 1] == KILLS
    assert found["training.cgroup.memory.events", ("max",), 1] > 0
    assert found["training.cgroup.memory.limit", (), 1] == pytest.approx(96_000_000, abs=4096)
    assert 0 < found["training.cgroup.memory.usage", (), 1] <= 96_000_000
    assert after_host - before_host >= KILLS  # others on this machine may be killed too


def test_group_that_is_frozen(obedient: Obedient) -> None:
    with (
        own_group(hierarchies.unique("freezer"), "freezer") as (group, is_unified),
        watching(CgroupMemoryReader, obedient.pid) as reader,
    ):
        hierarchies.move(obedient.pid, group)
        file = group / ("cgroup.freeze" if is_unified else "freezer.state")
        states = []
        for word in ("1" if is_unified else "FROZEN", "0" if is_unified else "THAWED"):
            file.write_text(word)
            time.sleep(0.1)
            states.append(told(reader)["training.cgroup.frozen", (), 1])
        os.kill(obedient.pid, signal.SIGKILL)
        workloads.wait_until(lambda: workloads.state_of(obedient.pid) == "Z")
    assert states == [1, 0]


def test_process_that_ends_is_told_no_more(obedient: Obedient) -> None:
    readers = []
    for kind in HOST_KINDS:
        try:
            readers.append(kind(Place()))  # type: ignore[call-arg]
        except UnavailableError:
            continue
    for reader in readers:
        reader.watch(obedient.pid, 1)
    assert any(slot == 1 for reader in readers for _, _, slot in told(reader))
    os.kill(obedient.pid, signal.SIGKILL)
    os.waitpid(obedient.pid, 0)
    assert not any(slot == 1 for reader in readers for _, _, slot in told(reader))
    for reader in readers:
        reader.close()


def test_nothing_stays_open() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(3):
        for kind in HOST_KINDS:
            try:
                reader = kind(Place())  # type: ignore[call-arg]
            except UnavailableError:
                continue
            reader.watch(os.getpid(), 1)
            told(reader)
            reader.close()
            reader.close()
    assert count() == before
