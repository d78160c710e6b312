"""What is written by hand is what the generated classes read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation.otlp_wire import (
    Value,
    encode_attribute,
    encode_doubles,
    encode_resource_spans,
    encode_span,
)
from support.spans import decode_resource_spans, decode_spans

TRACE, OWN, PARENT, LINKED = bytes(range(16)), b"own-span", b"a-parent", b"a-linked"


def read_back(*attributes: bytes, linked_id: bytes = b"", parent_id: bytes = PARENT) -> Span:
    encoded = encode_span("name", TRACE, OWN, parent_id, (7, 1 << 62), attributes, linked_id)
    (span,) = decode_spans([encoded])
    return span


def value_of(span: Span) -> object:
    (attribute,) = span.attributes
    assert attribute.key == "key"
    kind = str(attribute.value.WhichOneof("value"))
    if kind == "array_value":
        items = attribute.value.array_value.values
        return tuple(getattr(item, str(item.WhichOneof("value"))) for item in items)
    return getattr(attribute.value, kind)


def test_span_has_its_place_its_times_and_its_link() -> None:
    span = read_back(linked_id=LINKED)
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE, OWN, PARENT)
    assert (span.name, span.kind) == ("name", Span.SPAN_KIND_INTERNAL)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (7, 1 << 62)
    assert [(link.trace_id, link.span_id) for link in span.links] == [(TRACE, LINKED)]


def test_root_has_no_parent_and_most_spans_no_link() -> None:
    span = read_back(parent_id=b"")
    assert span.parent_span_id == b""
    assert not span.links


@pytest.mark.parametrize(
    "value",
    [
        "",
        "gloo",
        "n\u00e4me \u4e2d\n",
        "x" * 300,
        True,
        False,
        0,
        1,
        127,
        128,
        65_536,
        (1 << 63) - 1,
        -1,
        0.0,
        0.25,
        -1e300,
        ("a", "b"),
        (1, 2),
        (0.5,),
        (),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_attribute_comes_back_with_its_type(value: Value) -> None:
    seen = value_of(read_back(encode_attribute("key", value)))
    assert seen == value
    assert type(seen) is type(value)


@given(st.text() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False))
def test_any_attribute_comes_back(value: Value) -> None:
    text = value.encode(errors="replace").decode() if isinstance(value, str) else value
    assert value_of(read_back(encode_attribute("key", value))) == text


@given(st.lists(st.floats(allow_nan=False), max_size=40))
def test_numbers_come_back(values: list[float]) -> None:
    assert value_of(read_back(encode_doubles("key", values))) == tuple(values)


def test_equal_values_of_different_types_stay_apart() -> None:
    assert value_of(read_back(encode_attribute("key", 1))) is not True
    assert value_of(read_back(encode_attribute("key", True))) is True


def test_resource_has_its_scopes_and_their_spans_and_empty_scopes_are_left_out() -> None:
    spans = [encode_span(str(n), TRACE, OWN, PARENT, (1, 2), []) for n in range(300)]
    scopes = {"one": spans, "none": [], "two": spans[:1]}
    batch = encode_resource_spans({"host.name": "h", "process.pid": 7}, scopes, "1.2", "https://s")
    assert batch.span_count == 301
    read = decode_resource_spans(batch)
    resource = {item.key: item.value for item in read.resource.attributes}
    assert resource["host.name"].string_value == "h"
    assert resource["process.pid"].int_value == 7
    assert read.schema_url == "https://s"
    seen = [(s.scope.name, s.scope.version, s.schema_url, len(s.spans)) for s in read.scope_spans]
    assert seen == [("one", "1.2", "https://s", 300), ("two", "1.2", "https://s", 1)]
    assert [span.name for span in read.scope_spans[0].spans] == [str(n) for n in range(300)]
