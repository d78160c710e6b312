"""Batches that are too large for the database's memory, with the real one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.drain import JournalDrain
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import (
    JournalLock,
    SegmentWriter,
    encode_record,
    journal_path,
    list_segments,
)
from rootwalk.otel_receiver.kernels import switch_kernels, unload_kernels
from rootwalk.otel_receiver.memory_gate import MemoryGate
from rootwalk.otel_receiver.memory_plan import MIB, MemoryPlan, plan_memory
from rootwalk.otel_receiver.retention import Retention
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import (
    create_store,
    query_store,
    read_position,
    save_journal_batch,
)
from support.otlp_messages import span, trace_request
from support.workloads import wait_until

REQUESTS = 16
SPANS = 1000


@dataclass
class Waiting:
    """A store whose journal waits to be stored, held as its receiver holds it."""

    store: Path
    end: JournalPosition

    def drain(self, plan: MemoryPlan, **options: Any) -> JournalDrain:
        """Return what is to store it: at once, if nothing else is said."""
        drain = JournalDrain(
            self.store,
            journal_path(self.store),
            IngestCounters(),
            gate=MemoryGate(plan),
            **{"flush_interval_s": 0.01, "flush_records": 1} | options,
        )
        drain.resume(JournalPosition(*read_position(self.store)), self.end)
        return drain


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    store = tmp_path / "s.duckdb"
    create_store(store)
    end = _write_journal(store)
    lock = JournalLock.try_take(journal_path(store), create=False)
    assert lock is not None
    switch_kernels(is_allowed=False)
    yield Waiting(store, end)
    unload_kernels()
    lock.release()


@pytest.mark.slow
@pytest.mark.parametrize("database_bytes", [8 * MIB, 4 * MIB])
def test_a_batch_that_the_database_cannot_hold_is_stored_in_parts(
    waiting: Waiting,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    database_bytes: int,
) -> None:
    """With 8 MiB a part of the batch fits; with 4 MiB not even one request does, and it is stored all the same."""
    tried: list[int] = []

    def save(path: Path, records: list[object], **options: object) -> int:
        tried.append(len(records))
        return save_journal_batch(path, records, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("rootwalk.otel_receiver.drain.save_journal_batch", save)
    drain = waiting.drain(replace(plan_memory(1024 * MIB), database_bytes=database_bytes))
    with caplog.at_level(logging.WARNING):
        drain.start()
        drain.stop()

    assert max(tried) == REQUESTS > min(tried)
    assert drain.is_done()
    assert query_store(waiting.store, "SELECT count(*) FROM spans")[2] == [(REQUESTS * SPANS,)]
    assert caplog.messages == []


def test_what_is_too_old_goes_while_senders_never_stop(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches, and not only when everything is stored."""
    looks: list[bool] = []

    def look(*_: object) -> int:
        looks.append(drain.is_done())
        return 0

    monkeypatch.setattr("rootwalk.otel_receiver.drain.apply_retention", look)
    plan = replace(plan_memory(256 * MIB), batch_bytes=MIB)
    drain = waiting.drain(plan, retention=Retention(age_s=3600.0), retention_interval_s=1e-6)
    drain.start()
    drain.stop()

    assert drain.is_done()
    assert looks.count(False) >= 4


def test_what_somebody_waits_for_is_stored_sooner(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the interval runs already; a hurry that is over changes nothing."""
    monkeypatch.setattr("rootwalk.otel_receiver.drain.HURRIED_INTERVAL_S", 0.2)
    drain = waiting.drain(plan_memory(256 * MIB), flush_interval_s=600.0, flush_records=10**9)
    drain.start()
    drain.hurry(0.0)
    time.sleep(0.5)
    assert not drain.is_done()

    drain.hurry(60.0)

    wait_until(drain.is_done, deadline_s=60.0)
    drain.stop()


def _write_journal(store: Path) -> JournalPosition:
    directory = journal_path(store)
    directory.mkdir()
    writer = SegmentWriter(directory, 1)
    for number in range(REQUESTS):
        spans = [
            span(
                n, span_id=(number * SPANS + n + 1).to_bytes(8, "big"), attributes={"k": "x" * 300}
            )
            for n in range(SPANS)
        ]
        writer.append([encode_record(Signal.TRACES, 1, trace_request(spans))])
    writer.close()
    return JournalPosition(list_segments(directory)[-1], writer.end_bytes)
