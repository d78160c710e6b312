"""Request bodies without their content encoding, never holding more than a limit; pure.

Source:
    RFC 9110 (gzip, deflate), RFC 1950 (zlib), RFC 8878 and RFC 9659 (zstd, with windows up to 8 MiB), google/snappy
    format_description.txt and framing_format.txt, lz4/lz4 doc/lz4_Frame_format.md. OTLP asks servers for gzip and
    identity; the Collector sends and takes all of them (v0.159.0, config/confighttp/compression.go).
"""

from __future__ import annotations

import io
import zlib
from typing import Final

import cramjam
import zstandard
from lz4.frame import LZ4FrameDecompressor

__all__ = ["ENCODINGS", "decompress"]

ENCODINGS: Final = (
    "gzip",
    "deflate",
    "zlib",
    "zstd",
    "snappy",
    "x-snappy-framed",
    "lz4",
    "identity",
)
# Every gzip member or zstd frame costs a copy of what follows it, every lz4 frame a read; a real sender writes one.
MAX_MEMBERS: Final = 1024
# RFC 9659: what a sender of Content-Encoding: zstd may ask a receiver to hold.
MAX_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024
_ZSTD_READ_BYTES: Final = 1024 * 1024
# What framed snappy begins with, and no raw snappy can: its first copy would reach back before its first byte.
SNAPPY_STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
# A chunk holds 64 KiB, so a body at the limit has 1024; senders that flush write more. So many cost at most 70 ms.
MAX_SNAPPY_CHUNKS: Final = 64 * 1024
# Snappy's best is a copy of 64 bytes in 3.
_MAX_SNAPPY_EXPANSION: Final = 22
_SNAPPY_COMPRESSED_CHUNK: Final = 0
_SNAPPY_PLAIN_CHUNK: Final = 1
_SNAPPY_CHECKSUM_BYTES: Final = 4
_MAX_VARINT_BYTES: Final = 5
# Lz4's best is 255 bytes in one, so that a read gives 16 MiB.
_LZ4_READ_BYTES: Final = 64 * 1024


def decompress(raw: bytes | bytearray, encoding: str, limit_bytes: int) -> bytes | bytearray:
    """Return a request body without its content encoding.

    Raises:
        ValueError: If the encoding is unknown, or the bytes are not of that encoding.
        OverflowError: If it is larger than the limit; no more than the limit is ever held.
    """
    match encoding:
        case "identity" | "":
            return raw
        case "gzip":
            return _gunzip(raw, limit_bytes)
        case "deflate":
            return _inflate(raw, limit_bytes)
        case "zlib":
            return _unzlib(raw, limit_bytes)
        case "zstd":
            return _unzstd(raw, limit_bytes)
        case "snappy":
            return _unsnappy(raw, limit_bytes)
        case "x-snappy-framed":
            return _unsnappy_framed(raw, limit_bytes)
        case "lz4":
            return _unlz4(raw, limit_bytes)
        case _:
            raise ValueError(
                f'cannot read content encoding "{encoding[:40]}"; needs {", ".join(ENCODINGS)}'
            )


