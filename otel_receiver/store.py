"""The store: one DuckDB file, and the journal beside it while a receiver runs.

DuckDB lets one process write a file and locks all others out meanwhile, readers included. So nobody keeps it open:
the receiver opens it around each commit, readers open it for their question, and `store_turns` says who is next.
A journal that no live receiver holds is moved into the file before anything is read, so a reader sees everything that
was ever acknowledged.

The only writer of telemetry; DuckDB is used here, by store_file and by graph_store. A reader of a store without a
journal needs no decoder, so those are imported where a journal is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver import store_turns
from rootwalk.otel_receiver.journal import (
    NO_IDENTITY,
    JournalIdentity,
    JournalLock,
    JournalRecord,
    check_end,
    journal_path,
    list_segments,
    read_identity,
    remove_journal,
    remove_segments,
)
from rootwalk.otel_receiver.schema import (
    SCHEMA_VERSION,
    create_tables,
)
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store_create import check_names, create_store
from rootwalk.otel_receiver.store_errors import (
    ForeignJournalError,
    cannot_open,
    cannot_write,
    first_line,
    foreign_journal,
    query_error,
)
from rootwalk.otel_receiver.store_file import (
    DEFAULT_TIMEOUT_S,
    NO_EXTENSIONS,
    NO_FILES,
    SAFE_CONFIG,
    WRITER_THREADS,
    FileAccess,
    closing_store,
    open_store,
)
from rootwalk.otel_receiver.store_rows import (
    copy_tables,
    read_progress,
    read_store_id,
    save_records,
)

__all__ = [
    "SCHEMA_VERSION",
    "check_names",
    "copy_store",
    "create_store",
    "load_writer",
    "open_store",
    "query_store",
    "read_place",
    "read_position",
    "reading",
    "recover",
    "save_journal_batch",
    "writing",
]

logger = logging.getLogger(__name__)

# Where a receiver writes: on a busy machine with a slow disk a batch and its checkpoint take seconds, but they end.
RECEIVER_TIMEOUT_S: Final = 60.0


# What DuckDB raises when disk or memory is full or broken; anything else is about what was asked of it.
_WRITE_ERRORS: Final = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.TransactionException,
    duckdb.OutOfMemoryException,
)


@contextlib.contextmanager
def reading(
    path: Path, *, timeout_s: float | None = None, files: FileAccess = NO_FILES
) -> Iterator[Any]:
    """Open a store for queries; acknowledged requests that a dead receiver left are stored first.

    Where they cannot be stored (a full disk), the connection is to a copy in memory that has them too. Other processes
    are waited for 10 s, where a receiver writes 60 s, unless `timeout_s` says for how long. Queries reach no file but
    the store, unless `files` says which. Raises as `open_store`.
    """
    path = path.resolve()
    if timeout_s is None:
        timeout_s = RECEIVER_TIMEOUT_S if journal_path(path).is_dir() else DEFAULT_TIMEOUT_S
    with store_turns.turn(path, timeout_s):
        store_turns.await_writer(path, timeout_s)
        connection = _recover_if_abandoned(path, timeout_s)
        if connection is None:
            connection = open_store(path, read_only=True, timeout_s=timeout_s, files=files)
        try:
            yield connection
        finally:
            connection.close()


@contextlib.contextmanager
def writing(
    path: Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_bytes: int | None = None,
    vacuums: bool = True,
) -> Iterator[Any]:
    """Open an existing store for writing; other processes wait meanwhile, so be brief.

    Args:
        path: The store's file.
        timeout_s: How long to wait for other processes.
        memory_bytes: What DuckDB may use; None leaves it to itself, most of the machine.
        vacuums: Whether closing also joins small row groups, of all tables, whoever wrote them. That takes seconds
            after a receiver stored much: not for who writes a few rows. Row groups without a row go in any case.

    Raises:
        StoreError: As `open_store`, or if the disk refuses what the block writes.
    """
    path = path.resolve()
    with (
        store_turns.turn(path, timeout_s),
        store_turns.keep_readers_out(path, timeout_s),
        closing_store(path, open_store(path, read_only=False, timeout_s=timeout_s)) as connection,
    ):
        try:
            if memory_bytes is not None:
                connection.execute(f"SET memory_limit = '{memory_bytes}B'")
            if not vacuums:
                connection.execute("SET max_vacuum_tasks = 0")
            yield connection
        except _WRITE_ERRORS as error:
            raise cannot_write(path, error) from error


def query_store(
    path: Path, query: str, *, allow_files: bool = False
) -> tuple[list[str], list[str], list[tuple[Any, ...]]]:
    """Return the column names, DuckDB's names of their types, and the rows of one query.

    Args:
        path: The store.
        query: SQL; it reads the store and nothing else.
        allow_files: Whether it may also read and write files and load extensions. The store's own views may then too.

    Raises:
        StoreError: As `open_store`, or if the query is not one that can be answered; the text quotes DuckDB.
    """
    with reading(path, files=FileAccess(is_unrestricted=allow_files)) as connection:
        try:
            answer = connection.execute(query)
            if answer.description is None:
                return [], [], []
            names = [str(column[0]) for column in answer.description]
            types = [str(column[1]) for column in answer.description]
            return names, types, answer.fetchall()
        except duckdb.Error as error:
            raise StoreError(
                f"cannot answer the query: {query_error(error)}; needs SQL that reads the public views",
                hint='"SHOW TABLES" lists the views, "DESCRIBE steps" the columns of one',
            ) from error


def read_position(path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[int, int]:
    """Return (segment, end_bytes) of the last record of its journal that is in a store, which is created if need be.

    Raises:
        ForeignJournalError: If the journal beside it is of another store.
        StoreError: As `open_store`.
    """
    return read_place(path, timeout_s=timeout_s)[1]


def read_place(
    path: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> tuple[JournalIdentity, tuple[int, int]]:
    """Return a store's id with its journal's, and the position as `read_position`; raises as that."""
    create_store(path)
    directory = journal_path(path)
    identity = read_identity(directory)
    # Read-only: DuckDB may rewrite a file that it opens for writing, and this one may not be ours.
    with (
        store_turns.turn(path, timeout_s),
        contextlib.closing(open_store(path, read_only=True, timeout_s=timeout_s)) as connection,
    ):
        store_id = read_store_id(connection)
        if identity.store_id not in ("", store_id):
            raise foreign_journal(path, directory)
        position = read_progress(connection, identity.journal_id)
        return JournalIdentity(store_id, identity.journal_id), position


def recover(path: Path, lock: JournalLock, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Move a whole journal into its store, which is created if need be, and empty the journal.

    Raises:
        StoreError: As `open_store`; what is not stored is still in the journal.
    """
    from rootwalk.otel_receiver.journal_batches import load_journal_batch

    identity, position = read_place(path, timeout_s=timeout_s)
    check_end(lock.directory, position)
    while records := load_journal_batch(lock.directory, position):
        position = (records[-1].segment, records[-1].end_bytes)
        save_journal_batch(path, records, identity=identity, timeout_s=timeout_s)
    remove_segments(lock.directory, before=max(list_segments(lock.directory), default=0) + 1)


