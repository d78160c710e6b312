"""The disk of the store is full: senders are told to come again, nothing acknowledged is lost, no file is damaged."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import grpc
import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.store import query_store, writing
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import ReceiverProcess, start_receiver
from support.small_disk import SmallDisk, small_disk

SPANS_A_REQUEST = 100
# An empty store takes half a MiB; room for a journal of 1 MiB and for what it becomes in the store, its log included.
DISK_BYTES = 16 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


class Sender:
    """Sends numbered spans and remembers which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self._next = 1

    def send(self, receiver: ReceiverProcess) -> grpc.StatusCode | None:
        """Send one request; return why it was refused, None when it was not."""
        numbers = range(self._next, self._next + SPANS_A_REQUEST)
        self._next += SPANS_A_REQUEST
        spans = [span(number, f"s{number}", attributes={"pad": f"{number:0300d}"}) for number in numbers]  # fmt: skip
        with grpc.insecure_channel(receiver.grpc) as channel:
            try:
                channel.unary_unary(TRACE_EXPORT)(trace_request(spans), timeout=10)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        self.acknowledged |= set(numbers)
        return None

    def send_until_refused(self, receiver: ReceiverProcess, in_a_row: int = 1) -> grpc.StatusCode:
        """Send until so many requests in succession were refused; what is stored meanwhile makes room for others."""
        deadline_s = time.monotonic() + 60
        refused = 0
        while True:
            assert time.monotonic() < deadline_s
            code = self.send(receiver)
            refused = 0 if code is None else refused + 1
            if code is not None and refused == in_a_row:
                return code


def stored(store: Path) -> list[int]:
    rows = query_store(store, "SELECT span_id FROM spans")[2]
    return sorted(int(str(span_id), 16) for (span_id,) in rows)


def plain_count(store: Path) -> int:
    """What somebody sees who opens the file with DuckDB itself."""
    with duckdb.connect(str(store), read_only=True) as connection:
        (count,) = connection.execute("SELECT count(*) FROM spans").fetchall()[0]
    return int(count)


@pytest.mark.parametrize("flush_interval", ["50ms", "60s"])
def test_goes_on_by_itself_when_space_returns(disk: SmallDisk, flush_interval: str) -> None:
    store = disk.folder / "s.duckdb"
    receiver = start_receiver(store, "--flush-interval", flush_interval)
    disk.fill(leave_bytes=1024 * 1024)
    sender = Sender()
    assert sender.send_until_refused(receiver, in_a_row=20) is grpc.StatusCode.UNAVAILABLE
    # One that is written to and perhaps one that waits to be stored; none for each of the refused.
    assert len(list((disk.folder / "s.duckdb.journal").glob("*.segment"))) <= 2
    disk.free()
    assert sender.send(receiver) is None
    assert "cannot be written" in receiver.stop()
    assert not (disk.folder / "s.duckdb.journal").exists()
    assert stored(store) == sorted(sender.acknowledged)
    assert plain_count(store) == len(sender.acknowledged)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_reader_sees_what_the_store_has_no_room_for(
    disk: SmallDisk, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = disk.folder / "s.duckdb"
    # Nothing is stored before the end: a commit between the refusal and the fill would leave nothing to miss.
    receiver = start_receiver(store, "--flush-interval", "60s")
    disk.fill(leave_bytes=1024 * 1024)
    sender = Sender()
    sender.send_until_refused(receiver)
    disk.fill()
    if end == "stop":
        assert "the next reader of" in receiver.stop()
    else:
        receiver.kill()
    before = plain_count(store)
    with caplog.at_level(logging.WARNING):
        assert stored(store) == sorted(sender.acknowledged)
    missing = len(sender.acknowledged) - before
    assert missing > 0
    assert "no space left on device" in caplog.text
    assert f"{missing} records that were acknowledged are not in it" in caplog.text
    assert plain_count(store) == before
    disk.free()
    caplog.clear()
    assert stored(store) == sorted(sender.acknowledged)
    assert plain_count(store) == len(sender.acknowledged)
    assert caplog.text == ""
    assert not (disk.folder / "s.duckdb.journal").exists()


def test_starts_beside_a_journal_that_it_has_no_room_for(disk: SmallDisk) -> None:
    """As `run` does when the receiver ended: the second one takes over, and stores all when space returns."""
    store = disk.folder / "s.duckdb"
    sender = Sender()
    first = start_receiver(store, "--flush-interval", "60s")
    disk.fill(leave_bytes=1024 * 1024)
    sender.send_until_refused(first)
    disk.fill()
    first.kill()
    second = start_receiver(store, "--flush-interval", "50ms")
    assert sender.send(second) is grpc.StatusCode.UNAVAILABLE
    said = second.wait_until_said("no space left on device")
    disk.free()
    assert sender.send(second) is None
    said += second.stop()
    assert "; the journal keeps what was acknowledged" in said
    assert "can be written again" in said
    assert stored(store) == sorted(sender.acknowledged)
    assert plain_count(store) == len(sender.acknowledged)


def test_a_refused_write_says_why_and_leaves_the_store_as_it_was(disk: SmallDisk) -> None:
    store = disk.folder / "s.duckdb"
    start_receiver(store).stop()
    disk.fill()
    with (
        pytest.raises(StoreError, match=r"cannot write the store .* no space left on device"),
        writing(store) as connection,
    ):
        connection.execute("CREATE TABLE wide AS SELECT uuid() AS text FROM range(100000)")
    assert plain_count(store) == 0
    disk.free()
    assert stored(store) == []
