"""Layout of a rank's ring in shared memory, and what its records say. Standard library only.

    header (4 KiB) | string table (256 x 64 B) | slots (16,384 x 64 B) | frontiers (128 x 320 B) | exception (4 KiB)

A record is valid when its commit word is its own number + 1; a full ring drops the new record and counts it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "NO_PHASE",
    "LiveState",
    "Record",
    "RecordFlag",
    "RecordKind",
    "Stage",
    "is_directory_chosen",
    "pack_duration",
    "ring_directory",
    "unpack_duration",
]

MAGIC = b"RWRING3\0"
HEADER_BYTES = 4096
STRING_BYTES = 64
STRING_CAPACITY = 256
SLOT_BYTES = 64
# 16,384 records are 300 steps of 50 records: a reader may be away for a minute at 5 steps a second.
SLOT_CAPACITY = 16_384
SLOTS_OFFSET = HEADER_BYTES + STRING_BYTES * STRING_CAPACITY
FRONTIERS_OFFSET = SLOTS_OFFSET + SLOT_BYTES * SLOT_CAPACITY
# Two for each communicator with point-to-point operations: a large job's rank is in some 10 to 20 communicators.
FRONTIER_CAPACITY = 128
# Turn; then string of the communicator, whether it is point-to-point, string of the operation and count of members;
# last sequence that was called; last up to which all have ended; its bytes; its root + 1; when the oldest that has not
# ended was called (0: none); turn again.
FRONTIER = struct.Struct("<QHHHHQQQQQQ")
FRONTIER_BYTES = 320
MAX_MEMBERS = 64
MEMBERS_OFFSET = 64  # in a frontier; 4 bytes a member
# When, ns (0: none); bytes of its JSON; whether a reader has sent it. Its JSON follows.
EXCEPTION = struct.Struct("<QQQ")
EXCEPTION_OFFSET = FRONTIERS_OFFSET + FRONTIER_BYTES * FRONTIER_CAPACITY
EXCEPTION_BYTES = 4096
FILE_BYTES = EXCEPTION_OFFSET + EXCEPTION_BYTES

LAYOUT = struct.Struct(
    "<8sIIII"
)  # magic, string capacity, slot capacity, slot bytes, identity bytes
COUNTER = struct.Struct("<Q")
PRODUCED_OFFSET = 24
CONSUMED_OFFSET = 32
DROPPED_OFFSET = 40
HEARTBEAT_OFFSET = 48
CLOSED_OFFSET = 56
STRINGS_OFFSET = 64
# version (odd while writing), step, step start, phase index and the phase's string << 32, phase start, pending end
# (0: none), last event, gc time
LIVE = struct.Struct("<QQQQQQQQ")
LIVE_OFFSET = 72
START_TICKS_OFFSET = 136
CLOCK = struct.Struct(
    "<qQ"
)  # Unix minus monotonic time, ns; half of the bracket in which it was read, ns
CLOCK_OFFSET = 144
LEVEL_OFFSET = 160  # what a reader asks for, plus 1; 0 where none has asked
# Steps that a reader asks to be traced, below a number that is another with each request; 0 where nobody has asked.
TRACE_OFFSET = 168
TRACE_STEPS_BITS = 16
MAX_TRACE_STEPS = 50
STAGE_OFFSET = 176
COMPILING_OFFSET = 184  # when the compilation that is open began, ns; 0 for none
THREAD_OFFSET = 192  # the kernel's id of the thread that runs the phases; 0 where not known
MOVES_OFFSET = 200  # another number with each call and each end of a collective
MOVED_OFFSET = 208  # when that last happened, ns; 0 where it never has
FRONTIER_COUNT_OFFSET = 216  # entries of the table that are in use
CLOSED_AT_OFFSET = 232  # when the rank said that no record will follow, ns
STAGE_SINCE_OFFSET = 224  # when the rank came to its stage, ns; 0 for its first
IDENTITY_OFFSET = 256

# commit, kind, flags, string, t0, t1, step, a, b, c
SLOT = struct.Struct("<QHHIQQQQQQ")
NO_PHASE = 0xFFFFFFFF
GC_UNKNOWN = 2**64 - 1
# What the closed word says: no record will follow, because the rank ended, or because its process became another
# program by exec.
CLOSED, SUPERSEDED = 1, 2


# A time on a device shares its word with the number of a string: 20 bits, times 4 to the power of 4 bits.
STRING_BITS, DURATION_BITS = 8, 20


def pack_duration(duration_ns: int | None) -> int:
    """Return a duration in 24 bits, exact to 4 millionths; 0 for one that is not known.

    >>> unpack_duration(pack_duration(41_200_000))
    41200000
    """
    if duration_ns is None:
        return 0
    rest, exponent = max(duration_ns, 1), 0
    while rest >> DURATION_BITS:
        rest, exponent = rest >> 2, exponent + 1
    return exponent << DURATION_BITS | rest


def unpack_duration(packed: int) -> int | None:
    """Return what `pack_duration` has packed, ns."""
    exponent, rest = packed >> DURATION_BITS, packed & (1 << DURATION_BITS) - 1
    return rest << 2 * exponent if packed else None


class RecordKind(IntEnum):
    """What a record tells."""

    STEP = 1
    PHASE = 2
    COLLECTIVE = 3
    GC = 4
    COMPILATION = 5
    RETRIES = 6


class RecordFlag(IntEnum):
    """Bits of a record's flags."""

    INCOMPLETE = 1  # STEP: the rank ended before its optimiser update
    POINT_TO_POINT = 2  # COLLECTIVE: a send or a receive
    END_UNKNOWN = 4  # COLLECTIVE: the backend does not tell the host when it completed
    DERIVED = 8  # PHASE: seen from its neighbours, not from a call
    OTHER_THREAD = 16  # GC, COMPILATION: not on the main thread


