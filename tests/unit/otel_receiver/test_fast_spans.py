"""The compiled decoder gives what the plain one gives, for whatever protobuf accepts."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import (  # type: ignore[import-untyped]
    DecodeError as ProtobufDecodeError,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver import kernels as kernel_loader
from rootwalk.otel_receiver.any_value import json_string
from rootwalk.otel_receiver.decode import decode_spans
from rootwalk.otel_receiver.fast_spans import decode_spans_fast
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.journal_batches import decode_batch
from rootwalk.otel_receiver.request_checks import read_json_request, read_request
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.span_columns import SpanColumns
from support.examples import examples
from support.otlp_load import trace_templates
from support.otlp_messages import span, trace_request
from support.otlp_wild import broken, trace_requests

SAMPLES = Path(__file__).parents[2] / "data/otlp_samples"
MANY = examples(0.6, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    loaded = kernel_loader.load_kernels()
    assert loaded is not None
    yield loaded
    kernel_loader.unload_kernels()


def plain_rows(bodies: list[bytes]) -> list[dict[str, Any]]:
    columns = SpanColumns()
    for number, body in enumerate(bodies):
        columns.append_request(ExportTraceServiceRequest.FromString(body), 1000 + number)
    return columns.batch().rows()


def fast_rows(kernels: ModuleType, bodies: list[bytes]) -> list[dict[str, Any]]:
    requests = [(1000 + number, body) for number, body in enumerate(bodies)]
    return decode_spans_fast(kernels, requests).rows()


def is_accepted(body: bytes) -> bool:
    try:
        ExportTraceServiceRequest.FromString(body)
    except ProtobufDecodeError:
        return False
    return True


@pytest.mark.slow
@MANY
@given(bodies=st.lists(trace_requests(), max_size=3))
def test_rows_of_wild_requests_are_equal(kernels: ModuleType, bodies: list[bytes]) -> None:
    accepted = [body for body in bodies if is_accepted(body)]
    assert fast_rows(kernels, accepted) == plain_rows(accepted)


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_broken_requests_are_refused_or_equal(kernels: ModuleType, data: st.DataObject) -> None:
    body = data.draw(broken(data.draw(trace_requests())))
    if is_accepted(body):
        assert fast_rows(kernels, [body]) == plain_rows([body])
    else:
        with pytest.raises(Exception, match="cannot decode a request for traces"):
            read_request(Signal.TRACES, body)


@pytest.mark.slow
@MANY
@given(body=trace_requests())
def test_ids_are_checked_as_protobuf_reads_them(kernels: ModuleType, body: bytes) -> None:
    if not is_accepted(body):
        return
    fast = read_request(Signal.TRACES, body)
    kernel_loader.switch_kernels(is_allowed=False)
    try:
        assert fast == read_request(Signal.TRACES, body)
    finally:
        kernel_loader.switch_kernels(is_allowed=True)
        kernel_loader.load_kernels()


def test_whatever_is_accepted_at_once_protobuf_accepts_too(kernels: ModuleType) -> None:
    chance = random.Random(5)  # noqa: S311  (places to break, not secrets)
    plain = trace_templates(2)[0].body
    accepted = 0
    for _ in range(20_000):
        body = bytearray(plain)
        for _ in range(chance.randrange(1, 3)):
            body[chance.randrange(len(body))] = chance.choice((0, 1, 10, 18, 127, 128, 255))
        del body[chance.choice((len(body), chance.randrange(len(body)))) :]
        spans, bad = kernels.check_request(body)
        if spans < 0:
            continue
        accepted += 1
        request = ExportTraceServiceRequest.FromString(bytes(body))
        found = [s for r in request.resource_spans for g in r.scope_spans for s in g.spans]
        is_good = [len(s.trace_id) == 16 and len(s.span_id) == 8 for s in found]
        assert (spans, bad) == (len(found), is_good.count(False))
    assert accepted > 2000
    assert kernels.check_request(plain) == (2, 0)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17])
def test_ids_are_whole_and_not_zero(kernels: ModuleType, size: int) -> None:
    body = trace_request([span(1, trace_id=b"\x07" * size), span(2, trace_id=bytes(size))])
    assert kernels.check_request(body) == (2, 1 if size == 16 else 2)


def test_rows_of_the_load_are_equal(kernels: ModuleType) -> None:
    bodies = [template.with_ids(100 * n) for n, template in enumerate(trace_templates(100))]
    assert fast_rows(kernels, bodies) == plain_rows(bodies)


def test_rows_of_the_samples_are_equal(kernels: ModuleType) -> None:
    bodies = [(SAMPLES / "duckdb-otlp/otlp_traces.pb").read_bytes()]
    example = (SAMPLES / "opentelemetry-proto/trace.json").read_bytes()
    bodies.append(read_json_request(Signal.TRACES, example))
    for path in sorted((SAMPLES / "duckdb-otlp").glob("*traces*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(DecodeError):
                bodies.append(read_json_request(Signal.TRACES, line))
    assert len(bodies) > 5
    assert fast_rows(kernels, bodies) == plain_rows(bodies)


def test_known_names_are_found_whatever_follows_them(kernels: ModuleType) -> None:
    attributes = {"training.phase": "forward", "training.phasf": "x", "training.phase.": "y"}
    rows = fast_rows(kernels, [trace_request([span(1, attributes=attributes)])])
    assert rows[0]["phase"] == "forward"
    assert json.loads(rows[0]["attributes"]) == attributes


def test_doubles_are_written_as_python_writes_them(kernels: ModuleType) -> None:
    from rootwalk.otel_receiver.wire_text import write_double

    chance = random.Random(4)  # noqa: S311  (numbers to write, not secrets)
    numbers = [0.0, -0.0, 1e15, 1e16, 1e17, 1e22, 1e23, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308]
    numbers += [2.0**power for power in range(-1074, 1024)]
    numbers += [chance.random() * 10 ** chance.randrange(-12, 18) for _ in range(20_000)]
    bits = [chance.getrandbits(64) for _ in range(20_000)]
    numbers += [struct.unpack("<d", struct.pack("<Q", item))[0] for item in bits]
    out = np.zeros(64, np.uint8)
    for number in filter(math.isfinite, numbers):
        end = write_double(out, 0, np.uint64(struct.unpack("<Q", struct.pack("<d", number))[0]))
        assert out[:end].tobytes().decode() == repr(number)


@given(text=st.text())
def test_strings_are_written_as_json_writes_them(kernels: ModuleType, text: str) -> None:
    from rootwalk.otel_receiver.wire_text import write_string

    data = kernels.bytes_array(text.encode() + b'-"\n')
    size = len(text.encode())
    out = np.zeros(6 * size + 2 + kernels.WORD_BYTES, np.uint8)
    end = write_string(out, 0, data, 0, size)
    assert out[:end].tobytes().decode() == json_string(text)


def _decode_one_span() -> None:
    decode_batch([JournalRecord(Signal.TRACES, 1, trace_request([span(1)]), 1, 1)])


def test_a_small_batch_does_not_load_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_loader.unload_kernels()
    _decode_one_span()
    assert kernel_loader.loaded_kernels() is None
    assert isinstance(decode_spans([(1, trace_request([span(1)]))]).plain["name"], list)
    monkeypatch.setattr("rootwalk.otel_receiver.journal_batches.LOAD_BYTES", 1)
    _decode_one_span()
    assert kernel_loader.loaded_kernels() is not None
    assert not isinstance(decode_spans([(1, trace_request([span(1)]))]).plain["name"], list)


def test_without_the_compiler_the_plain_decoder_works(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_loader.unload_kernels()
    monkeypatch.setattr("rootwalk.otel_receiver.journal_batches.LOAD_BYTES", 1)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    try:
        _decode_one_span()
        assert kernel_loader.loaded_kernels() is None
        assert isinstance(decode_spans([(1, trace_request([span(1)]))]).plain["name"], list)
    finally:
        kernel_loader.unload_kernels()
