"""The schema of a store: making it, and bringing an older store up to it.

Works on an open connection inside the caller's transaction and opens nothing.
"""

from __future__ import annotations

import time
from typing import Any, Final

from rootwalk.otel_receiver.span_columns import SPAN_KEY_FACTOR
from rootwalk.otel_receiver.store_rows import DUPLICATE_WINDOW_NS
from rootwalk.otel_receiver.summaries import rebuild_summaries

__all__ = ["OLDEST_VERSION", "SCHEMA_VERSION", "create_tables", "migrate", "write_version"]

SCHEMA_VERSION: Final = 9
# The oldest schema that `migrate` knows the way from.
OLDEST_VERSION: Final = 2

# As the decoders make it.
_SPAN_KEY: Final = (
    "xor(TRY_CAST('0x' || span_id AS UBIGINT), CAST((TRY_CAST('0x' || right(trace_id, 16) AS UBIGINT)::UHUGEINT"
    f" * {SPAN_KEY_FACTOR}::UHUGEINT) % 18446744073709551616 AS UBIGINT))"
)


# Version 4 has what threads waited for, but not from which length on: that was 0.1 ms wherever it was told.
_WAITS_SINCE: Final = 5
_IDENTITY_SINCE: Final = 9
_TELL_LENGTH: Final = """
    UPDATE span_records AS s
    SET attributes = CASE WHEN attributes = '{}' THEN '{' ELSE left(attributes, -1) || ',' END
        || '"training.wait.min_time":0.0001}'
    FROM (
        SELECT DISTINCT job, attempt, rank, step FROM span_records
        WHERE name = 'training.rank_step' AND contains(attributes, '"training.wait.times"')
    ) AS told
    WHERE s.job = told.job AND s.attempt IS NOT DISTINCT FROM told.attempt AND s.rank = told.rank
        AND s.step = told.step AND (s.name = 'training.rank_step' OR s.phase_index IS NOT NULL)
        AND NOT contains(s.attributes, '"training.wait.min_time"')
"""


def create_tables(connection: Any) -> None:
    """Create the tables and views that are not there, and a random id for a store that has none."""
    import importlib.resources

    connection.execute(
        importlib.resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
    )


def write_version(connection: Any, store_id: str = "") -> None:
    """Say in a new store which version it has and who made it.

    Args:
        connection: Open for writing, with the tables.
        store_id: The store's own id where a journal knows it already; empty for a new one.
    """
    import importlib.metadata

    if store_id:
        connection.execute("UPDATE store_identity SET store_id = ?", [store_id])

    connection.execute(
        "INSERT INTO schema_versions VALUES (?, ?, ?)",
        [SCHEMA_VERSION, time.time_ns(), f"rootwalk {importlib.metadata.version('rootwalk')}"],
    )


def migrate(connection: Any, version: int) -> None:
    """Bring an older store up to this version.

    Version 3 has tables for logs, profiles and live findings, summaries of spans and metrics, and the spans' ids as
    numbers, which only spans that may still be sent again need. Version 4 has views of what threads waited for, version
    5 from which length on that is told, without which nothing rests on it, version 6 which requests came from files,
    version 7 a view of operations, version 8 which of a rank's own threads ran in another's place, version 9 the
    store's own id and the progress of each of its journals.

    Args:
        connection: Inside a transaction.
        version: What the store has.
    """
    if version == OLDEST_VERSION:
        connection.execute("ALTER TABLE findings RENAME TO diagnosed_findings")
        connection.execute("ALTER TABLE span_records ADD COLUMN span_key UBIGINT")
    if version < _IDENTITY_SINCE:
        connection.execute(
            "ALTER TABLE journal_progress ADD COLUMN IF NOT EXISTS journal_id TEXT DEFAULT ''"
        )
    create_tables(connection)
    if version < _WAITS_SINCE:
        connection.execute(_TELL_LENGTH)
    if version == OLDEST_VERSION:
        connection.execute(
            f"UPDATE span_records SET span_key = {_SPAN_KEY} WHERE received_unix_ns >= ?",  # noqa: S608
            [time.time_ns() - DUPLICATE_WINDOW_NS],
        )
        rebuild_summaries(connection)
    connection.execute("UPDATE schema_versions SET version = ?", [SCHEMA_VERSION])