class Stage(IntEnum):
    """How far a rank has come from its start."""

    STARTED = 1
    RENDEZVOUS = 2  # in init_process_group
    INITIALISED = 3
    TRAINING = 4  # it has begun a step


# A tuple, not a dataclass: an agent reads hundreds a second and rank, and a frozen dataclass costs four times as much.
class Record(NamedTuple):
    """One thing that a rank did.

    Attributes:
        kind: What it is.
        flags: `RecordFlag` bits.
        name: Phase, or operation of the collective; empty for a step and a collection.
        start_mono_ns: Begin on the host's monotonic clock, ns.
        end_mono_ns: End, ns.
        step: Step number.
        index: Phase: its index in the step. Collective: index of the phase it was issued in, or None. Garbage
            collection, compilation: index of the phase it began in, or None.
        sequence: Collective: its number in its communicator, from 1. Garbage collection: its generation. Retries: how
            many the allocator of device memory made. Else 0.
        size_bytes: Collective: bytes this rank contributes. Else 0.
        communicator: Collective: `id|size|backend|name`. Else empty.
        phase: Collective, garbage collection, compilation: name of the phase of `index`. Else empty.
        root: Collective: global rank that a rooted operation sends from or to, or the other rank of a
            point-to-point operation. Else None.
        gc_ns: Step, phase: CPU time of garbage collections on the main thread, ns; None where they were not seen.
        device_ns: Phase: between its begin and its end in the device's stream, ns. Collective: on the device, waiting
            included. None where not known.
        probe_ns: Step: CPU time of a fixed piece of work at its end, ns; None where it was not done.
    """

    kind: RecordKind
    flags: int
    name: str
    start_mono_ns: int
    end_mono_ns: int
    step: int
    index: int | None  # type: ignore[assignment]  # nobody calls that method of tuples
    sequence: int
    size_bytes: int
    communicator: str
    phase: str
    root: int | None = None
    gc_ns: int | None = None
    device_ns: int | None = None
    probe_ns: int | None = None


@dataclass(frozen=True, slots=True)
class LiveState:
    """What a rank is doing now.

    Attributes:
        step: Number of the open step.
        step_start_mono_ns: Its begin; 0 before the first event.
        phase_index: Index of the open phase, or `NO_PHASE`.
        phase_start_mono_ns: Its begin, or 0.
        pending_end_mono_ns: End of the optimiser update when the step is done but not yet written, else 0.
        last_event_mono_ns: When the rank last told anything.
        gc_ns: CPU time of garbage collections on the main thread in the step up to then, ns; None if not known.
        phase: Name of the open phase; empty between phases.
    """

    step: int
    step_start_mono_ns: int
    phase_index: int
    phase_start_mono_ns: int
    pending_end_mono_ns: int
    last_event_mono_ns: int
    gc_ns: int | None = None
    phase: str = ""


def is_directory_chosen() -> bool:
    """Return whether the environment names the folder of rings."""
    return bool(os.environ.get("ROOTWALK_RING_DIRECTORY"))


def ring_directory() -> Path:
    """Return the folder of this user's rings; an agent with root reads `/dev/shm/rootwalk-*` of all users.

    ROOTWALK_RING_DIRECTORY overrides it, for containers that share another folder with the host.
    """
    override = os.environ.get("ROOTWALK_RING_DIRECTORY")
    if override:
        return Path(override)
    root = Path("/dev/shm")  # noqa: S108  (shared memory, not a temporary file)
    return (root if root.is_dir() else Path("/tmp")) / f"rootwalk-{os.getuid()}"  # noqa: S108
