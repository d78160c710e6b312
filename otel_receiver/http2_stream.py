"""One request on an HTTP/2 connection: its body as it comes in, and its one answer.

    head -> bytes up to the first window -> `admit`, when there is memory -> the rest, into one buffer -> `respond`

A sender may have sent its first window before anybody has reserved memory for it. What all streams hold so is counted
together and limited; a stream beyond that limit keeps nothing and is told so.

Source:
    RFC 9113: 5.1 (states), 5.2 and 6.9 (flow control), 8.1 (an answer before the request's end, NO_ERROR).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from rootwalk.otel_receiver.http2_frames import (
    DEFAULT_WINDOW_BYTES,
    MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    ErrorCode,
    Flag,
    FrameKind,
    Http2StreamError,
    Response,
    build_frame,
    build_window_update,
)
from rootwalk.otel_receiver.http2_limits import MemoryShare

__all__ = ["Link", "Stream"]

HeadT = TypeVar("HeadT")
# What a stream costs before anything of its body is there: itself, its task.
STREAM_BYTES: Final = 4 * 1024


class Link(Protocol):
    """What a stream needs of its connection.

    Attributes:
        send_window_bytes: What the peer takes from all streams together.
        is_held_up: Whether a stream waits for that to grow.
        orphans: Streams that are gone and whose work goes on.
    """

    send_window_bytes: int
    is_held_up: bool
    orphans: int

    def write(self, data: bytes) -> None:
        """Send some frames."""

    def finish(self, stream_number: int, *, is_ended: bool) -> None:
        """Forget a stream that has its answer."""

    @property
    def now_s(self) -> Callable[[], float]:
        """The loop's clock, seconds."""


