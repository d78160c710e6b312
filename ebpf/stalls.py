"""Stalls: times of 1 ms or more in which a thread of a rank could not run, as spans under the phase that they delayed.

    piece cpu 0  |---runnable---|                      a thread that moves to another CPU while it waits
    piece cpu 1                 |---runnable---|       is reported in pieces: one stall

The parent is the phase of the moment in which the stall began; it is known when the rank has closed that step, so
stalls wait until then. What cannot wait any longer is dropped and counted.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from rootwalk.ebpf.discovery import thread_role
from rootwalk.ebpf.events import Runner, RunnerKind, SchedEvent, ThreadState
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.ebpf.waits import is_about_files
from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.redact import redact_thread_name
from rootwalk.instrumentation.semconv import (
    TrainingAggressorKind,
    TrainingThreadRole,
    TrainingThreadState,
)
from rootwalk.instrumentation.step_spans import Parent, SpanBuilder, doubles, key_value

__all__ = ["ProcessDetails", "StallCollector"]

# Shorter waits are normal: a scheduler slice is 1 to 4 ms. They are in the sums of the phase.
MIN_STALL_NS = 1_000_000
# At 5 steps a second and 20 stalls a step: 40 s of steps that do not close.
MAX_WAITING = 4096
REMEMBERED_PROCESSES = 1024
NS = 1e-9

STATE_NAMES: dict[int, str] = {
    ThreadState.RUNNABLE: TrainingThreadState.RUNNABLE.value,
    ThreadState.BLOCKED: TrainingThreadState.BLOCKED.value,
    ThreadState.BLOCKED_IO: TrainingThreadState.BLOCKED_IO.value,
    ThreadState.STOPPED: TrainingThreadState.STOPPED.value,
}
KIND_NAMES: dict[int, str] = {
    RunnerKind.FOREIGN: TrainingAggressorKind.PROCESS.value,
    RunnerKind.OWN: TrainingAggressorKind.OWN.value,
    RunnerKind.KERNEL: TrainingAggressorKind.KERNEL.value,
    RunnerKind.IDLE: TrainingAggressorKind.IDLE.value,
}


class ProcessDetails:
    """Name and control group of processes, read once when they are first met.

    Args:
        root: Folder that holds the processes.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._known: OrderedDict[int, tuple[str | None, str | None]] = OrderedDict()

    def read(self, pid: int) -> tuple[str | None, str | None]:
        """Return command name and control group; None for what is not known (the process may be gone)."""
        known = self._known.get(pid)
        if known is None:
            known = (self._name(pid), self._cgroup(pid))
            self._known[pid] = known
            if len(self._known) > REMEMBERED_PROCESSES:
                self._known.popitem(last=False)
        return known

    def _name(self, pid: int) -> str | None:
        try:
            return (self._root / str(pid) / "comm").read_text(errors="replace").strip() or None
        except OSError:
            return None

    def _cgroup(self, pid: int) -> str | None:
        try:
            lines = (self._root / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return None
        path_by_controllers = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in lines}
        unified = path_by_controllers.pop("", None)
        if unified not in (None, "/"):
            return unified
        for (
            controllers,
            path,
        ) in path_by_controllers.items():  # version 1, where version 2 says nothing
            if "cpu" in controllers.split(",") and path != "/":
                return path
        return unified or next(iter(path_by_controllers.values()), None)


def _merge_runners(runners: tuple[Runner, ...]) -> list[Runner]:
    """Return one entry for each process, longest first, then by id."""
    merged: dict[tuple[int, int], Runner] = {}
    for runner in runners:
        key = (runner.tgid, runner.kind)
        known = merged.get(key)
        merged[key] = (
            runner if known is None else known._replace(ran_ns=known.ran_ns + runner.ran_ns)
        )
    return sorted(merged.values(), key=lambda runner: (-runner.ran_ns, runner.tgid))


def _own_threads(runners: tuple[Runner, ...], tid: int) -> dict[int, Runner]:
    """Return the threads of its own rank that ran in a thread's place, one entry each."""
    threads: dict[int, Runner] = {}
    for runner in runners:
        if runner.kind == RunnerKind.OWN and runner.tid not in (0, tid):
            known = threads.get(runner.tid)
            ran_ns = runner.ran_ns + (0 if known is None else known.ran_ns)
            threads[runner.tid] = runner._replace(ran_ns=ran_ns)
    return threads


