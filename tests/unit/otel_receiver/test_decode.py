from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rootwalk.otel_receiver.decode import decode_metrics, decode_spans
from rootwalk.otel_receiver.span_columns import PROMOTED_ATTRIBUTES
from support.otlp_messages import (
    RANK_RESOURCE,
    key_values,
    metric,
    metric_request,
    span,
    trace_request,
)


def _one_span(**fields: Any) -> dict[str, Any]:
    return decode_spans([(7, trace_request([span(1, **fields)]))]).rows()[0]


def test_a_span_becomes_a_row() -> None:
    message = span(
        2,
        "stall.runnable",
        parent_span_id=b"\0" * 7 + b"\x09",
        status=Status(code=Status.STATUS_CODE_ERROR, message="late"),
        trace_state="a=b",
        links=[Span.Link(trace_id=b"\x01" * 16, span_id=b"\x02" * 8)],
        events=[Span.Event(time_unix_nano=5, name="woke", attributes=key_values({"n": 1}))],
        attributes={"training.step.number": 12, "other": "kept"},
    )

    row = decode_spans([(7, trace_request([message]))]).rows()[0]

    links = json.loads(str(row["links"]))
    assert row["received_unix_ns"] == 7
    assert (row["trace_id"], row["span_id"]) == ("00" * 15 + "01", "0000000000000002")
    assert (row["parent_span_id"], row["name"]) == ("0000000000000009", "stall.runnable")
    assert (row["kind"], row["status_code"], row["status_message"]) == ("INTERNAL", "ERROR", "late")
    assert (row["start_unix_ns"], row["end_unix_ns"], row["trace_state"]) == (1002, 1007, "a=b")
    assert (row["job"], row["attempt"], row["rank"], row["host_name"]) == ("j1", 0, 1, "alpha")
    assert (row["step"], row["scope_name"], row["phase"]) == (12, "test", None)
    assert row["attributes"] == '{"training.step.number":12,"other":"kept"}'
    assert json.loads(str(row["resource"])) == RANK_RESOURCE
    assert (links[0]["trace_id"], links[0]["span_id"]) == ("01" * 16, "02" * 8)
    assert row["events"] == '[{"unix_ns":5,"name":"woke","attributes":{"n":1}}]'


def test_spans_that_are_numbered_in_each_trace_have_keys_of_their_own() -> None:
    spans = [
        span(number, trace_id=trace.to_bytes(16, "big"))
        for trace in range(1, 101)
        for number in range(1, 101)
    ]

    rows = decode_spans([(7, trace_request(spans))]).rows()

    assert len({row["span_key"] for row in rows}) == 10_000
    again = decode_spans([(8, trace_request(spans[:1]))]).rows()
    assert again[0]["span_key"] == rows[0]["span_key"]


def test_what_is_not_there_is_unknown() -> None:
    row = decode_spans(
        [(7, trace_request([span(1, start_time_unix_nano=0)], resource={}, scope=""))]
    ).rows()[0]

    assert (row["start_unix_ns"], row["job"], row["rank"], row["scope_name"]) == (None,) * 4
    assert (row["parent_span_id"], row["status_code"], row["links"]) == (None, "UNSET", "[]")


def test_seconds_become_whole_ns() -> None:
    row = _one_span(
        attributes={"training.thread.runnable_time": 0.25, "training.aggressor.time": 2}
    )

    assert (row["runnable_ns"], row["aggressor_ns"]) == (250_000_000, 2_000_000_000)


@pytest.mark.parametrize("key", sorted(PROMOTED_ATTRIBUTES))
@pytest.mark.parametrize("value", [b"x", [1], None, float("nan"), 1e300], ids=repr)
def test_a_wrong_type_is_unknown_and_kept(key: str, value: Any) -> None:
    row = _one_span(attributes={key: value})

    assert row[PROMOTED_ATTRIBUTES[key][0]] is None
    assert json.dumps(key) in str(row["attributes"])


