"""How a request ended, and how each transport says so; pure.

Source:
    OTLP 1.11: which codes a sender may retry, RetryInfo and Retry-After, google.rpc.Status as the body of errors. Codes
    that it leaves open are the Collector's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.otlp_json import render_json_message

__all__ = [
    "RETRY_AFTER_S",
    "MediaType",
    "Outcome",
    "Result",
    "render_message",
    "render_status",
    "retry_status",
]

# What a sender is told to wait before it sends again.
RETRY_AFTER_S: Final = 1


class MediaType(StrEnum):
    """A form of request bodies; the value is the form's name in Content-Type."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


class Result(StrEnum):
    """How a request ended; the value is the reason in counters."""

    DURABLE = "durable"
    # For good: the same request would end the same way.
    MALFORMED = "malformed"
    BAD_FRAMING = "bad_framing"
    TOO_LARGE = "too_large"
    UNKNOWN_ENCODING = "unknown_encoding"
    UNKNOWN_MEDIA_TYPE = "unknown_media_type"
    UNAUTHENTICATED = "unauthenticated"
    INTERNAL = "internal"
    # To be sent again.
    UNAVAILABLE = "unavailable"
    MEMORY = "memory"
    BACKLOG = "backlog"
    SLOW_SENDER = "slow_sender"

    @property
    def is_retryable(self) -> bool:
        """Whether the sender is told to send the same again."""
        return self in _RETRYABLE

    @property
    def http_status(self) -> int:
        """The status of the HTTP response."""
        return _HTTP_STATUSES[self]

    @property
    def code(self) -> int:
        """The google.rpc.Code, which is the gRPC status code too."""
        return _CODES[self]


_RETRYABLE: Final = frozenset(
    (Result.UNAVAILABLE, Result.MEMORY, Result.BACKLOG, Result.SLOW_SENDER)
)
_CODES: Final[dict[Result, int]] = {
    Result.DURABLE: Code.OK,
    Result.MALFORMED: Code.INVALID_ARGUMENT,
    # gRPC's doc/compression.md: a message that says it is compressed, and not by what.
    Result.BAD_FRAMING: Code.INTERNAL,
    Result.TOO_LARGE: Code.RESOURCE_EXHAUSTED,
    Result.UNKNOWN_ENCODING: Code.INVALID_ARGUMENT,
    Result.UNKNOWN_MEDIA_TYPE: Code.INVALID_ARGUMENT,
    Result.UNAUTHENTICATED: Code.UNAUTHENTICATED,
    Result.INTERNAL: Code.INTERNAL,
    Result.UNAVAILABLE: Code.UNAVAILABLE,
    Result.MEMORY: Code.UNAVAILABLE,
    Result.BACKLOG: Code.UNAVAILABLE,
    Result.SLOW_SENDER: Code.UNAVAILABLE,
}
_HTTP_STATUSES: Final = {
    Result.DURABLE: 200,
    Result.MALFORMED: 400,
    Result.BAD_FRAMING: 400,
    Result.TOO_LARGE: 413,
    Result.UNKNOWN_ENCODING: 400,
    Result.UNKNOWN_MEDIA_TYPE: 415,
    Result.UNAUTHENTICATED: 401,
    Result.INTERNAL: 500,
    Result.UNAVAILABLE: 503,
    Result.MEMORY: 503,
    Result.BACKLOG: 503,
    Result.SLOW_SENDER: 503,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request.

    Attributes:
        result: How it ended.
        rejected: Records that were taken out of a durable request.
        message: What was wrong, or None.
    """

    result: Result
    rejected: int = 0
    message: str | None = None


def render_message(message: Any, media_type: MediaType) -> bytes:
    """Return a protobuf message in the form that the request had."""
    if media_type is MediaType.JSON:
        return json.dumps(render_json_message(message)).encode()
    return bytes(message.SerializeToString())


def render_status(code: int, message: str, media_type: MediaType) -> bytes:
    """Return a google.rpc.Status in the form that the request had."""
    if media_type is MediaType.JSON:
        return json.dumps({"code": code, "message": message}).encode()
    return bytes(Status(code=code, message=message).SerializeToString())


def retry_status(message: str) -> bytes:
    """Return the status details of a gRPC refusal that is temporary, with the time to wait."""
    retry = RetryInfo()
    retry.retry_delay.seconds = RETRY_AFTER_S
    status = Status(code=Code.UNAVAILABLE, message=message)
    status.details.add().Pack(retry)
    return bytes(status.SerializeToString())
