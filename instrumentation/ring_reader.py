"""The reading end of a rank's ring: records in order, the cursor of what is acknowledged, who may move it.

Standard library only. Must not know: torch, OTLP.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.flight_file import take_flight
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.ring_exception import (
    SENT_OFFSET,
    RankException,
    decode_exception,
)
from rootwalk.instrumentation.ring_file import (
    MAX_NUMBER,
    RingFile,
    decode_ring_identity,
    is_communicator,
)
from rootwalk.instrumentation.ring_frontiers import Frontier, decode_frontiers
from rootwalk.instrumentation.ring_layout import (
    CLOCK,
    CLOCK_OFFSET,
    CLOSED,
    CLOSED_AT_OFFSET,
    CLOSED_OFFSET,
    COMPILING_OFFSET,
    CONSUMED_OFFSET,
    COUNTER,
    DROPPED_OFFSET,
    EXCEPTION_BYTES,
    EXCEPTION_OFFSET,
    FILE_BYTES,
    FRONTIER_BYTES,
    FRONTIER_CAPACITY,
    FRONTIER_COUNT_OFFSET,
    FRONTIERS_OFFSET,
    GC_UNKNOWN,
    HEADER_BYTES,
    HEARTBEAT_OFFSET,
    IDENTITY_OFFSET,
    LAYOUT,
    LEVEL_OFFSET,
    LIVE,
    LIVE_OFFSET,
    MAGIC,
    MOVED_OFFSET,
    MOVEMENT_OFFSETS,
    NO_PHASE,
    SLOT,
    SLOT_BYTES,
    SLOT_CAPACITY,
    SLOTS_OFFSET,
    STAGE_OFFSET,
    STAGE_SINCE_OFFSET,
    START_TICKS_OFFSET,
    STRING_BITS,
    STRING_BYTES,
    STRING_CAPACITY,
    STRINGS_OFFSET,
    SUPERSEDED,
    THREAD_OFFSET,
    TRACE_OFFSET,
    TRACE_STEPS_BITS,
    LiveState,
    Record,
    RecordFlag,
    RecordKind,
    unpack_duration,
)

__all__ = ["RingReader"]

UNNAMED_KINDS = frozenset(RecordKind) - {RecordKind.PHASE, RecordKind.COLLECTIVE}
READ_SLOTS = 64  # copied at once: a rank writes some hundreds a second
MAX_ROOT = 1 << 31
MAX_SAID_CHARS = 200
KINDS = {kind.value: kind for kind in RecordKind}  # a look-up takes a fifth of a call of the enum


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
        try:
            self._file = RingFile(path, FILE_BYTES)
        except ValueError as error:
            raise _not_a_ring(path, error) from error
        try:
            self.identity, self.clock = _decode_header(self._file)
        except ValueError as error:
            self._file.close()
            raise _not_a_ring(path, error) from error
        self._strings: list[str] = []

    @property
    def owner(self) -> int:
        """User id of the file's owner."""
        return self._file.owner

    @property
    def broken(self) -> str | None:
        """What was seen that no ring has; None for nothing. Nothing more is read of a broken ring."""
        return self._file.broken

    def close(self) -> None:
        """Release the file; a lock that is held is released too."""
        self._file.close()

    def try_lock(self) -> bool:
        """Return whether this reader is now the only one; the kernel unlocks when it dies."""
        try:
            fcntl.flock(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let another reader in."""
        fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)

    def heartbeat(self) -> None:
        """Say that a reader is here, so that the process does not send by itself."""
        self._file.pack(COUNTER, HEARTBEAT_OFFSET, time.monotonic_ns())

    def ask_level(self, level: int | None) -> None:
        """Ask the rank for more or less detail, None for what it was started with; it looks once a step."""
        self._file.pack(COUNTER, LEVEL_OFFSET, 0 if level is None else level + 1)

    def ask_trace(self, steps: int) -> None:
        """Ask the rank for a trace of its next steps, once; it looks once a step."""
        before: int = self._file.unpack(COUNTER, TRACE_OFFSET)[0]
        number = (before >> TRACE_STEPS_BITS) + 1
        self._file.pack(COUNTER, TRACE_OFFSET, number << TRACE_STEPS_BITS | steps)

    @property
    def closed(self) -> bool:
        """Whether the rank has said that no record will follow."""
        return bool(self._file.unpack(COUNTER, CLOSED_OFFSET)[0] == CLOSED)

    @property
    def closed_mono_ns(self) -> int | None:
        """When the rank has said that no record will follow, ns; None where it has not."""
        return (self._word(CLOSED_AT_OFFSET) or None) if self.closed else None

    @property
    def is_superseded(self) -> bool:
        """Whether the rank's process has become another program by exec: no record will follow, though it runs."""
        return bool(self._file.unpack(COUNTER, CLOSED_OFFSET)[0] == SUPERSEDED)

    def supersede(self) -> None:
        """Say that the process has become another program; only that program may."""
        self._file.pack(COUNTER, CLOSED_OFFSET, SUPERSEDED)

    @property
    def was_read(self) -> bool:
        """Whether anybody has ever read this ring."""
        return bool(self._file.unpack(COUNTER, HEARTBEAT_OFFSET)[0])

    @property
    def start_ticks(self) -> int | None:
        """When the rank's process started, clock ticks since boot: tells it from a later one with its pid."""
        return self._file.unpack(COUNTER, START_TICKS_OFFSET)[0] or None

    @property
    def dropped(self) -> int:
        """Records that the rank dropped because the ring was full."""
        dropped: int = self._file.unpack(COUNTER, DROPPED_OFFSET)[0]
        return dropped

    def live_state(self) -> LiveState | None:
        """Return what the rank is doing now; None when nothing has happened or it was being written."""
        for _ in range(3):
            version, *state, gc_ns = self._file.unpack(LIVE, LIVE_OFFSET)
            again = self._file.unpack(COUNTER, LIVE_OFFSET)[0]
            if version == again and version % 2 == 0:
                if not version:
                    return None
                if max(state) >= MAX_NUMBER:
                    self._file.reject("a state that cannot be")
                    return None
                index, string = state[2] & NO_PHASE, state[2] >> 32
                phase = "" if index == NO_PHASE else self._string(string)
                state[2] = index
                return replace(LiveState(*state), gc_ns=_known(gc_ns), phase=phase)
        return None

    def movement(self) -> tuple[int, ...]:
        """Return numbers of which one at least differs whenever the rank has begun or ended something."""
        return tuple(self._word(offset) for offset in MOVEMENT_OFFSETS)

    def moved_mono_ns(self) -> int:
        """Return when the rank last began or ended something, ns; 0 where it never has."""
        state = self.live_state()
        written = state.last_event_mono_ns if state is not None else 0
        offsets = (MOVED_OFFSET, COMPILING_OFFSET, STAGE_SINCE_OFFSET)
        return max(written, *(self._word(offset) for offset in offsets))

    def frontiers(self) -> list[Frontier]:
        """Return how far the rank has come in each communicator."""
        used = min(self._word(FRONTIER_COUNT_OFFSET), FRONTIER_CAPACITY)
        found = decode_frontiers(
            lambda: self._file.read(FRONTIERS_OFFSET, FRONTIER_BYTES * used), self._string
        )
        if found is None:
            self._file.reject("a frontier that cannot be")
        return found or []

    def exception(self) -> RankException | None:
        """Return the exception that ends the rank's program; None for none."""
        return decode_exception(self._file.read(EXCEPTION_OFFSET, EXCEPTION_BYTES))

    def mark_exception_sent(self) -> None:
        """Note that the exception is sent; only the reader with the lock may."""
        self._file.pack(COUNTER, SENT_OFFSET, 1)

    @property
    def stage(self) -> int:
        """How far the rank has come from its start, a `Stage`."""
        return self._word(STAGE_OFFSET)

    @property
    def is_compiling(self) -> bool:
        """Whether a compilation is open."""
        return self._word(COMPILING_OFFSET) > 0

    @property
    def training_thread(self) -> int | None:
        """The kernel's id of the thread that runs the phases; None where it is not known."""
        return self._word(THREAD_OFFSET) or None

    def _word(self, offset: int) -> int:
        word: int = self._file.unpack(COUNTER, offset)[0]
        return word

    def _string(self, number: int) -> str:
        if number >= len(self._strings):
            total = self._file.unpack(COUNTER, STRINGS_OFFSET)[0]
            for entry in range(len(self._strings), min(total, STRING_CAPACITY)):
                offset = HEADER_BYTES + STRING_BYTES * entry
                raw = self._file.read(offset, STRING_BYTES).split(b"\0", 1)[0]
                self._strings.append(raw.decode(errors="replace"))
        return self._strings[number] if number < len(self._strings) else ""

    def read(self, max_records: int = 4096) -> list[Record]:
        """Return the next records after the cursor, in the order they were written, without moving the cursor."""
        consumed: int = self._word(CONSUMED_OFFSET)
        records: list[Record] = []
        if self._file.broken is not None:
            return records
        try:
            for number, slot in self._slots(consumed, max_records):
                fields = SLOT.unpack_from(slot)
                if fields[0] != number + 1:
                    break
                records.append(self._record(fields))
        except ValueError as error:
            self._file.reject(str(error))
        return [] if self.broken is not None else records

    def _slots(self, first: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Yield the numbers and bytes of slots in order, copied some at a time."""
        number = first
        while number < first + count:
            place = number % SLOT_CAPACITY
            some = min(READ_SLOTS, first + count - number, SLOT_CAPACITY - place)
            data = self._file.read(SLOTS_OFFSET + SLOT_BYTES * place, SLOT_BYTES * some)
            for at in range(some):
                yield number + at, data[SLOT_BYTES * at : SLOT_BYTES * (at + 1)]
            number += some

    def _record(self, fields: tuple[int, ...]) -> Record:
        _, kind, flags, string, start, end, step, place, key, word = fields
        index, root = place & NO_PHASE, place >> 32
        is_collective = kind == RecordKind.COLLECTIVE
        is_step = kind == RecordKind.STEP
        has_key = kind >= RecordKind.COLLECTIVE
        communicator = self._string(key & 0xFF) if is_collective else ""
        is_size = not is_collective or word < MAX_NUMBER
        if kind not in KINDS or not is_communicator(communicator):
            raise ValueError("a record that cannot be")
        if max(start, end, step) >= MAX_NUMBER or root > MAX_ROOT or not is_size:
            raise ValueError("a record with numbers that cannot be")
        return Record(
            kind=KINDS[kind],
            flags=flags,
            name="" if kind in UNNAMED_KINDS else self._string(string & 0xFF),
            start_mono_ns=start,
            end_mono_ns=end,
            step=step,
            index=None if index == NO_PHASE else index,
            sequence=key >> 16 if has_key else 0,
            size_bytes=word if is_collective else 0,
            communicator=communicator,
            phase=self._string(key >> 8 & 0xFF) if has_key and index != NO_PHASE else "",
            root=root - 1 if root else None,
            gc_ns=None if has_key else _known(word),
            device_ns=unpack_duration(string >> STRING_BITS),
            probe_ns=key if is_step and key else None,
        )

    def advance(self, count: int) -> None:
        """Move the cursor past records that have been acknowledged."""
        self._file.pack(COUNTER, CONSUMED_OFFSET, (self._word(CONSUMED_OFFSET) + count) % (1 << 64))

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
        self.take_flight()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def take_flight(self) -> str | None:
        """Return the Flight Recorder dump that the rank has left beside its ring, once; None without one."""
        return take_flight(self.path, self.owner)


def _decode_header(file: RingFile) -> tuple[Identity, HostClock]:
    """Return who writes a ring, and its clock; raise ValueError when it is not ours."""
    *layout, identity_bytes = file.unpack(LAYOUT, 0)
    if layout != [MAGIC, STRING_CAPACITY, SLOT_CAPACITY, SLOT_BYTES]:
        raise ValueError(f"header {layout[0]!r}")
    if identity_bytes > HEADER_BYTES - IDENTITY_OFFSET:
        raise ValueError(f"an identity of {identity_bytes} bytes")
    clock = HostClock(*file.unpack(CLOCK, CLOCK_OFFSET))
    if abs(clock.offset_ns) >= MAX_NUMBER or clock.error_ns >= MAX_NUMBER:
        raise ValueError("a clock of another age")
    return decode_ring_identity(file.read(IDENTITY_OFFSET, identity_bytes)), clock


def _not_a_ring(path: Path, error: ValueError) -> DecodeError:
    saw = str(error)[:MAX_SAID_CHARS]
    return DecodeError(
        f'cannot read ring "{path}": saw {saw}; needs a ring written by this version'
    )


def _step_record(state: LiveState, end_mono_ns: int, flags: int) -> Record:
    start = state.step_start_mono_ns
    bounds = (start, end_mono_ns, state.step)
    return Record(RecordKind.STEP, flags, "", *bounds, None, 0, 0, "", "", gc_ns=state.gc_ns)


def _known(gc_ns: int) -> int | None:
    return None if gc_ns == GC_UNKNOWN else gc_ns
