"""Keep a store to what its retention allows, and give the disk back what it does not use any more.

Only for the holder of the journal's lock, who is the only writer of telemetry.
"""

from __future__ import annotations

import logging
from pathlib import Path

from rootwalk.otel_receiver.replace_file import (
    COMPACTING_SUFFIX,
    discard_compaction,
    replace_file,
)
from rootwalk.otel_receiver.retention import (
    Retention,
    delete_old,
    is_compaction_due,
    would_delete_most,
)
from rootwalk.otel_receiver.store import copy_store, reading, writing

__all__ = ["apply_retention", "compact"]

logger = logging.getLogger(__name__)


def apply_retention(
    path: Path, retention: Retention, now_unix_ns: int, may_delete_most: bool = True
) -> int | None:
    """Delete what is too old or too much, and compact when that leaves a file more than half empty or too large.

    Args:
        path: The store.
        retention: What to keep.
        now_unix_ns: The time of the wall clock.
        may_delete_most: Whether more than half of all records may go because of their age.

    Returns:
        Records that were deleted; None when that would have been more than half of them, and was not allowed.

    Raises:
        StoreError: If the store cannot be opened, or the disk refuses.
    """
    with writing(path) as connection:
        if not may_delete_most and would_delete_most(connection, retention, now_unix_ns):
            return None
        deleted = delete_old(connection, retention, now_unix_ns)
    with reading(path) as connection:
        is_due = is_compaction_due(connection, retention)
    if is_due and compact(path):
        logger.info('compacted the store "%s" to %d bytes', path, path.stat().st_size)
    return deleted


def compact(path: Path) -> bool:
    """Copy a store and rename the copy over it.

    Readers may read meanwhile; what another process wrote after the copy began ends the attempt.

    Returns:
        Whether the store was replaced; when not, it is as before.

    Raises:
        StoreError: If the store cannot be opened, or the copy cannot be written.
    """
    path = path.resolve()
    new = path.with_name(path.name + COMPACTING_SUFFIX)
    discard_compaction(path)
    try:
        return replace_file(new, path, copy_store(path, new))
    finally:
        discard_compaction(path)
