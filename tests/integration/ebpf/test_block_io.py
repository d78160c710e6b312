"""Block requests on this kernel, against processes that cause a known number of them on a disk of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.block_io import DROP_REASONS, BlockIoReader, BlockTotals
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.targets import Targets, open_program, read_losses
from rootwalk.instrumentation import semconv
from support.puppet import Puppet, puppet
from support.slow_disk import SlowDisk, disk_below, reads_limited, slow_disk

# The kernel does not tell the program of the end of some 5 of 100,000 requests.
pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=3)]

SLOT = 7
BLOCK = 4096
DISK_BYTES = 8 * 1024 * 1024
# Every second block, so that nothing is read ahead or joined. A turn answers with the ns that each call took.
WORK = """
import mmap, os, time
fd = os.open({path!r}, os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, {block})
def turn():
    took = []
    for i in range({count}):
        start = time.perf_counter_ns()
        os.{call}(fd, [buffer], 2 * {block} * i)
        took.append(time.perf_counter_ns() - start)
    return took
"""
# Many threads at once, each a call.
CROWD = """
import mmap, os, threading
fd = os.open({path!r}, os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, {block})
def turn():
    def call(i): os.{call}(fd, [buffer], 2 * {block} * i)
    threads = [threading.Thread(target=call, args=(i,)) for i in range({count})]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


@pytest.fixture
def reader(targets: Targets) -> Iterator[BlockIoReader]:
    opened = BlockIoReader(Place(targets=targets))
    yield opened
    opened.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    with slow_disk(tmp_path / "disk", DISK_BYTES) as made:
        yield made


def work(path: Path, call: str, count: int, code: str = WORK) -> str:
    return code.format(path=str(path), call=call, count=count, block=BLOCK)


def watch(targets: Targets, reader: BlockIoReader, process: Puppet, slot: int = SLOT) -> None:
    targets.watch(process.pid, slot)
    reader.watch(process.pid, slot)


def rows(reader: BlockIoReader, disk: str, slot: int = SLOT) -> dict[str, BlockTotals]:
    return {row.direction: row for row in reader.read() if (row.disk, row.slot) == (disk, slot)}


def test_97_reads_are_97_reads(targets: Targets, reader: BlockIoReader, disk: SlowDisk) -> None:
    with puppet(work(disk.path, "preadv", 97)) as process:
        watch(targets, reader, process)
        process.turn()
    found = rows(reader, disk.name)
    assert set(found) == {"read"}
    assert sum(found["read"].operations) == 97
    assert found["read"].sent_bytes == 97 * BLOCK


@pytest.mark.parametrize("scheduler", ["none", "mq-deadline"])
def test_kernels_that_do_not_tell_of_a_requests_creation(
    targets: Targets, disk: SlowDisk, tmp_path: Path, scheduler: str
) -> None:
    # Without the kernel's list of types no hook is known to be there, as before 6.5.
    disk.set_scheduler(scheduler)
    reader = BlockIoReader(Place(tmp_path, targets))
    try:
        with puppet(work(disk.path, "preadv", 97)) as process:
            watch(targets, reader, process)
            process.turn()
        found = rows(reader, disk.name)["read"]
    finally:
        reader.close()
    assert (sum(found.operations), found.sent_bytes) == (97, 97 * BLOCK)


def test_writes_are_not_reads(targets: Targets, reader: BlockIoReader, disk: SlowDisk) -> None:
    with puppet(work(disk.path, "pwritev", 53)) as process:
        watch(targets, reader, process)
        process.turn()
    found = rows(reader, disk.name)
    assert set(found) == {"write"}
    assert sum(found["write"].operations) == 53
    assert found["write"].sent_bytes == 53 * BLOCK


def test_waiting_for_a_disks_cache_is_a_write_in_the_queue(
    targets: Targets, reader: BlockIoReader, disk: SlowDisk
) -> None:
    code = f"import os\nfd = os.open({str(disk.path)!r}, os.O_RDWR)\ndef turn(): os.fsync(fd)"
    with puppet(code) as process:
        watch(targets, reader, process)
        for _ in range(11):
            process.turn()
    written = rows(reader, disk.name)["write"]
    assert (sum(written.operations), written.sent_bytes) == (11, 0)
    assert written.device_ns == 0
    assert written.queue_ns > 0


def read_bytes(reader: BlockIoReader, disk: str) -> dict[int | None, float]:
    attributes = {semconv.SYSTEM_DEVICE: disk, semconv.DISK_IO_DIRECTION: "read"}
    return {
        one.slot: one.value
        for one in reader.measurements()
        if one.metric == semconv.METRIC_TRAINING_DISK_IO and one.attributes == attributes
    }


