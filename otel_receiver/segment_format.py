"""The bytes of one journal segment, and reading them when some of them are damaged.

A segment, little endian:

    magic 8 | store id 16 | journal id 16 | crc32 of these u32
    then records: marker 8 | length u32 | signal u8 | received_unix_ns u64 | crc32 of the body u32
                  | crc32 of all fields before u32 | body (length bytes)

A record's head has a checksum of its own, so that a damaged body costs this one record: the next one is found by the
length. Where the head is damaged, the next record is searched for by its marker. Segments of version 1 (magic
``RWJRNL01``) have neither ids nor markers; what follows damage in them cannot be found again.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rootwalk.otel_receiver.signals import Signal

__all__ = [
    "NO_IDENTITY",
    "SEGMENT_HEADER_BYTES",
    "DamagedRange",
    "JournalIdentity",
    "JournalRecord",
    "encode_record",
    "encode_segment_header",
    "encoded_bytes",
    "read_identity_of",
    "read_segment",
]

SEGMENT_MAGIC: Final = b"RWJRNL02"
_MAGIC_1: Final = b"RWJRNL01"
_SEGMENT_HEADER: Final = struct.Struct("<8s16s16sI")
SEGMENT_HEADER_BYTES: Final = _SEGMENT_HEADER.size
_ID_BYTES: Final = 16

# Eight bytes that are no UTF-8 text and no frequent protobuf field, so that a search seldom stops in vain.
_MARKER: Final = b"\xf5RWrec\xc0\xff"
_HEAD: Final = struct.Struct("<8sIBQI")
_CHECKSUM: Final = struct.Struct("<I")
_HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size

# Version 1: length, crc32 of all that follows it, signal, received_unix_ns.
_HEAD_1: Final = struct.Struct("<IIBQ")
_CRC_OFFSET_1_BYTES: Final = 8

# The search for the next marker reads so much at once.
_SEARCH_BYTES: Final = 1024 * 1024

_SIGNAL_CODES: Final = {Signal.TRACES: 1, Signal.METRICS: 2, Signal.LOGS: 3, Signal.PROFILES: 4}
_SIGNALS: Final = {code: signal for signal, code in _SIGNAL_CODES.items()}


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """Which store a segment is for, and in which journal it was written.

    Attributes:
        store_id: 32 hexadecimal digits; empty when not known (a segment of version 1, or a damaged header).
        journal_id: The same for the journal; segment numbers are unique within one journal.
    """

    store_id: str = ""
    journal_id: str = ""


NO_IDENTITY: Final = JournalIdentity()


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


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes of a segment that are no whole record.

    Attributes:
        segment: Number of the segment file.
        start_bytes: Offset of the first of them.
        end_bytes: Offset of the first byte after them.
        is_cut: Whether the file ends inside a record: what an interrupted write leaves.
    """

    segment: int
    start_bytes: int
    end_bytes: int
    is_cut: bool


def encode_segment_header(identity: JournalIdentity) -> bytes:
    """Return the bytes that a segment begins with."""
    ids = [bytes.fromhex(i) or bytes(_ID_BYTES) for i in (identity.store_id, identity.journal_id)]
    fields = SEGMENT_MAGIC + ids[0] + ids[1]
    return fields + _CHECKSUM.pack(zlib.crc32(fields))


def encode_record(signal: Signal, received_unix_ns: int, body: bytes | bytearray) -> bytes:
    """Return the bytes of one record."""
    head = _HEAD.pack(_MARKER, len(body), _SIGNAL_CODES[signal], received_unix_ns, zlib.crc32(body))
    return b"".join((head, _CHECKSUM.pack(zlib.crc32(head)), body))


def encoded_bytes(record: JournalRecord) -> int:
    """Return what a record takes in its segment."""
    return _HEAD_BYTES + len(record.body)


def read_identity_of(path: Path) -> JournalIdentity | None:
    """Return what a segment says of itself; None when its header is damaged or has no ids."""
    try:
        with path.open("rb") as file:
            header = file.read(SEGMENT_HEADER_BYTES)
    except OSError:
        return None
    if not _is_header(header):
        return None
    _, store_id, journal_id, _ = _SEGMENT_HEADER.unpack(header)
    return JournalIdentity(*(i.hex() if any(i) else "" for i in (store_id, journal_id)))