def test_a_rank_that_is_text_is_unknown_and_kept() -> None:
    row = decode_spans([(7, trace_request([span(1)], resource={"training.rank": "x"}))]).rows()[0]

    assert (row["rank"], row["resource"]) == (None, '{"training.rank":"x"}')


def test_a_time_that_no_bigint_holds_is_unknown() -> None:
    row = _one_span(start_time_unix_nano=2**64 - 1, end_time_unix_nano=2**63 - 1)

    assert (row["start_unix_ns"], row["end_unix_ns"]) == (None, 2**63 - 1)


def test_three_lists_become_one_of_aggressors() -> None:
    row = _one_span(
        attributes={
            "training.aggressor.pids": [41, 42],
            "training.aggressor.names": ["hog", "cron"],
            "training.aggressor.times": [0.003, 0.001],
        }
    )

    assert json.loads(str(row["aggressors"])) == [
        {"pid": 41, "name": "hog", "ns": 3_000_000},
        {"pid": 42, "name": "cron", "ns": 1_000_000},
    ]


@pytest.mark.parametrize(
    ("pids", "names", "times"),
    [([41], [], [0.1]), ([41], ["hog"], ["x"]), (["41"], ["hog"], [0.1]), ([41], "hog", [0.1])],
)
def test_lists_that_do_not_match_are_unknown(pids: Any, names: Any, times: Any) -> None:
    row = _one_span(
        attributes={
            "training.aggressor.pids": pids,
            "training.aggressor.names": names,
            "training.aggressor.times": times,
        }
    )

    assert row["aggressors"] is None


def test_rows_keep_the_resource_of_their_own_request() -> None:
    first = trace_request([span(1), span(2)], resource={"training.rank": 0})
    second = trace_request([span(3)], resource={"training.rank": 1})

    rows = decode_spans([(7, first), (8, second)]).rows()

    assert [(row["rank"], row["received_unix_ns"]) for row in rows] == [(0, 7), (0, 7), (1, 8)]


def test_metrics_of_every_kind() -> None:
    def point(**fields: Any) -> dict[str, Any]:
        return {"time_unix_nano": 20, "start_time_unix_nano": 10, **fields}

    sent = [
        metric("g", unit="s", gauge={"data_points": [point(as_double=1.5)]}),
        metric(
            "c",
            sum={
                "data_points": [point(as_int=2**60 + 1, flags=1)],
                "is_monotonic": True,
                "aggregation_temporality": 2,
            },
        ),
        metric(
            "h",
            histogram={
                "aggregation_temporality": 1,
                "data_points": [
                    point(count=3, sum=6.0, max=4.0, bucket_counts=[1, 2], explicit_bounds=[2.5])
                ],
            },
        ),
        metric(
            "e",
            exponential_histogram={
                "data_points": [
                    point(
                        count=2, scale=3, zero_count=1, positive={"offset": 4, "bucket_counts": [1]}
                    )
                ]
            },
        ),
        metric(
            "q",
            summary={
                "data_points": [
                    point(count=2, sum=8.0, quantile_values=[{"quantile": 0.5, "value": 3.0}])
                ]
            },
        ),
    ]

    rows = decode_metrics([(7, metric_request(sent))]).rows()

    data = [json.loads(str(row["data"])) for row in rows]
    assert [row["kind"] for row in rows] == [
        "gauge",
        "sum",
        "histogram",
        "exponential_histogram",
        "summary",
    ]
    assert [row["value"] for row in rows] == [1.5, float(2**60), 6.0, None, 8.0]
    assert {(row["unix_ns"], row["start_unix_ns"], row["rank"]) for row in rows} == {(20, 10, 1)}
    assert [row["is_monotonic"] for row in rows] == [None, True, None, None, None]
    assert [row["unit"] for row in rows] == ["s", None, None, None, None]
    assert data[0] == {}
    assert data[1] == {"temporality": "cumulative", "as_int": 2**60 + 1, "flags": 1}
    assert data[2] == {
        "temporality": "delta",
        "count": 3,
        "sum": 6.0,
        "max": 4.0,
        "bucket_counts": [1, 2],
        "explicit_bounds": [2.5],
    }
    assert (data[3]["scale"], data[3]["positive"]) == (3, {"offset": 4, "bucket_counts": [1]})
    assert data[4]["quantiles"] == [{"quantile": 0.5, "value": 3.0}]


