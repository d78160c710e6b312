"""What the header blocks of one HTTP/2 connection mean, kept where a client repeats itself.

C-core, for one, sends the same few bytes with every request: references to fields that both ends have kept. What such
a block means is looked up, until a block changes what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from rootwalk.otel_receiver.header_blocks import (
    Field,
    HeaderBlockError,
    HeaderDecoder,
    MalformedRequestError,
    read_content_length,
    read_request_fields,
)
from rootwalk.otel_receiver.http2_frames import (
    ErrorCode,
    Http2ConnectionError,
    Http2StreamError,
)

__all__ = ["MAX_HEADER_LIST_BYTES", "HeadReader", "ReadHead"]

HeadT = TypeVar("HeadT")
# Returns what the header fields of a request mean to the application; None are more than fit.
ReadHead = Callable[[Mapping[bytes, bytes] | None], HeadT]
# What the header fields of a request may take.
MAX_HEADER_LIST_BYTES: Final = 16 * 1024
# Blocks whose meaning is kept; a client has one for each of its methods.
MAX_KEPT_HEADS: Final = 64


class HeadReader(Generic[HeadT]):
    """Reads every header block of a connection, in order."""

    __slots__ = ("_decoder", "_heads", "_read_head")

    def __init__(self, read_head: ReadHead[HeadT]) -> None:
        self._read_head = read_head
        self._decoder = HeaderDecoder(MAX_HEADER_LIST_BYTES)
        self._heads: dict[bytes, tuple[HeadT, int | None]] = {}

    def read(self, number: int, block: bytes) -> tuple[HeadT, int | None]:
        """Return what the block at the begin of a stream means, and the size of the body that it announces.

        Raises:
            Http2ConnectionError: If it cannot be read.
            Http2StreamError: If it is not one of a request.
        """
        known = self._heads.get(block)
        if known is not None:
            return known
        generation = self._decoder.generation
        fields = self.decode(block)
        if fields is None:
            return self._read_head(None), None
        try:
            by_name = read_request_fields(fields)
            head = self._read_head(by_name), read_content_length(by_name)
        except MalformedRequestError:
            raise Http2StreamError(number, ErrorCode.PROTOCOL_ERROR) from None
        if self._decoder.generation == generation and len(self._heads) < MAX_KEPT_HEADS:
            self._heads[block] = head
        return head

    def decode(self, block: bytes) -> list[Field] | None:
        """Return the fields of a block; None when they are more than fit.

        Raises:
            Http2ConnectionError: If it cannot be read.
        """
        generation = self._decoder.generation
        try:
            fields, is_whole = self._decoder.decode(block)
        except HeaderBlockError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if self._decoder.generation != generation:
            self._heads.clear()
        return fields if is_whole else None