def read_segment(
    path: Path,
    segment: int,
    offset_bytes: int,
    end_bytes: int | None,
    on_damage: Callable[[DamagedRange], None],
) -> Iterator[JournalRecord]:
    """Yield the whole records of a segment in order, whatever is between them.

    Args:
        path: The file.
        segment: Its number.
        offset_bytes: Where to begin; 0 for the first record.
        end_bytes: Where to stop; None for the end of the file as it is now.
        on_damage: Called with each range that holds no whole record.

    Raises:
        OSError: If the file cannot be read.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        stop_bytes = size_bytes if end_bytes is None else min(end_bytes, size_bytes)
        header = file.read(SEGMENT_HEADER_BYTES)
        if header.startswith(_MAGIC_1):
            yield from _read_version_1(file, segment, offset_bytes, stop_bytes, on_damage)
            return
        if not _is_header(header):
            is_cut = size_bytes < SEGMENT_HEADER_BYTES and SEGMENT_MAGIC.startswith(header[:8])
            on_damage(DamagedRange(segment, 0, min(size_bytes, SEGMENT_HEADER_BYTES), is_cut))
        position = max(offset_bytes, SEGMENT_HEADER_BYTES)
        while position < stop_bytes:
            record = _read_record(file, segment, position)
            if record is not None:
                position = record.end_bytes
                yield record
                continue
            next_bytes, is_cut = _find_next(file, position, size_bytes)
            on_damage(DamagedRange(segment, position, next_bytes, is_cut))
            position = next_bytes


def _is_header(header: bytes) -> bool:
    if len(header) < SEGMENT_HEADER_BYTES or not header.startswith(SEGMENT_MAGIC):
        return False
    fields = header[: -_CHECKSUM.size]
    return _CHECKSUM.pack(zlib.crc32(fields)) == header[-_CHECKSUM.size :]


def _read_head(file: BinaryIO, position: int) -> tuple[int, int, int, int] | None:
    """Return length, signal, time and the body's checksum of a record; None where there is no whole head."""
    file.seek(position)
    data = file.read(_HEAD_BYTES)
    if len(data) < _HEAD_BYTES or not data.startswith(_MARKER):
        return None
    head, checksum = data[: _HEAD.size], data[_HEAD.size :]
    _, length_bytes, code, received_unix_ns, crc = _HEAD.unpack(head)
    if _CHECKSUM.pack(zlib.crc32(head)) != checksum or code not in _SIGNALS:
        return None
    return length_bytes, code, received_unix_ns, crc


def _read_record(file: BinaryIO, segment: int, position: int) -> JournalRecord | None:
    head = _read_head(file, position)
    if head is None:
        return None
    length_bytes, code, received_unix_ns, crc = head
    body = file.read(length_bytes)
    if len(body) != length_bytes or zlib.crc32(body) != crc:
        return None
    end_bytes = position + _HEAD_BYTES + length_bytes
    return JournalRecord(_SIGNALS[code], received_unix_ns, body, segment, end_bytes)


def _find_next(file: BinaryIO, position: int, size_bytes: int) -> tuple[int, bool]:
    """Return where the next record may begin after a damaged one, and whether the file ends inside this one."""
    head = _read_head(file, position)
    if head is not None:
        after = position + _HEAD_BYTES + head[0]
        if after == size_bytes or _read_head(file, after) is not None:
            return after, False
        found = _search(file, position + 1, size_bytes)
        return found, found == size_bytes < after
    found = _search(file, position + 1, size_bytes)
    if found < size_bytes or size_bytes - position >= _HEAD_BYTES:
        return found, False
    file.seek(position)
    return found, _MARKER.startswith(file.read(len(_MARKER)))


def _search(file: BinaryIO, start: int, size_bytes: int) -> int:
    """Return the offset of the next whole head from `start` on, or the end of the file."""
    position = start
    while position < size_bytes:
        file.seek(position)
        data = file.read(_SEARCH_BYTES)
        at = data.find(_MARKER)
        while at >= 0:
            if _read_head(file, position + at) is not None:
                return position + at
            at = data.find(_MARKER, at + 1)
        if len(data) < _SEARCH_BYTES:
            break
        position += len(data) - len(_MARKER) + 1
    return size_bytes


def _read_version_1(
    file: BinaryIO,
    segment: int,
    offset_bytes: int,
    stop_bytes: int,
    on_damage: Callable[[DamagedRange], None],
) -> Iterator[JournalRecord]:
    position = max(offset_bytes, len(_MAGIC_1))
    file.seek(position)
    while position < stop_bytes:
        head = file.read(_HEAD_1.size)
        length_bytes, code, received_unix_ns, body, is_whole = 0, 0, 0, b"", False
        if len(head) == _HEAD_1.size:
            length_bytes, crc, code, received_unix_ns = _HEAD_1.unpack(head)
            body = file.read(length_bytes)
            is_whole = (
                code in _SIGNALS
                and len(body) == length_bytes
                and zlib.crc32(body, zlib.crc32(head[_CRC_OFFSET_1_BYTES:])) == crc
            )
        if not is_whole:
            is_cut = len(head) < _HEAD_1.size or len(body) < length_bytes
            on_damage(DamagedRange(segment, position, stop_bytes, is_cut))
            return
        position += _HEAD_1.size + length_bytes
        yield JournalRecord(_SIGNALS[code], received_unix_ns, body, segment, position)
