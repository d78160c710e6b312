"""What a store itself says is wrong with it: files that could not be read, and identity of another type.

Records whose identity is of another type than the registry's tell of no rank or step, which a verdict has to say:
`OTEL_RESOURCE_ATTRIBUTES=training.rank=1` makes a text of a rank, and so do some converters. They are stored as they
came. Works on an open connection.
"""

from __future__ import annotations

from typing import Any, Final

from rootwalk.graph.import_quality import read_broken_files
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.instrumentation import semconv

__all__ = ["read_stored_quality"]

_TABLES: Final = ("span_records", "metric_records", "log_records", "profile_records")
_RANK: Final = semconv.TRAINING_RANK
_STEP: Final = semconv.TRAINING_STEP_NUMBER


def read_stored_quality(connection: Any, job: str | None) -> tuple[DataQuality, ...]:
    """Return what is wrong with the records of a job, or of none; of any job where none is given."""
    return (*read_broken_files(connection, job), *_mistyped(connection, job))


def _mistyped(connection: Any, job: str | None) -> tuple[DataQuality, ...]:
    ranks = [_count(connection, table, "rank", "resource", _RANK, job) for table in _TABLES]
    steps = [_count(connection, "span_records", "step", "attributes", _STEP, job)]
    items = []
    for name, found in ((_RANK, ranks), (_STEP, steps)):
        count = sum(number for number, _ in found)
        if count:
            seen = next(value for number, value in found if number)
            text = f"{count} records have a {name} that is no whole number (such as {seen}) and tell of nobody"
            items.append(DataQuality(QualityCode.RANK_MISSING, text, count))
    return tuple(items)


def _count(
    connection: Any, table: str, column: str, where: str, name: str, job: str | None
) -> tuple[int, str]:
    """Return how many records have an attribute that is no value of its column, and the first such value."""
    count, value = connection.execute(
        f"SELECT count(*), min({where} -> '$.\"{name}\"') FROM {table}"  # noqa: S608  (our own names)
        f" WHERE {column} IS NULL AND contains({where}, '\"{name}\":') AND (job = ? OR job IS NULL OR ? IS NULL)",
        [job, job],
    ).fetchone()
    return int(count), str(value)[:40]
