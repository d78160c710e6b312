"""Scheduler times from /proc, for machines where BPF is refused.

/proc/<pid>/task/<tid>/schedstat gives the time on a CPU and the time waiting for one since the thread began; the rest
is blocked, of the kind that /proc/<pid>/task/<tid>/stat shows at the moment of looking. First threads are read every
50 ms, the others every 250 ms. Between two looks only sums are known, and never who ran instead: that is what
"degraded" means. The kernel brings the time on a CPU up to date at its tick (1 to 4 ms), so short intervals are off
by that much. Cost: about 15 us a thread and look.

Source: Documentation/scheduler/sched-stats.rst (both in ns), fs/proc/array.c for the state letter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rootwalk.ebpf.events import (
    EventFlag,
    SampledInterval,
    ThreadExit,
    ThreadRecord,
    ThreadState,
    ThreadTotals,
)
from rootwalk.instrumentation.semconv import TrainingThreadSensor

__all__ = ["ProcBackend"]

FIRST_THREAD_INTERVAL_S = 0.05
OTHER_THREADS_INTERVAL_NS = 250_000_000
STATES = {"D": ThreadState.BLOCKED_IO, "T": ThreadState.STOPPED, "t": ThreadState.STOPPED}


@dataclass(slots=True)
class _Thread:
    """What was read of a thread the last time, and its sums since it was first seen (ns)."""

    tgid: int
    slot: int
    flags: int
    name: str
    at_ns: int
    running_ns: int
    runnable_ns: int
    switches: int
    state: int = ThreadState.BLOCKED
    sums: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("running", "runnable", "blocked", "blocked_io", "stopped", "switches"), 0
        )
    )

    def totals(self) -> ThreadTotals:
        sums = self.sums
        return ThreadTotals(
            sums["running"],
            sums["runnable"],
            sums["blocked"],
            sums["blocked_io"],
            sums["stopped"],
            0,
            0,
            0,
            0,
            sums["switches"],
        )


class ProcBackend:
    """The same interface as the BPF program, from /proc.

    Args:
        root: Folder that holds the processes.
        clock_ns: Monotonic clock, ns.
    """

    sensor = TrainingThreadSensor.PROC.value
    interval_s = FIRST_THREAD_INTERVAL_S
    told_wait_ns: int | None = None

    def __init__(
        self, root: Path = Path("/proc"), clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._root = root
        self._clock_ns = clock_ns
        self._processes: dict[int, tuple[int, int]] = {}
        self._threads: dict[int, _Thread] = {}
        self._others_due_ns = 0

    def set_level(self, level: int) -> None:
        """Do nothing: looks tell sums only, and phases need them as often at any level."""

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Follow all threads of a process; its children are not followed by themselves."""
        self._processes[pid] = (slot, EventFlag.INHERITED if is_child else 0)
        self._look(pid, pid, self._clock_ns())

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        self._processes.pop(pid, None)

    def read(self) -> list[SampledInterval | ThreadExit]:
        """Look at the threads that are due and return what they did since the last look."""
        now = self._clock_ns()
        is_full = now >= self._others_due_ns
        if is_full:
            self._others_due_ns = now + OTHER_THREADS_INTERVAL_NS
        found: list[SampledInterval | ThreadExit] = []
        for pid in list(self._processes):
            for tid in self._thread_ids(pid) if is_full else (pid,):
                interval = self._look(pid, tid, self._clock_ns())
                if interval is not None:
                    found.append(interval)
        if is_full:
            found.extend(self._ended(now))
        return found

    def threads(self) -> Mapping[int, ThreadRecord]:
        """Return every followed thread that is alive, by thread id."""
        return {
            tid: ThreadRecord(
                thread.at_ns,
                thread.state,
                0,
                thread.tgid,
                thread.slot,
                thread.flags,
                thread.name,
                thread.totals(),
            )
            for tid, thread in self._threads.items()
        }

    def children(self) -> None:
        """Return None: when children ran between two looks is not known."""

    def losses(self) -> Mapping[str, int]:
        """Return nothing: what /proc does not tell is not lost but unknown."""
        return {}

    def run_time_ns(self) -> Mapping[str, int]:
        """Return nothing: all of the cost is the agent's own."""
        return {}

    def close(self) -> None:
        """Forget everything; safe twice."""
        self._processes.clear()
        self._threads.clear()

    def _thread_ids(self, pid: int) -> list[int]:
        try:
            return [int(entry.name) for entry in (self._root / str(pid) / "task").iterdir()]
        except OSError:
            return []

    def _look(self, pid: int, tid: int, now: int) -> SampledInterval | None:
        folder = f"{self._root}/{pid}/task/{tid}"
        try:
            with open(f"{folder}/schedstat", encoding="ascii") as file:  # noqa: PTH123  (a third of the time)
                running, runnable, switches = (int(word) for word in file.read().split())
            with open(f"{folder}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except (OSError, ValueError):
            return None
        thread = self._threads.get(tid)
        if thread is None:
            slot, flags = self._processes[pid]
            flags |= EventFlag.LEADER if tid == pid else 0
            self._threads[tid] = _Thread(pid, slot, flags, name, now, running, runnable, switches)
            return None
        state = STATES.get(rest.strip()[:1], ThreadState.BLOCKED)
        interval = _interval(thread, tid, now, running, runnable)
        _add(thread.sums, interval, state, switches - thread.switches)
        thread.at_ns, thread.running_ns, thread.runnable_ns = now, running, runnable
        thread.switches, thread.name, thread.state = switches, name, state
        return interval

    def _ended(self, now: int) -> Iterator[ThreadExit]:
        for tid, thread in list(self._threads.items()):
            is_followed = thread.tgid in self._processes
            if is_followed and (self._root / str(thread.tgid) / "task" / str(tid)).exists():
                continue
            del self._threads[tid]
            yield ThreadExit(
                now, tid, thread.tgid, thread.slot, thread.flags, thread.name, thread.totals()
            )


def _interval(
    thread: _Thread, tid: int, now: int, running_ns: int, runnable_ns: int
) -> SampledInterval:
    """Return the difference to the last look; sums that the kernel wrote late never exceed the interval."""
    duration = now - thread.at_ns
    runnable = min(max(runnable_ns - thread.runnable_ns, 0), duration)
    running = min(max(running_ns - thread.running_ns, 0), duration - runnable)
    return SampledInterval(
        thread.at_ns,
        now,
        tid,
        thread.tgid,
        thread.slot,
        thread.flags,
        thread.name,
        runnable,
        duration - runnable - running,
    )


def _add(sums: dict[str, int], interval: SampledInterval, state: int, switches: int) -> None:
    duration = interval.end_ns - interval.start_ns
    blocked = {ThreadState.BLOCKED_IO: "blocked_io", ThreadState.STOPPED: "stopped"}
    sums["runnable"] += interval.runnable_ns
    sums["running"] += duration - interval.runnable_ns - interval.blocked_ns
    sums[blocked.get(ThreadState(state), "blocked")] += interval.blocked_ns
    sums["switches"] += switches
