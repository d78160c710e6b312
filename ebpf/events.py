"""What the scheduler program tells user space, decoded.

Mirrors `programs/sched.h`: its static asserts and the size tests here hold the two together. Every reader of scheduler
time (BPF, /proc) gives these types. Times are ns of CLOCK_MONOTONIC. Pure: bytes in, tuples out.

Source: `programs/sched.h`; ring buffer record header in kernel/bpf/ringbuf.c (8 bytes: length with two flag bits,
page offset), unchanged since 5.8.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import NamedTuple

from rootwalk.ebpf.ring_buffer import find_records

__all__ = [
    "EXIT_EVENT",
    "RUNNER",
    "SCHED_EVENT",
    "SCHED_EVENT_BYTES",
    "THREAD_RECORD",
    "WAIT",
    "Counter",
    "EventFlag",
    "Runner",
    "RunnerKind",
    "SampledInterval",
    "SchedEvent",
    "ThreadExit",
    "ThreadRecord",
    "ThreadState",
    "ThreadSum",
    "ThreadTotals",
    "Wait",
    "decode_ring",
    "decode_thread_record",
    "is_child",
]


class ThreadState(IntEnum):
    """`enum thread_state_kind`."""

    RUNNING = 0
    RUNNABLE = 1
    BLOCKED = 2
    BLOCKED_IO = 3
    STOPPED = 4
    EXITED = 5
    SUMMED = 6


class RunnerKind(IntEnum):
    """`enum runner_kind`: what ran while a thread waited."""

    FOREIGN = 0
    OWN = 1
    KERNEL = 2
    IDLE = 3


class EventFlag(IntFlag):
    """`TARGET_*` and `THREAD_*`."""

    INHERITED = 1
    LEADER = 2
    WAIT = 4


class Counter(IntEnum):
    """`enum counter`: ways to lose something in the kernel, and what was made up for."""

    RING_FULL = 0
    LOST_SLICES = 1
    THREADS_FULL = 2
    MADE_UP = 3


class Runner(NamedTuple):
    """One process that ran in a thread's place.

    Attributes:
        tgid: Process id; 0 for the idle task.
        kind: `RunnerKind` value.
        ran_ns: For how long, ns.
        name: Command name, at most 15 bytes.
        tid: Which thread, where it is of the same rank; else 0.
    """

    tgid: int
    kind: int
    ran_ns: int
    name: str
    tid: int = 0


class Wait(NamedTuple):
    """What a blocked thread waited for (`struct wait`); 0 where a part is not known.

    Attributes:
        object: Address of a futex.
        call: Number of the system call; below 0 for none.
        device: Device of the file's file system as the kernel writes it, major << 20 | minor.
        magic: Type of that file system, as statfs(2).
        address: Remote IPv4 address of a socket as 4 bytes in a number of this machine's order.
        mode: Type and permissions of the file, as stat(2).
        family: Address family of a socket, as socket(2).
        port: Remote port of a socket.
        poll_events: What it polled a single file for, as poll(2).
        waker_tid: Thread that ran where this one was woken; 0 for none.
        waker_tgid: Its process.
        waker_name: Its name.
    """

    object: int
    call: int
    device: int
    magic: int
    address: int
    mode: int
    family: int
    port: int
    poll_events: int
    waker_tid: int
    waker_tgid: int
    waker_name: str


# NamedTuples, not dataclasses: an agent decodes thousands a second, and a frozen dataclass costs four times as much.
class SchedEvent(NamedTuple):
    """One finished interval in which a thread did not run.

    Attributes:
        start_ns: Begin, ns.
        end_ns: End, ns.
        tid: Thread id.
        tgid: Process id.
        slot: Rank slot, as given to the reader.
        cpu: CPU that it waited for or last ran on.
        state: `ThreadState` value.
        flags: `EventFlag` bits.
        name: Thread name.
        runner_ns: Runnable time by `RunnerKind`; less than the interval where the kernel's memory did not reach.
        runners: Processes that ran meanwhile, in no order, at most 8.
        wait: What it waited for, of a blocked or stopped one; else None.
    """

    start_ns: int
    end_ns: int
    tid: int
    tgid: int
    slot: int
    cpu: int
    state: int
    flags: int
    name: str
    runner_ns: tuple[int, int, int, int]
    runners: tuple[Runner, ...]
    wait: Wait | None = None


class SampledInterval(NamedTuple):
    """What a thread did between two moments, where its states are only known as sums.

    Attributes:
        start_ns: Earlier look, ns.
        end_ns: Later look, ns.
        tid: Thread id.
        tgid: Process id.
        slot: Rank slot.
        flags: `EventFlag` bits.
        name: Thread name.
        runnable_ns: Runnable and not running, ns.
        blocked_ns: Blocked or stopped, ns; the rest it ran.
        foreign_ns: Of `runnable_ns`, while another process or a kernel thread ran; 0 where it is not known.
        own_ns: Of it, while its own rank ran; 0 where it is not known.
        idle_ns: Of it, while the CPU was idle; 0 where it is not known.
    """

    start_ns: int
    end_ns: int
    tid: int
    tgid: int
    slot: int
    flags: int
    name: str
    runnable_ns: int
    blocked_ns: int
    foreign_ns: int = 0
    own_ns: int = 0
    idle_ns: int = 0


class ThreadTotals(NamedTuple):
    """A thread's time since it was first seen, ns, and how often it was switched out."""

    running_ns: int
    runnable_ns: int
    blocked_ns: int
    blocked_io_ns: int
    stopped_ns: int
    foreign_ns: int
    own_ns: int
    kernel_ns: int
    idle_ns: int
    switches: int


