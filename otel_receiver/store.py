"""The store: one DuckDB file, and the journal beside it while a receiver runs.

DuckDB lets one process write a file and locks all others out meanwhile, readers included. So nobody keeps it open:
the receiver opens it around each commit, readers open it for their question, and both retry while the other has it.
A journal that no live receiver holds is moved into the file before anything is read, so a reader sees everything that
was ever acknowledged.

The only writer of telemetry, and with graph_store the only user of DuckDB.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.resources
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

from rootwalk.instrumentation.errors import DecodeError, StoreError
from rootwalk.otel_receiver.columns import ColumnBatch
from rootwalk.otel_receiver.decode import decode_metrics, decode_spans
from rootwalk.otel_receiver.journal import (
    JournalLock,
    JournalRecord,
    journal_path,
    list_segments,
    read_records,
    remove_journal,
    remove_segments,
)
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store_rows import read_progress, save_records

__all__ = [
    "SCHEMA_VERSION",
    "create_store",
    "load_journal_batch",
    "open_store",
    "query_store",
    "reading",
    "recover",
    "save_journal_batch",
    "writing",
]

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
DEFAULT_TIMEOUT_S: Final = 10.0
# How often a locked file is tried again; a commit holds it for tens of ms.
LOCK_RETRY_S: Final = 0.02
# Storing is not urgent, and its cores may be those of a training job.
WRITER_THREADS: Final = 1
# Journal bytes decoded and stored in one transaction: some 50,000 spans, and under 200 MB of memory.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024

# DuckDB refuses two ways of opening one file in a process, so threads take turns.
_turns: dict[str, threading.RLock] = {}
_turns_guard = threading.Lock()


def create_store(path: Path) -> None:
    """Create an empty store unless the file exists; it appears complete or not at all.

    Raises:
        StoreError: If the folder does not exist or cannot be written.
    """
    if path.exists():
        return
    new = path.with_name(f"{path.name}.{os.getpid()}.creating")
    try:
        new.unlink(missing_ok=True)
        connection = duckdb.connect(str(new))
        try:
            connection.execute(
                importlib.resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
            )
            version = importlib.metadata.version("rootwalk")
            connection.execute(
                "INSERT INTO schema_versions VALUES (?, ?, ?)",
                [SCHEMA_VERSION, time.time_ns(), f"rootwalk {version}"],
            )
        finally:
            connection.close()
        new.rename(path)
    except (OSError, duckdb.Error) as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise StoreError(
            f'cannot create the store "{path}": {_first_line(error)}; '
            f'needs the folder "{path.parent}" to exist and to be writable',
            hint="choose another place with --store PATH",
        ) from error


def open_store(path: Path, *, read_only: bool, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
    """Return an open DuckDB connection to an existing store; the caller closes it.

    `reading` and `writing` are the safe forms: they take turns within the process and replay a journal first.

    Raises:
        StoreError: If there is no such file, it is not a store of this version, or it stays locked.
    """
    if not path.exists():
        raise StoreError(
            f'cannot open the store "{path}": no such file; needs a store that rootwalk has written',
            hint="rootwalk run or rootwalk receive makes one",
        )
    connection = _connect(path, read_only, timeout_s)
    try:
        _check_version(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def reading(path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[Any]:
    """Open a store for queries; acknowledged requests that a dead receiver left are stored first.

    Raises:
        StoreError: As `open_store`.
    """
    with _turn(path, timeout_s):
        _recover_if_abandoned(path, timeout_s)
        connection = open_store(path, read_only=True, timeout_s=timeout_s)
        try:
            yield connection
        finally:
            connection.close()


@contextlib.contextmanager
def writing(path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[Any]:
    """Open an existing store for writing; other processes wait meanwhile, so be brief.

    Raises:
        StoreError: As `open_store`.
    """
    with _turn(path, timeout_s):
        connection = open_store(path, read_only=False, timeout_s=timeout_s)
        try:
            yield connection
        finally:
            connection.close()


def query_store(
    path: Path, query: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
    """Return the column names, DuckDB's names of their types, and the rows of one query.

    Raises:
        StoreError: As `open_store`, or if the query is not one that can be answered; the text quotes DuckDB.
    """
    with reading(path, timeout_s=timeout_s) as connection:
        try:
            answer = connection.execute(query)
            if answer.description is None:
                return [], [], []
            names = [str(column[0]) for column in answer.description]
            types = [str(column[1]) for column in answer.description]
            return names, types, answer.fetchall()
        except duckdb.Error as error:
            raise StoreError(
                f"cannot answer the query: {_query_error(error)}; needs SQL that reads the public views",
                hint='"SHOW TABLES" lists the views, "DESCRIBE steps" the columns of one',
            ) from error


def recover(path: Path, lock: JournalLock, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
    """Move a whole journal into its store, which is created if need be, and empty the journal.

    Returns:
        The number that the next segment must have: larger than any that this store has seen.

    Raises:
        StoreError: As `open_store`; what is not stored is still in the journal.
    """
    create_store(path)
    with _turn(path, timeout_s):
        # Read-only first: DuckDB may rewrite a file that it opens for writing, and this one may not be ours.
        connection = open_store(path, read_only=True, timeout_s=timeout_s)
        position = read_progress(connection)
        connection.close()
    while records := load_journal_batch(lock.directory, position):
        save_journal_batch(path, records, timeout_s=timeout_s)
        position = (records[-1].segment, records[-1].end_bytes)
    next_segment = max(position[0], *list_segments(lock.directory), 0) + 1
    remove_segments(lock.directory, before=next_segment)
    return next_segment


def load_journal_batch(
    directory: Path, position: tuple[int, int], end: tuple[int, int] | None = None
) -> list[JournalRecord]:
    """Return the next records of a journal, at most about `MAX_BATCH_BYTES`; none at its end.

    Args:
        directory: The journal.
        position: (segment, end_bytes) of the last record that is stored.
        end: (segment, end_bytes) of the last record to return; None for the end of the journal.
    """
    batch: list[JournalRecord] = []
    size_bytes = 0
    for segment in list_segments(directory):
        if segment < position[0] or (end is not None and segment > end[0]):
            continue
        offset_bytes = position[1] if segment == position[0] else 0
        end_bytes = end[1] if end is not None and segment == end[0] else None
        for record in read_records(directory, segment, offset_bytes, end_bytes):
            batch.append(record)
            size_bytes += len(record.body)
            if size_bytes >= MAX_BATCH_BYTES:
                return batch
    return batch


def save_journal_batch(
    path: Path, records: list[JournalRecord], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> int:
    """Store consecutive journal records and that they are stored, in one transaction.

    Returns:
        Spans that were left out because they were stored before.

    Raises:
        StoreError: As `open_store`, or if the database cannot be written; nothing is stored then.
    """
    by_signal = {
        signal: [(r.received_unix_ns, r.body) for r in records if r.signal is signal]
        for signal in Signal
    }
    spans = _decode_or_drop(decode_spans, by_signal[Signal.TRACES])
    metrics = _decode_or_drop(decode_metrics, by_signal[Signal.METRICS])
    create_store(path)
    try:
        with writing(path, timeout_s=timeout_s) as connection:
            last = records[-1]
            return save_records(connection, spans, metrics, last.segment, last.end_bytes)
    except duckdb.Error as error:
        raise StoreError(
            f'cannot write the store "{path}": {_first_line(error)}; needs free disk space and a whole file',
            hint="acknowledged telemetry stays in the journal beside it until the store can be written",
        ) from error


def _decode_or_drop(
    decode: Callable[[list[tuple[int, bytes]]], ColumnBatch], requests: list[tuple[int, bytes]]
) -> ColumnBatch:
    try:
        return decode(requests)
    except DecodeError:
        # Checked before it was acknowledged, so only another version of protobuf can disagree now.
        readable = [request for request in requests if _can_decode(decode, request)]
        logger.warning("%d journal records cannot be decoded", len(requests) - len(readable))
        return decode(readable)


def _can_decode(
    decode: Callable[[list[tuple[int, bytes]]], ColumnBatch], request: tuple[int, bytes]
) -> bool:
    try:
        decode([request])
    except DecodeError:
        return False
    return True


def _recover_if_abandoned(path: Path, timeout_s: float) -> None:
    directory = journal_path(path)
    if not directory.is_dir():
        return
    try:
        lock = JournalLock.try_take(directory, create=False)
    except StoreError as error:
        # A reader without the right to write sees the store as it is.
        logger.warning("%s", error)
        return
    if lock is None:
        return
    try:
        recover(path, lock, timeout_s=timeout_s)
        remove_journal(directory)
    finally:
        lock.release()


@contextlib.contextmanager
def _turn(path: Path, timeout_s: float) -> Iterator[None]:
    key = str(path.resolve())
    with _turns_guard:
        turn = _turns.setdefault(key, threading.RLock())
    if not turn.acquire(timeout=timeout_s):
        raise _locked(path, timeout_s, "another thread of this process has it open")
    try:
        yield
    finally:
        turn.release()


def _connect(path: Path, read_only: bool, timeout_s: float) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            config = {} if read_only else {"threads": WRITER_THREADS}
            return duckdb.connect(str(path), read_only=read_only, config=config)
        except duckdb.Error as error:
            text = _first_line(error)
            if "Could not set lock" not in text:
                raise _cannot_open(path, text) from error
            if time.monotonic() >= deadline_s:
                raise _locked(path, timeout_s, text) from error
        time.sleep(LOCK_RETRY_S)


def _check_version(path: Path, connection: Any) -> None:
    try:
        rows = connection.execute("SELECT version, product FROM rootwalk_schema").fetchall()
    except duckdb.Error as error:
        raise StoreError(
            f'cannot open the store "{path}": saw a DuckDB file that rootwalk has not written; '
            f"needs a store or a path where there is no file",
            hint="name another file",
        ) from error
    if [row[0] for row in rows] != [SCHEMA_VERSION]:
        saw = ", ".join(f"schema version {version} by {product}" for version, product in rows)
        raise StoreError(
            f'cannot open the store "{path}": saw {saw or "no schema version"}; '
            f"needs schema version {SCHEMA_VERSION}",
            hint="read it with the rootwalk that wrote it, or record into a new store",
        )


def _cannot_open(path: Path, saw: str) -> StoreError:
    if "not a valid DuckDB database" in saw:
        saw = "a file that is not a DuckDB database"
    return StoreError(
        f'cannot open the store "{path}": saw {saw}; needs a store that rootwalk has written',
        hint="name another file",
    )


def _locked(path: Path, timeout_s: float, saw: str) -> StoreError:
    return StoreError(
        f'cannot open the store "{path}": it is in use for {timeout_s:g} s ({saw}); '
        f"needs the other process to close it",
        hint="close the other program that has the file open, then try again",
    )


def _query_error(error: duckdb.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("LINE ", "^"))]
    return " ".join(said).replace("; ", ", ").rstrip(".!")


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error) or type(error).__name__).splitlines()[0]
