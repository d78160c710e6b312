"""What DuckDB writes over in place, kept beside the store until the new is whole.

A checkpoint writes data into blocks that are free, and then the metadata of all tables: into the blocks where the
metadata lies that the file's header still refers to. Each block has one checksum. Where the process is killed in that
write (SIGKILL cuts a write short between two pages), or the power goes, the block is neither the old nor the new, and
nothing in the file can be read any more. DuckDB 2.0.0 and 2.0.1; tests/integration/otel_receiver/test_torn_writes.py.

    checkpoint   |copy of headers and metadata, synced| DuckDB writes blocks, then its header |copy removed|
    killed here                                               ^ the copy is put back: the file is as it was before, and
                                                                what was committed since is in DuckDB's own log

So a checkpoint happens only where this has been done: not by itself in a commit, but when a writer closes the file. The
copy is locked from its writing to its end, so nobody puts it back into a file that is just being written.

DuckDB's own lock ends with any descriptor of the file that the process closes: what is opened here is closed after it.

Source: doublewrite buffers, as databases with pages larger than the disk's have them. Of DuckDB's format (2.0, storage
version 64 and up) it knows where three headers of 4 KiB lie, the fields of the second and third named below, and that
blocks follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["SUFFIX", "DoubleWrite", "restore"]

logger = logging.getLogger(__name__)

SUFFIX: Final = ".doublewrite"
HEADER_BYTES: Final = 4096
HEADERS_BYTES: Final = 3 * HEADER_BYTES
# Of the second and third: checksum, iteration, where metadata begins, the free list, blocks, bytes of a block.
_HEADER: Final = struct.Struct("<QQQQQQ")
# Of the copy: magic, checksum of what follows, number of pieces; then the place and length of each, and their bytes.
_COPY: Final = struct.Struct("<8sII")
_PIECE: Final = struct.Struct("<QQ")
_MAGIC: Final = b"RWDBLWR1"


class DoubleWrite:
    """A copy of what the next checkpoint of an open store may write over; entered while the store is open for writing.

    Args:
        path: The store. Leave the context after the store has been closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + SUFFIX)
        self._store = os.open(path, os.O_RDONLY)
        self._copy: int | None = None

    def __enter__(self) -> Self:
        return self

    def save(self, blocks: Iterable[int]) -> None:
        """Keep the headers and some blocks; when it returns they survive a power cut.

        Args:
            blocks: Ids of the blocks that hold metadata.

        Raises:
            OSError: If the disk refuses; there is no copy then, and no checkpoint must follow.
        """
        block_bytes = _header_in_force(_read(self._store, 0, HEADERS_BYTES))[1]
        size = os.fstat(self._store).st_size
        pieces = [(0, HEADERS_BYTES)]
        for block in sorted(set(blocks)):
            offset = HEADERS_BYTES + block * block_bytes
            if offset + block_bytes <= size:  # else it is new, and the file does not have it yet
                pieces.append((offset, block_bytes))
        copy = self._locked_copy()
        os.ftruncate(copy, 0)
        table = b"".join(_PIECE.pack(*piece) for piece in pieces)
        end, checksum = _COPY.size, 0
        for part in itertools.chain([table], (_read(self._store, *piece) for piece in pieces)):
            _write(copy, end, part)
            end, checksum = end + len(part), zlib.crc32(part, checksum)
        _write(copy, 0, _COPY.pack(_MAGIC, checksum, len(pieces)))
        os.fdatasync(copy)

    def _locked_copy(self) -> int:
        """Return the descriptor of the copy, locked; who may write the store may put it back."""
        if self._copy is None:
            self._copy = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._copy, fcntl.LOCK_EX)
            with contextlib.suppress(PermissionError):  # it was another user's
                os.fchmod(self._copy, os.fstat(self._store).st_mode & 0o777)
        return self._copy

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._store)
        if self._copy is not None:
            # It is locked until it has no name any more: who waits for it sees that it is over.
            self._path.unlink(missing_ok=True)
            os.close(self._copy)


def restore(path: Path) -> bool:
    """Put back what a checkpoint that was cut short has written over; for a store that cannot be opened.

    Args:
        path: The store; this process must not have it open.

    Returns:
        Whether to try again to open it: False where there is no copy of it as its header says it is.
    """
    name = path.with_name(path.name + SUFFIX)
    try:
        copy = os.open(name, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(copy, fcntl.LOCK_EX)
        if not _is_named(copy, name):
            return True  # another process has been at it meanwhile
        pieces = _read_copy(_read(copy, 0, os.fstat(copy).st_size))
        if not pieces:
            return False
        store = os.open(path, os.O_RDWR)
        try:
            if not _is_of(pieces[0][1], _read(store, 0, HEADERS_BYTES)):
                return False
            for offset, data in pieces:
                _write(store, offset, data)
            os.fsync(store)
        finally:
            os.close(store)
    except OSError as error:
        logger.warning('cannot put back what "%s" has of the store: %s', name, error.strerror)
        return False
    finally:
        os.close(copy)
    logger.warning(
        'a writer of the store "%s" was killed while it wrote: what it had begun is undone', path
    )
    return True


def _is_named(descriptor: int, name: Path) -> bool:
    """Return whether a file still has its name."""
    try:
        return name.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _header_in_force(headers: bytes) -> tuple[int, int]:
    """Return the number of the header that counts, 1 or 2, and how many bytes a block has."""
    fields = [_HEADER.unpack_from(headers, number * HEADER_BYTES) for number in (1, 2)]
    number = 1 if fields[0][1] > fields[1][1] else 2
    return number, fields[number - 1][5]


def _is_of(saved: bytes, found: bytes) -> bool:
    """Return whether the header that counted is the one that the file has, so that the copy is of this state of it."""
    start = _header_in_force(saved)[0] * HEADER_BYTES
    return (
        saved[:HEADER_BYTES] == found[:HEADER_BYTES]
        and saved[start : start + HEADER_BYTES] == found[start : start + HEADER_BYTES]
    )


def _read_copy(content: bytes) -> list[tuple[int, bytes]]:
    """Return the pieces of a copy and where they belong; none of one that is not whole."""
    if len(content) < _COPY.size:
        return []
    magic, checksum, count = _COPY.unpack_from(content)
    body = content[_COPY.size :]
    if magic != _MAGIC or checksum != zlib.crc32(body):
        return []
    pieces, start = [], count * _PIECE.size
    for number in range(count):
        offset, length = _PIECE.unpack_from(body, number * _PIECE.size)
        pieces.append((offset, body[start : start + length]))
        start += length
    return pieces


def _read(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length and (part := os.pread(descriptor, length, offset)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _write(descriptor: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset, rest = offset + written, rest[written:]
