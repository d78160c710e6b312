"""What main threads waited for: which reason it speaks for, and what it was.

    state         in data_load or between phases   in checkpoint   elsewhere
    INTERPRETER   PY_GIL                           PY_GIL          PY_GIL
    READ          DATALOADER_IO                    CKPT_IO         nobody knows
    RUNNING       DATALOADER_IO, CKPT_IO: where it mostly waits for files
    LOADER_FILES  DATALOADER_IO, in the workers    -               -
    WRITE         BLOCKING_LOG                     CKPT_IO         BLOCKING_LOG
    OUTPUT        BLOCKING_LOG                     BLOCKING_LOG    BLOCKING_LOG
    SERVICE       EXTERNAL_SERVICE                 EXTERNAL_SERVICE
    STOPPED       PROCESS_SUSPENDED                PROCESS_SUSPENDED
    INTERRUPT     IRQ_SOFTIRQ                      IRQ_SOFTIRQ     IRQ_SOFTIRQ
    RECLAIM       MEM_RECLAIM                      MEM_RECLAIM     MEM_RECLAIM
                  (with what was written meanwhile, where that is less)
    MEMORY_MAP    KERNEL_LOCK, as far as its process ended the wait; else nobody knows
    DEVICE        UNKNOWN_GPU, where there is a GPU; else nobody knows

Seconds come from the states, which count every wait; stalls, which are the longer ones, tell what it was. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.causes import IN_WORKERS
from rootwalk.graph.columns import (
    STATE_OF_WAIT,
    BoolArray,
    FloatArray,
    JobData,
    StallRow,
    ThreadState,
)
from rootwalk.graph.lanes import STEP_GAP
from rootwalk.graph.loaders import DATA_LOAD, LOADER_ROLE, MAIN_ROLE
from rootwalk.graph.reasons import Reason
from rootwalk.graph.steps import StepGraph

__all__ = [
    "WAIT_REASONS",
    "Waited",
    "common_reason",
    "copied_s",
    "find_waited",
    "split_devices",
    "split_locks",
    "unclaimed_s",
    "wait_charges",
]

CHECKPOINT: Final = "checkpoint"
_FILE_KINDS: Final = frozenset(
    kind for kind, state in STATE_OF_WAIT.items() if state in (ThreadState.READ, ThreadState.WRITE)
)
# What each reason's waits are, as the stalls name them.
WAIT_REASONS: Final[dict[Reason, frozenset[str]]] = {
    Reason.PY_GIL: frozenset({"interpreter_lock"}),
    Reason.DATALOADER_IO: _FILE_KINDS | {"fault"},
    Reason.CKPT_IO: _FILE_KINDS,
    Reason.BLOCKING_LOG: frozenset({"file_write", "file_sync", "pipe_write", "socket_write"}),
    Reason.EXTERNAL_SERVICE: frozenset({"socket_read"}),
    Reason.PROCESS_SUSPENDED: frozenset({"stop"}),
    Reason.IRQ_SOFTIRQ: frozenset(),
    Reason.MEM_RECLAIM: frozenset({"memory_reclaim_wait"}),
    Reason.KERNEL_LOCK: frozenset({"memory"}),
    Reason.UNKNOWN_GPU: frozenset({"device"}),
    Reason.STORAGE_SLOW: _FILE_KINDS | {"fault"},
}
# What a wait for files is called where every one of at least so many hosts waits alike.
MIN_STORAGE_HOSTS: Final = 3
_OF_STORAGE: Final = frozenset({Reason.DATALOADER_IO, Reason.CKPT_IO})
# The host has no driver of a GPU, or no GPU.
_NO_GPU: Final = frozenset({"NO_DRIVER", "NO_DEVICE"})
_WRITTEN_TO: Final = {"pipe_write": "a pipe", "socket_write": "a socket"}


@dataclass(frozen=True, slots=True)
class Waited:
    """What a rank waited for: kind and last part of its node's id, and words for it."""

    kind: str
    part: str
    label: str


