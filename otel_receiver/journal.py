"""The journal: requests that are durable and not yet in the store.

A directory of segment files beside the store (`segment_format` has their bytes), a lock, and a file ``end`` that says
up to where senders had their answer. A segment only grows; a torn tail (power cut, kill -9 in a write) is a record
that ends with the file, and it was never acknowledged. Any other damage is said and the segment is kept
(`journal_damage`). Segment numbers never repeat within one journal, so (journal id, segment, end_bytes) says what is
stored already.

Nobody but the holder of the flock on ``lock`` may write, replay or remove a journal.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.forward_cursor import find_floor, remove_cursors
from rootwalk.otel_receiver.journal_damage import (
    END_NAME,
    EndFile,
    read_end,
    report_damage,
    report_short_end,
)
from rootwalk.otel_receiver.segment_format import (
    NO_IDENTITY,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    JournalRecord,
    encode_record,
    encode_segment_header,
    encoded_bytes,
    read_identity_of,
    read_segment,
)

__all__ = [
    "NO_IDENTITY",
    "SEGMENT_HEADER_BYTES",
    "JournalIdentity",
    "JournalLock",
    "JournalRecord",
    "SegmentWriter",
    "check_end",
    "choose_identity",
    "count_waiting_bytes",
    "encode_record",
    "encoded_bytes",
    "is_journal_held",
    "journal_path",
    "list_segments",
    "read_identity",
    "read_records",
    "remove_journal",
    "remove_segments",
    "segment_path",
    "sync_directory",
]

_SUFFIX: Final = ".segment"
_LOCK_NAME: Final = "lock"
# A journal holds names of hosts, jobs and processes: for its owner only.
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_COPY_BYTES: Final = 1024 * 1024


def journal_path(store: Path) -> Path:
    """Return the directory of the journal that belongs to a store, whichever symbolic link names the store."""
    real = store.resolve()
    return real.with_name(real.name + ".journal")


def read_records(
    directory: Path, segment: int, offset_bytes: int, end_bytes: int | None = None
) -> Iterator[JournalRecord]:
    """Yield the whole records of one segment in order, also behind a damaged part, which is said and kept.

    Args:
        directory: The journal.
        segment: Number of the segment.
        offset_bytes: Where to begin; 0 for the first record.
        end_bytes: Where to stop; None for the end of the file.
    """
    path = segment_path(directory, segment)
    return read_segment(
        path, segment, offset_bytes, end_bytes, partial(report_damage, directory, path)
    )


def read_identity(directory: Path) -> JournalIdentity:
    """Return which store a journal is for and its own id; empty ids where no segment says so."""
    for segment in reversed(list_segments(directory)):
        identity = read_identity_of(segment_path(directory, segment))
        if identity is not None:
            return identity
    return NO_IDENTITY


def check_end(directory: Path, position: tuple[int, int]) -> None:
    """Say so when a journal that is stored up to `position` ends before what was acknowledged."""
    end = read_end(directory)
    if end is not None:
        report_short_end(directory, position, segment_path(directory, end[0]))


def choose_identity(directory: Path, store_id: str) -> JournalIdentity:
    """Return the identity for new segments: that of the journal that is there, or of a new one."""
    if list_segments(directory):
        return JournalIdentity(store_id, read_identity(directory).journal_id)
    return JournalIdentity(store_id, uuid.uuid4().hex)


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
    (directory / END_NAME).unlink(missing_ok=True)
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

    Args:
        directory: The journal.
        segment: A number that no segment of this journal had.
        identity: Which store and which journal it is of.

    Raises:
        OSError: From the constructor and `append`; after a failed append the file is as before it.
    """

    __slots__ = ("_descriptor", "_end", "_path", "end_bytes", "segment")

    def __init__(
        self, directory: Path, segment: int, identity: JournalIdentity = NO_IDENTITY
    ) -> None:
        self.segment = segment
        self._path = segment_path(directory, segment)
        self._end = EndFile(directory)
        try:
            self._descriptor = self._create()
        except OSError:
            self._end.close()
            raise
        try:
            self.end_bytes = 0
            self.append([encode_segment_header(identity)])
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
        self._end.write(self.segment, self.end_bytes)

    def is_in_place(self) -> bool:
        """Return whether the file still has its name: a journal may be removed or moved while it is written."""
        return _is_same_file(self._descriptor, self._path)

    def put_back(self) -> None:
        """Write what this file holds under its name again, in a folder that is there again.

        Raises:
            OSError: If the disk refuses; the file is as it was then.
        """
        directory = self._path.parent
        end = EndFile(directory)
        try:
            descriptor = self._create()
        except OSError:
            end.close()
            raise
        old = self._descriptor, self._end
        try:
            offset = 0
            while offset < self.end_bytes:
                data = os.pread(old[0], min(_COPY_BYTES, self.end_bytes - offset), offset)
                if not data:
                    break
                offset += os.write(descriptor, data)
            os.fdatasync(descriptor)
            sync_directory(directory)
        except OSError:
            os.close(descriptor)
            end.close()
            self._path.unlink(missing_ok=True)
            raise
        self._descriptor, self._end = descriptor, end
        self._end.write(self.segment, self.end_bytes)
        os.close(old[0])
        old[1].close()

    def _create(self) -> int:
        # For reading too: `put_back` copies from it.
        return os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE_MODE)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        os.lseek(self._descriptor, self.end_bytes, os.SEEK_SET)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
        self._end.close()

    def give_up(self) -> None:
        """Close the file after a failed append; without a record in it it goes: a full disk has no room for those."""
        is_ours = self.is_in_place()
        self.close()
        if is_ours and self.end_bytes <= SEGMENT_HEADER_BYTES:
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
                    directory.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                descriptor = os.open(
                    path, os.O_RDWR | (os.O_CREAT if directory.is_dir() else 0), _FILE_MODE
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

    def renew(self) -> bool:
        """Make the journal and its lock again after somebody removed them; return whether the lock is ours.

        Raises:
            StoreError: If they cannot be made.
        """
        if _is_same_file(self._descriptor, self.directory / _LOCK_NAME):
            return True
        lock = JournalLock.try_take(self.directory, create=True)
        if lock is None:
            return False
        self.release()
        self._descriptor = lock._descriptor
        return True

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
