"""Journal records on their way into a database: read in batches, decoded, stored in one transaction each.

It is given a connection and opens none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.columns import ColumnBatch
from rootwalk.otel_receiver.decode import (
    decode_logs,
    decode_metrics,
    decode_profiles,
    decode_spans,
)
from rootwalk.otel_receiver.journal import JournalRecord, list_segments, read_records
from rootwalk.otel_receiver.kernels import LOAD_BYTES, load_kernels, loaded_kernels
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store_rows import RECORD_TABLES, read_progress, save_records

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_COMPILED_BATCH_BYTES",
    "PIECE_BYTES",
    "decode_batch",
    "find_journal_end",
    "load_journal_batch",
    "replay_journal",
]

logger = logging.getLogger(__name__)

# Journal bytes stored in one transaction: some 50,000 spans.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
# Journal bytes that the plain decoder turns into columns at once: its objects take twenty times as much.
PIECE_BYTES: Final = 2 * 1024 * 1024
# The same with the compiled decoder: more than DuckDB's row group of 122,880 spans, which it writes at half the cost,
# because whole row groups go to the file at once and are not read and written again by the next transaction.
MAX_COMPILED_BATCH_BYTES: Final = 48 * 1024 * 1024

_Decode = Callable[[list[tuple[int, bytes]]], dict[str, ColumnBatch]]
_DECODERS: Final[dict[Signal, _Decode]] = {
    Signal.TRACES: lambda requests: {"span_records": decode_spans(requests)},
    Signal.METRICS: lambda requests: {"metric_records": decode_metrics(requests)},
    Signal.LOGS: lambda requests: {"log_records": decode_logs(requests)},
    Signal.PROFILES: decode_profiles,
}


def load_journal_batch(
    directory: Path,
    position: tuple[int, int],
    end: tuple[int, int] | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
    compiled_max_bytes: int = MAX_COMPILED_BATCH_BYTES,
) -> list[JournalRecord]:
    """Return the next records of a journal, at most `max_bytes` unless one is larger; none at its end.

    Args:
        directory: The journal.
        position: (segment, end_bytes) of the last record that is stored.
        end: (segment, end_bytes) of the last record to return; None for the end of the journal.
        max_bytes: Of request bodies, for the plain decoder.
        compiled_max_bytes: The same for the compiled one, once it is loaded.
    """
    if loaded_kernels() is not None:
        max_bytes = compiled_max_bytes
    batch: list[JournalRecord] = []
    size_bytes = 0
    for segment in list_segments(directory):
        if segment < position[0] or (end is not None and segment > end[0]):
            continue
        offset_bytes = position[1] if segment == position[0] else 0
        end_bytes = end[1] if end is not None and segment == end[0] else None
        for record in read_records(directory, segment, offset_bytes, end_bytes):
            size_bytes += len(record.body)
            if batch and size_bytes > max_bytes:
                return batch
            batch.append(record)
    return batch


def find_journal_end(directory: Path, position: tuple[int, int]) -> tuple[int, int]:
    """Return (segment, end_bytes) of a journal's last whole record, `position` when there is none after it."""
    for segment in reversed(list_segments(directory)):
        if segment < position[0]:
            break
        offset_bytes = position[1] if segment == position[0] else 0
        end_bytes = None
        for record in read_records(directory, segment, offset_bytes):
            end_bytes = record.end_bytes
        if end_bytes is not None:
            return segment, end_bytes
    return position


def decode_batch(records: list[JournalRecord]) -> list[dict[str, Any]]:
    """Return the rows of some records as Arrow tables by name, piece by piece, and empty the list.

    A table without rows may be left out.
    """
    kernels = loaded_kernels()
    if sum(len(record.body) for record in records if record.signal is Signal.TRACES) >= LOAD_BYTES:
        kernels = load_kernels()
    pieces: list[dict[str, Any]] = []
    piece: list[JournalRecord] = []
    plain_bytes = 0
    # From the end, so that a piece's bytes are gone when it is decoded.
    records.reverse()
    while records:
        record = records.pop()
        piece.append(record)
        if kernels is None or record.signal is not Signal.TRACES:
            plain_bytes += len(record.body)
        if plain_bytes >= PIECE_BYTES or not records:
            pieces.append(_decode_piece(piece))
            piece, plain_bytes = [], 0
    return pieces


def _decode_piece(records: list[JournalRecord]) -> dict[str, Any]:
    requests: dict[Signal, list[tuple[int, bytes]]] = {}
    for record in records:
        requests.setdefault(record.signal, []).append((record.received_unix_ns, record.body))
    batches: dict[str, ColumnBatch] = {}
    for signal, bodies in requests.items():
        batches |= _decode_or_drop(_DECODERS[signal], bodies)
    return {name: batch.to_arrow() for name, batch in batches.items()}


def replay_journal(connection: Any, directory: Path, journal_id: str = "") -> int:
    """Store what a database lacks of a journal, and leave the journal as it is; return the number of records.

    Raises:
        duckdb.Error: If the database refuses.
    """
    count = 0
    position = read_progress(connection, journal_id)
    while records := load_journal_batch(directory, position):
        position = (records[-1].segment, records[-1].end_bytes)
        pieces = decode_batch(records)
        count += sum(p[name].num_rows for p in pieces for name in RECORD_TABLES & p.keys())
        count -= save_records(connection, pieces, *position, journal_id)
    return count


def _decode_or_drop(decode: _Decode, requests: list[tuple[int, bytes]]) -> dict[str, ColumnBatch]:
    try:
        return decode(requests)
    except DecodeError:
        # Checked before it was acknowledged, so only another version of protobuf can disagree now.
        readable = [request for request in requests if _can_decode(decode, request)]
        logger.warning("%d journal records cannot be decoded", len(requests) - len(readable))
        return decode(readable)


def _can_decode(decode: _Decode, request: tuple[int, bytes]) -> bool:
    try:
        decode([request])
    except DecodeError:
        return False
    return True
