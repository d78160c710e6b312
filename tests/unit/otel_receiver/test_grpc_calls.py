from __future__ import annotations

import base64

import hpack
import pytest
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.answers import Outcome, Result
from rootwalk.otel_receiver.grpc_calls import (
    SUCCESS,
    Call,
    CallKind,
    build_refusal,
    build_success,
    read_call,
)
from rootwalk.otel_receiver.http2_frames import MAX_FRAME_BYTES, Response
from rootwalk.otel_receiver.signals import Signal
from support.otlp_paths import LOG_EXPORT

FIELDS = {b":method": b"POST", b":path": LOG_EXPORT.encode(), b"content-type": b"application/grpc"}


def _fields(response: Response) -> dict[str, str]:
    """The fields of an answer that is one block of headers."""
    assert response.trailers == b""
    decoded = hpack.Decoder(max_header_list_size=1 << 20).decode(response.headers)
    return {str(name): str(value) for name, value in decoded}


def test_what_a_call_means() -> None:
    more = {b"grpc-encoding": b"ZSTD", b"authorization": b"Bearer \xff"}

    assert read_call(FIELDS) == Call(CallKind.EXPORT, Signal.LOGS)
    assert read_call(FIELDS | more) == Call(
        CallKind.EXPORT, Signal.LOGS, "zstd", authorization="Bearer \udcff"
    )
    assert read_call(FIELDS | {b":path": b"/grpc.health.v1.Health/Check"}).kind is CallKind.HEALTH


@pytest.mark.parametrize("content_type", [b"application/grpc+proto", b"Application/GRPC; x=y"])
def test_content_types_of_grpc(content_type: bytes) -> None:
    assert read_call(FIELDS | {b"content-type": content_type}).kind is CallKind.EXPORT


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({b":method": b"GET"}, "wrong_method"),
        ({b"content-type": b""}, "not_grpc"),
        ({b":path": b"/"}, "unknown_path"),
    ],
)
def test_calls_that_are_refused(more: dict[bytes, bytes], reason: str) -> None:
    call = read_call(FIELDS | more)

    assert (call.kind, call.reason) == (CallKind.REFUSED, reason)
    assert call.refusal is not None


def test_refusals_say_what_to_do() -> None:
    for_good = _fields(build_refusal(Outcome(Result.MALFORMED, message="100 % ü")))
    later = _fields(build_refusal(Outcome(Result.MEMORY, message="later")))

    assert (for_good["grpc-status"], for_good["grpc-message"]) == ("3", "100 %25 %C3%BC")
    assert "grpc-status-details-bin" not in for_good
    details = later["grpc-status-details-bin"]
    assert "=" not in details
    status = Status.FromString(base64.b64decode(details + "=="))
    assert (status.code, status.message, len(status.details)) == (14, "later", 1)


def test_every_answer_fits_its_frames() -> None:
    refusal = build_refusal(Outcome(Result.MALFORMED, message="ü" * 100_000))
    success = build_success(b"some were rejected")

    assert len(refusal.headers) < MAX_FRAME_BYTES
    assert success.data == b"\0\0\0\0\x12some were rejected"
    assert build_success(b"") is SUCCESS