def test_exemplars_are_kept() -> None:
    exemplar = {
        "time_unix_nano": 5,
        "as_double": 2.0,
        "trace_id": b"\x01" * 16,
        "span_id": b"\x02" * 8,
        "filtered_attributes": key_values({"k": 1}),
    }
    sent = metric("g", gauge={"data_points": [{"as_double": 1.0, "exemplars": [exemplar]}]})

    row = decode_metrics([(7, metric_request([sent]))]).rows()[0]

    assert json.loads(str(row["data"]))["exemplars"] == [
        {
            "unix_ns": 5,
            "value": 2.0,
            "trace_id": "01" * 16,
            "span_id": "02" * 8,
            "attributes": {"k": 1},
        }
    ]


def test_a_number_that_is_none_is_unknown() -> None:
    sent = metric("g", gauge={"data_points": [{"as_double": float("nan")}, {}]})

    rows = decode_metrics([(7, metric_request([sent]))]).rows()

    assert [(row["value"], row["data"]) for row in rows] == [
        (None, '{"as_double":"NaN"}'),
        (None, "{}"),
    ]


known_keys = st.sampled_from([*PROMOTED_ATTRIBUTES, "training.aggressor.pids", "free", ""])
scalars = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text("aé\0", max_size=3)
)
spans = st.builds(
    lambda attributes, **fields: span(1, **fields, attributes=attributes),
    attributes=st.dictionaries(known_keys, scalars, max_size=6),
    trace_id=st.binary(min_size=16, max_size=16),
    parent_span_id=st.binary(max_size=9),
    kind=st.integers(0, 5),
    start_time_unix_nano=st.integers(0, 2**64 - 1),
    end_time_unix_nano=st.integers(0, 2**64 - 1),
)


@given(st.lists(st.lists(spans, max_size=4), max_size=4))
def test_rows_equal_a_slow_walk_over_the_messages(groups: list[list[Any]]) -> None:
    bodies = [
        (n, trace_request(group, resource={"training.rank": n})) for n, group in enumerate(groups)
    ]

    rows = decode_spans(bodies).rows()

    expected = [
        _reference_row(message, received, resource_spans)
        for received, body in bodies
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope_spans in resource_spans.scope_spans
        for message in scope_spans.spans
    ]
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


def _reference_row(message: Any, received: int, resource_spans: Any) -> dict[str, Any]:
    """The same row by field names and one rule a type, with no regard to speed."""
    row: dict[str, Any] = {
        "received_unix_ns": received,
        "rank": resource_spans.resource.attributes[0].value.int_value,
        "trace_id": message.trace_id.hex(),
        "parent_span_id": message.parent_span_id.hex() or None,
        "kind": Span.SpanKind.Name(message.kind).removeprefix("SPAN_KIND_"),
    }
    for name in ("start", "end"):
        time = getattr(message, f"{name}_time_unix_nano")
        row[f"{name}_unix_ns"] = time if 0 < time < 2**63 else None
    by_key = {a.key: a.value for a in message.attributes}
    for key, (column, column_type) in PROMOTED_ATTRIBUTES.items():
        value = by_key.get(key)
        kind = value.WhichOneof("value") if value is not None else None
        row[column] = None
        if column.endswith("_ns") and kind in ("int_value", "double_value"):
            seconds = getattr(value, kind)
            if abs(seconds) < 9.2e9:
                row[column] = round(seconds * 1_000_000_000)
        elif kind == {"TEXT": "string_value", "BIGINT": "int_value"}.get(column_type, "bool_value"):
            row[column] = getattr(value, kind) if not column.endswith("_ns") else None
    return row