class Stream(Generic[HeadT]):
    """One request; `head` is what its header fields mean.

    Attributes:
        number: Of the stream in its connection.
        is_ended: Whether its sender has sent all of it.
        is_crowded_out: Whether its body was dropped, because too much was held already.
        is_taken: Whether its work goes on although its sender has gone.
        task: What works on it.
        began_s: When it began, or when its answer began to wait for a window; seconds of the loop's clock.
    """

    __slots__ = (
        "_announced_bytes",
        "_body",
        "_is_open",
        "_link",
        "_received_bytes",
        "_there_bytes",
        "_trailers",
        "_unreserved",
        "_unreserved_bytes",
        "_unsent",
        "_waiter",
        "_wanted_bytes",
        "_window_bytes",
        "began_s",
        "head",
        "is_crowded_out",
        "is_ended",
        "is_taken",
        "number",
        "send_window_bytes",
        "task",
    )

    def __init__(
        self,
        number: int,
        head: HeadT,
        announced_bytes: int | None,
        link: Link,
        send_window_bytes: int,
        unreserved: MemoryShare,
        began_s: float,
    ) -> None:
        self.began_s = began_s
        self.number = number
        self.head = head
        self.is_ended = False
        self.is_taken = False
        self.task: asyncio.Task[Any] | None = None
        self.send_window_bytes = send_window_bytes
        self._announced_bytes = announced_bytes
        self._link = link
        self._is_open = True
        self._body = bytearray()
        self._there_bytes = 0
        self._received_bytes = 0
        self._window_bytes = DEFAULT_WINDOW_BYTES
        self._wanted_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._unsent = b""
        self._trailers = b""
        self._unreserved = unreserved
        self._unreserved_bytes = STREAM_BYTES
        self.is_crowded_out = not unreserved.take(STREAM_BYTES)
        if self.is_crowded_out:
            self._unreserved_bytes = 0

    @property
    def link(self) -> Link:
        """Its connection."""
        return self._link

    def receive(self, part: memoryview, flow_bytes: int, *, is_end: bool) -> None:
        """Take in a piece of the body; with its padding it took so much of the window.

        Raises:
            Http2StreamError: If the sender may not send it.
        """
        self._window_bytes -= flow_bytes
        if self.is_ended:
            raise Http2StreamError(self.number, ErrorCode.STREAM_CLOSED)
        if self._window_bytes < 0:
            raise Http2StreamError(self.number, ErrorCode.FLOW_CONTROL_ERROR)
        size_bytes = len(part)
        if size_bytes:
            self._received_bytes += size_bytes
            self._keep(part, size_bytes)
        if is_end:
            self.end()
        if self._waiter is not None:
            self._wake()

    def end(self) -> None:
        """Take note that the sender has sent all.

        Raises:
            Http2StreamError: If that is not what it announced.
        """
        self.is_ended = True
        if self._announced_bytes is not None and self._announced_bytes != self._received_bytes:
            raise Http2StreamError(self.number, ErrorCode.PROTOCOL_ERROR)
        if self._waiter is not None:
            self._wake()

    def _keep(self, part: memoryview, size_bytes: int) -> None:
        if self.is_crowded_out:
            return
        if self._unreserved_bytes:
            if not self._unreserved.take(size_bytes):
                self.is_crowded_out = True
                self._drop()
                return
            if not self._is_open:  # its own connection was closed to make room
                self._unreserved.give_back(size_bytes)
                return
            self._unreserved_bytes += size_bytes
        begin = self._there_bytes
        self._there_bytes = end = begin + size_bytes
        if begin == len(self._body):
            self._body += part
        else:
            self._body[begin:end] = part

    def _wake(self) -> None:
        is_enough = self._there_bytes >= self._wanted_bytes
        if is_enough or self.is_ended or self.is_crowded_out:
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def has(self, size_bytes: int) -> bool:
        """Say whether so much of the body is there that was not taken yet."""
        return self._there_bytes >= size_bytes

    async def wait_for(self, size_bytes: int) -> None:
        """Return when so much of the body is there, or as much as ever will be."""
        while not (self.has(size_bytes) or self.is_ended or self.is_crowded_out):
            self._wanted_bytes = size_bytes
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def admit(self, size_bytes: int) -> None:
        """Let the sender send so much in all; the caller has reserved the memory."""
        self._give_back()
        if size_bytes <= self._there_bytes or self.is_crowded_out:
            return
        body = bytearray(size_bytes)
        body[: self._there_bytes] = self._body
        self._body = body
        missing_bytes = size_bytes - self._there_bytes
        if missing_bytes > self._window_bytes and not self.is_ended:
            self._link.write(build_window_update(self.number, missing_bytes - self._window_bytes))
            self._window_bytes = missing_bytes

    def take(self, size_bytes: int) -> bytearray:
        """Return the next bytes of the body, which are there."""
        body = self._body
        self._there_bytes -= size_bytes
        if len(body) == size_bytes:
            self._body = bytearray()
            return body
        taken = body[:size_bytes]
        del body[:size_bytes]
        return taken

    def respond(self, response: Response) -> None:
        """Send the answer, as fast as the peer takes it."""
        if not self._is_open:
            self._link.orphans -= 1
            return
        self._give_back()
        size_bytes = len(response.data)
        link = self._link
        if size_bytes <= min(self.send_window_bytes, link.send_window_bytes):
            self.send_window_bytes -= size_bytes
            link.send_window_bytes -= size_bytes
            link.write(self.number.to_bytes(4, "big").join(response.parts))
            self._finish()
            return
        link.write(build_frame(FrameKind.HEADERS, Flag.END_HEADERS, self.number, response.headers))
        self._unsent, self._trailers = response.data, response.trailers
        self.began_s = link.now_s()
        self.send_rest()
        if self._unsent:
            self._hold_answer()

    def _hold_answer(self) -> None:
        """Count an answer that its peer does not read like a request that does not go on."""
        if not self._unreserved.take(STREAM_BYTES):
            return
        if self._is_open:
            self._unreserved_bytes = STREAM_BYTES
        else:  # its own connection was closed to make room
            self._unreserved.give_back(STREAM_BYTES)

    @property
    def unreserved_bytes(self) -> int:
        """What it holds without a reservation."""
        return self._unreserved_bytes

    @property
    def is_held_up(self) -> bool:
        """Whether its answer waits for a window."""
        return bool(self._unsent)

    def widen(self, more_bytes: int) -> None:
        """Let so much more of the answer go, or less.

        Raises:
            Http2StreamError: If that is more than a window can be.
        """
        self.send_window_bytes += more_bytes
        if self.send_window_bytes > MAX_WINDOW_BYTES:
            raise Http2StreamError(self.number, ErrorCode.FLOW_CONTROL_ERROR)
        self.send_rest()

    def send_rest(self) -> None:
        """Send what the windows allow of an answer that they held up."""
        while self._unsent:
            link = self._link
            size_bytes = min(
                len(self._unsent), self.send_window_bytes, link.send_window_bytes, MAX_FRAME_BYTES
            )
            if size_bytes <= 0:
                link.is_held_up = True
                return
            self.send_window_bytes -= size_bytes
            link.send_window_bytes -= size_bytes
            link.write(build_frame(FrameKind.DATA, 0, self.number, self._unsent[:size_bytes]))
            self._unsent = self._unsent[size_bytes:]
            if not self._unsent:
                flags = Flag.END_HEADERS | Flag.END_STREAM
                link.write(build_frame(FrameKind.HEADERS, flags, self.number, self._trailers))
                self._finish()

    def abandon(self) -> None:
        """End it without an answer; work on it that cannot be undone goes on."""
        if not self._is_open:
            return
        self._is_open = False
        self._drop()
        if self.task is None or self.task.done():
            return
        if self.is_taken:
            self._link.orphans += 1
        else:
            self.task.cancel()

    def _finish(self) -> None:
        self._is_open = False
        self._give_back()
        self._link.finish(self.number, is_ended=self.is_ended)

    def _drop(self) -> None:
        self._give_back()
        self._body = bytearray()
        self._there_bytes = 0

    def _give_back(self) -> None:
        if self._unreserved_bytes:
            self._unreserved.give_back(self._unreserved_bytes)
            self._unreserved_bytes = 0
