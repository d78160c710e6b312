"""Requests for load: serialised once, then made unique by writing new span ids into the bytes.

Building spans in Python is slower than any receiver that is worth measuring, so senders build a few template requests
and copy them. Metrics, logs and profiles are stored at least once and need no new ids.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import (  # type: ignore[import-untyped]
    MessageToDict,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, LogRecord

from support.otlp_messages import any_value, key_values, metric, metric_request, span, trace_request

# Templates a sender cycles through: different values, so that no column is constant.
TEMPLATES: Final = 8
_MARK: Final = struct.Struct(">II")
_MARK_HEAD: Final = 0xFACE0FF1
_START_UNIX_NS: Final = 1_760_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Template:
    """A serialised trace request and where its span ids are.

    Attributes:
        body: The request; the first four bytes of every span id are the same mark.
        id_offsets: Offset of each span id.
        is_hex: Whether ids are written as hex text (OTLP/JSON).
    """

    body: bytes
    id_offsets: list[int]
    is_hex: bool

    def with_ids(self, first: int) -> bytes:
        """Return a request whose spans are numbered from `first`."""
        copy = bytearray(self.body)
        for number, offset in enumerate(self.id_offsets, start=first):
            identity = number.to_bytes(8, "big")
            text = identity.hex().encode() if self.is_hex else identity
            copy[offset : offset + len(text)] = text
        return bytes(copy)


def load_span(number: int, chance: random.Random) -> Any:
    """Return a span of ten attributes of four types, five of them known to Rootwalk."""
    duration_ns = chance.randrange(1_000_000, 90_000_000)
    return span(
        1,
        chance.choice(("training.forward", "training.backward", "GET /items/{id}", "SELECT")),
        trace_id=chance.randbytes(16),
        span_id=_MARK.pack(_MARK_HEAD, number),
        parent_span_id=chance.randbytes(8),
        start_time_unix_nano=_START_UNIX_NS + number * 1_000_000,
        end_time_unix_nano=_START_UNIX_NS + number * 1_000_000 + duration_ns,
        attributes={
            "training.step.number": number // 10,
            "training.phase": chance.choice(("forward", "backward", "optimizer")),
            "training.phase.index": number % 10,
            "training.thread.running_time": round(duration_ns * chance.random()) / 1e9,
            "thread.name": f"worker-{number % 7}",
            "http.request.method": "GET",
            "url.path": f"/api/v1/items/{chance.randrange(1_000_000)}",
            "http.response.body.size": chance.randrange(100_000),
            "app.load_ratio": chance.random(),
            "app.is_cached": chance.random() < 0.5,
        },
    )


def trace_templates(spans_per_request: int, *, as_json: bool = False) -> list[Template]:
    """Return trace requests of so many spans each."""
    chance = random.Random(7)  # noqa: S311  (values to store, not secrets)
    templates = []
    for _ in range(TEMPLATES):
        body = trace_request([load_span(n, chance) for n in range(spans_per_request)])
        if as_json:
            body = render_json(body)
        marks = [_MARK.pack(_MARK_HEAD, n) for n in range(spans_per_request)]
        offsets = []
        position = 0
        for mark in marks:
            position = body.index(mark.hex().encode() if as_json else mark, position)
            offsets.append(position)
        templates.append(Template(body, offsets, as_json))
    return templates


def render_json(body: bytes) -> bytes:
    """Return a trace request as OTLP/JSON: ids as hex."""
    message = MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
    for resource_spans in message["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for item in scope_spans["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    item[key] = base64.b64decode(item[key]).hex()
    return json.dumps(message, separators=(",", ":")).encode()


def metric_body(points: int) -> bytes:
    """Return a metrics request of so many points, ten to a metric, four attributes each."""
    chance = random.Random(8)  # noqa: S311
    metrics = [
        metric(
            f"app.metric.{number}",
            unit="By",
            gauge={
                "data_points": [
                    {
                        "time_unix_nano": _START_UNIX_NS + number,
                        "as_double": chance.random(),
                        "attributes": key_values(
                            {"device": f"d{index}", "index": index, "ok": True, "zone": "a"}
                        ),
                    }
                    for index in range(10)
                ]
            },
        )
        for number in range(points // 10)
    ]
    return metric_request(metrics)


def log_body(records: int) -> bytes:
    """Return a logs request of so many records with five attributes each."""
    chance = random.Random(9)  # noqa: S311
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(key_values({"service.name": "load"}))
    group.scope_logs.add().log_records.extend(
        LogRecord(
            time_unix_nano=_START_UNIX_NS + number,
            severity_number=SEVERITY_NUMBER_INFO,
            severity_text="INFO",
            body=any_value(f"request {number} took {chance.randrange(1000)} ms"),
            trace_id=chance.randbytes(16),
            span_id=chance.randbytes(8),
            attributes=key_values(
                {"url.path": f"/items/{number}", "user": "u", "ms": number, "ok": True, "r": 0.5}
            ),
        )
        for number in range(records)
    )
    return bytes(request.SerializeToString())


def profile_body(samples: int) -> bytes:
    """Return a profiles request of so many samples over 200 stacks of 20 frames."""
    chance = random.Random(10)  # noqa: S311
    request = ExportProfilesServiceRequest()
    tables = request.dictionary
    for table in ("mapping_table", "link_table", "attribute_table"):
        getattr(tables, table).add()
    tables.string_table.extend(["", "cpu", "nanoseconds", *(f"function_{n}" for n in range(500))])
    tables.function_table.add()
    tables.location_table.add()
    tables.stack_table.add()
    for number in range(500):
        tables.function_table.add(name_strindex=number + 3)
        tables.location_table.add().lines.add(function_index=number + 1, line=number)
    for _ in range(200):
        tables.stack_table.add(location_indices=[chance.randrange(1, 501) for _ in range(20)])
    group = request.resource_profiles.add()
    group.resource.attributes.extend(key_values({"service.name": "load"}))
    profile = group.scope_profiles.add().profiles.add(time_unix_nano=_START_UNIX_NS)
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = 1, 2
    for _ in range(samples):
        profile.samples.add(stack_index=chance.randrange(1, 201), values=[chance.randrange(10**7)])
    return bytes(request.SerializeToString())


def unique_trace_bodies(
    spans_per_request: int, first: int, *, as_json: bool = False
) -> Iterator[bytes]:
    """Yield trace requests without end; no two of their spans have the same id."""
    templates = trace_templates(spans_per_request, as_json=as_json)
    number = first
    while True:
        for template in templates:
            yield template.with_ids(number)
            number += spans_per_request
