"""Requests from files into a store, each exactly once.

A sender that repeats a request does so within the hour; a file may be imported again after years, in part, under
another name, or with more at its end. So a store remembers every request that came from a file by a hash of its bytes,
and its spans are compared with all that are stored.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.journal_batches import decode_batch
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, writing
from rootwalk.otel_receiver.store_errors import DatabaseMemoryError
from rootwalk.otel_receiver.store_rows import find_imported, save_imported

__all__ = ["ImportRequest", "SavedImport", "save_import"]

# A store that a receiver writes as well is free again after each of its commits.
LOCK_TIMEOUT_S: Final = 30.0
# For DuckDB; a batch that needs more is stored in halves.
DATABASE_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """An OTLP request that a file holds, or that was made from one.

    Attributes:
        signal: What `body` is a request of.
        body: OTLP protobuf bytes; the same file has to give the same bytes every time.
        records: Spans, metric points, log records or profile samples in it.
        source: What tells it from other requests, where that is not `body`.
    """

    signal: Signal
    body: bytes
    records: int
    source: bytes | None = None

    @property
    def request_id(self) -> str:
        """What tells it from every other request."""
        source = self.body if self.source is None else self.source
        return hashlib.blake2b(source, digest_size=16, person=self.signal.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SavedImport:
    """What became of some requests.

    Attributes:
        records: Records that are stored now and were not before, by signal.
        known: Records that were left out because they were stored before.
    """

    records: dict[Signal, int]
    known: int


def save_import(path: Path, requests: list[ImportRequest]) -> SavedImport:
    """Store requests that have been checked, in one transaction if the database has memory for it.

    Raises:
        StoreError: If the store cannot be opened or written.
    """
    create_store(path)
    try:
        return _save(path, requests, DATABASE_BYTES)
    except DatabaseMemoryError:
        if len(requests) == 1:
            return _save(path, requests, None)
    middle = len(requests) // 2
    first, second = save_import(path, requests[:middle]), save_import(path, requests[middle:])
    return SavedImport(
        {signal: first.records[signal] + second.records[signal] for signal in Signal},
        first.known + second.known,
    )


def _save(path: Path, requests: list[ImportRequest], memory_bytes: int | None) -> SavedImport:
    sent = {request.request_id: request for request in requests}
    total = sum(request.records for request in requests)
    with writing(path, timeout_s=LOCK_TIMEOUT_S, memory_bytes=memory_bytes) as connection:
        stored = find_imported(connection, list(sent))
        fresh = {key: request for key, request in sent.items() if key not in stored}
        records = dict.fromkeys(Signal, 0)
        if fresh:
            # Different times: with its dictionary, a profile is known by the time of its request.
            received = {key: time_ns for time_ns, key in enumerate(fresh, start=time.time_ns())}
            pieces = decode_batch(
                [JournalRecord(r.signal, received[key], r.body, 0, 0) for key, r in fresh.items()]
            )
            duplicates = save_imported(connection, pieces, received)
            for request in fresh.values():
                records[request.signal] += request.records
            records[Signal.TRACES] -= duplicates
    return SavedImport(records, total - sum(records.values()))