def wait_charges(
    window: StepGraph, states: FloatArray, reading_s: FloatArray
) -> Iterator[tuple[Reason, str, FloatArray]]:
    """Yield (reason, place of the cause, seconds by region and step) for everything that waits explain.

    Args:
        window: Graph of the steps in question.
        states: (regions, steps, states) above their references.
        reading_s: Running time that is part of the waits for input, (regions, steps).
    """
    input_part, checkpoint = _is_input(window), _is_named(window, CHECKPOINT)
    read, write = states[:, :, ThreadState.READ], states[:, :, ThreadState.WRITE]
    logged = write * ~checkpoint
    for_memory = logged * _is_short_of_memory(window, states[:, :, ThreadState.RECLAIM], logged)
    yield Reason.PY_GIL, "", states[:, :, ThreadState.INTERPRETER]
    yield Reason.DATALOADER_IO, "", read * input_part + reading_s
    yield Reason.DATALOADER_IO, IN_WORKERS, states[:, :, ThreadState.LOADER_FILES]
    yield Reason.CKPT_IO, "", (read + write) * checkpoint + copied_s(window, states)
    yield Reason.BLOCKING_LOG, "", logged - for_memory + states[:, :, ThreadState.OUTPUT]
    yield Reason.EXTERNAL_SERVICE, "", states[:, :, ThreadState.SERVICE]
    yield Reason.PROCESS_SUSPENDED, "", states[:, :, ThreadState.STOPPED]
    yield Reason.IRQ_SOFTIRQ, "", states[:, :, ThreadState.INTERRUPT]
    yield Reason.MEM_RECLAIM, "", states[:, :, ThreadState.RECLAIM] + for_memory


def _is_short_of_memory(
    window: StepGraph, reclaim_s: FloatArray, written_s: FloatArray
) -> FloatArray:
    """Return 1 for regions of ranks that look for free memory for longer than they write files, else 0, (regions, 1).

    A group at its limit may have few pages that wait to be written: who writes then waits for the disk.
    """
    ranks = np.array([key[0] for key in window.keys.regions], dtype=np.int64)
    _, place = np.unique(ranks, return_inverse=True)
    looked_s, wrote_s = (
        np.bincount(place, weights=seconds.sum(axis=1)) for seconds in (reclaim_s, written_s)
    )
    is_short = looked_s > np.maximum(wrote_s, 0.0)
    return np.asarray(is_short[place][:, None], dtype=np.float64)


def copied_s(window: StepGraph, states: FloatArray) -> FloatArray:
    """Return what ran in checkpoints that mostly waited for files, by region and step.

    Copies and the work of the file system are part of the writing: they go where it goes.
    """
    running = states[:, :, ThreadState.RUNNING]
    files = states[:, :, ThreadState.READ] + states[:, :, ThreadState.WRITE]
    is_writing = (files.sum(axis=1) > running.sum(axis=1))[:, None] & _is_named(window, CHECKPOINT)
    return np.asarray(running * is_writing, dtype=np.float64)


def unclaimed_s(window: StepGraph, states: FloatArray) -> FloatArray:
    """Return the seconds of waits that speak for no reason, by region and step."""
    claimed = _is_input(window) | _is_named(window, CHECKPOINT)
    return np.asarray(states[:, :, ThreadState.READ] * ~claimed, dtype=np.float64)


def common_reason(data: JobData, reason: Reason) -> Reason:
    """Return what a reason that all ranks have alike is: files that many hosts wait for are the storage's."""
    hosts = {row.host_id for row in data.ranks}
    is_shared = reason in _OF_STORAGE and len(hosts) >= MIN_STORAGE_HOSTS
    return Reason.STORAGE_SLOW if is_shared else reason


