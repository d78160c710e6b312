"""Reclaim and page faults on this kernel, against the kernel's own accounts of the thread that had them."""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.memory import DROP_REASONS, KEY, SPELL, TOTAL, MemoryReader
from rootwalk.ebpf.paging import PagingReader
from rootwalk.ebpf.reader import Cause, Place, Spell
from rootwalk.ebpf.targets import Targets, open_program, read_losses
from rootwalk.instrumentation import semconv
from support.live_check import check_measurement
from support.memory_group import LIMIT_BYTES, memory_group
from support.puppet import Puppet, puppet
from support.task_delays import delay_accounting, read_task_delays
from support.zram_swap import zram_swap

pytestmark = pytest.mark.bpf

SLOT = 3
MIB = 1 << 20
# A third more than the group may have: the rest is swapped out, so that other pages have to make room for each.
USED_BYTES = LIMIT_BYTES // (4 * MIB) * 4 * MIB + 32 * MIB
SWAP_BYTES = 256 * MIB
# The last spell is told when it is as long as this, or with the next reclaim.
SPELL_NS = 10_000_000
COMPACT = Path("/proc/sys/vm/compact_memory")
USE = f"""
import mmap, os
memory, page = mmap.mmap(-1, {USED_BYTES}), os.urandom(4096)
def turn():
    for i in range(0, {USED_BYTES}, 4096): memory[i:i + 4096] = page
"""
# The same by another thread than the first.
USE_BESIDE = (
    USE
    + """
import threading
inner = turn
def turn():
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
"""
)
# Touches pages that are swapped out. On one CPU, as others may keep pages that are new from being swapped out.
SWAP_IN = """
import mmap, os, resource
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
memory = mmap.mmap(-1, 4096 * {count})
memory.madvise(mmap.MADV_NOHUGEPAGE)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
def turn():
    for i in range({count}): memory[4096 * i] = 1
    memory.madvise(21)  # MADV_PAGEOUT
    for i in range({count}): memory[4096 * i]
    return faults()
"""
# Touches pages of a file that are not in memory, with nothing read ahead.
TOUCH = """
import mmap, os, resource
fd = os.open({path!r}, os.O_RDONLY)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
def turn():
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        sum(pages[i * 4096] for i in range({count}))
    return faults()
"""


@pytest.fixture
def reader(targets: Targets) -> Iterator[MemoryReader]:
    opened = MemoryReader(Place(targets=targets))
    yield opened
    opened.close()


@pytest.fixture
def swap() -> Iterator[None]:
    with zram_swap(SWAP_BYTES):
        yield


@contextmanager
def short_of_memory(code: str) -> Iterator[Puppet]:
    """Run code in a group that may have less memory than it uses."""
    with memory_group("rootwalk-test-memory") as group, puppet(code) as process:
        if group is None:
            pytest.skip("memory: no control group can be made")
        (group / "cgroup.procs").write_text(str(process.pid))
        yield process


def watch(targets: Targets, reader: MemoryReader, process: Puppet, *, child: bool = False) -> None:
    targets.watch(process.pid, SLOT, is_child=child)
    reader.watch(process.pid, SLOT)


def sums(reader: MemoryReader, kind: str) -> dict[str, tuple[int, float]]:
    """Return number and seconds of a kind of reclaim by role."""
    values: dict[tuple[str, str], float] = {}
    for one in reader.measurements():
        check_measurement(one)
        assert one.slot == SLOT
        if one.attributes[semconv.TRAINING_MEMORY_RECLAIM_KIND] == kind:
            role = str(one.attributes[semconv.TRAINING_THREAD_ROLE])
            values[one.metric, role] = one.value
    counts, times = (
        semconv.METRIC_TRAINING_MEMORY_RECLAIMS,
        semconv.METRIC_TRAINING_MEMORY_RECLAIM_TIME,
    )
    return {
        role: (int(value), values[times, role])
        for (metric, role), value in values.items()
        if metric == counts
    }


def assert_spells(spells: list[Spell], lost_ns: float) -> None:
    """Check that they come in order and hold all lost time but the rest that is told later."""
    assert {(spell.cause, spell.slot) for spell in spells} == {(Cause.RECLAIM, SLOT)}
    assert all(0 < spell.lost_ns <= spell.end_ns - spell.start_ns for spell in spells)
    assert all(one.end_ns <= two.start_ns for one, two in itertools.pairwise(spells))
    assert lost_ns - SPELL_NS <= sum(spell.lost_ns for spell in spells) <= lost_ns + 1


@pytest.mark.usefixtures("swap")
def test_reclaim_of_a_group_is_what_the_kernel_accounts(
    targets: Targets, reader: MemoryReader
) -> None:
    with delay_accounting(), short_of_memory(USE) as process:
        watch(targets, reader, process)
        process.turn()
        process.turn()
        account = read_task_delays(process.pid)
        found = sums(reader, "cgroup")
        spells = list(reader.spells())
    assert account.reclaims > 100
    assert set(found) == {"main"}
    count, seconds = found["main"]
    assert count == account.reclaims
    assert seconds == pytest.approx(account.reclaim_ns / 1e9, rel=0.05)
    assert len(spells) < count
    assert_spells(spells, seconds * 1e9)
    assert set(reader.losses().values()) == {0}
    assert set(reader.losses()) == set(DROP_REASONS)


@pytest.mark.usefixtures("swap")
def test_other_threads_have_their_own_sum_and_no_spells(
    targets: Targets, reader: MemoryReader
) -> None:
    with short_of_memory(USE_BESIDE) as process:
        watch(targets, reader, process)
        process.turn()
        found = sums(reader, "cgroup")
    assert set(found) == {"other"}
    assert found["other"][0] > 100
    assert not reader.spells()


