"""The frames of HTTP/2: their kinds, flags, errors and settings, and how they are built; pure.

    length u24 | kind u8 | flags u8 | stream u31 | payload (length bytes)

Source:
    RFC 9113: 4.1 (frames), 5.1 (states), 6 (kinds), 6.5.2 (settings), 7 (error codes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = [
    "DEFAULT_WINDOW_BYTES",
    "FRAME_HEADER",
    "FRAME_HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_STREAM_ID",
    "MAX_WINDOW_BYTES",
    "PREFACE",
    "ErrorCode",
    "Flag",
    "FrameKind",
    "Http2ConnectionError",
    "Http2StreamError",
    "Response",
    "Setting",
    "build_frame",
    "build_goaway",
    "build_reset",
    "build_response",
    "build_settings",
    "build_window_update",
    "check_begun",
    "check_is_about_connection",
    "check_payload_size",
    "read_settings",
    "unpad",
]

# What a client's first bytes are, RFC 9113 section 3.4.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
# Length and kind in one number, flags, stream with one reserved bit.
FRAME_HEADER: Final = struct.Struct(">IBI")
# Payload of the largest frame that is taken, and that may always be sent: the default.
MAX_FRAME_BYTES: Final = 16 * 1024
MAX_STREAM_ID: Final = 0x7FFF_FFFF
# Flow control begins with this, for a connection and for each stream.
DEFAULT_WINDOW_BYTES: Final = 65_535
MAX_WINDOW_BYTES: Final = 0x7FFF_FFFF
_LARGEST_FRAME_SETTING: Final = 0xFF_FFFF
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")


class FrameKind(IntEnum):
    """What a frame is."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(IntEnum):
    """Bits of a frame; the first means ACK in SETTINGS and PING."""

    END_STREAM = 0x01
    ACK = 0x01
    END_HEADERS = 0x04
    PADDED = 0x08
    PRIORITY = 0x20


class Setting(IntEnum):
    """What one end tells the other about itself."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Http2ConnectionError(Exception):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCode, saw: str) -> None:
        super().__init__(saw)
        self.code = code


class Http2StreamError(Exception):
    """The peer broke the protocol in a way that ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__(f"stream {stream_id}: {code.name}")
        self.stream_id = stream_id
        self.code = code


@dataclass(frozen=True, slots=True)
class Response:
    """One whole answer, for any stream.

    Attributes:
        parts: Its frames, cut where the number of the stream belongs.
        headers: Header block of the answer's begin.
        data: Its body; empty for an answer without one.
        trailers: Header block of its end; empty where the first block is the end.
    """

    parts: tuple[bytes, ...]
    headers: bytes
    data: bytes
    trailers: bytes


def build_frame(kind: FrameKind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def build_settings(settings: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_SETTING.pack(setting, value) for setting, value in settings.items())
    return build_frame(FrameKind.SETTINGS, 0, 0, payload)


def build_window_update(stream_id: int, more_bytes: int) -> bytes:
    """Return a frame that lets the peer send so much more."""
    return build_frame(FrameKind.WINDOW_UPDATE, 0, stream_id, _WORD.pack(more_bytes))


def build_reset(stream_id: int, code: ErrorCode) -> bytes:
    """Return a frame that ends a stream."""
    return build_frame(FrameKind.RST_STREAM, 0, stream_id, _WORD.pack(code))


def build_goaway(last_stream_id: int, code: ErrorCode, saw: str) -> bytes:
    """Return a frame that says that no stream after `last_stream_id` is answered."""
    payload = _WORD.pack(last_stream_id) + _WORD.pack(code) + saw.encode()
    return build_frame(FrameKind.GOAWAY, 0, 0, payload)


def build_response(headers: bytes, data: bytes = b"", trailers: bytes = b"") -> Response:
    """Return an answer with a body and trailers, or with neither."""
    if not trailers:
        frames = [build_frame(FrameKind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 0, headers)]
    else:
        frames = [
            build_frame(FrameKind.HEADERS, Flag.END_HEADERS, 0, headers),
            build_frame(FrameKind.DATA, 0, 0, data),
            build_frame(FrameKind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 0, trailers),
        ]
    return Response(_cut_at_stream_ids(frames), headers, data, trailers)


def _cut_at_stream_ids(frames: Iterable[bytes]) -> tuple[bytes, ...]:
    parts = [b""]
    for frame in frames:
        parts[-1] += frame[: FRAME_HEADER_BYTES - 4]
        parts.append(frame[FRAME_HEADER_BYTES:])
    return tuple(parts)


def read_settings(payload: memoryview) -> list[tuple[int, int]]:
    """Return the settings of a SETTINGS frame, unknown ones left out.

    Raises:
        Http2ConnectionError: If one of them has a value that it cannot have.
    """
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"saw SETTINGS of {len(payload)} bytes"
        )
    settings = []
    for number, value in _SETTING.iter_unpack(payload):
        match number:
            case Setting.ENABLE_PUSH if value > 1:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"saw ENABLE_PUSH {value}")
            case Setting.INITIAL_WINDOW_SIZE if value > MAX_WINDOW_BYTES:
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, f"saw INITIAL_WINDOW_SIZE {value}"
                )
            case Setting.MAX_FRAME_SIZE if not MAX_FRAME_BYTES <= value <= _LARGEST_FRAME_SETTING:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"saw MAX_FRAME_SIZE {value}")
            case _:
                settings.append((number, value))
    return settings


def unpad(payload: memoryview) -> memoryview:
    """Return the payload of a padded frame without its padding.

    Raises:
        Http2ConnectionError: If there is more padding than payload.
    """
    if not payload or payload[0] >= len(payload):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw more padding than payload")
    return payload[1 : len(payload) - payload[0]]


# Payloads that have one size, and what is wrong with another; a stream's priority is read and not heeded.
_SIZES_BYTES: Final[dict[int, int]] = {
    FrameKind.PRIORITY: 5,
    FrameKind.RST_STREAM: 4,
    FrameKind.PING: 8,
    FrameKind.WINDOW_UPDATE: 4,
}


def check_payload_size(kind: int, size_bytes: int) -> None:
    """Check the payload of a frame of a kind that has one size.

    Raises:
        Http2ConnectionError: If it has another one.
    """
    wanted_bytes = _SIZES_BYTES.get(kind)
    if wanted_bytes is not None and size_bytes != wanted_bytes:
        raise Http2ConnectionError(
            ErrorCode.FRAME_SIZE_ERROR, f"saw {FrameKind(kind).name} of {size_bytes} bytes"
        )


def check_is_about_connection(kind: int, number: int) -> None:
    """Check that a frame of a kind that is about the connection names no stream.

    Raises:
        Http2ConnectionError: If it does.
    """
    if number:
        raise Http2ConnectionError(
            ErrorCode.PROTOCOL_ERROR, f"saw {FrameKind(kind).name} of stream {number}"
        )


def check_begun(number: int, last_number: int) -> None:
    """Check that a frame names a stream that its peer has begun.

    Raises:
        Http2ConnectionError: If it does not.
    """
    if number == 0 or number > last_number or not number % 2:
        raise Http2ConnectionError(
            ErrorCode.PROTOCOL_ERROR, f"saw a frame of stream {number}, which has not begun"
        )