def split_locks(
    data: JobData, window: StepGraph, states: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return waits for the memory map by region and step: those behind a lock, and those of which nobody knows.

    The lock of a memory map is handed on by the thread that had it, nearly always one of the same process. What a disk
    or a timer ends is no lock, and is ended under whichever process runs there.
    """
    pid_of_rank = {row.rank: row.pid for row in data.ranks}
    handed_s: dict[int, float] = defaultdict(float)
    total_s: dict[int, float] = defaultdict(float)
    wanted = set(window.step_numbers)
    for stall in data.stalls:
        if stall.wait is None or stall.wait.kind != "memory" or stall.step not in wanted:
            continue
        if stall.role == MAIN_ROLE:
            length_s = stall.end_s - stall.start_s
            total_s[stall.rank] += length_s
            is_own = stall.wait.waker_pid == (pid_of_rank.get(stall.rank) or -1)
            handed_s[stall.rank] += length_s if is_own else 0.0
    ratio = {rank: handed_s[rank] / total for rank, total in total_s.items() if total > 0.0}
    part = np.array([ratio.get(key[0], 0.0) for key in window.keys.regions]).reshape(-1, 1)
    waited_s = states[:, :, ThreadState.MEMORY_MAP]
    return waited_s * part, waited_s * (1.0 - part)


def split_devices(
    data: JobData, window: StepGraph, states: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return waits for a device by region and step: those for a GPU, and those of which nobody knows.

    A device that waits for other ranks keeps its own rank waiting, as do calls that the step graph knows: what the rank
    lost in all is the most that its device can have cost.
    """
    hosts = {
        row.host_name for row in data.sensors if row.sensor == "nvml" and row.reason not in _NO_GPU
    }
    ranks = {row.rank for row in data.ranks if (row.host_name or row.host_id) in hosts}
    has_device = np.array([key[0] in ranks for key in window.keys.regions]).reshape(-1, 1)
    waited_s = states[:, :, ThreadState.DEVICE]
    lost_s = np.maximum(waited_s + states[:, :, ThreadState.BLOCKED], 0.0)
    of_device = np.minimum(np.maximum(waited_s, 0.0), lost_s) * has_device
    return of_device, waited_s - of_device


def _is_input(window: StepGraph) -> BoolArray:
    return np.asarray(_is_named(window, DATA_LOAD) | _is_named(window, STEP_GAP))


def _is_named(window: StepGraph, name: str) -> BoolArray:
    """Return which regions have a name, (regions, 1)."""
    is_named = [key[1] == name for key in window.keys.regions]
    return np.array(is_named, dtype=np.bool_).reshape(-1, 1)


def find_waited(
    data: JobData, rank: int, reason: Reason, place: str, steps: tuple[int, ...]
) -> Waited:
    """Return what a rank waited for longest in some steps, as far as its stalls tell.

    Args:
        data: Telemetry.
        rank: Whose threads waited.
        reason: One of `WAIT_REASONS`.
        place: `IN_WORKERS` for its loader workers, else its main thread.
        steps: Numbers of the steps.
    """
    role = LOADER_ROLE if place == IN_WORKERS else MAIN_ROLE
    wanted, kinds = set(steps), WAIT_REASONS[reason]
    sums: dict[Waited, float] = defaultdict(float)
    for stall in data.stalls:
        is_mine = stall.rank == rank and stall.role == role and stall.step in wanted
        if is_mine and stall.wait is not None and stall.wait.kind in kinds:
            sums[_describe(stall, rank, reason)] += stall.end_s - stall.start_s
    if not sums:
        return _unknown(rank, reason)
    return max(sorted(sums, key=lambda one: one.label), key=lambda one: sums[one])


def _describe(stall: StallRow, rank: int, reason: Reason) -> Waited:
    wait = stall.wait
    if wait is None:
        return _unknown(rank, reason)
    if wait.kind == "memory" and wait.waker_thread_id is not None:
        holder = f"thread '{wait.waker_name or 'thread'}' tid {wait.waker_thread_id}"
        return Waited("lock", f"rank{rank}-memory", f"its memory map, held by {holder}")
    if wait.kind == "interpreter_lock" and wait.waker_thread_id is not None:
        name = wait.waker_name or "thread"
        label = f"thread '{name}' tid {wait.waker_thread_id}"
        return Waited("thread", str(wait.waker_thread_id), label)
    if wait.file_system is not None:
        where = wait.device or "no device"
        return Waited("file_system", where, f"{wait.file_system} on {where}")
    if wait.kind in _WRITTEN_TO:
        label = _WRITTEN_TO[wait.kind]
        return Waited("output", f"rank{rank}-{wait.kind}", label + _of_port(wait.port))
    if wait.kind == "socket_read":
        label = f"{wait.peer or 'a'} connection{_of_port(wait.port)}"
        return Waited("service", str(wait.port or f"rank{rank}"), label)
    return _unknown(rank, reason)


def _of_port(port: int | None) -> str:
    return "" if port is None else f" to port {port}"


def _unknown(rank: int, reason: Reason) -> Waited:
    kind, label = {
        Reason.PY_GIL: ("thread", "another thread of the process"),
        Reason.DATALOADER_IO: ("file_system", "files"),
        Reason.CKPT_IO: ("file_system", "files"),
        Reason.BLOCKING_LOG: ("output", "its output"),
        Reason.EXTERNAL_SERVICE: ("service", "a connection"),
        Reason.IRQ_SOFTIRQ: ("interrupts", "interrupts"),
        Reason.MEM_RECLAIM: ("memory", "the host's memory"),
        Reason.STORAGE_SLOW: ("file_system", "files"),
        Reason.KERNEL_LOCK: ("lock", "its memory map"),
        Reason.UNKNOWN_GPU: ("gpu", "its GPU"),
    }.get(reason, ("signal", "a signal or a debugger"))
    return Waited(kind, f"rank{rank}", label)
