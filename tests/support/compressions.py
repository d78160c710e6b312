"""What a sender does to a body for each content encoding that the receiver takes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import zstandard


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def snappy_framed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(body))


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": lambda body: gzip.compress(body, 1),
    "deflate": lambda body: zlib.compress(body, 1),
    "zlib": lambda body: zlib.compress(body, 1),
    "zstd": zstandard.compress,
    "snappy": snappy,
    "x-snappy-framed": snappy_framed,
    "lz4": lz4.frame.compress,
}
