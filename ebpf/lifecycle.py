"""What is done to ranks' processes, from the BPF program `lifecycle.bpf.c`: signals, ends, kills for memory.

Owns the loaded program and its maps. What counts, what does not, and what it costs is at the head of that file.
"""

from __future__ import annotations

import os
import signal
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from rootwalk.ebpf.availability import TIER_CAPABILITIES
from rootwalk.ebpf.events import EventFlag
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.plain_text import plain_name
from rootwalk.ebpf.reader import Occurrence, Place, Reader, Value
from rootwalk.ebpf.ring_buffer import RingBuffer, find_records
from rootwalk.ebpf.targets import KEY, TARGET, open_program, read_losses
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.redact import redact_thread_name

__all__ = ["LifecycleReader"]

# What stops, continues or ends a process unless it asked for something else. Not those that programs send each other
# as messages: SIGCHLD, SIGALRM, SIGUSR1, SIGPIPE and so on.
SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGTERM,
    signal.SIGCONT,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXCPU,
    signal.SIGXFSZ,
    signal.SIGSYS,
)
# Nobody sends these to get rid of a process.
CRASHES = frozenset(
    {
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGSEGV,
        signal.SIGSYS,
    }
)
# Signals that ranks sent themselves and whose effect is still to come; older ones were without.
MAX_ASKED = 256
SIGNAL_MASK = struct.Struct("<Q")
KERNEL = "kernel"
DROP_REASONS = ("bpf_lifecycle_ring_full", "bpf_processes_full")
EVENT = struct.Struct("<Q8I16s")


class LifecycleKind(IntEnum):
    """`enum lifecycle_kind`."""

    SIGNAL = 0
    END = 1
    OOM = 2


class LifecycleEvent(NamedTuple):
    """`struct lifecycle_event`."""

    time_ns: int
    kind: int
    pid: int
    slot: int
    flags: int
    number: int
    sender_pid: int
    sender_slot: int
    pad: int
    sender_name: bytes


def decode_events(data: bytes) -> tuple[list[LifecycleEvent], int]:
    """Return the events in a piece of the ring, and the bytes they took."""
    found, used = find_records(data)
    return [LifecycleEvent(*EVENT.unpack_from(data, first)) for first, _ in found], used


def signal_name(number: int) -> str:
    """Return a signal's name, such as ``SIGSTOP``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _about(event: LifecycleEvent) -> dict[str, Value]:
    return {
        semconv.PROCESS_PID: event.pid,
        semconv.TRAINING_PROCESS_IS_CHILD: bool(event.flags & EventFlag.INHERITED),
    }


def _process(event: LifecycleEvent) -> str:
    return f"process {event.pid}" + (
        " (a child of the rank)" if event.flags & EventFlag.INHERITED else ""
    )


def is_wanted(event: LifecycleEvent) -> bool:
    """Return whether a rank has sent a signal to itself or its children, as it does to end loader workers."""
    return event.sender_slot == event.slot and event.number not in CRASHES


def tell_signal(event: LifecycleEvent) -> Occurrence:
    """Return what a signal was and who sent it."""
    name = signal_name(event.number)
    sender = plain_name(event.sender_name) if event.sender_pid else KERNEL
    if event.sender_slot == event.slot:
        sender = redact_thread_name(sender)
    attributes = {
        **_about(event),
        semconv.TRAINING_SIGNAL_NAME: name,
        semconv.TRAINING_SIGNAL_SENDER_NAME: sender,
    }
    by = f"the {KERNEL}"
    if event.sender_pid:
        attributes[semconv.TRAINING_SIGNAL_SENDER_PID] = event.sender_pid
        by = f"{sender} (pid {event.sender_pid})"
    return Occurrence(
        semconv.EVENT_TRAINING_PROCESS_SIGNAL,
        event.time_ns,
        f"{_process(event)} was sent {name} by {by}",
        attributes,
        is_bad=not is_wanted(event) and event.number != signal.SIGCONT,
        slot=event.slot,
    )


def tell_end(event: LifecycleEvent, *, was_asked: bool) -> Occurrence:
    """Return how a process ended.

    Args:
        event: What the kernel told.
        was_asked: The rank itself has sent the signal that ended it.
    """
    attributes = _about(event)
    if os.WIFSIGNALED(event.number):
        name = signal_name(os.WTERMSIG(event.number))
        attributes[semconv.TRAINING_SIGNAL_NAME] = name
        how = f"was ended by {name}"
    else:
        code = os.WEXITSTATUS(event.number)
        attributes[semconv.PROCESS_EXIT_CODE] = code
        how = f"ended with code {code}"
    return Occurrence(
        semconv.EVENT_TRAINING_PROCESS_END,
        event.time_ns,
        f"{_process(event)} {how}",
        attributes,
        is_bad=event.number != 0 and not was_asked,
        slot=event.slot,
    )


def tell_oom(event: LifecycleEvent) -> Occurrence:
    """Return whom the kernel chose to kill for memory."""
    return Occurrence(
        semconv.EVENT_TRAINING_PROCESS_OOM_KILL,
        event.time_ns,
        f"the kernel kills {_process(event)} for memory",
        _about(event),
        slot=event.slot,
    )


class LifecycleReader(Reader):
    """The loaded program, and what it has told."""

    sensor = "lifecycle"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(self, place: Place) -> None:
        targets = place.need_targets().map
        mask = SIGNAL_MASK.pack(sum(1 << number for number in SIGNALS))

        def configure(opened: BpfObject) -> None:
            opened.share(targets)
            opened.set_initial(".rodata", mask)

        self._object = open_program("lifecycle", configure)
        maps = self._object.maps
        self._living, self._counters = maps["living"], maps["counters"]
        self._ring = RingBuffer(maps["lifecycles"])
        self._ranks: dict[int, int] = {}
        self._not_followed = 0
        self._asked: deque[tuple[int, int]] = deque(maxlen=MAX_ASKED)

    def watch(self, pid: int, slot: int) -> None:
        """Tell the end of this process; the first one of a slot is the rank, the others are its children."""
        rank_pid = self._ranks.setdefault(slot, pid)
        flags = 0 if pid == rank_pid else EventFlag.INHERITED
        try:
            self._living.write(KEY.pack(pid), TARGET.pack(slot, flags))
        except OSError:  # as many processes as the kernel's own programs follow
            self._not_followed += 1

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        self._living.delete(KEY.pack(pid))
        for slot in [slot for slot, rank_pid in self._ranks.items() if rank_pid == pid]:
            del self._ranks[slot]

    def occurrences(self) -> Iterable[Occurrence]:
        """Return what has happened since the last call, oldest first."""
        events = sorted(self._ring.read(decode_events), key=lambda event: event.time_ns)
        return [self._tell(event) for event in events]

    def losses(self) -> Mapping[str, int]:
        """Return what found no room in the kernel's maps."""
        counts = read_losses(self._counters, DROP_REASONS)
        counts["bpf_processes_full"] += self._not_followed
        return counts

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._ring.close()
        self._object.close()

    def _tell(self, event: LifecycleEvent) -> Occurrence:
        match event.kind:
            case LifecycleKind.SIGNAL:
                if is_wanted(event):
                    self._asked.append((event.pid, event.number))
                return tell_signal(event)
            case LifecycleKind.END:
                asked = (event.pid, os.WTERMSIG(event.number))
                return tell_end(event, was_asked=asked in self._asked)
            case _:
                return tell_oom(event)
