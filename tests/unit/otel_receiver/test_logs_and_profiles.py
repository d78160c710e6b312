"""Logs and profiles from their messages to what the public views say of them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    KeyValueAndUnit,
    ProfilesDictionary,
)

from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import reading, save_journal_batch
from support.log_and_profile_messages import (
    STRINGS,
    dictionary,
    log_record,
    log_request,
    profile,
    profile_request,
    sample,
)
from support.stores import query_rows

TRACE_ID, SPAN_ID = bytes(15) + b"\x07", bytes(7) + b"\x05"


def _save(store: Path, signal: Signal, *bodies: bytes, received_unix_ns: int = 9) -> None:
    records = [JournalRecord(signal, received_unix_ns, body, 1, n) for n, body in enumerate(bodies)]
    save_journal_batch(store, records)


def test_every_field_of_a_log_record(store: Path) -> None:
    record = log_record(
        time_unix_nano=1000,
        observed_time_unix_nano=1001,
        severity_number=17,
        severity_text="ERROR",
        event_name="rootwalk.finding.open",
        body={"message": "late", "seconds": 2.0},
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
        flags=1,
        dropped_attributes_count=3,
        attributes={"training.step.number": 2**53 + 1, "raw": b"\0\1", "nan": float("nan")},
    )
    _save(store, Signal.LOGS, log_request([record]))

    assert query_rows(
        store,
        "SELECT unix_ns, observed_unix_ns, severity_number, severity_text, event_name, trace_id, span_id, flags,"
        " job, attempt, rank, host_id, host_name, scope_name, dropped_attributes FROM logs",
    ) == [
        (
            *(1000, 1001, 17, "ERROR", "rootwalk.finding.open", TRACE_ID.hex(), SPAN_ID.hex(), 1),
            *("j1", 0, 1, "h1", "alpha", "test", 3),
        )
    ]
    assert query_rows(store, "SELECT CAST(body AS TEXT), CAST(attributes AS TEXT) FROM logs") == [
        (
            '{"kvlistValue":{"values":[{"key":"message","value":{"stringValue":"late"}},'
            '{"key":"seconds","value":{"doubleValue":2.0}}]}}',
            '{"training.step.number":9007199254740993,"raw":{"bytesValue":"AAE="},"nan":{"doubleValue":"NaN"}}',
        )
    ]


def test_what_a_log_record_does_not_say_is_null(store: Path) -> None:
    _save(store, Signal.LOGS, log_request([log_record(), log_record(body="")], {}))

    assert query_rows(
        store,
        "SELECT unix_ns, observed_unix_ns, severity_number, severity_text, event_name, CAST(body AS TEXT),"
        " trace_id, span_id, job, rank FROM logs",
    ) == [(None,) * 10, (*[None] * 5, '""', *[None] * 4)]


def test_a_profile_and_its_samples(store: Path) -> None:
    """Two samples of one profile: one with a value, a link and an attribute, one with two times."""
    samples = [
        sample(1, values=[4], link_index=1, attribute_indices=[1]),
        sample(2, timestamps_unix_nano=[1010, 1020]),
        sample(3, values=[1]),
        sample(0, values=[2]),
    ]
    one = profile(samples, profile_id=bytes(15) + b"\x09", attribute_indices=[1])
    _save(store, Signal.PROFILES, profile_request([one]))

    assert query_rows(
        store,
        "SELECT unix_ns, duration_ns, profile_id, sample_type, unit, period_type, period_unit, period, sample_count,"
        " job, rank, attributes ->> 'thread.name', resource ->> 'host.name' FROM profiles",
    ) == [
        (
            *(1000, 50, "0" * 30 + "09", "samples", "count", "cpu", "nanoseconds", 10, 4),
            *("j1", 1, "loader", "alpha"),
        )
    ]
    assert query_rows(
        store,
        "SELECT stack, value, times_unix_ns, trace_id, span_id, attributes ->> 'thread.name' FROM profile_samples"
        " ORDER BY value DESC, stack",
    ) == [
        ("main;step", 4, [], TRACE_ID.hex(), SPAN_ID.hex(), "loader"),
        ("main;step;memcpy", 2, [1010, 1020], None, None, None),
        (None, 2, [], None, None, None),
        ("main;libx.so+0x2f", 1, [], None, None, None),
    ]


def test_a_dictionary_is_kept_once_and_whole(store: Path) -> None:
    body = profile_request([profile([sample(1, values=[1])])])
    _save(store, Signal.PROFILES, body, body)
    _save(store, Signal.PROFILES, body, received_unix_ns=10)

    with reading(store) as connection:
        dictionaries = connection.execute("SELECT data FROM profile_dictionaries").fetchall()
    assert [ProfilesDictionary.FromString(zlib.decompress(d)) for (d,) in dictionaries] == [
        dictionary()
    ]
    assert query_rows(store, "SELECT count(*) FROM profiles") == [(3,)]
    assert query_rows(store, "SELECT stack, count(*) FROM profile_samples GROUP BY 1") == [
        ("main;step", 3)
    ]


def _indexed(key: str, value: str) -> Any:
    return KeyValue(
        key_strindex=STRINGS.index(key), value=AnyValue(string_value_strindex=STRINGS.index(value))
    )


@pytest.mark.parametrize(
    "attribute",
    [
        KeyValue(key="training.job.id", value=AnyValue(string_value="j1")),
        _indexed("training.job.id", "j1"),
        KeyValue(
            key="training.job.id",
            key_strindex=STRINGS.index("training.job.id"),
            value=AnyValue(string_value="j1"),
        ),
    ],
    ids=["inline", "index", "both"],
)
def test_the_three_forms_of_an_attribute(store: Path, attribute: Any) -> None:
    _save(store, Signal.PROFILES, profile_request([profile([])], [attribute]))

    assert query_rows(store, "SELECT job, CAST(resource AS TEXT) FROM profiles") == [
        ("j1", '{"training.job.id":"j1"}')
    ]


def test_text_by_number_inside_nested_values(store: Path) -> None:
    """An attribute of a profile whose value is a list with a map in it."""
    tables = dictionary()
    tables.attribute_table.append(KeyValueAndUnit(key_strindex=STRINGS.index("thread.name")))
    nested = tables.attribute_table[2].value.array_value.values.add()
    nested.kvlist_value.values.append(_indexed("main", "step"))
    _save(
        store, Signal.PROFILES, profile_request([profile([], attribute_indices=[2])], tables=tables)
    )

    assert query_rows(store, "SELECT CAST(attributes AS TEXT) FROM profiles") == [
        (
            '{"thread.name":{"arrayValue":{"values":[{"kvlistValue":{"values":'
            '[{"key":"main","value":{"stringValue":"step"}}]}}]}}}',
        )
    ]


def test_numbers_that_the_dictionary_lacks_mean_none(store: Path) -> None:
    bad = sample(99, values=[1], link_index=99, attribute_indices=[99])
    tables = dictionary()
    tables.location_table[1].lines[0].function_index = 99
    _save(
        store,
        Signal.PROFILES,
        profile_request([profile([bad, sample(1, values=[1])])], tables=tables),
    )

    assert query_rows(
        store, "SELECT stack, trace_id, CAST(attributes AS TEXT) FROM profile_samples"
    ) == [(None, None, "{}"), ("unknown;step", None, "{}")]
