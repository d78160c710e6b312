"""One DuckDB file: opened, waited for, put in order, brought up to date, and closed.

    open    the file; another process has it            wait for that
            a writer was killed while it wrote it       put back what it wrote over, then again (`double_write`)
            an older schema                             brought up to this one
    close   a copy of what the checkpoint may write over, the checkpoint, the copy removed

With store and graph_store the only one that imports DuckDB. Nothing here takes turns: `store` does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver import double_write, store_turns
from rootwalk.otel_receiver.schema import OLDEST_VERSION, SCHEMA_VERSION, migrate
from rootwalk.otel_receiver.store_errors import cannot_open, cannot_write, first_line, locked

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "NO_EXTENSIONS",
    "NO_FILES",
    "SAFE_CONFIG",
    "WRITER_THREADS",
    "FileAccess",
    "closing_store",
    "open_store",
]

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 10.0
# Storing is not urgent, and its cores may be those of a training job.
WRITER_THREADS: Final = 1
# A store may come from somebody else, and its views are SQL that runs with the rights of who opens it: no file but the
# store itself, no download and no loading of extensions, no Python objects as tables.
NO_EXTENSIONS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
SAFE_CONFIG: Final = {**NO_EXTENSIONS, "enable_external_access": "false"}
# Queries may not undo that, nor take more memory or threads than they were given.
READER_CONFIG: Final = {**SAFE_CONFIG, "lock_configuration": "true"}
# No checkpoint in a commit.
WRITER_CONFIG: Final = {**SAFE_CONFIG, "threads": WRITER_THREADS, "wal_autocheckpoint": "1TB"}


@dataclass(frozen=True, slots=True)
class FileAccess:
    """What queries on a store may read and write beside the store.

    Attributes:
        folder: A folder for exports; None for nothing.
        is_unrestricted: Whether everything may be read, written and loaded that this user may; folder is ignored then.
    """

    folder: Path | None = None
    is_unrestricted: bool = False


NO_FILES: Final = FileAccess()


def open_store(
    path: Path,
    *,
    read_only: bool,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    files: FileAccess = NO_FILES,
) -> Any:
    """Return an open DuckDB connection to an existing store; the caller closes it.

    `store.reading` and `store.writing` are the safe forms: they take turns within the process and replay a journal
    first. One that is open for writing is closed by `closing_store`.

    Raises:
        StoreError: If there is no such file, it is not a store of this version, or it stays locked.
    """
    if not path.exists():
        raise StoreError(
            f'cannot open the store "{path}": no such file; needs a store that rootwalk has written',
            hint="rootwalk run or rootwalk receive makes one",
        )
    path = path.resolve()
    connection = _connect(path, read_only, timeout_s, files)
    try:
        version = _read_version(path, connection)
        if version == SCHEMA_VERSION:
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    _migrate(path, timeout_s)
    return _connect(path, read_only, timeout_s, files)


@contextlib.contextmanager
def closing_store(path: Path, connection: Any) -> Iterator[Any]:
    """Close a store that is open for writing at the end of a block, such that a kill in that moment loses nothing.

    What was committed is in DuckDB's own log, so nothing is lost either where the disk refuses the checkpoint, or what
    protects the file in it: the next writer tries again.
    """
    path = path.resolve()
    with contextlib.ExitStack() as after:
        try:
            yield connection
        finally:
            try:
                with contextlib.suppress(duckdb.Error):  # nothing is open
                    connection.rollback()
                copy = after.enter_context(double_write.DoubleWrite(path))
                rows = connection.execute("SELECT block_id FROM pragma_metadata_info()").fetchall()
                copy.save(block for (block,) in rows)
                connection.execute("PRAGMA enable_checkpoint_on_shutdown")
            except (OSError, duckdb.Error) as error:
                logger.warning('the store "%s" keeps its log: %s', path, first_line(error))
            finally:
                connection.close()


def _open_file(path: Path, read_only: bool, files: FileAccess) -> Any:
    if not read_only:
        return duckdb.connect(str(path), config=WRITER_CONFIG)
    if files.is_unrestricted:
        return duckdb.connect(str(path), read_only=True)
    if files.folder is None:
        return duckdb.connect(str(path), read_only=True, config=READER_CONFIG)
    connection = duckdb.connect(str(path), read_only=True, config=NO_EXTENSIONS)
    # DuckDB takes the exception only while the rule does not hold yet; no view was read so far.
    connection.execute("SET allowed_directories = ?", [[str(files.folder.resolve())]])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _connect(path: Path, read_only: bool, timeout_s: float, files: FileAccess = NO_FILES) -> Any:
    deadline_s, is_restored = time.monotonic() + timeout_s, False
    while True:
        try:
            before = store_turns.file_number(path)
            if before is None:  # DuckDB would make an empty file, which is no store
                raise cannot_open(path, "no such file any more")
            connection = _open_file(path, read_only, files)
            if not read_only:
                # Only where it has been prepared for, which is not wherever a connection ends.
                connection.execute("PRAGMA disable_checkpoint_on_shutdown")
            if before == store_turns.file_number(path):
                return connection
            # A compacted copy has taken the name in between; this is the file that nobody sees any more.
            connection.close()
        except duckdb.Error as error:
            text = first_line(error)
            if "Corrupt database file" in text and not is_restored and double_write.restore(path):
                is_restored = True
                continue
            if "Could not set lock" not in text:
                raise cannot_open(path, text) from error
            if time.monotonic() >= deadline_s:
                raise locked(path, timeout_s, text) from error
            store_turns.await_file(path, read_only=read_only, deadline_s=deadline_s)


def _read_version(path: Path, connection: Any) -> int:
    """Return the schema version of an open store, one that can be used or migrated."""
    try:
        rows = connection.execute("SELECT version, product FROM rootwalk_schema").fetchall()
    except duckdb.Error as error:
        raise StoreError(
            f'cannot open the store "{path}": saw a DuckDB file that rootwalk has not written; '
            f"needs a store or a path where there is no file",
            hint="name another file",
        ) from error
    if len(rows) != 1 or not OLDEST_VERSION <= rows[0][0] <= SCHEMA_VERSION:
        saw = ", ".join(f"schema version {version} by {product}" for version, product in rows)
        raise StoreError(
            f'cannot open the store "{path}": saw {saw or "no schema version"}; '
            f"needs schema version {SCHEMA_VERSION}, or {OLDEST_VERSION} to bring up to it",
            hint="read it with the rootwalk that wrote it, or record into a new store",
        )
    return int(rows[0][0])


def _migrate(path: Path, timeout_s: float) -> None:
    """Bring an older store up to this schema version, in one transaction."""
    with closing_store(path, _connect(path, read_only=False, timeout_s=timeout_s)) as connection:
        try:
            # Another process may have been first.
            version = _read_version(path, connection)
            if version != SCHEMA_VERSION:
                connection.begin()
                migrate(connection, version)
                connection.commit()
                logger.info('the store "%s" has schema version %d now', path, SCHEMA_VERSION)
        except duckdb.Error as error:
            raise cannot_write(path, error) from error