def test_requests_of_others_are_everybody_elses(
    targets: Targets, reader: BlockIoReader, disk: SlowDisk
) -> None:
    with (
        puppet(work(disk.path, "preadv", 31)) as rank,
        puppet(work(disk.path, "preadv", 41)) as stranger,
    ):
        watch(targets, reader, rank)
        before = read_bytes(reader, disk.name).get(None, 0)  # whoever looks at new disks
        rank.turn()
        stranger.turn()
    assert sum(rows(reader, disk.name)["read"].operations) == 31
    counts = read_bytes(reader, disk.name)
    assert counts[SLOT] == 31 * BLOCK
    assert counts[None] - before == 41 * BLOCK


def test_time_of_a_slow_disk_is_what_the_kernel_accounts(
    targets: Targets, reader: BlockIoReader, disk: SlowDisk
) -> None:
    # The disk below the loop device may be read 50 times a second by this process: some 20 ms a read.
    with (
        reads_limited("rootwalk-test-below", disk_below(disk.file), 50) as group,
        puppet(work(disk.path, "preadv", 37)) as process,
    ):
        (group / "cgroup.procs").write_text(str(process.pid))
        watch(targets, reader, process)
        before = disk.read_account()
        process.turn()
        grown = disk.read_account() - before
        found = rows(reader, disk.name)["read"]
    assert (sum(found.operations), found.sent_bytes) == (37, 37 * BLOCK)
    assert (grown.reads, grown.read_bytes) == (37, 37 * BLOCK)
    assert grown.read_ms > 300
    assert (found.queue_ns + found.device_ns) / 1e6 == pytest.approx(grown.read_ms, rel=0.05)
    assert found.queue_ns < 0.05 * found.device_ns


def test_wait_for_a_groups_limit_comes_before_the_request(
    targets: Targets, reader: BlockIoReader, tmp_path: Path
) -> None:
    # A kernel thread creates the requests that had to wait: they are everybody else's.
    file = tmp_path / "file"
    file.write_bytes(bytes(2 * 23 * BLOCK))
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    with (
        reads_limited("rootwalk-test-here", disk_below(file), 50) as group,
        puppet(work(file, "preadv", 23)) as process,
    ):
        (group / "cgroup.procs").write_text(str(process.pid))
        watch(targets, reader, process)
        took_ns = json.loads(process.turn())
        found = [row for row in reader.read() if row.slot == SLOT]
    assert sum(took_ns) > 200_000_000
    assert sum(sum(row.operations) for row in found) <= 23
    assert sum(row.queue_ns + row.device_ns for row in found) < 0.2 * sum(took_ns)


def test_what_the_driver_does_not_take_is_in_the_queue(
    targets: Targets, reader: BlockIoReader, disk: SlowDisk
) -> None:
    # A loop device takes 128 requests, its scheduler 256: of 251 at once 123 wait until another one has ended. The disk
    # below may be read 150 times a second: each waits 7 ms longer than the one before.
    disk.set_scheduler("mq-deadline")
    with (
        reads_limited("rootwalk-test-crowd", disk_below(disk.file), 150) as group,
        puppet(work(disk.path, "preadv", 251, CROWD)) as process,
    ):
        (group / "cgroup.procs").write_text(str(process.pid))
        watch(targets, reader, process)
        before = disk.read_account()
        process.turn()
        grown = disk.read_account() - before
        found = rows(reader, disk.name)["read"]
    assert sum(found.operations) == grown.reads == 251
    assert (found.queue_ns + found.device_ns) / 1e6 == pytest.approx(grown.read_ms, rel=0.05)
    assert found.queue_ns > 500_000_000


def test_rank_that_has_ended_leaves_nothing(
    targets: Targets, reader: BlockIoReader, disk: SlowDisk
) -> None:
    with puppet(work(disk.path, "preadv", 3)) as process:
        watch(targets, reader, process)
        process.turn()
        assert rows(reader, disk.name)
        reader.forget(process.pid)
    assert not rows(reader, disk.name)
    reader.watch(process.pid, SLOT)
    assert not rows(reader, disk.name)


def test_full_map_is_counted(targets: Targets, disk: SlowDisk) -> None:
    def configure(opened: BpfObject) -> None:
        opened.leave_out("on_rq_insert")
        opened.share(targets.map)
        opened.set_max_entries("totals", 1)

    opened = open_program("block_io", configure)
    try:
        # Two directions need two places.
        with (
            puppet(work(disk.path, "preadv", 5)) as one,
            puppet(work(disk.path, "pwritev", 5)) as two,
        ):
            one.turn()
            two.turn()
            one.turn()
        kept = len(opened.maps["totals"].items())
        lost = read_losses(opened.maps["counters"], DROP_REASONS)
    finally:
        opened.close()
    assert kept == 1
    assert lost["bpf_block_totals_full"] >= 5
