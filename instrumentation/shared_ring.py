"""A rank's telemetry in shared memory: the training process writes, somebody else turns it into OTLP.

One file a rank in `/dev/shm`: a header with the rank's identity and what it is doing now, a table of strings, and a
ring of 64-byte records. Writing one costs about a microsecond, takes no lock and makes no system call. The reader is
the host agent, or a thread of the process itself when there is no agent; `flock` makes sure that it is one of them.
The cursor of what has been sent lives in the file too, so a new reader goes on where the last one was acknowledged.

Standard library only. Must not know: torch, OTLP.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from dataclasses import asdict
from itertools import count
from pathlib import Path

from rootwalk.instrumentation.clock import HostClock, read_host_clock
from rootwalk.instrumentation.identity import Identity, own_start_ticks
from rootwalk.instrumentation.own_folder import make_own_folder
from rootwalk.instrumentation.ring_exception import RankException, write_exception
from rootwalk.instrumentation.ring_frontiers import Frontier, FrontierTable
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
    MAX_TRACE_STEPS,
    NO_PHASE,
    PRODUCED_OFFSET,
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
    THREAD_OFFSET,
    TRACE_OFFSET,
    LiveState,
    Record,
    RecordFlag,
    RecordKind,
    Stage,
    is_directory_chosen,
    pack_duration,
    ring_directory,
)
from rootwalk.instrumentation.ring_reader import RingReader

__all__ = [
    "MAX_TRACE_STEPS",
    "NO_PHASE",
    "Frontier",
    "LiveState",
    "RankException",
    "Record",
    "RecordFlag",
    "RecordKind",
    "RingReader",
    "RingWriter",
    "Stage",
    "is_directory_chosen",
    "ring_directory",
]

COLLECTIVE = int(RecordKind.COLLECTIVE)
# Words of the header that are read at each record: an index into a view costs less than unpacking.
PRODUCED, CONSUMED, LEVEL = PRODUCED_OFFSET // 8, CONSUMED_OFFSET // 8, LEVEL_OFFSET // 8
TRACE = TRACE_OFFSET // 8
STAGE, STAGE_SINCE = STAGE_OFFSET // 8, STAGE_SINCE_OFFSET // 8
COMPILING, THREAD = COMPILING_OFFSET // 8, THREAD_OFFSET // 8
PHASE_BITS = 32


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
        make_own_folder(folder, is_chosen=directory is not None or is_directory_chosen())
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
        self.frontiers = FrontierTable(self._map)
        self.set_stage(Stage.STARTED)

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
        device_ns: int | None = None,
        probe_ns: int | None = None,
    ) -> bool:
        """Append one record; return False when the ring was full and the record was dropped (and counted)."""
        place = index if root is None else index | root + 1 << 32
        # Nothing of the others is told of a step.
        key = sequence << 16 | phase << 8 | communicator if probe_ns is None else probe_ns
        # One word: bytes of a collective, collections of a step or phase.
        word = (GC_UNKNOWN if gc_ns is None else gc_ns) if kind <= RecordKind.PHASE else size_bytes
        if device_ns is not None:
            string |= pack_duration(device_ns) << STRING_BITS
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
        device_ns: int | None = None,
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
            device_ns: Its time on the device, ns; None where not known.
        """
        start_mono_ns, step, index, phase = issued
        place = index if root is None else index | root + 1 << 32
        key = sequence << 16 | phase << 8 | communicator
        bounds = (start_mono_ns, end_mono_ns)
        if device_ns is not None:
            string |= pack_duration(device_ns) << STRING_BITS
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

    @property
    def asked_trace(self) -> int:
        """The last request for a trace: its number above `TRACE_STEPS_BITS` of steps; 0 where nobody has asked."""
        word: int = self._words[TRACE]
        return word

    def set_stage(self, stage: int, since_mono_ns: int = 0) -> None:
        """Publish how far the rank has come, and since when, ns; 0 where it began with that."""
        self._words[STAGE_SINCE] = since_mono_ns
        self._words[STAGE] = stage

    def set_compiling(self, since_mono_ns: int) -> None:
        """Publish since when a compilation is open, ns; 0 for none."""
        self._words[COMPILING] = since_mono_ns

    def set_thread(self, thread_id: int) -> None:
        """Publish the kernel's id of the thread that runs the phases."""
        self._words[THREAD] = thread_id

    def set_exception(self, mono_ns: int, kind: str, frames: list[str]) -> None:
        """Publish by which exception the program ends; only the first counts."""
        write_exception(self._map, mono_ns, kind, frames)

    def set_live(self, state: LiveState, phase: int = 0) -> None:
        """Publish what the rank is doing now; `phase` is the string of the open phase's name."""
        version = self._live_version + 2
        COUNTER.pack_into(self._map, LIVE_OFFSET, version - 1)
        LIVE.pack_into(
            self._map,
            LIVE_OFFSET,
            version - 1,
            state.step,
            state.step_start_mono_ns,
            state.phase_index | phase << PHASE_BITS,
            state.phase_start_mono_ns,
            state.pending_end_mono_ns,
            state.last_event_mono_ns,
            GC_UNKNOWN if state.gc_ns is None else state.gc_ns,
        )
        COUNTER.pack_into(self._map, LIVE_OFFSET, version)
        self._live_version = version

    def close(self) -> None:
        """Say that no record will follow. The file stays until a reader has sent everything."""
        COUNTER.pack_into(self._map, CLOSED_AT_OFFSET, time.monotonic_ns())
        COUNTER.pack_into(self._map, CLOSED_OFFSET, CLOSED)

    def reader_age_ns(self) -> int | None:
        """Return how long ago a reader was last here, ns; None if none ever was."""
        heartbeat: int = COUNTER.unpack_from(self._map, HEARTBEAT_OFFSET)[0]
        return time.monotonic_ns() - heartbeat if heartbeat else None
