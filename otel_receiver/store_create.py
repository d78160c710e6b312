"""A new store: it appears complete or not at all; and which files may be written as stores."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import duckdb

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.journal import journal_path, read_identity
from rootwalk.otel_receiver.schema import create_tables, write_version
from rootwalk.otel_receiver.store_errors import first_line
from rootwalk.otel_receiver.store_file import SAFE_CONFIG

__all__ = ["check_names", "create_store"]

# A store holds names of hosts, jobs and processes: for its owner, who may give it to others.
STORE_MODE: Final = 0o600


def create_store(path: Path, store_id: str = "") -> None:
    """Create an empty store unless the file exists; it appears complete or not at all, readable by its owner only.

    Args:
        path: The store's file.
        store_id: The store's own id; empty for that of its journal, or a new one where there is none.

    Raises:
        StoreError: If the folder does not exist or cannot be written.
    """
    path = path.resolve()
    if path.exists():
        return
    new = path.with_name(f"{path.name}.{os.getpid()}.creating")
    try:
        new.unlink(missing_ok=True)
        connection = duckdb.connect(str(new), config=SAFE_CONFIG)
        try:
            create_tables(connection)
            write_version(connection, store_id or read_identity(journal_path(path)).store_id)
        finally:
            connection.close()
        new.chmod(STORE_MODE)
        new.rename(path)
    except (OSError, duckdb.Error) as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise StoreError(
            f'cannot create the store "{path}": {first_line(error)}; '
            f'needs the folder "{path.parent}" to exist and to be writable',
            hint="choose another place with --store PATH",
        ) from error


def check_names(path: Path) -> None:
    """Refuse a store whose file has a second name, for a second receiver could not be seen there.

    Raises:
        StoreError: If the file has hard links.
    """
    try:
        names = path.stat().st_nlink
    except FileNotFoundError:
        return
    if names > 1:
        raise StoreError(
            f'cannot write the store "{path}": saw a file with {names} names (hard links); needs a file with one',
            hint="remove the other names, or copy the file",
        )
