r"""OTLP requests in files, of any producer and all four signals.

    {"resourceSpans": ...}          one request in JSON, over one line or many
    {...}\n{...}\n                  JSON lines, as the Collector's file exporter writes them
    length u32 | request | ...      its other form, for protobuf and for zstd; big endian, each request for itself
    protobuf                        one request, which may be larger than memory

A file may be compressed as a whole (gzip, zstd). Which form a file has is told by its first bytes, and which signal a
request is of by what is in it.

Source:
    OTLP 1.11, file exporter; opentelemetry-collector-contrib, exporter/fileexporter/file_writer.go.
"""

from __future__ import annotations

import io
import itertools
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rootwalk.graph.importers.content import is_compressed, open_content, read_lines
from rootwalk.graph.importers.formats import BrokenPart
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.content_encoding import decompress
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.otlp_json import load_json
from rootwalk.otel_receiver.request_checks import (
    describe_rejected,
    read_json_requests,
    read_request,
)
from rootwalk.otel_receiver.request_job import name_job
from rootwalk.otel_receiver.request_signal import find_signal
from rootwalk.otel_receiver.request_split import is_cut, split_request
from rootwalk.otel_receiver.signals import Signal

__all__ = ["read"]

# As for requests that are received. Only protobuf is cut without being held in memory.
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
# The Collector's file exporter makes a file when it starts, and it stays empty where nothing of its signal comes.
MAY_BE_EMPTY: Final = True
_PREFIX_BYTES: Final = 4
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# Fields 1 and 2 of requests, of which the first is also a line feed.
_PROTOBUF_TAGS: Final = (0x0A, 0x12)
# White space at most, or the beginning of an object after it.
_JSON_AFTER_SPACE: Final = re.compile(rb'\s*(\{\s*("\w+"\s*:|\}).*)?', re.DOTALL)
_PEEK_BYTES: Final = 4096


def read(path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
    """Yield the requests of a file.

    Raises:
        DecodeError: If it is compressed and damaged, or of no form of OTLP.
        OSError: If it cannot be read.
    """
    with open_content(path) as content:
        start = content.peek(_PEEK_BYTES)[:_PEEK_BYTES]
        if start.startswith(b"{") or _JSON_AFTER_SPACE.fullmatch(start):
            yield from _read_json(content, job)
        elif start[0] in _PROTOBUF_TAGS:
            if is_compressed(path):
                yield from _read_protobuf(_read_all(content, b""), "byte 0", job)
            else:
                # Only what is looked at is ever in memory.
                body = mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)
                yield from _read_protobuf(body, "byte 0", job)
        elif (
            int.from_bytes(start[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\xff")) <= MAX_REQUEST_BYTES
        ):
            yield from _read_prefixed(content, job)
        else:
            raise DecodeError(
                f"cannot read the file: saw {start[:8].hex(' ')} at its beginning; needs OTLP in protobuf or JSON"
            )


def _read_json(content: io.BufferedReader, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
    lines = read_lines(content, MAX_REQUEST_BYTES)
    head = list(itertools.islice(lines, 2))
    if len(head) == 2 and _is_document(head[0][1], head[1][1]):
        text = _read_all(content, head[0][1] + head[1][1])
        yield from _read_requests(text, f"line {head[0][0]}", job)
        return
    for number, line in itertools.chain(head, lines):
        if len(line) > MAX_REQUEST_BYTES:
            yield BrokenPart(f"line {number}", _too_large())
        else:
            yield from _read_requests(line, f"line {number}", job)


def _is_document(first: bytes, second: bytes) -> bool:
    """Say whether two lines are parts of one object: JSON lines begin with an object each."""
    if second.startswith(b"{"):
        return False
    try:
        load_json(first)
    except DecodeError:
        return True
    return False


def _read_requests(
    text: bytes, place: str, job: str | None
) -> Iterator[ImportRequest | BrokenPart]:
    try:
        requests = read_json_requests(text)
    except DecodeError as error:
        yield BrokenPart(place, error)
        return
    for signal, body in requests:
        yield from _check(signal, body, place, job)


def _read_prefixed(
    content: io.BufferedReader, job: str | None
) -> Iterator[ImportRequest | BrokenPart]:
    position = 0
    while prefix := content.read(_PREFIX_BYTES):
        place = f"byte {position}"
        size_bytes = int.from_bytes(prefix)
        if size_bytes > MAX_REQUEST_BYTES:
            yield BrokenPart(place, _too_large())
            return
        message = content.read(size_bytes)
        if len(prefix) < _PREFIX_BYTES or len(message) < size_bytes:
            text = f"cannot read the request: saw {len(message)} of its {size_bytes} bytes; needs a whole file"
            yield BrokenPart(place, DecodeError(text))
            return
        position += _PREFIX_BYTES + size_bytes
        yield from _read_message(message, place, job)


def _read_message(
    message: bytes, place: str, job: str | None
) -> Iterator[ImportRequest | BrokenPart]:
    body: bytes | bytearray = message
    if message.startswith(_ZSTD_MAGIC):
        try:
            body = decompress(message, "zstd", MAX_REQUEST_BYTES)
        except OverflowError:
            yield BrokenPart(place, _too_large())
            return
        except ValueError as error:
            yield BrokenPart(place, DecodeError(str(error)))
            return
    if body.startswith(b"{"):
        yield from _read_requests(bytes(body), place, job)
    else:
        yield from _read_protobuf(bytes(body), place, job)


def _read_protobuf(
    body: bytes | mmap.mmap, place: str, job: str | None
) -> Iterator[ImportRequest | BrokenPart]:
    try:
        signal = find_signal(memoryview(body))
        if signal is Signal.PROFILES and len(body) > MAX_REQUEST_BYTES:
            raise _too_large()
    except DecodeError as error:
        yield BrokenPart(place, error)
        return
    is_empty = True
    for part in _check(signal, body, place, job):
        is_empty &= isinstance(part, ImportRequest) and not part.records
        yield part
    if is_empty:
        # Other formats in protobuf may be read as a request that has nothing in it.
        text = f"cannot read the request: saw {len(body)} bytes without a record; needs a request of OTLP"
        yield BrokenPart(place, DecodeError(text))


def _check(
    signal: Signal, body: bytes | mmap.mmap, place: str, job: str | None
) -> Iterator[ImportRequest | BrokenPart]:
    try:
        for piece in split_request(body) if is_cut(signal, len(body)) else (body[:],):
            request = read_request(signal, piece)
            if request.rejected:
                text = describe_rejected(signal, request.rejected)
                yield BrokenPart(place, DecodeError(text))
            source = bytes(request.body)
            named = source if job is None else name_job(signal, source, job)
            # The same file is the same under another job too.
            yield ImportRequest(signal, named, request.accepted, source)
    except DecodeError as error:
        yield BrokenPart(place, error)


def _read_all(content: io.BufferedReader, head: bytes) -> bytes:
    body = head + content.read(MAX_REQUEST_BYTES + 1 - len(head))
    if len(body) > MAX_REQUEST_BYTES:
        raise _too_large()
    return body


def _too_large() -> DecodeError:
    return DecodeError(
        f"cannot read the request: saw more than {MAX_REQUEST_BYTES} bytes in one; needs JSON lines, or protobuf",
        hint="the Collector's file exporter writes a request a line",
    )
