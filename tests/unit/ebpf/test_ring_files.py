"""Rings as files: whose they are, and which are rubbish."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.ring_files import STALE_NS, RingFiles
from rootwalk.ebpf.scope import Scope
from rootwalk.instrumentation.shared_ring import LiveState, RingReader, RingWriter
from support.rings import identity

NOBODY = 2**22 + 1  # above the largest process id that Linux gives


def make_ring(folder: Path, *, job: str = "other", pid: int = NOBODY, days: float = 2.0) -> Path:
    """Write a ring and make it as old as asked for."""
    path = RingWriter(replace(identity(), job=job, pid=pid), folder).path
    then_ns = time.time_ns() - round(days * STALE_NS)
    os.utime(path, ns=(then_ns, then_ns))
    return path


def rings_in(folder: Path, job: str | None = None) -> RingFiles:
    return RingFiles([folder], job, Scope())


def test_ring_of_a_process_that_died_days_ago_is_removed(tmp_path: Path) -> None:
    path = make_ring(tmp_path)
    assert rings_in(tmp_path, "mine").remove_stale() == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("pid", "days"), [(NOBODY, 0.5), (os.getpid(), 2.0)], ids=["younger than a day", "alive"]
)
def test_ring_that_may_be_needed_stays(tmp_path: Path, pid: int, days: float) -> None:
    path = make_ring(tmp_path, pid=pid, days=days)
    assert rings_in(tmp_path, "mine").remove_stale() == 0
    assert path.exists()


def test_ring_that_somebody_reads_stays(tmp_path: Path) -> None:
    path = make_ring(tmp_path)
    reader = RingReader(path)
    assert reader.try_lock()
    assert rings_in(tmp_path).remove_stale() == 0
    assert path.exists()
    reader.close()


def test_ring_of_a_rank_that_spoke_today_stays_whatever_its_file_says(tmp_path: Path) -> None:
    # A rank in a container has a number that means nothing here; a mapped file keeps its time of birth.
    writer = RingWriter(replace(identity(), job="other", pid=NOBODY), tmp_path)
    now_ns = time.monotonic_ns()
    writer.set_live(LiveState(3, now_ns, 0, now_ns, 0, now_ns))
    os.utime(writer.path, (0, 0))
    assert rings_in(tmp_path).remove_stale() == 0


def test_what_is_not_a_ring_stays(tmp_path: Path) -> None:
    path = tmp_path / "1-1.ring"
    path.write_bytes(b"something else")
    os.utime(path, (0, 0))
    assert rings_in(tmp_path).remove_stale() == 0
    assert path.exists()


def test_new_rings_of_the_job_are_opened_once(tmp_path: Path) -> None:
    mine, other = make_ring(tmp_path, job="mine", days=0), make_ring(tmp_path, days=0)
    files = rings_in(tmp_path, "mine")
    (reader,) = files.open_new([])
    assert reader.path == mine
    assert files.open_new([mine]) == []
    assert other.exists()
    reader.close()


def test_ring_of_another_host_on_this_kernel_is_left_alone(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/uts").touch()  # not the kernel's first namespace
    make_ring(tmp_path, days=0)
    assert RingFiles([tmp_path], None, Scope(root=proc)).open_new([]) == []