def _is_reported(event: SchedEvent, role: TrainingThreadRole) -> bool:
    if role is TrainingThreadRole.MAIN:
        return True
    if role is TrainingThreadRole.LOADER_WORKER and event.wait is not None:
        return is_about_files(event.wait)  # what it waits for else is its parent
    return event.state == ThreadState.RUNNABLE and role in (
        TrainingThreadRole.LOADER_WORKER,
        TrainingThreadRole.COLLECTIVE,
    )


def _encode_thread(
    pid: int, sensor: str, harmless: Callable[[str], str], tid: int, name: str, flags: int
) -> bytes:
    """Return what all stalls of one thread have in common."""
    return b"".join(
        (
            key_value(semconv.TRAINING_THREAD_ROLE, thread_role(flags, name).value),
            key_value(semconv.TRAINING_THREAD_SENSOR, sensor),
            key_value(semconv.THREAD_ID, tid),
            key_value(semconv.THREAD_NAME, harmless(name)),
            key_value(semconv.PROCESS_PID, pid),
        )
    )


class StallCollector:
    """Collects one rank's stalls until the step that they fall in is closed.

    Args:
        builder: The rank's spans; tells the parents.
        sensor: A value of `semconv.TrainingThreadSensor`.
        details: Looks up the processes that ran in a thread's place.
        waits: Tells what a blocked thread waited for.

    Attributes:
        max_per_step: How many waits for a CPU, and how many other stalls, are told of a step and role of thread, the
            longest of them; None for all.
        dropped: Stalls that could not wait for their step.
    """

    def __init__(
        self,
        builder: SpanBuilder,
        sensor: str,
        details: Callable[[int], tuple[str | None, str | None]],
        waits: WaitDetails,
    ) -> None:
        self._builder = builder
        self._details = details
        self._waits = waits
        self._harmless = lru_cache(maxsize=1024)(redact_thread_name)
        # Not of this object's own method: its cache would keep all of a rank that has ended, until a full collection.
        encode = partial(_encode_thread, builder.identity.pid, sensor, self._harmless)
        self._thread_attributes = lru_cache(maxsize=1024)(encode)
        self._open: dict[int, SchedEvent] = {}
        self._waiting: deque[SchedEvent] = deque()
        self.max_per_step: int | None = None
        self.dropped = 0

    def add(self, event: SchedEvent) -> None:
        """Take one interval; it is joined with the one before when the thread only moved to another CPU."""
        before = self._open.get(event.tid)
        if before is not None:
            if (
                event.state == before.state == ThreadState.RUNNABLE
                and event.start_ns == before.end_ns
            ):
                self._open[event.tid] = event._replace(
                    start_ns=before.start_ns, runners=before.runners + event.runners
                )
                return
            self._settle(before)
        if _is_reported(event, thread_role(event.flags, event.name)):
            self._open[event.tid] = event
        else:
            self._open.pop(event.tid, None)

    def end_thread(self, tid: int) -> None:
        """Say that nothing more will come of a thread."""
        before = self._open.pop(tid, None)
        if before is not None:
            self._settle(before)

    def spans(self) -> list[bytes]:
        """Return the stalls whose step is closed as OTLP bytes, and forget them."""
        closed_until = self._builder.closed_until_mono_ns()
        for tid in [tid for tid, event in self._open.items() if event.end_ns < closed_until]:
            self.end_thread(tid)
        closed: list[tuple[SchedEvent, Parent]] = []
        later: deque[SchedEvent] = deque()
        for event in self._waiting:
            if event.start_ns >= closed_until:
                later.append(event)
                continue
            parent = self._builder.parent_of(event.start_ns)
            if parent is not None:  # None before the first step, or between two runs of the loop
                closed.append((event, parent))
        self._waiting = later
        return [self._span(event, parent) for event, parent in self._told(closed)]

    def _told(self, closed: list[tuple[SchedEvent, Parent]]) -> list[tuple[SchedEvent, Parent]]:
        """Return the stalls that are told."""
        if self.max_per_step is None:
            return closed
        groups: dict[tuple[int, bool, TrainingThreadRole], list[tuple[SchedEvent, Parent]]] = {}
        for event, parent in closed:
            role = thread_role(event.flags, event.name)
            key = (parent.step, event.state == ThreadState.RUNNABLE, role)
            groups.setdefault(key, []).append((event, parent))
        longest = (
            heapq.nlargest(
                self.max_per_step, group, key=lambda one: one[0].end_ns - one[0].start_ns
            )
            for group in groups.values()
        )
        return [one for group in longest for one in group]

    def _settle(self, event: SchedEvent) -> None:
        if event.end_ns - event.start_ns < MIN_STALL_NS:
            return
        self._waiting.append(event)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    def _span(self, event: SchedEvent, parent: Parent) -> bytes:
        who = self._builder.identity
        state = STATE_NAMES[event.state]
        attributes = [
            key_value(semconv.TRAINING_STEP_NUMBER, parent.step),
            key_value(semconv.TRAINING_THREAD_STATE, state),
            self._thread_attributes(event.tid, event.name, event.flags),
            key_value(semconv.CPU_LOGICAL_NUMBER, event.cpu),
        ]
        if parent.phase is not None:
            attributes.append(key_value(semconv.TRAINING_PHASE, parent.phase))
        attributes += self._aggressor_attributes(_merge_runners(event.runners))
        attributes += self._own_thread_attributes(_own_threads(event.runners, event.tid))
        attributes += self._waits.attributes(event)
        span_id = ids.stall_id(
            who.job, who.attempt, parent.step, who.rank, event.tid, event.start_ns
        )
        bounds = (event.start_ns, event.end_ns)
        return self._builder.span(
            f"stall.{state}", parent.step, span_id, parent.span_id, bounds, attributes
        )

    def _name(self, runner: Runner) -> str:
        """Return the process's name; of one that is gone only the name of the thread that ran is known.

        A process is named after its first thread: the rank's own and its children's are made harmless as threads are.
        """
        name = self._details(runner.tgid)[0] or runner.name
        return self._harmless(name) if runner.kind == RunnerKind.OWN else name

    def _own_thread_attributes(self, threads: dict[int, Runner]) -> list[bytes]:
        if not threads:
            return []
        worst = max(threads.values(), key=lambda runner: (runner.ran_ns, -runner.tid))
        return [
            key_value(semconv.TRAINING_AGGRESSOR_THREAD_ID, worst.tid),
            key_value(semconv.TRAINING_AGGRESSOR_THREAD_NAME, self._harmless(worst.name)),
            key_value(semconv.TRAINING_AGGRESSOR_THREAD_TIME, worst.ran_ns * NS),
            key_value(semconv.TRAINING_AGGRESSOR_THREADS, len(threads)),
        ]

    def _aggressor_attributes(self, runners: list[Runner]) -> list[bytes]:
        if not runners:
            return []
        worst = runners[0]
        attributes = [
            key_value(semconv.TRAINING_AGGRESSOR_KIND, KIND_NAMES[worst.kind]),
            key_value(semconv.TRAINING_AGGRESSOR_TIME, worst.ran_ns * NS),
        ]
        processes = [runner for runner in runners if runner.kind != RunnerKind.IDLE]
        if worst.kind != RunnerKind.IDLE:
            cgroup = self._details(worst.tgid)[1]
            attributes.append(key_value(semconv.TRAINING_AGGRESSOR_PID, worst.tgid))
            attributes.append(key_value(semconv.TRAINING_AGGRESSOR_NAME, self._name(worst)))
            if cgroup is not None:
                attributes.append(key_value(semconv.TRAINING_AGGRESSOR_CGROUP, cgroup))
        if processes:
            names = tuple(self._name(runner) for runner in processes)
            attributes += [
                key_value(semconv.TRAINING_AGGRESSOR_PIDS, tuple(r.tgid for r in processes)),
                key_value(semconv.TRAINING_AGGRESSOR_NAMES, names),
                doubles(semconv.TRAINING_AGGRESSOR_TIMES, [r.ran_ns * NS for r in processes]),
            ]
        return attributes
