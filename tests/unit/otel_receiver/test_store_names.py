"""One store under several names, and stores and journals that were exchanged: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.journal import (
    JournalIdentity,
    JournalLock,
    SegmentWriter,
    encode_record,
    journal_path,
    list_segments,
)
from rootwalk.otel_receiver.receiver import Receiver, ReceiverConfig
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, read_place
from support.otlp_messages import span, trace_request
from support.stores import query_rows


def _leave_journal(store: Path, numbers: range, segment: int = 1, journal_id: str = "") -> Path:
    """What a killed receiver leaves: a journal that nobody holds."""
    directory = journal_path(store)
    directory.mkdir(exist_ok=True)
    identity = JournalIdentity(read_place(store)[0].store_id, journal_id or "ab" * 16)
    writer = SegmentWriter(directory, segment, identity)
    for number in numbers:
        writer.append([encode_record(Signal.TRACES, 9, trace_request([span(number)]))])
    writer.close()
    return directory


def _receive(store: Path, numbers: range) -> None:
    """Run a receiver, send to it, and stop it."""

    async def run() -> None:
        from rootwalk.otel_receiver.addresses import ListenAddress

        any_port = ListenAddress("127.0.0.1", 0)
        receiver = Receiver(ReceiverConfig(store, any_port, any_port, telemetry_interval_s=0))
        await receiver.start()
        try:
            await receiver.accept(Signal.TRACES, trace_request([span(n) for n in numbers]))
        finally:
            await receiver.stop()

    asyncio.run(run())


def test_a_symbolic_link_has_the_journal_of_its_store(store: Path) -> None:
    _leave_journal(store, range(1, 101))
    link = store.with_name("current.duckdb")
    link.symlink_to(store.name)

    _receive(link, range(201, 211))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(110,)]
    assert query_rows(link, "SELECT count(*) FROM spans") == [(110,)]


def test_a_receiver_by_another_name_is_refused_while_one_runs(store: Path) -> None:
    lock = JournalLock.try_take(journal_path(store), create=True)
    assert lock is not None
    link = store.with_name("current.duckdb")
    link.symlink_to(store.name)
    with pytest.raises(StoreError, match="another receiver writes it"):
        _receive(link, range(1, 2))
    lock.release()


def test_a_store_with_hard_links_is_refused(store: Path) -> None:
    _leave_journal(store, range(1, 101))
    other = store.with_name("current.duckdb")
    other.hardlink_to(store)

    with pytest.raises(StoreError, match="2 names"):
        _receive(other, range(201, 211))

    other.unlink()
    assert query_rows(store, "SELECT count(*) FROM spans") == [(100,)]


def test_a_journal_that_was_left_behind_is_read_when_the_store_comes_back(store: Path) -> None:
    """Moved without its journal, used under the new name, moved back: two journals, one after the other."""
    _leave_journal(store, range(1, 101))
    moved = store.with_name("moved.duckdb")
    store.rename(moved)
    for _ in range(3):
        _receive(moved, range(201, 211))
    moved.rename(store)

    _receive(store, range(301, 311))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(120,)]


def test_the_journal_of_another_store_is_kept_and_refused(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _leave_journal(store, range(1, 101))
    kept = store.with_name("kept.duckdb")
    store.rename(kept)
    other = store.with_name("other.duckdb")
    create_store(other)
    shutil.copy(other, store)

    with pytest.raises(StoreError, match="the journal of another store"):
        _receive(store, range(201, 211))
    with caplog.at_level(logging.WARNING):
        assert query_rows(store, "SELECT count(*) FROM spans") == [(0,)]
    assert "the journal of another store" in caplog.text
    assert list_segments(directory) == [1]

    kept.rename(store)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(100,)]


def test_a_store_that_is_gone_is_made_again_for_its_journal(store: Path) -> None:
    _leave_journal(store, range(1, 101))
    store.unlink()

    _receive(store, range(201, 211))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(110,)]
