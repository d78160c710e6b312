"""Snapshots that cannot be taken: the caller gets what there is, in time, and never an error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks import snapshot
from rootwalk.ebpf.stacks.guarded_memory import SilentMounts
from rootwalk.ebpf.stacks.snapshot import MAX_LEFT_BEHIND, Snapshots
from rootwalk.ebpf.stacks.thread_stacks import StackReader, ThreadStack

WAIT_S = 60.0
STACK = ThreadStack(1, 1, "python", "main", ("f (a.py:1)",), None)


class StuckReader:
    """Waits for a file system in the middle of a snapshot, until it is let go."""

    let_go = threading.Event()
    closed = 0

    def __init__(self, root: Path, silent: SilentMounts) -> None:
        self.silent = silent

    def begin(self) -> None:
        """Do nothing."""

    def main_stack(self, pid: int, role: str) -> ThreadStack | None:
        return STACK

    def other_stacks(self, pid: int) -> Iterator[ThreadStack]:
        self.silent.entered = "0:42"
        self.let_go.wait(WAIT_S)
        yield STACK

    def forget(self, pid: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StuckReader]]:
    monkeypatch.setattr(snapshot, "StackReader", StuckReader)
    monkeypatch.setattr(snapshot, "TAKE_S", 0.05)
    monkeypatch.setattr(snapshot, "STUCK_S", 0.0)
    StuckReader.let_go.clear()
    yield StuckReader
    StuckReader.let_go.set()


def test_what_was_read_before_it_got_stuck_is_returned(stuck: type[StuckReader]) -> None:
    snapshots = Snapshots()
    assert snapshots.take(os.getpid()) == [STACK]
    assert "0:42" not in snapshots._silent
    snapshots.take(1 << 30)
    assert "0:42" in snapshots._silent
    # The process is left alone for a while, its main thread as the kernel shows it aside.
    (own,) = snapshots.take(os.getpid()) or [STACK]
    assert own == STACK or all(frame.endswith("[kernel]") for frame in own.frames)
    assert snapshots._left_behind >= 1
    snapshots.close()


def test_a_slow_reader_is_awaited_and_keeps_what_it_knows(
    stuck: type[StuckReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "STUCK_S", WAIT_S)
    snapshots = Snapshots()
    assert snapshots.take(1 << 30) == [STACK]
    # Meanwhile others are shown as the kernel shows them.
    assert all(not one.frames or "[kernel]" in one.frames[0] for one in snapshots.take(os.getpid()))
    stuck.let_go.set()
    assert snapshots._pending is not None
    assert snapshots._pending.done.wait(WAIT_S)
    assert snapshots.take(1 << 30) == [STACK, STACK]
    assert snapshots._left_behind == 0
    assert "0:42" not in snapshots._silent
    snapshots.close()


def test_readers_that_never_come_back_are_few(stuck: type[StuckReader]) -> None:
    before = threading.active_count()
    snapshots = Snapshots()
    for pid in range(1 << 30, (1 << 30) + 3 * MAX_LEFT_BEHIND):
        snapshots.take(pid)
    assert threading.active_count() - before <= MAX_LEFT_BEHIND
    assert snapshots._left_behind == MAX_LEFT_BEHIND
    closed = stuck.closed
    stuck.let_go.set()
    for thread in threading.enumerate():
        if thread.name == "rootwalk-stacks":
            assert thread.daemon
            thread.join(WAIT_S)
    assert stuck.closed == closed + MAX_LEFT_BEHIND
    snapshots.close()


def test_an_error_inside_of_the_reader_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: StackReader, pid: int, role: str) -> ThreadStack | None:
        raise MemoryError(pid, role)

    snapshots = Snapshots()
    with monkeypatch.context() as patch:
        patch.setattr(StackReader, "main_stack", fails)
        assert snapshots.take(1 << 30) == []
    assert snapshots.take(1 << 30) == []
    snapshots.forget(1 << 30)
    snapshots.close()
    snapshots.close()
    assert snapshots._left_behind == 0


def test_a_root_without_processes_gives_nothing(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    assert snapshots.take(1, [2, 3]) == []
    snapshots.close()
