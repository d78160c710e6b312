from __future__ import annotations

import base64
import json
import math
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.otlp_json import read_json_message, render_json_message
from support.messages import messages_of

REQUESTS = [
    ExportTraceServiceRequest,
    ExportMetricsServiceRequest,
    ExportLogsServiceRequest,
    ExportProfilesServiceRequest,
]


@pytest.mark.parametrize("request_type", REQUESTS)
@given(data=st.data())
def test_json_gives_the_message_that_it_was_written_from(
    request_type: Any, data: st.DataObject
) -> None:
    message = data.draw(messages_of(request_type))

    text = json.dumps(render_json_message(message)).encode()

    assert read_json_message(request_type, text).SerializeToString(
        deterministic=True
    ) == message.SerializeToString(deterministic=True)


def _span(**fields: Any) -> Any:
    return read_json_message(Span, json.dumps(fields).encode())


def test_ids_are_hex_in_any_case() -> None:
    span = _span(
        traceId="5B8EFFF798038103d269b633813fc60c", spanId="eee19b7ec3c1b174", parentSpanId=""
    )

    assert span.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert (span.span_id.hex(), span.parent_span_id) == ("eee19b7ec3c1b174", b"")


@pytest.mark.parametrize("value", [1640000000000000001, "1640000000000000001"])
def test_64_bit_integers_are_texts_or_numbers(value: object) -> None:
    assert _span(startTimeUnixNano=value).start_time_unix_nano == 1640000000000000001


def test_a_whole_number_may_be_written_as_a_double() -> None:
    assert _span(startTimeUnixNano=1e9, kind=2.0).start_time_unix_nano == 1_000_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5", 1.5), ('"NaN"', math.nan), ('"-Infinity"', -math.inf), ('"2e3"', 2000.0), ("7", 7.0)],
)
def test_doubles_may_be_words(text: str, value: float) -> None:
    point = read_json_message(NumberDataPoint, f'{{"asDouble": {text}}}'.encode())

    assert struct.pack("d", point.as_double) == struct.pack("d", value)


@pytest.mark.parametrize("text", ["AP+A", "AP-A", "AP+A==", "_-8=", "/+8"])
def test_bytes_are_base64_of_either_alphabet_with_or_without_padding(text: str) -> None:
    value = read_json_message(AnyValue, json.dumps({"bytesValue": text}).encode())

    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    assert value.bytes_value == base64.b64decode(standard + "=" * (-len(standard) % 4))


def test_a_profile_id_is_base64_as_specified_or_hex_as_the_collector_writes_it() -> None:
    profile_id = bytes(range(16))
    for text in (base64.b64encode(profile_id).decode(), profile_id.hex()):
        profile = read_json_message(Profile, json.dumps({"profileId": text}).encode())
        assert profile.profile_id == profile_id


def test_null_is_absent_and_unknown_names_are_ignored() -> None:
    span = _span(name=None, kind=None, events=None, trace_id="zz", start_time_unix_nano=7, new={})

    assert span == Span()


def test_an_empty_or_blank_body_is_an_empty_request() -> None:
    for body in (b"", b" \n", b"{}"):
        assert read_json_message(ExportTraceServiceRequest, body) == ExportTraceServiceRequest()


@pytest.mark.parametrize(
    ("text", "saw"),
    [
        ("[]", "saw [] at the top; needs an object"),
        ('{"resourceSpans": {}}', "saw {} at resourceSpans; needs an array"),
        ('{"resourceSpans": [1]}', "saw 1 at resourceSpans[0]; needs an object"),
        ('{"resourceSpans": [null]}', "saw null at resourceSpans[0]; needs an object"),
        ('{"resourceSpans"', "that are not JSON"),
        ('{"resourceSpans": [NaN]}', "that are not JSON"),
        ("\xff", "that are not JSON"),
    ],
)
def test_what_is_no_request(text: str, saw: str) -> None:
    with pytest.raises(DecodeError, match=re.escape(saw)):
        read_json_message(ExportTraceServiceRequest, text.encode("latin-1"))


@pytest.mark.parametrize(
    ("field", "value", "needs"),
    [
        ("kind", "SPAN_KIND_SERVER", "an enum as an integer"),
        ("kind", "1", "an enum as an integer"),
        ("kind", 2**31, "an enum as an integer"),
        ("kind", True, "an enum as an integer"),
        ("flags", -1, "an integer from 0 to 4294967295"),
        ("flags", 1.5, "an integer from 0"),
        ("startTimeUnixNano", 2**64 - 1 + 1, "an integer from 0"),
        ("startTimeUnixNano", "1_0", "an integer from 0"),
        ("startTimeUnixNano", "\u0661", "an integer from 0"),
        ("startTimeUnixNano", "9" * 5000, "an integer from 0"),
        ("name", 1, "a string"),
        ("traceId", "abc", "hex digits"),
        ("traceId", "zz", "hex digits"),
        ("traceId", "ab cd", "hex digits"),
        ("traceId", "\u00e9\u00e9", "hex digits"),
        ("traceId", 12, "hex digits"),
        ("attributes", [{"key": "a", "value": {"boolValue": "true"}}], "true or false"),
        ("attributes", [{"key": "a", "value": {"bytesValue": "*"}}], "base64"),
        ("attributes", [{"key": "a", "value": {"doubleValue": "nan"}}], "a number"),
        ("attributes", [{"key": "a", "value": {"intValue": 1, "boolValue": True}}], "one of them"),
    ],
)
def test_values_that_a_field_cannot_hold(field: str, value: Any, needs: str) -> None:
    with pytest.raises(DecodeError, match=f"at {field}.*; needs {needs}"):
        _span(**{field: value})


def test_a_wrong_value_is_named_with_its_place() -> None:
    spans = [{"name": "a"}, {"events": [{}, {"timeUnixNano": {}}]}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    place = "resourceSpans[0].scopeSpans[0].spans[1].events[1].timeUnixNano"

    with pytest.raises(DecodeError, match=re.escape(f"saw {{}} at {place}; needs an integer")):
        read_json_message(ExportTraceServiceRequest, body)


@pytest.mark.parametrize("depth", [335, 100_000])
def test_values_in_values_without_end(depth: int) -> None:
    text = '{"arrayValue":{"values":[' * depth + "{}" + "]}}" * depth

    with pytest.raises(DecodeError, match=r"nested too deeply|not JSON"):
        read_json_message(AnyValue, text.encode())
