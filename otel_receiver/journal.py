"""The journal: requests that are durable and not yet in the store.

A directory of segment files beside the store. One record:

    length u32 | crc32 u32 | signal u8 | received_unix_ns u64 | body (length bytes)

little endian; the crc covers all that follows it. A segment begins with eight magic bytes and only grows; a torn tail
(power cut, kill -9 in a write) is where the first record fails its length or crc, and nothing after it was ever
acknowledged. Segment numbers never repeat for one store, so (segment, end_bytes) says what is stored already.

Nobody but the holder of the flock on ``lock`` may write, replay or remove a journal.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.forward_cursor import find_floor, remove_cursors
from rootwalk.otel_receiver.signals import Signal

__all__ = [
    "JournalLock",
    "JournalRecord",
    "SegmentWriter",
    "count_waiting_bytes",
    "encode_record",
    "encoded_bytes",
    "is_journal_held",
    "journal_path",
    "list_segments",
    "read_records",
    "remove_journal",
    "remove_segments",
    "sync_directory",
]

SEGMENT_MAGIC: Final = b"RWJRNL01"
_HEADER: Final = struct.Struct("<IIBQ")
_CRC_OFFSET_BYTES: Final = 8
_SUFFIX: Final = ".segment"
_LOCK_NAME: Final = "lock"
_SIGNAL_CODES: Final = {Signal.TRACES: 1, Signal.METRICS: 2, Signal.LOGS: 3, Signal.PROFILES: 4}
_SIGNALS: Final = {code: signal for signal, code in _SIGNAL_CODES.items()}


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One request in the journal.

    Attributes:
        signal: What `body` is a request of.
        received_unix_ns: When it was received.
        body: OTLP protobuf bytes.
        segment: Number of the segment file that holds it.
        end_bytes: Offset of the first byte after it in that file.
    """

    signal: Signal
    received_unix_ns: int
    body: bytes
    segment: int
    end_bytes: int


def journal_path(store: Path) -> Path:
    """Return the directory of the journal that belongs to a store."""
    return store.with_name(store.name + ".journal")


def encode_record(signal: Signal, received_unix_ns: int, body: bytes | bytearray) -> bytes:
    """Return the bytes of one record."""
    header = _HEADER.pack(len(body), 0, _SIGNAL_CODES[signal], received_unix_ns)
    crc = zlib.crc32(body, zlib.crc32(header[_CRC_OFFSET_BYTES:]))
    return _HEADER.pack(len(body), crc, _SIGNAL_CODES[signal], received_unix_ns) + body


def encoded_bytes(record: JournalRecord) -> int:
    """Return what a record takes in its segment."""
    return _HEADER.size + len(record.body)


def read_records(
    directory: Path, segment: int, offset_bytes: int, end_bytes: int | None = None
) -> Iterator[JournalRecord]:
    """Yield the whole records of one segment in order, up to a torn tail.

    Args:
        directory: The journal.
        segment: Number of the segment.
        offset_bytes: Where to begin; 0 for the first record.
        end_bytes: Where to stop; None for the end of the file.
    """
    with segment_path(directory, segment).open("rb") as file:
        if file.read(len(SEGMENT_MAGIC)) != SEGMENT_MAGIC:
            return
        position = max(offset_bytes, len(SEGMENT_MAGIC))
        file.seek(position)
        while end_bytes is None or position < end_bytes:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            length_bytes, crc, code, received_unix_ns = _HEADER.unpack(header)
            body = file.read(length_bytes)
            is_whole = len(body) == length_bytes and code in _SIGNALS
            if not is_whole or zlib.crc32(body, zlib.crc32(header[_CRC_OFFSET_BYTES:])) != crc:
                return
            position += _HEADER.size + length_bytes
            yield JournalRecord(_SIGNALS[code], received_unix_ns, body, segment, position)


def segment_path(directory: Path, segment: int) -> Path:
    """Return the file of a segment."""
    return directory / f"{segment:012d}{_SUFFIX}"


