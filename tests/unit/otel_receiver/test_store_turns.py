from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.journal import JournalLock, journal_path
from rootwalk.otel_receiver.store import query_store, reading, writing
from rootwalk.otel_receiver.store_turns import await_file, await_writer, keep_readers_out

DEADLINE_S = 30.0
READERS = 3
# Says when it has read for the first time, then reads on: of every 100 ms it has the file for 90 or more.
READER = """
import sys, time
from pathlib import Path
from rootwalk.otel_receiver.store import reading

while True:
    with reading(Path(sys.argv[1]), timeout_s=30.0):
        print("reads", flush=True)
        time.sleep(0.1)
"""
# Has the file open until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from rootwalk.otel_receiver import store

with getattr(store, sys.argv[2])(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
print("closed", flush=True)
"""


@pytest.fixture
def journal(store: Path) -> Iterator[JournalLock]:
    """A journal that a live receiver holds."""
    lock = JournalLock.try_take(journal_path(store), create=True)
    assert lock is not None
    yield lock
    lock.release()


@pytest.fixture
def readers(store: Path, journal: JournalLock) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that read so often that one always has the file."""
    command = [sys.executable, "-c", READER, str(store)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(READERS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=DEADLINE_S)


def test_a_writer_gets_in_between_readers_that_never_leave_the_file_alone(
    store: Path, readers: list[subprocess.Popen[str]]
) -> None:
    for number in range(5):
        # The readers that are in are out within 0.1 s, and no other comes in.
        with writing(store, timeout_s=2.0) as connection:
            connection.execute("INSERT INTO clock_offsets VALUES ('j', 0, 'h', ?)", [number])
    assert all(reader.poll() is None for reader in readers)


def test_readers_get_in_between_the_writes(
    store: Path, readers: list[subprocess.Popen[str]]
) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    for reader in readers:
        assert reader.stdout is not None
        with writing(store, timeout_s=2.0):
            pass
        assert reader.stdout.readline() == "reads\n"
    assert time.monotonic() < deadline_s


def test_a_reader_waits_for_the_writer_before_it_and_says_so(
    store: Path, journal: JournalLock
) -> None:
    with (
        keep_readers_out(store, 1.0),
        pytest.raises(StoreError, match=r"is in use for 0\.1 s \(another process writes it\)"),
        reading(store, timeout_s=0.1),
    ):
        pass
    with reading(store, timeout_s=0.1):
        pass


def test_a_receiver_that_writes_is_waited_for_longer_than_others(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rootwalk.otel_receiver.store.DEFAULT_TIMEOUT_S", 0.05)
    command = [sys.executable, "-c", HOLDER, str(store), "writing"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=r"in use for 0\.05 s"), reading(store):
            pass
        lock = JournalLock.try_take(journal_path(store), create=True)
        assert lock is not None
        end = threading.Timer(0.3, process.stdin.close)
        end.start()
        with reading(store):
            pass
        end.join()
        lock.release()


@pytest.mark.parametrize(
    ("holder", "read_only", "waits"),
    [
        ("reading", True, False),
        ("reading", False, True),
        ("writing", True, True),
        ("writing", False, True),
    ],
)
def test_the_kernel_says_when_a_file_is_free(
    store: Path, holder: str, read_only: bool, waits: bool
) -> None:
    command = [sys.executable, "-c", HOLDER, str(store), holder]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        deadline_s = time.monotonic() + 0.2
        await_file(store, read_only=read_only, deadline_s=deadline_s)
        assert (time.monotonic() >= deadline_s) == waits
        process.stdin.close()
        assert process.stdout.readline() == "closed\n"
        deadline_s = time.monotonic() + DEADLINE_S
        await_file(store, read_only=read_only, deadline_s=deadline_s)
        assert time.monotonic() < deadline_s


def test_without_a_journal_nobody_waits(store: Path) -> None:
    with keep_readers_out(store, 1.0):
        await_writer(store, 0.0)
    assert not journal_path(store).exists()


def test_the_lock_goes_with_the_journal(store: Path) -> None:
    """A reader that moves the journal of a dead receiver into the store removes the folder that it has locked."""
    lock = JournalLock.try_take(journal_path(store), create=True)
    assert lock is not None
    lock.release()

    assert query_store(store, "SELECT 1")[2] == [(1,)]
    assert not journal_path(store).exists()
