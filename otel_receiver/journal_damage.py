"""What is done about a damaged journal: say so once, and keep the damaged file beside the store.

The file is kept as a second name of the segment (a hard link, or a copy where the file system has none), made before
anything removes the segment. A write that was interrupted leaves a record that ends with the file and that nobody was
promised; the file ``end`` says up to where senders had their answer, which tells this from a file that was cut later.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.segment_format import DamagedRange

__all__ = ["END_NAME", "EndFile", "damaged_path", "read_end", "report_damage", "report_short_end"]

logger = logging.getLogger(__name__)

END_NAME: Final = "end"
_END: Final = struct.Struct("<QQ")
_CHECKSUM: Final = struct.Struct("<I")
# Of one segment: more ranges than that are one fault of the disk, and one sentence less each.
MAX_SENTENCES: Final = 10
# What was said, (file, its inode, first byte); forgotten when there are so many.
MAX_SAID: Final = 10_000
_said: set[tuple[str, int, int]] = set()


class EndFile:
    """Up to where the journal was acknowledged, written after each commit and not synchronised.

    After the death of the process it is exact. After a power cut it may be older than the truth, or damaged and then
    says nothing.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, directory: Path) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW
        self._descriptor = os.open(directory / END_NAME, flags, 0o600)

    def write(self, segment: int, end_bytes: int) -> None:
        """Record the end of what was acknowledged.

        Raises:
            OSError: If the disk refuses.
        """
        fields = _END.pack(segment, end_bytes)
        os.pwrite(self._descriptor, fields + _CHECKSUM.pack(zlib.crc32(fields)), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_end(directory: Path) -> tuple[int, int] | None:
    """Return (segment, end_bytes) up to where a journal was acknowledged; None when that is not known."""
    try:
        data = (directory / END_NAME).read_bytes()
    except OSError:
        return None
    fields, checksum = data[: _END.size], data[_END.size :]
    if len(fields) < _END.size or checksum != _CHECKSUM.pack(zlib.crc32(fields)):
        return None
    segment, end_bytes = _END.unpack(fields)
    return segment, end_bytes


def damaged_path(directory: Path, segment: int, number: int = 0) -> Path:
    """Return under which name a damaged segment is kept: beside the store, since the journal goes at a clean stop."""
    suffix = f".{number}" if number else ""
    return directory.with_name(f"{directory.name}-{segment:012d}.damaged{suffix}")


def report_damage(directory: Path, path: Path, damage: DamagedRange) -> None:
    """Say that a part of a segment is damaged, once, and keep the segment.

    Args:
        directory: The journal.
        path: The segment's file.
        damage: What cannot be read.
    """
    end = read_end(directory)
    if damage.is_cut and (end is None or end[0] != damage.segment or damage.start_bytes >= end[1]):
        return  # an interrupted write: its sender was not answered
    try:
        status = path.stat()
    except OSError:
        return
    key = (str(path), status.st_ino, damage.start_bytes)
    if key in _said:
        return
    if len(_said) >= MAX_SAID:
        _said.clear()
    said = sum(1 for name, inode, _ in _said if (name, inode) == key[:2])
    _said.add(key)
    if said >= MAX_SENTENCES:
        return
    logger.warning(
        'the journal segment "%s" is damaged: bytes %d to %d are no whole record, and what was acknowledged there is '
        "lost; the records before and after are read, and the file is kept as %s",
        path,
        damage.start_bytes,
        damage.end_bytes,
        _keep(directory, path, damage.segment, status),
    )


def report_short_end(directory: Path, position: tuple[int, int], path: Path) -> None:
    """Say so when a journal ends before what was acknowledged: it was cut at a record's end, or a segment was removed.

    Args:
        directory: The journal.
        position: (segment, end_bytes) up to where it is stored.
        path: The segment's file in which the acknowledged part ends.
    """
    end = read_end(directory)
    if end is None or end <= position:
        return
    try:
        size_bytes = path.stat().st_size
    except OSError:
        size_bytes = 0
    if size_bytes < end[1]:
        logger.warning(
            'the journal "%s" ends before its last acknowledged record: "%s" has %d bytes of %d; what was in the rest '
            "is lost",
            directory,
            path.name,
            size_bytes,
            end[1],
        )


def _keep(directory: Path, path: Path, segment: int, status: os.stat_result) -> str:
    """Give the segment a second name, and return how to speak of it."""
    number = 0
    while True:
        kept = damaged_path(directory, segment, number)
        try:
            os.link(path, kept)
        except FileExistsError:
            if not (kept.is_file() and os.path.samestat(kept.stat(), status)):
                number += 1
                continue
        except OSError:
            break
        return f'"{kept}"'
    try:
        shutil.copyfile(path, kept)
        kept.chmod(0o600)
    except OSError as error:
        return f'itself only ("{kept}" cannot be written: {(error.strerror or str(error)).lower()})'
    return f'"{kept}"'