@pytest.mark.usefixtures("swap")
def test_children_are_loader_workers(targets: Targets, reader: MemoryReader) -> None:
    with short_of_memory(USE) as process:
        watch(targets, reader, process, child=True)
        process.turn()
        found = sums(reader, "cgroup")
    assert set(found) == {"loader_worker"}
    assert not reader.spells()


@pytest.mark.usefixtures("swap")
def test_strangers_reclaim_is_not_a_ranks(targets: Targets, reader: MemoryReader) -> None:
    with short_of_memory(USE) as process, puppet("def turn(): pass") as rank:
        watch(targets, reader, rank)
        process.turn()
    assert not reader.measurements()


@pytest.mark.usefixtures("swap")
def test_rank_that_has_ended_leaves_nothing(targets: Targets, reader: MemoryReader) -> None:
    with short_of_memory(USE) as process:
        watch(targets, reader, process)
        process.turn()
        assert reader.measurements()
        reader.forget(process.pid)
    assert not reader.measurements()


@pytest.mark.usefixtures("swap")
def test_kernels_without_groups_and_compaction(targets: Targets, tmp_path: Path) -> None:
    # Without the kernel's list of types no optional hook is known to be there.
    reader = MemoryReader(Place(tmp_path, targets))
    try:
        with short_of_memory(USE) as process:
            watch(targets, reader, process)
            process.turn()
        assert not reader.measurements()
        assert set(reader.losses().values()) == {0}
    finally:
        reader.close()


@pytest.mark.usefixtures("swap")
def test_sums_and_spells_without_room_are_counted(targets: Targets) -> None:
    def configure(opened: BpfObject) -> None:
        opened.share(targets.map)
        opened.set_max_entries("totals", 1)
        opened.set_max_entries("untold", 1)
        opened.set_max_entries("spells", mmap.PAGESIZE)

    opened = open_program("memory", configure)
    try:
        opened.maps["totals"].write(bytes(KEY.size), bytes(TOTAL.size))
        opened.maps["untold"].write(bytes(4), bytes(SPELL.size))
        with short_of_memory(USE) as process:
            targets.watch(process.pid, SLOT)
            process.turn()
        lost = read_losses(opened.maps["counters"], DROP_REASONS)
    finally:
        opened.close()
    # A spell takes 40 bytes of the ring: without room for sums of spells, each reclaim is one.
    assert lost["bpf_memory_totals_full"] > 100
    assert lost["bpf_memory_ring_full"] == lost["bpf_memory_totals_full"] - mmap.PAGESIZE // 40


def test_compaction_is_counted_by_zone(targets: Targets, reader: MemoryReader) -> None:
    # To ask for it compacts each zone of memory once, in the thread that asks.
    code = (
        "import time\n"
        "def turn():\n"
        "    start = time.perf_counter_ns()\n"
        f"    with open({str(COMPACT)!r}, 'w') as file: file.write('1')\n"
        "    return time.perf_counter_ns() - start"
    )
    if not os.access(COMPACT, os.W_OK):
        pytest.skip("compaction: cannot be asked for")
    zones = sum(
        line.startswith("Node") for line in Path("/proc/buddyinfo").read_text().splitlines()
    )
    with puppet(code) as process:
        watch(targets, reader, process)
        took_ns = sum(int(process.turn()) for _ in range(5))
        count, seconds = sums(reader, "compaction")["main"]
        spells = list(reader.spells())
    assert count == 5 * zones
    assert seconds * 1e9 <= took_ns
    assert_spells(spells, seconds * 1e9)


@pytest.mark.usefixtures("swap")
def test_threads_without_room_are_counted(targets: Targets) -> None:
    def configure(opened: BpfObject) -> None:
        opened.share(targets.map)
        opened.set_max_entries("running", 1)

    opened = open_program("memory", configure)
    try:
        running = opened.maps["running"]
        running.write(bytes(4), bytes(running.value_bytes))
        with short_of_memory(USE) as process:
            targets.watch(process.pid, SLOT)
            process.turn()
        lost = read_losses(opened.maps["counters"], DROP_REASONS)
        kept = opened.maps["totals"].items()
    finally:
        opened.close()
    assert lost["bpf_memory_threads_full"] > 100
    assert not kept


@pytest.mark.usefixtures("swap")
def test_97_pages_that_are_swapped_in_are_97_major_faults() -> None:
    with puppet(SWAP_IN.format(count=97)) as process:
        assert faults_in_a_turn(process) == 97


def test_89_pages_of_a_file_are_89_major_faults(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("wb") as opened:
        opened.write(os.urandom(MIB))
        opened.flush()
        os.fsync(opened.fileno())
    with puppet(TOUCH.format(path=str(file), count=89)) as process:
        faults = faults_in_a_turn(process)
    if not faults:
        pytest.skip("memory: files are in memory here")
    assert faults == 89


def faults_in_a_turn(process: Puppet) -> float:
    """Return the growth of the metric, which is what the process itself is told."""
    reader = PagingReader(Place())
    reader.watch(process.pid, SLOT)
    # The first turn loads what a turn needs, and what it takes to tell of it.
    own = int(process.turn())
    (before,) = reader.measurements()
    own = int(process.turn()) - own
    (after,) = reader.measurements()
    assert (after.metric, after.slot) == (semconv.METRIC_TRAINING_MEMORY_MAJOR_FAULTS, SLOT)
    assert after.value - before.value == own
    return after.value - before.value
