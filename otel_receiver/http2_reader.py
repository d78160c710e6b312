"""Bytes of one HTTP/2 connection as they are read, cut into what they mean: bodies, header blocks, other frames; pure.

DATA is handed on as far as it is there, so that no more is kept of it than the buffer it was read into. All other
frames are kept until they are whole: at most one, of at most `MAX_FRAME_BYTES`.

Source:
    RFC 9113: 3.4 (preface), 4.2 (frame size), 4.3 (header blocks come in one piece), 6.1, 6.2 and 6.10.
"""

from __future__ import annotations

from typing import Final, Protocol

from rootwalk.otel_receiver.http2_frames import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    PREFACE,
    ErrorCode,
    Flag,
    FrameKind,
    Http2ConnectionError,
    Http2StreamError,
    unpad,
)

__all__ = ["FrameReader", "FrameSink", "NotHttp2Error"]

# What the header block of a request may take, and the further frames that it may come in.
MAX_BLOCK_BYTES: Final = 16 * 1024
MAX_CONTINUATIONS: Final = 16
_PRIORITY_BYTES: Final = 5


class NotHttp2Error(Exception):
    """The peer speaks HTTP/1."""


class FrameSink(Protocol):
    """What takes in what was read; each raises `Http2ConnectionError` or `Http2StreamError` for what cannot be."""

    def receive_data(self, number: int, part: memoryview, flow_bytes: int, *, is_end: bool) -> None:
        """Take in a piece of a body, which took so much of the windows."""

    def receive_block(self, number: int, block: bytes, *, is_end: bool) -> None:
        """Take in a whole header block."""

    def receive_control(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        """Take in a frame of another kind."""

    def end_stream(self, number: int, code: ErrorCode) -> None:
        """End a stream whose peer broke the protocol."""


class FrameReader:
    """Cuts what was read; `read` once for every piece, in order.

    Attributes:
        is_within_block: Whether a header block has begun and not ended.
    """

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_number",
        "_data_flags",
        "_data_left",
        "_data_number",
        "_has_preface",
        "_has_settings",
        "_sink",
    )

    def __init__(self, sink: FrameSink) -> None:
        self._sink = sink
        self._has_preface = False
        self._has_settings = False
        # Of a DATA frame, what is still to come.
        self._data_left = 0
        self._data_number = 0
        self._data_flags = 0
        # The header block that has begun.
        self._block: list[bytes] = []
        self._block_number = 0
        self._block_flags = 0

    @property
    def is_within_block(self) -> bool:
        """Whether a header block has begun and not ended."""
        return bool(self._block)

    def read(self, view: memoryview, end: int) -> int:
        """Hand on what is in `view` before `end`; return where the first unfinished frame begins.

        Raises:
            Http2ConnectionError: If the connection has to end.
            NotHttp2Error: If it is none.
        """
        at = 0
        sink = self._sink
        if not self._has_preface:
            at = self._read_preface(view, end)
        if self._data_left:
            at = min(end, self._data_left)
            self._receive_data(view[:at], at)
        while end - at >= FRAME_HEADER_BYTES and self._has_preface:
            length_and_kind, flags, number = FRAME_HEADER.unpack_from(view, at)
            kind, length = length_and_kind & 0xFF, length_and_kind >> 8
            number &= MAX_STREAM_ID
            begin = at + FRAME_HEADER_BYTES
            stop = begin + length
            if length > MAX_FRAME_BYTES or self._block or not self._has_settings:
                self._check_frame(kind, flags, number, length)
            if kind == FrameKind.DATA and not flags & Flag.PADDED:
                at = min(stop, end)
                self._data_left, self._data_number, self._data_flags = stop - begin, number, flags
                self._receive_data(view[begin:at], at - begin)
                continue
            if stop > end:
                break
            at = stop
            try:
                if kind == FrameKind.HEADERS:
                    self._begin_block(flags, number, view[begin:stop])
                elif kind == FrameKind.CONTINUATION:
                    self._extend_block(flags, view[begin:stop])
                elif kind == FrameKind.DATA:
                    part = unpad(view[begin:stop])
                    sink.receive_data(number, part, length, is_end=bool(flags & Flag.END_STREAM))
                else:
                    sink.receive_control(kind, flags, number, view[begin:stop])
            except Http2StreamError as error:
                sink.end_stream(error.stream_id, error.code)
        return at

    def _receive_data(self, part: memoryview, size_bytes: int) -> None:
        left = self._data_left = self._data_left - size_bytes
        if left and not size_bytes:
            return
        is_end = not left and bool(self._data_flags & Flag.END_STREAM)
        try:
            self._sink.receive_data(self._data_number, part, size_bytes, is_end=is_end)
        except Http2StreamError as error:
            self._sink.end_stream(error.stream_id, error.code)

    def _read_preface(self, view: memoryview, end: int) -> int:
        seen = bytes(view[: min(end, len(PREFACE))])
        if not PREFACE.startswith(seen):
            if b"HTTP/1" in bytes(view[: min(end, MAX_BLOCK_BYTES)]):
                raise NotHttp2Error
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw no preface of HTTP/2")
        self._has_preface = len(seen) == len(PREFACE)
        return len(PREFACE) if self._has_preface else 0

    def _check_frame(self, kind: int, flags: int, number: int, length: int) -> None:
        if length > MAX_FRAME_BYTES:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"saw a frame of {length} bytes")
        if self._block and (kind != FrameKind.CONTINUATION or number != self._block_number):
            raise Http2ConnectionError(
                ErrorCode.PROTOCOL_ERROR, "saw another frame within a header block"
            )
        if not self._has_settings:
            if kind != FrameKind.SETTINGS or flags & Flag.ACK:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw no SETTINGS at first")
            self._has_settings = True

    def _begin_block(self, flags: int, number: int, payload: memoryview) -> None:
        if flags & Flag.PADDED:
            payload = unpad(payload)
        if flags & Flag.PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "saw HEADERS cut short")
            payload = payload[_PRIORITY_BYTES:]
        if flags & Flag.END_HEADERS:
            is_end = bool(flags & Flag.END_STREAM)
            self._sink.receive_block(number, bytes(payload), is_end=is_end)
        else:
            self._block, self._block_number, self._block_flags = [bytes(payload)], number, flags

    def _extend_block(self, flags: int, payload: memoryview) -> None:
        if not self._block:
            raise Http2ConnectionError(
                ErrorCode.PROTOCOL_ERROR, "saw CONTINUATION without a header block"
            )
        self._block.append(bytes(payload))
        size_bytes = sum(map(len, self._block))
        if size_bytes > MAX_BLOCK_BYTES or len(self._block) > MAX_CONTINUATIONS + 1:
            raise Http2ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"saw a header block of {size_bytes} bytes in {len(self._block)} frames",
            )
        if flags & Flag.END_HEADERS:
            block, self._block = b"".join(self._block), []
            is_end = bool(self._block_flags & Flag.END_STREAM)
            self._sink.receive_block(self._block_number, block, is_end=is_end)
