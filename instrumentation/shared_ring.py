"""A rank's telemetry in shared memory: the training process writes, somebody else turns it into OTLP.

One file a rank in `/dev/shm`: a header with the rank's identity and what it is doing now, a table of strings, and a
ring of 64-byte records. Writing one costs about a microsecond, takes no lock and makes no system call. The reader is
the host agent, or a thread of the process itself when there is no agent; `flock` makes sure that it is one of them.
The cursor of what has been sent lives in the file too, so a new reader goes on where the last one was acknowledged.

Standard library only. Must not know: torch, OTLP.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

from rootwalk.instrumentation.clock import HostClock, read_host_clock
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.identity import Identity, own_start_ticks
from rootwalk.instrumentation.ring_layout import (
    CLOCK,
    CLOCK_OFFSET,
    CLOSED,
    CLOSED_OFFSET,
    CONSUMED_OFFSET,
    COUNTER,
    DROPPED_OFFSET,
    FILE_BYTES,
    GC_UNKNOWN,
    HEADER_BYTES,
    HEARTBEAT_OFFSET,
    IDENTITY_OFFSET,
    LAYOUT,
    LEVEL_OFFSET,
    LIVE,
    LIVE_OFFSET,
    MAGIC,
    NO_PHASE,
    PRODUCED_OFFSET,
    SLOT,
    SLOT_BYTES,
    SLOT_CAPACITY,
    SLOTS_OFFSET,
    START_TICKS_OFFSET,
    STRING_BYTES,
    STRING_CAPACITY,
    STRINGS_OFFSET,
    SUPERSEDED,
    LiveState,
    Record,
    RecordFlag,
    RecordKind,
    ring_directory,
)

__all__ = [
    "NO_PHASE",
    "LiveState",
    "Record",
    "RecordFlag",
    "RecordKind",
    "RingReader",
    "RingWriter",
    "ring_directory",
]

COLLECTIVE = int(RecordKind.COLLECTIVE)
# Words of the header that are read at each record: an index into a view costs less than unpacking.
PRODUCED, CONSUMED, LEVEL = PRODUCED_OFFSET // 8, CONSUMED_OFFSET // 8, LEVEL_OFFSET // 8
UNNAMED_KINDS = frozenset({RecordKind.STEP, RecordKind.GC})
KINDS = {kind.value: kind for kind in RecordKind}  # a look-up takes a fifth of a call of the enum


class RingWriter:
    """The training process's end. Every method is safe from any thread that holds the interpreter lock.

    Args:
        identity: Who is writing.
        directory: Folder for the file; made when missing, readable by its owner only.
        clock: Monotonic to Unix for all that this ring will ever hold; None reads it now.

    Raises:
        OSError: If the file cannot be made; the caller goes on without telemetry.
    """

    def __init__(
        self,
        identity: Identity,
        directory: Path | None = None,
        clock: HostClock | None = None,
    ) -> None:
        self.identity = identity
        folder = ring_directory() if directory is None else directory
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{identity.pid}-{time.monotonic_ns():x}.ring"
        draft = self.path.with_suffix(".new")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)  # else a full /dev/shm is a SIGBUS later
            self._map = mmap.mmap(descriptor, FILE_BYTES)
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(descriptor)
        encoded = json.dumps(asdict(identity)).encode()[: HEADER_BYTES - IDENTITY_OFFSET]
        LAYOUT.pack_into(
            self._map, 0, MAGIC, STRING_CAPACITY, SLOT_CAPACITY, SLOT_BYTES, len(encoded)
        )
        self._map[IDENTITY_OFFSET : IDENTITY_OFFSET + len(encoded)] = encoded
        COUNTER.pack_into(self._map, START_TICKS_OFFSET, own_start_ticks())
        clock = clock or read_host_clock()
        CLOCK.pack_into(self._map, CLOCK_OFFSET, clock.offset_ns, clock.error_ns)
        self._words = memoryview(self._map).cast("Q")
        draft.rename(self.path)  # a reader never sees a header that is half written
        self._numbers = count()
        self._strings: dict[str, int] = {}
        self._live_version = 0

    def intern(self, text: str) -> int:
        """Return the number of a string in the table, cut to 63 bytes; the last entry when the table is full."""
        known = self._strings.get(text)
        if known is not None:
            return known
        number = len(self._strings)
        if number >= STRING_CAPACITY:
            return STRING_CAPACITY - 1
        encoded = text.encode()[: STRING_BYTES - 1]
        offset = HEADER_BYTES + STRING_BYTES * number
        self._map[offset : offset + len(encoded)] = encoded
        COUNTER.pack_into(self._map, STRINGS_OFFSET, number + 1)
        self._strings[text] = number
        return number

    def write(
        self,
        kind: int,
        start_mono_ns: int,
        end_mono_ns: int,
        step: int,
        *,
        flags: int = 0,
        string: int = 0,
        index: int = NO_PHASE,
        sequence: int = 0,
        size_bytes: int = 0,
        communicator: int = 0,
        phase: int = 0,
        root: int | None = None,
        gc_ns: int | None = None,
    ) -> bool:
        """Append one record; return False when the ring was full and the record was dropped (and counted)."""
        place = index if root is None else index | root + 1 << 32
        key = sequence << 16 | phase << 8 | communicator
        # One word: bytes of a collective, collections of a step or phase.
        word = (GC_UNKNOWN if gc_ns is None else gc_ns) if kind <= RecordKind.PHASE else size_bytes
        return self._append(kind, flags, string, start_mono_ns, end_mono_ns, step, place, key, word)

    def write_collective(
        self,
        issued: tuple[int, int, int, int],
        end_mono_ns: int,
        flags: int,
        string: int,
        sequence: int,
        size_bytes: int,
        communicator: int,
        root: int | None,
    ) -> bool:
        """Append the record of one collective, as `write` does.

        Args:
            issued: When, ns; step; index and string of its phase.
            end_mono_ns: End, ns.
            flags: `RecordFlag` bits.
            string: Its operation.
            sequence: Its number in its communicator.
            size_bytes: Bytes that this rank contributes.
            communicator: String of its communicator.
            root: Global rank of its root, or of the other end; None for none.
        """
        start_mono_ns, step, index, phase = issued
        place = index if root is None else index | root + 1 << 32
        key = sequence << 16 | phase << 8 | communicator
        bounds = (start_mono_ns, end_mono_ns)
        return self._append(COLLECTIVE, flags, string, *bounds, step, place, key, size_bytes)

    def _append(self, *fields: int) -> bool:
        """Append everything of a record but its commit word."""
        words = self._words
        produced = words[PRODUCED]
        if produced - words[CONSUMED] >= SLOT_CAPACITY - 64:
            self.count_dropped(1)
            return False
        number = next(self._numbers)  # atomic under the interpreter lock
        offset = SLOTS_OFFSET + SLOT_BYTES * (number % SLOT_CAPACITY)
        SLOT.pack_into(self._map, offset, 0, *fields)
        words[offset >> 3] = number + 1
        if number >= produced:
            words[PRODUCED] = number + 1
        return True

    def count_dropped(self, count: int) -> None:
        """Count records that could not be kept."""
        dropped = COUNTER.unpack_from(self._map, DROPPED_OFFSET)[0]
        COUNTER.pack_into(self._map, DROPPED_OFFSET, dropped + count)

    @property
    def asked_level(self) -> int | None:
        """Detail that a reader asks for; None where none has."""
        word: int = self._words[LEVEL]
        return word - 1 if word else None

    def set_live(self, state: LiveState) -> None:
        """Publish what the rank is doing now."""
        version = self._live_version + 2
        COUNTER.pack_into(self._map, LIVE_OFFSET, version - 1)
        LIVE.pack_into(
            self._map,
            LIVE_OFFSET,
            version - 1,
            state.step,
            state.step_start_mono_ns,
            state.phase_index,
            state.phase_start_mono_ns,
            state.pending_end_mono_ns,
            state.last_event_mono_ns,
            GC_UNKNOWN if state.gc_ns is None else state.gc_ns,
        )
        COUNTER.pack_into(self._map, LIVE_OFFSET, version)
        self._live_version = version

    def close(self) -> None:
        """Say that no record will follow. The file stays until a reader has sent everything."""
        COUNTER.pack_into(self._map, CLOSED_OFFSET, CLOSED)

    def reader_age_ns(self) -> int | None:
        """Return how long ago a reader was last here, ns; None if none ever was."""
        heartbeat: int = COUNTER.unpack_from(self._map, HEARTBEAT_OFFSET)[0]
        return time.monotonic_ns() - heartbeat if heartbeat else None


class RingReader:
    """A reader's end of one rank's ring.

    Args:
        path: The ring's file.

    Raises:
        DecodeError: If the file is not a ring of this version.
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._descriptor, FILE_BYTES)
            self.identity = _decode_identity(self._map)
            self.clock = HostClock(*CLOCK.unpack_from(self._map, CLOCK_OFFSET))
        except (ValueError, TypeError) as error:
            os.close(self._descriptor)
            raise DecodeError(
                f'cannot read ring "{path}": saw {error}; needs a ring written by this version'
            ) from error
        self._strings: list[str] = []

    def close(self) -> None:
        """Release the file; a lock that is held is released too."""
        self._map.close()
        os.close(self._descriptor)

    def try_lock(self) -> bool:
        """Return whether this reader is now the only one; the kernel unlocks when it dies."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let another reader in."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def heartbeat(self) -> None:
        """Say that a reader is here, so that the process does not send by itself."""
        COUNTER.pack_into(self._map, HEARTBEAT_OFFSET, time.monotonic_ns())

    def ask_level(self, level: int | None) -> None:
        """Ask the rank for more or less detail, None for what it was started with; it looks once a step."""
        COUNTER.pack_into(self._map, LEVEL_OFFSET, 0 if level is None else level + 1)

    @property
    def closed(self) -> bool:
        """Whether the rank has said that no record will follow."""
        return bool(COUNTER.unpack_from(self._map, CLOSED_OFFSET)[0] == CLOSED)

    @property
    def is_superseded(self) -> bool:
        """Whether the rank's process has become another program by exec: no record will follow, though it runs."""
        return bool(COUNTER.unpack_from(self._map, CLOSED_OFFSET)[0] == SUPERSEDED)

    def supersede(self) -> None:
        """Say that the process has become another program; only that program may."""
        COUNTER.pack_into(self._map, CLOSED_OFFSET, SUPERSEDED)

    @property
    def was_read(self) -> bool:
        """Whether anybody has ever read this ring."""
        return bool(COUNTER.unpack_from(self._map, HEARTBEAT_OFFSET)[0])

    @property
    def start_ticks(self) -> int | None:
        """When the rank's process started, clock ticks since boot: tells it from a later one with its pid."""
        return COUNTER.unpack_from(self._map, START_TICKS_OFFSET)[0] or None

    @property
    def dropped(self) -> int:
        """Records that the rank dropped because the ring was full."""
        dropped: int = COUNTER.unpack_from(self._map, DROPPED_OFFSET)[0]
        return dropped

    def live_state(self) -> LiveState | None:
        """Return what the rank is doing now; None when nothing has happened or it was being written."""
        for _ in range(3):
            version, *state, gc_ns = LIVE.unpack_from(self._map, LIVE_OFFSET)
            again = COUNTER.unpack_from(self._map, LIVE_OFFSET)[0]
            if version == again and version % 2 == 0:
                return replace(LiveState(*state), gc_ns=_known(gc_ns)) if version else None
        return None

    def _string(self, number: int) -> str:
        if number >= len(self._strings):
            total = COUNTER.unpack_from(self._map, STRINGS_OFFSET)[0]
            for entry in range(len(self._strings), min(total, STRING_CAPACITY)):
                offset = HEADER_BYTES + STRING_BYTES * entry
                raw = self._map[offset : offset + STRING_BYTES].split(b"\0", 1)[0]
                self._strings.append(raw.decode(errors="replace"))
        return self._strings[number] if number < len(self._strings) else ""

    def read(self, max_records: int = 4096) -> list[Record]:
        """Return the next records after the cursor, in the order they were written, without moving the cursor."""
        consumed = COUNTER.unpack_from(self._map, CONSUMED_OFFSET)[0]
        records: list[Record] = []
        for number in range(consumed, consumed + max_records):
            fields = SLOT.unpack_from(
                self._map, SLOTS_OFFSET + SLOT_BYTES * (number % SLOT_CAPACITY)
            )
            if fields[0] != number + 1:
                break
            records.append(self._record(fields))
        return records

    def _record(self, fields: tuple[int, ...]) -> Record:
        _, kind, flags, string, start, end, step, place, key, word = fields
        index, root = place & NO_PHASE, place >> 32
        is_collective = kind == RecordKind.COLLECTIVE
        has_key = kind >= RecordKind.COLLECTIVE
        return Record(
            kind=KINDS[kind],
            flags=flags,
            name="" if kind in UNNAMED_KINDS else self._string(string),
            start_mono_ns=start,
            end_mono_ns=end,
            step=step,
            index=None if index == NO_PHASE else index,
            sequence=key >> 16 if has_key else 0,
            size_bytes=word if is_collective else 0,
            communicator=self._string(key & 0xFF) if is_collective else "",
            phase=self._string(key >> 8 & 0xFF) if has_key and index != NO_PHASE else "",
            root=root - 1 if root else None,
            gc_ns=None if has_key else _known(word),
        )

    def advance(self, count: int) -> None:
        """Move the cursor past records that have been acknowledged."""
        consumed = COUNTER.unpack_from(self._map, CONSUMED_OFFSET)[0]
        COUNTER.pack_into(self._map, CONSUMED_OFFSET, consumed + count)

    def final_records(self) -> list[Record]:
        """Return the steps that a rank which is gone did not write itself: a finished one, and the one it died in.

        Call it when the process is gone, not `closed`, and `read` returns nothing more.
        """
        state = None if self.closed else self.live_state()
        if state is None or state.step_start_mono_ns == 0:
            return []
        if state.pending_end_mono_ns:
            return [_step_record(state, state.pending_end_mono_ns, 0)]
        end = max(state.last_event_mono_ns, state.step_start_mono_ns)
        return [_step_record(state, end, RecordFlag.INCOMPLETE)]

    def unlink(self) -> None:
        """Remove the file; the rank is gone and everything was sent."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _decode_identity(memory: mmap.mmap) -> Identity:
    """Return the identity in a ring's header; raise ValueError or TypeError when it is not ours."""
    *layout, identity_bytes = LAYOUT.unpack_from(memory, 0)
    if layout != [MAGIC, STRING_CAPACITY, SLOT_CAPACITY, SLOT_BYTES]:
        raise ValueError(f"header {layout[0]!r}")
    return Identity(**json.loads(memory[IDENTITY_OFFSET : IDENTITY_OFFSET + identity_bytes]))


def _step_record(state: LiveState, end_mono_ns: int, flags: int) -> Record:
    start = state.step_start_mono_ns
    bounds = (start, end_mono_ns, state.step)
    return Record(RecordKind.STEP, flags, "", *bounds, None, 0, 0, "", "", gc_ns=state.gc_ns)


def _known(gc_ns: int) -> int | None:
    return None if gc_ns == GC_UNKNOWN else gc_ns
