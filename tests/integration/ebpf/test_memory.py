"""Reclaim and page faults on this kernel, against the kernel's own accounts of the thread that had them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.memory import DROP_REASONS, MemoryReader
from rootwalk.ebpf.paging import PagingReader
from rootwalk.ebpf.reader import Cause, Place, Spell
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from support.memory_group import LIMIT_BYTES, memory_group
from support.puppet import Puppet, puppet
from support.task_delays import delay_accounting, read_task_delays

pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

SLOT = 3
MIB = 1 << 20
FILE_MIB = 2 * LIMIT_BYTES // MIB
MIN_SPELL_NS = 20_000
COMPACT = Path("/proc/sys/vm/compact_memory")
# What is read stays in memory until the group is at its limit; from then on each read has to make room first.
READ = """
import os
fd = os.open({path!r}, os.O_RDONLY)
def turn():
    for i in range({mib}): os.pread(fd, 1 << 20, i << 20)
"""
# The same by another thread than the first.
READ_BESIDE = (
    READ
    + """
import threading
inner = turn
tid = []
def beside():
    tid.append(threading.get_native_id())
    inner()
def turn():
    tid.clear()
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    return tid[0]
"""
)
# Touches pages of a file that are not in memory, with nothing read ahead.
TOUCH = """
import mmap, os, resource
fd = os.open({path!r}, os.O_RDONLY)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
def turn():
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    before = faults()
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        sum(pages[i * 4096] for i in range({count}))
    return faults() - before
"""


@pytest.fixture
def targets() -> Iterator[Targets]:
    try:
        opened = Targets()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    yield opened
    opened.close()


@pytest.fixture
def reader(targets: Targets) -> Iterator[MemoryReader]:
    opened = MemoryReader(Place(targets=targets))
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file on a disk that is not in memory."""
    path = tmp_path / "file"
    with path.open("wb") as opened:
        for _ in range(FILE_MIB):
            opened.write(os.urandom(MIB))
        opened.flush()
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def put_in(group: Path | None, process: Puppet) -> None:
    if group is None:
        pytest.skip("memory: no control group can be made")
    (group / "cgroup.procs").write_text(str(process.pid))


def watch(targets: Targets, reader: MemoryReader, process: Puppet, *, child: bool = False) -> None:
    targets.watch(process.pid, SLOT, is_child=child)
    reader.watch(process.pid, SLOT)


def sums(reader: MemoryReader, kind: str) -> dict[str, tuple[int, float]]:
    """Return number and seconds of a kind of reclaim by role."""
    values: dict[tuple[str, str], float] = {}
    for one in reader.measurements():
        assert one.slot == SLOT
        if one.attributes[semconv.TRAINING_MEMORY_RECLAIM_KIND] == kind:
            role = str(one.attributes[semconv.TRAINING_THREAD_ROLE])
            values[one.metric, role] = one.value
    counts, times = semconv.METRIC_TRAINING_MEMORY_RECLAIMS, semconv.METRIC_TRAINING_MEMORY_RECLAIM_TIME
    return {
        role: (int(value), values[times, role])
        for (metric, role), value in values.items()
        if metric == counts
    }


def test_reclaim_of_a_group_is_what_the_kernel_accounts(
    targets: Targets, reader: MemoryReader, file: Path
) -> None:
    with (
        delay_accounting(),
        memory_group("rootwalk-test-reclaim") as group,
        puppet(READ.format(path=str(file), mib=FILE_MIB)) as process,
    ):
        put_in(group, process)
        watch(targets, reader, process)
        for _ in range(3):
            process.turn()
        account = read_task_delays(process.pid)
        found = sums(reader, "cgroup")
        spells: list[Spell] = list(reader.spells())
    assert account.reclaims > 50
    assert set(found) == {"main"}
    count, seconds = found["main"]
    assert count == account.reclaims
    assert seconds == pytest.approx(account.reclaim_ns / 1e9, rel=0.05)
    assert {(spell.cause, spell.slot) for spell in spells} == {(Cause.RECLAIM, SLOT)}
    assert all(spell.lost_ns == spell.end_ns - spell.start_ns >= MIN_SPELL_NS for spell in spells)
    assert all(one.end_ns <= two.start_ns for one, two in zip(spells, spells[1:], strict=False))
    short = (count - len(spells)) * MIN_SPELL_NS
    assert seconds * 1e9 - short <= sum(spell.lost_ns for spell in spells) <= seconds * 1e9
    assert set(reader.losses().values()) == {0}
    assert set(reader.losses()) == set(DROP_REASONS)


def test_other_threads_have_their_own_sum_and_no_spells(
    targets: Targets, reader: MemoryReader, file: Path
) -> None:
    with (
        memory_group("rootwalk-test-beside") as group,
        puppet(READ_BESIDE.format(path=str(file), mib=FILE_MIB)) as process,
    ):
        put_in(group, process)
        watch(targets, reader, process)
        process.turn()
        found = sums(reader, "cgroup")
    assert set(found) == {"other"}
    assert found["other"][0] > 10
    assert not reader.spells()


def test_children_are_loader_workers(targets: Targets, reader: MemoryReader, file: Path) -> None:
    with (
        memory_group("rootwalk-test-child") as group,
        puppet(READ.format(path=str(file), mib=FILE_MIB)) as process,
    ):
        put_in(group, process)
        watch(targets, reader, process, child=True)
        process.turn()
        found = sums(reader, "cgroup")
    assert set(found) == {"loader_worker"}
    assert not reader.spells()


def test_strangers_reclaim_is_not_a_ranks(
    targets: Targets, reader: MemoryReader, file: Path
) -> None:
    with (
        memory_group("rootwalk-test-stranger") as group,
        puppet(READ.format(path=str(file), mib=FILE_MIB)) as process,
        puppet("def turn(): pass") as rank,
    ):
        put_in(group, process)
        watch(targets, reader, rank)
        process.turn()
    assert not reader.measurements()


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
    zones = sum(line.startswith("Node") for line in Path("/proc/buddyinfo").read_text().splitlines())
    with puppet(code) as process:
        watch(targets, reader, process)
        took_ns = sum(int(process.turn()) for _ in range(5))
        count, seconds = sums(reader, "compaction")["main"]
        spells = list(reader.spells())
    assert count == 5 * zones
    assert seconds * 1e9 <= took_ns
    print(seconds, took_ns)
    assert sum(spell.lost_ns for spell in spells) == pytest.approx(seconds * 1e9, rel=0.05)


def test_rank_that_has_ended_leaves_nothing(
    targets: Targets, reader: MemoryReader, file: Path
) -> None:
    with (
        memory_group("rootwalk-test-ended") as group,
        puppet(READ.format(path=str(file), mib=FILE_MIB)) as process,
    ):
        put_in(group, process)
        watch(targets, reader, process)
        process.turn()
        assert reader.measurements()
        reader.forget(process.pid)
    assert not reader.measurements()


def test_97_pages_that_are_not_in_memory_are_97_major_faults(file: Path) -> None:
    with puppet(TOUCH.format(path=str(file), count=97)) as process:
        reader = PagingReader(Place())
        reader.watch(process.pid, SLOT)
        (before,) = reader.measurements()
        assert int(process.turn()) == 97
        (after,) = reader.measurements()
    assert after.metric == semconv.METRIC_TRAINING_MEMORY_MAJOR_FAULTS
    assert after.value - before.value == 97