def _gunzip(raw: bytes | bytearray, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    rest: bytes | bytearray = raw
    while rest:
        if len(parts) == MAX_MEMBERS:
            raise _too_many_members("gzip")
        part, rest = _zlib_stream(rest, "gzip", 31, limit_bytes - size_bytes)
        parts.append(part)
        size_bytes += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _inflate(raw: bytes | bytearray, limit_bytes: int) -> bytes | bytearray:
    # RFC 9110 means the zlib format by "deflate"; some senders mean the raw one.
    is_zlib = len(raw) >= 2 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
    return _one_zlib_stream(raw, "deflate", 15 if is_zlib else -15, limit_bytes)


def _unzlib(raw: bytes | bytearray, limit_bytes: int) -> bytes | bytearray:
    return _one_zlib_stream(raw, "zlib", 15, limit_bytes)


def _one_zlib_stream(
    raw: bytes | bytearray, encoding: str, window_bits: int, limit_bytes: int
) -> bytes | bytearray:
    if not raw:
        return raw
    body, rest = _zlib_stream(raw, encoding, window_bits, limit_bytes)
    if rest:
        raise _not_encoded(encoding, f"saw {len(rest)} bytes after its end")
    return body


def _zlib_stream(
    raw: bytes | bytearray, encoding: str, window_bits: int, limit_bytes: int
) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj(window_bits)
    try:
        part = stream.decompress(raw, limit_bytes + 1)
    except zlib.error as error:
        raise _not_encoded(encoding, str(error)) from error
    if len(part) > limit_bytes:
        raise OverflowError
    if not stream.eof:
        raise _not_encoded(encoding, "saw the end in mid-stream")
    return part, stream.unused_data


def _unzstd(raw: bytes | bytearray, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    rest: bytes | bytearray = raw
    try:
        if _zstd_size_bytes(raw, limit_bytes) > limit_bytes:
            raise OverflowError
        # Known to be within the limit; only this form tells a truncated frame from a whole one.
        while rest:
            if len(parts) == MAX_MEMBERS:
                raise _too_many_members("zstd")
            stream = _zstd_decompressor().decompressobj()
            parts.append(stream.decompress(rest))
            if not stream.eof:
                raise _not_encoded("zstd", "saw the end in mid-stream")
            rest = stream.unused_data
    except zstandard.ZstdError as error:
        raise _not_encoded("zstd", str(error)) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_size_bytes(raw: bytes | bytearray, limit_bytes: int) -> int:
    """Return the size of the body, or a number above the limit; holds one read at a time."""
    size_bytes = 0
    with _zstd_decompressor().stream_reader(io.BytesIO(raw), read_across_frames=True) as reader:
        while size_bytes <= limit_bytes:
            part = reader.read(_ZSTD_READ_BYTES)
            if not part:
                break
            size_bytes += len(part)
    return size_bytes


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)


def _unsnappy(raw: bytes | bytearray, limit_bytes: int) -> bytes | bytearray:
    # Collectors before v0.131 frame what they call snappy.
    if not raw or raw.startswith(SNAPPY_STREAM_ID):
        return _unsnappy_framed(raw, limit_bytes)
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(raw)
        if size_bytes > len(raw) * _MAX_SNAPPY_EXPANSION:
            raise _not_encoded("snappy", f"saw {len(raw)} bytes that announce {size_bytes}")
        if size_bytes > limit_bytes:
            raise OverflowError
        body = bytearray(size_bytes)
        cramjam.snappy.decompress_raw_into(raw, body)
    except cramjam.DecompressionError as error:
        raise _not_encoded("snappy", str(error)) from error
    return body


def _unsnappy_framed(raw: bytes | bytearray, limit_bytes: int) -> bytes | bytearray:
    """Return the body; the format has no end mark, so one that ends after any chunk is whole."""
    if not raw:
        return raw
    try:
        body = bytearray(_snappy_framed_size_bytes(raw, limit_bytes))
        cramjam.snappy.decompress_into(raw, body)
    except cramjam.DecompressionError as error:
        raise _not_encoded("x-snappy-framed", str(error)) from error
    return body


def _snappy_framed_size_bytes(raw: bytes | bytearray, limit_bytes: int) -> int:
    """Return the size that the chunks announce; what is in them is checked when they are read."""
    size_bytes = chunks = at = 0
    while at < len(raw):
        if chunks == MAX_SNAPPY_CHUNKS:
            raise _not_encoded("x-snappy-framed", f"saw more than {MAX_SNAPPY_CHUNKS} chunks")
        kind, begin = raw[at], at + 4
        at = begin + int.from_bytes(raw[at + 1 : begin], "little")
        if at > len(raw):
            raise _not_encoded("x-snappy-framed", "saw the end in mid-stream")
        begin += _SNAPPY_CHECKSUM_BYTES
        if kind == _SNAPPY_COMPRESSED_CHUNK:
            announced = raw[begin : min(at, begin + _MAX_VARINT_BYTES)]
            size_bytes += cramjam.snappy.decompress_raw_len(announced)
        elif kind == _SNAPPY_PLAIN_CHUNK:
            size_bytes += max(0, at - begin)
        if size_bytes > limit_bytes:
            raise OverflowError
        chunks += 1
    return size_bytes


def _unlz4(raw: bytes | bytearray, limit_bytes: int) -> bytearray:
    body = bytearray()
    at = members = 0
    frame = None
    try:
        while at < len(raw):
            if frame is None:
                if members == MAX_MEMBERS:
                    raise _too_many_members("lz4")
                members += 1
                frame = LZ4FrameDecompressor()
            read = raw[at : at + _LZ4_READ_BYTES]
            body += frame.decompress(read, limit_bytes + 1 - len(body))
            if len(body) > limit_bytes:
                raise OverflowError
            at += len(read) - len(frame.unused_data or b"")
            if frame.eof:
                frame = None
    except RuntimeError as error:
        raise _not_encoded("lz4", str(error)) from error
    if frame is not None:
        raise _not_encoded("lz4", "saw the end in mid-stream")
    return body


def _too_many_members(encoding: str) -> ValueError:
    return _not_encoded(encoding, f"saw more than {MAX_MEMBERS} members")


def _not_encoded(encoding: str, saw: str) -> ValueError:
    return ValueError(
        f"cannot decompress the body: {saw}; needs whole {encoding} as its header says"
    )
