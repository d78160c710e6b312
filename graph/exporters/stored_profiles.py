"""The profiles of a store as they were sent: their samples as rows, their tables as the messages that came.

Source: `otel_receiver/schema.sql`: a sample belongs to the profile of its time, dictionary and number, and its stack is
a number of that dictionary.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesDictionary

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = [
    "ProfileKey",
    "ProfileRow",
    "SampleRow",
    "read_dictionary",
    "read_profiles",
    "read_samples",
]

ROWS_AT_ONCE = 10_000
# When it was received, Unix ns; its dictionary; its number among those of both.
ProfileKey = tuple[int, str, int]


class ProfileRow(NamedTuple):
    """What a profile is; None where its sender did not say."""

    key: ProfileKey
    start_unix_ns: int | None
    duration_ns: int | None
    sample_type: str | None
    unit: str | None
    period_type: str | None
    period_unit: str | None
    period: int | None
    job: str | None
    rank: int | None
    host_name: str | None


class SampleRow(NamedTuple):
    """A sample: its values, or where it has none its number of times; `step` is that of the span that it links to."""

    key: ProfileKey
    stack_index: int
    values: list[int]
    times: int
    trace_id: str | None
    span_id: str | None
    attributes: str
    step: int | None


def read_profiles(connection: Any, choice: Choice) -> list[ProfileRow]:
    """Return the profiles of the chosen job and ranks, by their time."""
    where, values = _conditions(choice)
    rows = connection.execute(
        "SELECT p.received_unix_ns, p.dictionary_id, p.profile_index, p.unix_ns, p.duration_ns, p.sample_type, p.unit,"  # noqa: S608  (our own words)
        " p.period_type, p.period_unit, p.period, p.job, p.rank, p.host_name FROM profile_records p"
        f" WHERE {where} ORDER BY p.unix_ns, p.received_unix_ns, p.dictionary_id, p.profile_index",
        values,
    ).fetchall()
    return [ProfileRow((row[0], row[1], row[2]), *row[3:]) for row in rows]


def read_samples(connection: Any, choice: Choice) -> Iterator[SampleRow]:
    """Yield the samples of the chosen job, ranks and steps, those of one dictionary after one another."""
    where, values = _conditions(choice)
    if choice.steps is not None:
        where += " AND t.step BETWEEN ? AND ?"
        values += choice.steps
    cursor = connection.cursor()
    cursor.execute(
        "SELECT s.received_unix_ns, s.dictionary_id, s.profile_index, s.stack_index, s.sample_values,"  # noqa: S608
        " len(s.times_unix_ns), s.trace_id, s.span_id, s.attributes, t.step"
        " FROM profile_sample_records s JOIN profile_records p ON p.received_unix_ns = s.received_unix_ns"
        " AND p.dictionary_id = s.dictionary_id AND p.profile_index = s.profile_index"
        " LEFT JOIN (SELECT trace_id, span_id, max(step) AS step FROM steps GROUP BY ALL) t"
        " ON t.trace_id = s.trace_id AND t.span_id = s.span_id"
        f" WHERE {where} ORDER BY s.dictionary_id, s.received_unix_ns, s.profile_index, s.stack_index,"
        " s.span_id, s.attributes",
        values,
    )
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        for row in rows:
            yield SampleRow((row[0], row[1], row[2]), *row[3:])


def read_dictionary(connection: Any, dictionary_id: str) -> Any:
    """Return a dictionary as it was sent; an empty one where it is not there any more."""
    found = connection.cursor().execute(
        "SELECT data FROM profile_dictionaries WHERE dictionary_id = ? LIMIT 1", [dictionary_id]
    )
    dictionary = ProfilesDictionary()
    for (data,) in found.fetchall():
        dictionary.ParseFromString(zlib.decompress(data))
    return dictionary


def _conditions(choice: Choice) -> tuple[str, list[Any]]:
    where, values = ["true"], list[Any]()
    if choice.job is not None:
        where.append("p.job = ?")
        values.append(choice.job)
    if choice.ranks is not None:
        where.append("p.rank IN (SELECT unnest(?))")
        values.append(list(choice.ranks))
    return " AND ".join(where), values