def save_journal_batch(
    path: Path,
    records: list[JournalRecord],
    *,
    identity: JournalIdentity = NO_IDENTITY,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_bytes: int | None = None,
) -> int:
    """Store consecutive journal records and that they are stored, in one transaction; empties the list.

    Args:
        path: The store's file; made anew, with a warning, when somebody removed it.
        records: Consecutive records of one journal.
        identity: The store for which they were acknowledged, and their journal.
        timeout_s: How long to wait for other processes.
        memory_bytes: What DuckDB may use; None leaves it to itself.

    Returns:
        Spans that were left out because they were stored before.

    Raises:
        DatabaseMemoryError: If the batch is too large for the database's memory; nothing is stored then.
        ForeignJournalError: If the file is another store by now; nothing is stored then.
        StoreError: As `open_store`, or if the database cannot be written; nothing is stored then.
    """
    from rootwalk.otel_receiver.journal_batches import decode_batch

    last = records[-1]
    pieces = decode_batch(records)
    if identity.store_id and not path.exists():
        logger.warning(
            'the store "%s" was removed: what was stored in it is gone, and a new file begins', path
        )
    create_store(path, identity.store_id)
    try:
        with writing(path, timeout_s=timeout_s, memory_bytes=memory_bytes) as connection:
            if identity.store_id and read_store_id(connection) != identity.store_id:
                raise foreign_journal(path, journal_path(path))
            return save_records(
                connection, pieces, last.segment, last.end_bytes, identity.journal_id
            )
    except duckdb.Error as error:
        raise cannot_write(path, error) from error


