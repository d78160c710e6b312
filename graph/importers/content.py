"""Files as their content, decompressed while they are read; by their first bytes, whatever their names."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["is_compressed", "open_content", "read_lines"]

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# Of the file at once: all of its content is held, and zstd makes 128 KiB of four bytes at best.
_READ_BYTES: Final = 4096
# What the zstd command takes unless it is told otherwise; more is memory that a file could ask for.
_MAX_ZSTD_WINDOW_BYTES: Final = 128 * 1024 * 1024


def is_compressed(path: Path) -> bool:
    """Say whether a file is one of gzip or zstd.

    Raises:
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_ZSTD_MAGIC)).startswith((_GZIP_MAGIC, _ZSTD_MAGIC))


def open_content(path: Path) -> io.BufferedReader:
    """Open a file for its content; reading raises DecodeError where it is damaged or ends too soon.

    Raises:
        OSError: If it cannot be opened.
    """
    file = path.open("rb")
    if not is_compressed(path):
        return file
    return io.BufferedReader(_Decompressed(file))


def read_lines(content: io.BufferedReader, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers; of one longer than `max_bytes` only its beginning."""
    for number in itertools.count(1):
        line = content.readline(max_bytes + 1)
        if not line:
            return
        rest = line
        while len(rest) > max_bytes and not rest.endswith(b"\n"):
            rest = content.readline(max_bytes + 1)
        if line.strip():
            yield number, line


class _Decompressed(io.RawIOBase):
    """The content of a compressed file, of all its members one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._member: Any = None
        self._rest = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            read = self._rest or self._file.read(_READ_BYTES)
            if not read:
                if self._member is not None:
                    raise DecodeError(
                        f"cannot decompress the file: saw its end at byte {self._file.tell()} in mid-stream; "
                        "needs a whole file"
                    )
                return 0
            self._content = memoryview(self._decompress(read))
        size_bytes = min(len(buffer), len(self._content))
        buffer[:size_bytes] = self._content[:size_bytes]
        self._content = self._content[size_bytes:]
        return size_bytes

    def close(self) -> None:
        self._file.close()
        super().close()

    def _decompress(self, read: bytes) -> bytes:
        try:
            if self._member is None:
                self._member = _member(read)
            content: bytes = self._member.decompress(read)
        except (zlib.error, zstandard.ZstdError) as error:
            raise DecodeError(
                f"cannot decompress the file: saw {error} before byte {self._file.tell()}; needs a whole file"
            ) from error
        self._rest = b""
        if self._member.eof:
            self._rest = self._member.unused_data
            self._member = None
        return content


def _member(read: bytes) -> Any:
    if read.startswith(_GZIP_MAGIC[:1]):
        return zlib.decompressobj(31)
    return zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).decompressobj()