class ThreadExit(NamedTuple):
    """A thread has ended.

    Attributes:
        end_ns: When, ns.
        tid: Thread id.
        tgid: Process id.
        slot: Rank slot.
        flags: `EventFlag` bits.
        name: Thread name.
        totals: Final totals.
    """

    end_ns: int
    tid: int
    tgid: int
    slot: int
    flags: int
    name: str
    totals: ThreadTotals


class ThreadSum(NamedTuple):
    """A thread's totals at one moment, with the attributes of `ThreadExit`."""

    end_ns: int
    tid: int
    tgid: int
    slot: int
    flags: int
    name: str
    totals: ThreadTotals


class ThreadRecord(NamedTuple):
    """A thread as it is now.

    Attributes:
        since_ns: When its present state began, ns.
        state: `ThreadState` value.
        cpu: Where it runs, waits or last ran.
        tgid: Process id.
        slot: Rank slot.
        flags: `EventFlag` bits.
        name: Thread name when it last stopped running.
        totals: Totals up to `since_ns`.
    """

    since_ns: int
    state: int
    cpu: int
    tgid: int
    slot: int
    flags: int
    name: str
    totals: ThreadTotals


# start, end, tid, tgid, slot, cpu, state, flags, runner count, (pad), comm, four runner sums
SCHED_EVENT = struct.Struct("<QQIIIIBBHI16s4Q")
RUNNER = struct.Struct("<IIQ16s")
# Of the lower half of a runner's name; its kind lies above.
RUNNER_TID = (1 << 30) - 1
SCHED_EVENT_BYTES = SCHED_EVENT.size + 8 * RUNNER.size
WAIT = struct.Struct("<QiIIIHHHHII16s")
# The same head, then thread_totals.
EXIT_EVENT = struct.Struct("<QQIIIIBBHI16s10Q")
# As `struct thread_record`: state words, name, totals.
THREAD_RECORD = struct.Struct(f"<QIIIIII16s10Q8x{WAIT.size}x")

STATE_OFFSET = 32
FLAGS = struct.Struct("<I")
FLAGS_OFFSET = 24
INHERITED, WAIT_FLAG = int(EventFlag.INHERITED), int(EventFlag.WAIT)
EXITED, SUMMED = int(ThreadState.EXITED), int(ThreadState.SUMMED)


@lru_cache(maxsize=4096)  # the same few names come again and again
def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _decode_event(data: bytes, offset: int) -> SchedEvent:
    (start, end, tid, tgid, slot, cpu, state, flags, count, _, comm, *sums) = (
        SCHED_EVENT.unpack_from(data, offset)
    )
    first = offset + SCHED_EVENT.size
    wait: Wait | None = None
    runners: tuple[Runner, ...] = ()
    if flags & WAIT_FLAG:
        flags &= ~WAIT_FLAG
        wait = _decode_wait(data, first)
    elif count:
        raw = data[first : first + count * RUNNER.size]
        runners = tuple(
            [
                Runner(runner_tgid, low >> 30, ran, _text(name), low & RUNNER_TID)
                for low, runner_tgid, ran, name in RUNNER.iter_unpack(raw)
                if ran
            ]
        )
    name = _text(comm)
    return SchedEvent(
        start,
        end,
        tid,
        tgid,
        slot,
        cpu,
        state,
        flags,
        name,
        (*sums,),
        runners,
        wait,
    )


def _decode_wait(data: bytes, offset: int) -> Wait:
    words = WAIT.unpack_from(data, offset)
    return Wait._make((*words[:-1], _text(words[-1])))


def _decode_totals(data: bytes, offset: int) -> ThreadExit | ThreadSum:
    words = EXIT_EVENT.unpack_from(data, offset)
    _, end, tid, tgid, slot, _, state, flags, _, _, comm = words[:11]
    kind = ThreadSum if state == SUMMED else ThreadExit
    return kind(end, tid, tgid, slot, flags, _text(comm), ThreadTotals._make(words[11:]))


def decode_ring(data: bytes) -> tuple[list[SchedEvent | ThreadExit | ThreadSum], int]:
    """Return the finished records at the beginning of a piece of the ring, and how many bytes they took.

    Args:
        data: From the consumer's position to the producer's. A record that is still being written ends the piece.
    """
    found, used = find_records(data)
    records: list[SchedEvent | ThreadExit | ThreadSum] = [
        _decode_totals(data, first)
        if data[first + STATE_OFFSET] >= EXITED
        else _decode_event(data, first)
        for first, _ in found
    ]
    return records, used


def decode_thread_record(data: bytes, offset: int = 0) -> ThreadRecord:
    """Return one value of the `threads` map."""
    since, state, cpu, tgid, slot, flags, _, comm, *totals = THREAD_RECORD.unpack_from(data, offset)
    return ThreadRecord(since, state, cpu, tgid, slot, flags, _text(comm), ThreadTotals(*totals))


def is_child(data: bytes) -> bool:
    """Return whether one value of the `threads` map is of a rank's child; much cheaper than to decode it."""
    flags: int = FLAGS.unpack_from(data, FLAGS_OFFSET)[0]
    return bool(flags & INHERITED)