def load_writer() -> None:
    """Load all that storing a batch needs, by storing one that is not kept; 0.15 s and 45 MiB."""
    from rootwalk.otel_receiver.journal_batches import decode_batch

    one_span = b"\x0a\x04\x12\x02\x12\x00"  # ResourceSpans, ScopeSpans, an empty Span
    pieces = decode_batch([JournalRecord(Signal.TRACES, 0, one_span, 1, 1)])
    with duckdb.connect(
        ":memory:", config={**SAFE_CONFIG, "threads": WRITER_THREADS}
    ) as connection:
        create_tables(connection)
        save_records(connection, pieces, 1, 1)


def copy_store(path: Path, new: Path, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> os.stat_result:
    """Copy a store's rows, in their order, into a new file; return what the store's file was when it began.

    Raises:
        StoreError: As `open_store`, or if the copy cannot be written.
    """
    path = path.resolve()
    with store_turns.turn(path, timeout_s):
        # What a killed writer left in DuckDB's own log goes into the file first.
        with closing_store(path, open_store(path, read_only=False, timeout_s=timeout_s)):
            pass
        before = path.stat()
        try:
            with duckdb.connect(
                str(new), config={**NO_EXTENSIONS, "threads": WRITER_THREADS}
            ) as connection:
                create_tables(connection)
                copy_tables(connection, path)
        except duckdb.Error as error:
            raise cannot_write(path, error) from error
        return before


def _recover_if_abandoned(path: Path, timeout_s: float) -> Any:
    """Store what a dead receiver left; return None, or a copy in memory with it when the store cannot take it."""
    directory = journal_path(path)
    if not directory.is_dir():
        return None
    try:
        lock = JournalLock.try_take(directory, create=False)
    except StoreError as error:
        # A reader without the right to write sees the store as it is.
        logger.warning("%s", error)
        return None
    if lock is None:
        return None
    try:
        recover(path, lock, timeout_s=timeout_s)
        remove_journal(directory)
    except ForeignJournalError as error:
        logger.warning("%s; this answer leaves it out", error)
        return None
    except StoreError as error:
        connection, count = _copy_with_journal(path, directory, timeout_s)
        logger.warning(
            '%s; %d records that were acknowledged are not in it: this answer counts them, "%s" keeps them, '
            "and the next reader stores them when it can",
            error,
            count,
            directory,
        )
        return connection
    finally:
        lock.release()
    return None


def _copy_with_journal(path: Path, directory: Path, timeout_s: float) -> tuple[Any, int]:
    """Return a database in memory with a store and its journal in it, and how many records the store lacks."""
    from rootwalk.otel_receiver.journal_batches import replay_journal

    open_store(path, read_only=True, timeout_s=timeout_s).close()  # else it is not ours
    connection = duckdb.connect(":memory:", config=NO_EXTENSIONS)
    try:
        create_tables(connection)
        copy_tables(connection, path)
        return connection, replay_journal(
            connection, directory, read_identity(directory).journal_id
        )
    except duckdb.Error as error:
        connection.close()
        raise cannot_open(path, first_line(error)) from error
