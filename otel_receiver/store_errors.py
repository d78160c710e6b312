"""What to say when a store cannot be used: DuckDB's words and the disk's made into sentences."""

from __future__ import annotations

import re
from pathlib import Path

from rootwalk.instrumentation.errors import StoreError

__all__ = [
    "DatabaseMemoryError",
    "ForeignJournalError",
    "cannot_open",
    "cannot_write",
    "first_line",
    "foreign_journal",
    "locked",
    "query_error",
]


class DatabaseMemoryError(StoreError):
    """What is to be stored at once is more than the database has memory for."""


class ForeignJournalError(StoreError):
    """The journal beside a store is of another store, or the store's file is another one than before."""


def foreign_journal(path: Path, directory: Path) -> ForeignJournalError:
    """Return the error for a store whose journal carries another store's id."""
    return ForeignJournalError(
        f'cannot store the journal "{directory}" in "{path}": saw the journal of another store; '
        "needs the store for which it was written",
        hint="put the file back for which it was written, or move the journal away: it holds acknowledged telemetry",
    )


def cannot_open(path: Path, saw: str) -> StoreError:
    """Return the error for a file that is not a store."""
    if "not a valid DuckDB database" in saw:
        saw = "a file that is not a DuckDB database"
    return StoreError(
        f'cannot open the store "{path}": saw {saw}; needs a store that rootwalk has written',
        hint="name another file",
    )


def cannot_write(path: Path, error: BaseException) -> StoreError:
    """Return the error for a store that refused a write."""
    # DuckDB has a class for it, but not where it happens in a commit.
    if "could not allocate" in str(error) or "Out of Memory" in str(error):
        return DatabaseMemoryError(
            f'cannot write the store "{path}": {first_line(error)}; needs more memory or less at once',
            hint="acknowledged telemetry stays in the journal beside it until the store can be written",
        )
    return StoreError(
        f'cannot write the store "{path}": {_disk_reason(error)}; needs free disk space and a whole file',
        hint="acknowledged telemetry stays in the journal beside it until the store can be written",
    )


def locked(path: Path, timeout_s: float, saw: str) -> StoreError:
    """Return the error for a store that others kept open."""
    return StoreError(
        f'cannot open the store "{path}": it is in use for {timeout_s:g} s ({saw}); '
        f"needs the other process to close it",
        hint="close the other program that has the file open, then try again",
    )


def query_error(error: BaseException) -> str:
    """Return what DuckDB says of a query, on one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("LINE ", "^"))]
    return " ".join(said).replace("; ", ", ").rstrip(".!")


def _disk_reason(error: BaseException) -> str:
    """Return what the disk said; DuckDB puts it at the end of its own words."""
    reason = re.search(
        r"No space left on device|Disk quota exceeded|Input/output error", str(error)
    )
    return reason[0].lower() if reason else first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, the system's own words where it has them."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error) or type(error).__name__).splitlines()[0]
