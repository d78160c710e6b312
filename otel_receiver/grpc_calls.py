"""gRPC on HTTP/2: which call a request's header fields make, and answers as headers, messages and trailers; pure.

    request    HEADERS  (method, path, content-type, grpc-encoding, authorization)
               DATA     compressed u8 | length u32 | message
    answer     HEADERS, DATA as above, HEADERS with grpc-status 0; or one HEADERS with a status, a message and details

Source:
    gRPC: doc/PROTOCOL-HTTP2.md (requests, responses, percent-encoding, 415 for another content type),
    doc/compression.md (UNIMPLEMENTED for an unknown encoding, with those that are known), grpc.health.v1.Health.
    OTLP 1.11: the services' names.
"""

from __future__ import annotations

import base64
import struct
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rootwalk.otel_receiver.answers import Outcome, Result, retry_status
from rootwalk.otel_receiver.header_blocks import encode_fields
from rootwalk.otel_receiver.http2_frames import Response, build_response
from rootwalk.otel_receiver.signals import Signal

__all__ = [
    "GRPC_ENCODINGS",
    "PREFIX",
    "SUCCESS",
    "Call",
    "CallKind",
    "answer_health",
    "build_refusal",
    "build_success",
    "read_call",
]

_SERVICE: Final = "opentelemetry.proto.collector"
GRPC_SERVICES: Final = {
    Signal.TRACES: f"{_SERVICE}.trace.v1.TraceService",
    Signal.METRICS: f"{_SERVICE}.metrics.v1.MetricsService",
    Signal.LOGS: f"{_SERVICE}.logs.v1.LogsService",
    Signal.PROFILES: f"{_SERVICE}.profiles.v1development.ProfilesService",
}
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
# What a message may be compressed by: what gRPC's own libraries and the Collector's client offer.
GRPC_ENCODINGS: Final = ("identity", "gzip", "deflate", "snappy", "zstd")
# Before each message: whether it is compressed, and its length.
PREFIX: Final = struct.Struct(">BI")
# Statuses are for people; a longer one would not fit a frame.
MAX_MESSAGE_BYTES: Final = 4096
# HealthCheckResponse with status SERVING.
_SERVING: Final = b"\x08\x01"


class _Code(IntEnum):
    """The codes of gRPC that no outcome of a request stands for."""

    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12


class CallKind(IntEnum):
    """What a request wants."""

    EXPORT = 0
    HEALTH = 1
    REFUSED = 2


@dataclass(frozen=True, slots=True)
class Call:
    """What the header fields of a request mean.

    Attributes:
        kind: What it wants.
        signal: Of an export.
        encoding: What its message is compressed by if its prefix says so.
        authorization: The field of that name; None where there is none.
        refusal: The answer, if it is refused whatever its message is.
        reason: Why that is, in a word for counters.
    """

    kind: CallKind
    signal: Signal = Signal.TRACES
    encoding: str = "identity"
    authorization: str | None = None
    refusal: Response | None = None
    reason: str = ""


_CONTENT_TYPE: Final = (b"content-type", b"application/grpc")
_HEADERS: Final = encode_fields([(b":status", b"200"), _CONTENT_TYPE])
_TRAILERS: Final = encode_fields([(b"grpc-status", b"0")])


def _build_answer(message: bytes) -> Response:
    return build_response(_HEADERS, PREFIX.pack(0, len(message)) + message, _TRAILERS)


def _build_error(code: int, message: str, *more: tuple[bytes, bytes]) -> Response:
    text = urllib.parse.quote_from_bytes(message.encode()[:MAX_MESSAGE_BYTES], safe=_UNQUOTED)
    fields = [(b":status", b"200"), _CONTENT_TYPE, (b"grpc-status", b"%d" % code)]
    return build_response(encode_fields([*fields, (b"grpc-message", text.encode()), *more]))


# Printable ASCII but the percent sign.
_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
# The answer to an export of which everything was kept: an empty message.
SUCCESS: Final = _build_answer(b"")
_IS_SERVING: Final = _build_answer(_SERVING)
_ACCEPTED: Final = (b"grpc-accept-encoding", ",".join(GRPC_ENCODINGS).encode())
_NOT_GRPC: Final = build_response(encode_fields([(b":status", b"415")]))
_NOT_POST: Final = build_response(encode_fields([(b":status", b"405"), (b"allow", b"POST")]))
_TOO_MANY_FIELDS: Final = _build_error(
    _Code.RESOURCE_EXHAUSTED, "cannot read the request's metadata: saw too much of it; needs less"
)
_SIGNALS: Final = {
    f"/{service}/Export".encode(): signal for signal, service in GRPC_SERVICES.items()
}
_HEALTH_PATH: Final = f"/{HEALTH_SERVICE}/Check".encode()
_KNOWN_HEALTH_REQUESTS: Final = frozenset(
    {b""}
    | {
        b"\x0a" + bytes((len(service),)) + service.encode()
        for service in ("", HEALTH_SERVICE, *GRPC_SERVICES.values())
    }
)


def read_call(fields: Mapping[bytes, bytes] | None) -> Call:
    """Return what the header fields of a request mean; None are more fields than fit."""
    if fields is None:
        return Call(CallKind.REFUSED, refusal=_TOO_MANY_FIELDS, reason="too_many_fields")
    if fields[b":method"] != b"POST":
        return Call(CallKind.REFUSED, refusal=_NOT_POST, reason="wrong_method")
    content_type = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if content_type not in (b"application/grpc", b"application/grpc+proto"):
        return Call(CallKind.REFUSED, refusal=_NOT_GRPC, reason="not_grpc")
    path = fields[b":path"]
    if path == _HEALTH_PATH:
        return Call(CallKind.HEALTH)
    signal = _SIGNALS.get(path)
    if signal is None:
        name = path[:80].decode("utf-8", "replace")
        paths = " or ".join(known.decode() for known in _SIGNALS)
        refusal = _build_error(
            _Code.UNIMPLEMENTED, f'cannot find the method "{name}"; needs {paths}'
        )
        return Call(CallKind.REFUSED, refusal=refusal, reason="unknown_path")
    authorization = fields.get(b"authorization")
    return Call(
        CallKind.EXPORT,
        signal,
        fields.get(b"grpc-encoding", b"identity").decode("utf-8", "replace").lower(),
        None if authorization is None else authorization.decode("utf-8", "surrogateescape"),
    )


def build_success(message: bytes) -> Response:
    """Return an answer that everything, or what the message does not name, was kept."""
    return _build_answer(message) if message else SUCCESS


def build_refusal(outcome: Outcome) -> Response:
    """Return the answer to an export that is not acknowledged."""
    message = outcome.message or ""
    if outcome.result is Result.UNKNOWN_ENCODING:
        return _build_error(_Code.UNIMPLEMENTED, message, _ACCEPTED)
    if not outcome.result.is_retryable:
        return _build_error(outcome.result.code, message)
    details = base64.b64encode(retry_status(message)).rstrip(b"=")
    return _build_error(outcome.result.code, message, (b"grpc-status-details-bin", details))


def answer_health(request: bytes | bytearray) -> Response:
    """Return the answer to a HealthCheckRequest, whose field 1 is the name of a service, or none for all."""
    if bytes(request) in _KNOWN_HEALTH_REQUESTS:
        return _IS_SERVING
    return _build_error(
        _Code.NOT_FOUND, "cannot tell the health of that service; needs a known one"
    )
