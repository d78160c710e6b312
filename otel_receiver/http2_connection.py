"""A server's end of one HTTP/2 connection: bytes in, requests out to an application, their answers back.

Whatever a peer sends, this ends a stream or the connection as the specification says, and holds no more for it than
unfinished frames, one header block, and what streams hold (see `http2_stream`).

Source:
    RFC 9113: 3.4 (preface), 4 to 6 (frames, streams, errors), 10.5 (what a peer may not make us do). The limits on
    frames that bring nothing: CVE-2019-9512 to 9518, CVE-2023-44487 (rapid reset), CVE-2024-27316 (continuation).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar, cast

from rootwalk.otel_receiver.http2_frames import (
    DEFAULT_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    ErrorCode,
    Flag,
    FrameKind,
    Http2ConnectionError,
    Http2StreamError,
    Setting,
    build_frame,
    build_goaway,
    build_reset,
    build_settings,
    build_window_update,
    check_begun,
    check_is_about_connection,
    check_payload_size,
    read_settings,
)
from rootwalk.otel_receiver.http2_limits import (
    REFUSED_FRAMES,
    IdleFrames,
    MemoryShare,
    any_unread,
    measure_burden,
)
from rootwalk.otel_receiver.http2_reader import FrameReader, NotHttp2Error
from rootwalk.otel_receiver.http2_roles import Application
from rootwalk.otel_receiver.http2_stream import Stream
from rootwalk.otel_receiver.request_heads import MAX_HEADER_LIST_BYTES, HeadReader

__all__ = ["READ_BYTES", "Http2Connection"]

HeadT = TypeVar("HeadT")
# One read of a socket, into a buffer that all connections share; larger ones were no faster.
READ_BYTES: Final = 64 * 1024
# Streams of one connection, those included that are gone and whose work goes on.
MAX_CONCURRENT_STREAMS: Final = 1024
# Received bytes are handed on or dropped at once, so this holds nobody up; a stream's own window does.
WINDOW_BYTES: Final = 4 * 1024 * 1024
# Ended streams that are remembered, to tell late frames from wrong ones.
MAX_ENDED: Final = 256
# A reset costs as much as some frames that bring nothing: work was begun for it.
RESET_FRAMES: Final = 4
PING_TIMEOUT_S: Final = 20.0  # until a ping is answered
# How long a closed connection may take to send what it still has to say.
LINGER_S: Final = 5.0

_SETTINGS: Final = build_settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
    }
) + build_window_update(0, WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
_SETTINGS_ACK: Final = build_frame(FrameKind.SETTINGS, Flag.ACK, 0)
_PING: Final = build_frame(FrameKind.PING, 0, 0, b"rootwalk")


class Http2Connection(asyncio.BufferedProtocol, Generic[HeadT]):
    """One connection; the event loop calls it, and streams call `write` and `finish`."""

    def __init__(self, application: Application[HeadT]) -> None:
        self.send_window_bytes = DEFAULT_WINDOW_BYTES
        self.is_held_up = False
        self.orphans = 0
        self._application = application
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream[HeadT]] = {}
        # Of streams: the last that began, and the last whose request was taken in.
        self._last_number = 0
        self._last_taken = 0
        self._ended: deque[int] = deque(maxlen=MAX_ENDED)
        self._reset: deque[int] = deque(maxlen=MAX_ENDED)
        self._heads = HeadReader(application.read_head)
        self._reader = FrameReader(self)
        # The begin of a frame that is not whole yet.
        self._unread = b""
        self._begun_s: float | None = self._loop.time()
        self._seen_s = self._begun_s
        self._is_asked = False
        self._received_bytes = 0
        self._peer_window_bytes = DEFAULT_WINDOW_BYTES
        self._idle_frames = IdleFrames(self._loop.time)
        self._unreserved = MemoryShare(application.unreserved)
        # The greeting waits for the peer's first bytes, which may be HTTP/1.
        self._out = [_SETTINGS]
        self._is_flushing = False
        self._is_leaving = False
        self._closed_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the connection."""
        self._transport = cast(asyncio.Transport, transport)
        self._application.connected(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Give up what is in progress; requests that are on their way to the disk go on."""
        self._closed_s = self._loop.time()
        self._transport = None
        self._abandon_streams()
        self._application.disconnected(self)

    def pause_writing(self) -> None:
        """Read nothing more from a peer that does not read what it is told."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Return where the next bytes go: behind those that are not understood yet."""
        unread = self._unread
        if not unread:
            return self._application.buffer
        self._application.buffer[: len(unread)] = unread
        return self._application.buffer[len(unread) :]

    def buffer_updated(self, size_bytes: int) -> None:
        """Understand what was read."""
        if self._closed_s is not None:
            return
        self._seen_s = now_s = self._loop.time()
        self._is_asked = False
        view = self._application.buffer
        end = len(self._unread) + size_bytes
        try:
            at = self._reader.read(view, end)
        except NotHttp2Error:
            self._out[:] = [self._application.answer_http1()]
            self.close()
            return
        except Http2ConnectionError as error:
            self._application.count_broken()
            self.close(error.code, str(error))
            return
        self._unread = bytes(view[at:end])
        is_within_block = self._reader.is_within_block
        if not (self._unread or is_within_block):
            self._begun_s = None
        elif self._begun_s is None or (at and not is_within_block):
            self._begun_s = now_s
        if self._out:
            self._flush_soon()

    def write(self, data: bytes) -> None:
        """Send some frames, together with all that are written before the loop's next turn."""
        self._out.append(data)
        if not self._is_flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._out and self._closed_s is None and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _abandon_streams(self) -> None:
        for stream in self._streams.values():
            stream.abandon()
        self._streams.clear()

    def finish(self, stream_number: int, *, is_ended: bool) -> None:
        """Forget a stream that has its answer."""
        stream = self._streams.pop(stream_number, None)
        if stream is None or stream.task is not None:
            self._idle_frames.pay()
        else:
            self._idle_frames.count(REFUSED_FRAMES)
        if is_ended:
            self._ended.append(stream_number)
        else:
            self._reset.append(stream_number)
            self.write(build_reset(stream_number, ErrorCode.NO_ERROR))

    def leave(self) -> None:
        """Take no more requests; those in progress are answered."""
        if not self._is_leaving:
            self._is_leaving = True
            self.write(build_goaway(self._last_taken, ErrorCode.NO_ERROR, ""))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, saw: str = "") -> None:
        """End the connection, and say why if the peer is to blame."""
        if self._closed_s is not None or self._transport is None:
            return
        if code is not ErrorCode.NO_ERROR:
            self.write(build_goaway(self._last_taken, code, saw))
        self._flush()
        self._closed_s = self._loop.time()
        self._transport.close()
        self._abandon_streams()

    def burden(self) -> tuple[int, float]:
        """Return the bytes that streams hold without a reservation, and how long the oldest of them has waited, s."""
        return measure_burden(self._streams.values(), self._loop.time())

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        return bool(self._streams) or self.orphans > 0

    def abort(self) -> bool:
        """End the connection at once; False before its begin."""
        if self._transport is None:
            return False
        self._transport.abort()
        return True

    def check_time(self, now_s: float) -> None:
        """Ask a silent peer whether it lives, and end the connection when it takes too long."""
        if self._transport is None:
            return
        if self._closed_s is not None:
            if now_s - self._closed_s > LINGER_S:
                self._transport.abort()
            return
        if self._begun_s is not None and now_s - self._begun_s > self._application.read_timeout_s:
            self.close(ErrorCode.ENHANCE_YOUR_CALM, "saw a frame or a header block without its end")
        elif any_unread(self._streams.values(), now_s - self._application.read_timeout_s):
            self.close(ErrorCode.ENHANCE_YOUR_CALM, "saw answers that are not read")
        elif now_s - self._seen_s > self._application.keepalive_s:
            if not self._is_asked:
                self._is_asked = True
                self._seen_s = now_s - self._application.keepalive_s
                self.write(_PING)
            elif now_s - self._seen_s > self._application.keepalive_s + PING_TIMEOUT_S:
                self._transport.abort()

    def receive_data(self, number: int, part: memoryview, flow_bytes: int, *, is_end: bool) -> None:
        """Take in a piece of a body, which took so much of the windows."""
        self._received_bytes += flow_bytes
        if self._received_bytes > WINDOW_BYTES // 2:
            self._return_window()
        stream = self._streams.get(number)
        if stream is not None:
            if not (part or is_end):
                self._idle_frames.count(1)
            stream.receive(part, flow_bytes, is_end=is_end)
        else:
            check_begun(number, self._last_number)
            self._idle_frames.count(1)
            if number not in self._reset:
                raise Http2StreamError(number, ErrorCode.STREAM_CLOSED)

    def receive_block(self, number: int, block: bytes, *, is_end: bool) -> None:
        """Take in the header fields of a request, or those at its end."""
        if number <= self._last_number:
            self._receive_trailers(number, block, is_end=is_end)
            return
        if not number % 2:
            raise Http2ConnectionError(
                ErrorCode.PROTOCOL_ERROR, f"saw a request as stream {number}"
            )
        self._last_number = number
        head, announced_bytes = self._heads.read(number, block)
        if self._is_leaving:
            self._reset.append(number)
            return
        if len(self._streams) + self.orphans >= MAX_CONCURRENT_STREAMS:
            raise Http2StreamError(number, ErrorCode.REFUSED_STREAM)
        stream = Stream(
            number,
            head,
            announced_bytes,
            self,
            self._peer_window_bytes,
            self._unreserved,
            self._seen_s,
        )
        if self._closed_s is not None:  # to make room for it
            stream.abandon()
            return
        self._streams[number] = stream
        self._last_taken = number
        if is_end:
            stream.end()
        self._application.begin(stream)

    def receive_control(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        """Take in a frame that is about the connection or a stream and brings nothing itself."""
        self._idle_frames.count(1)
        check_payload_size(kind, len(payload))
        match kind:
            case FrameKind.WINDOW_UPDATE:
                self._widen(number, int.from_bytes(payload, "big") & MAX_WINDOW_BYTES)
            case FrameKind.PING:
                check_is_about_connection(kind, number)
                if not flags & Flag.ACK:
                    self.write(build_frame(FrameKind.PING, Flag.ACK, 0, bytes(payload)))
            case FrameKind.SETTINGS:
                check_is_about_connection(kind, number)
                self._receive_settings(flags, payload)
            case FrameKind.RST_STREAM:
                check_begun(number, self._last_number)
                self._idle_frames.count(RESET_FRAMES)
                stream = self._streams.pop(number, None)
                if stream is not None:
                    self._ended.append(number)
                    stream.abandon()
            case FrameKind.GOAWAY:
                check_is_about_connection(kind, number)
            case FrameKind.PRIORITY if number == 0:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw PRIORITY of no stream")
            case FrameKind.PUSH_PROMISE:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw PUSH_PROMISE")

    def end_stream(self, number: int, code: ErrorCode) -> None:
        """End a stream whose peer broke the protocol."""
        self._idle_frames.count(RESET_FRAMES)
        self.write(build_reset(number, code))
        self._reset.append(number)
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.abandon()

    def _receive_trailers(self, number: int, block: bytes, *, is_end: bool) -> None:
        fields = self._heads.decode(block) or []
        stream = self._streams.get(number)
        if stream is None:
            if number in self._reset:
                return
            if number in self._ended:
                raise Http2ConnectionError(
                    ErrorCode.STREAM_CLOSED, f"saw HEADERS on stream {number}, which has ended"
                )
            raise Http2ConnectionError(
                ErrorCode.PROTOCOL_ERROR, f"saw stream {number} after {self._last_number}"
            )
        if stream.is_ended:
            raise Http2StreamError(number, ErrorCode.STREAM_CLOSED)
        if not is_end or any(name.startswith(b":") for name, _ in fields):
            raise Http2StreamError(number, ErrorCode.PROTOCOL_ERROR)
        stream.end()

    def _receive_settings(self, flags: int, payload: memoryview) -> None:
        if flags & Flag.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "saw SETTINGS in an answer")
            return
        settings = read_settings(payload)
        # Before anything that a larger window lets go.
        self.write(_SETTINGS_ACK)
        for setting, value in settings:
            if setting == Setting.INITIAL_WINDOW_SIZE:
                more_bytes = value - self._peer_window_bytes
                self._peer_window_bytes = value
                for stream in list(self._streams.values()):
                    try:
                        stream.widen(more_bytes)
                    except Http2StreamError as error:
                        raise Http2ConnectionError(error.code, "saw a window too large") from None

    def _widen(self, number: int, more_bytes: int) -> None:
        if number:
            check_begun(number, self._last_number)
            stream = self._streams.get(number)
            if not more_bytes:
                raise Http2StreamError(number, ErrorCode.PROTOCOL_ERROR)
            if stream is not None:
                stream.widen(more_bytes)
            return
        if not more_bytes:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "saw WINDOW_UPDATE of 0 bytes")
        self.send_window_bytes += more_bytes
        if self.send_window_bytes > MAX_WINDOW_BYTES:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "saw a window too large")
        if self.is_held_up:
            self.is_held_up = False
            for stream in list(self._streams.values()):
                stream.send_rest()

    def _return_window(self) -> None:
        if self._received_bytes > WINDOW_BYTES:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "saw more than the window")
        self.write(build_window_update(0, self._received_bytes))
        self._received_bytes = 0