def list_segments(directory: Path) -> list[int]:
    """Return the numbers of the segments that exist, ascending; none without a journal."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def count_waiting_bytes(directory: Path, position: tuple[int, int], end: tuple[int, int]) -> int:
    """Return the bytes between two places of a journal, each (segment, end_bytes)."""
    if position[0] == end[0]:
        return max(0, end[1] - position[1])
    sizes = 0
    for segment in list_segments(directory):
        if position[0] <= segment < end[0]:
            sizes += segment_path(directory, segment).stat().st_size
    return max(0, sizes - position[1] + end[1])


def remove_segments(directory: Path, before: int) -> None:
    """Remove the segments with smaller numbers, which are stored, but for those that are still to be sent on."""
    floor = find_floor(directory)
    for segment in list_segments(directory):
        if segment < before and (floor is None or segment < floor):
            segment_path(directory, segment).unlink(missing_ok=True)


def remove_journal(directory: Path) -> None:
    """Remove an empty or fully stored journal; the lock file last, so that its holder stays the holder.

    Where segments are still to be sent on, they stay, and so does the rest.
    """
    segments = list_segments(directory)
    remove_segments(directory, before=max(segments, default=0) + 1)
    if list_segments(directory):
        return
    remove_cursors(directory)
    (directory / _LOCK_NAME).unlink(missing_ok=True)
    # A file that is not ours keeps the directory alive; the records are gone all the same.
    try:
        directory.rmdir()
    except OSError:
        return
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the creation and removal of files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentWriter:
    """Appends to one segment file; not safe for several threads.

    Raises:
        OSError: From the constructor and `append`; after a failed append the file is as before it.
    """

    __slots__ = ("_descriptor", "_path", "end_bytes", "segment")

    def __init__(self, directory: Path, segment: int) -> None:
        self.segment = segment
        self._path = segment_path(directory, segment)
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            self.end_bytes = 0
            self.append([SEGMENT_MAGIC])
            sync_directory(directory)
        except OSError:
            self.give_up()
            raise

    def append(self, records: list[bytes]) -> None:
        """Write encoded records and return when they are durable."""
        try:
            self._write(b"".join(records))
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self.end_bytes)
            raise
        self.end_bytes = os.lseek(self._descriptor, 0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        os.lseek(self._descriptor, self.end_bytes, os.SEEK_SET)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def give_up(self) -> None:
        """Close the file after a failed append; without a record in it it goes: a full disk has no room for those."""
        self.close()
        if self.end_bytes <= len(SEGMENT_MAGIC):
            self._path.unlink(missing_ok=True)


class JournalLock:
    """The right to write, replay and remove one journal; held by at most one process."""

    __slots__ = ("_descriptor", "directory")

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def try_take(cls, directory: Path, *, create: bool) -> JournalLock | None:
        """Return the lock, or None when another process holds it or there is no journal.

        Args:
            directory: The journal.
            create: Whether to make the directory when there is none.

        Raises:
            StoreError: If the directory or its lock file cannot be made or written.
        """
        path = directory / _LOCK_NAME
        while True:
            try:
                if create:
                    directory.mkdir(exist_ok=True)
                descriptor = os.open(
                    path, os.O_RDWR | (os.O_CREAT if directory.is_dir() else 0), 0o644
                )
            except FileNotFoundError as error:
                if create and directory.parent.is_dir():
                    continue
                if create:
                    raise _cannot_write(directory, error) from error
                return None
            except OSError as error:
                raise _cannot_write(directory, error) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if _is_same_file(descriptor, path):
                return cls(directory, descriptor)
            # The holder before us removed the journal between our open and our flock.
            os.close(descriptor)

    def release(self) -> None:
        """Let go; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_journal_held(directory: Path) -> bool:
    """Return whether a live process holds the lock of a journal: its store is being written."""
    try:
        descriptor = os.open(directory / _LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _cannot_write(directory: Path, error: OSError) -> StoreError:
    return StoreError(
        f'cannot write the journal "{directory}": {(error.strerror or str(error)).lower()}; '
        f"needs a folder that this user can write to",
        hint="choose another place with --store PATH",
    )
