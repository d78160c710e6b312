"""Ring records to OTLP spans, with the thread times that a host agent adds.

Used by the agent, and by the training process itself when there is no agent. Pure: no clock, no file, no socket.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.otlp_wire import encode_attribute as key_value
from rootwalk.instrumentation.otlp_wire import encode_doubles as doubles
from rootwalk.instrumentation.otlp_wire import encode_span
from rootwalk.instrumentation.program_spans import program_span
from rootwalk.instrumentation.semconv import TrainingPhase
from rootwalk.instrumentation.shared_ring import Record, RecordFlag, RecordKind

__all__ = ["Parent", "PartitionReader", "SpanBuilder", "ThreadTimes", "doubles", "key_value"]

NS = 1e-9
# As the fields of `ThreadTimes` after its sensor.
THREAD_TIME_KEYS = (
    semconv.TRAINING_THREAD_RUNNING_TIME,
    semconv.TRAINING_THREAD_RUNNABLE_TIME,
    semconv.TRAINING_THREAD_RUNNABLE_FOREIGN_TIME,
    semconv.TRAINING_THREAD_RUNNABLE_OWN_TIME,
    semconv.TRAINING_THREAD_RUNNABLE_IDLE_TIME,
    semconv.TRAINING_THREAD_BLOCKED_TIME,
)
# Phases and steps that are remembered so that a stall finds its parent: some 200 steps of 10 phases.
REMEMBERED_INTERVALS = 2048


class ThreadTimes(NamedTuple):
    """Where a thread's time went in one interval, ns.

    Attributes:
        sensor: A value of `semconv.TrainingThreadSensor`.
        running_ns: On a CPU; None where not known (threads other than the main one).
        runnable_ns: Runnable, not running.
        runnable_foreign_ns: Of it, while another process or a kernel thread ran; None if the sensor cannot tell.
        runnable_own_ns: Of it, while the rank's own process or its children ran; None if the sensor cannot tell.
        runnable_idle_ns: Of it, while the CPU was idle; None if the sensor cannot tell.
        blocked_ns: Blocked or stopped; None where not known.
        blocked_loader_running_ns: Of it, while at least one of the rank's loader workers ran; None if not known.
        blocked_loader_files_ns: Of it, while none ran and at least one waited for a file; None if not known.
        loader_running_ns: CPU time of all of the rank's child processes in the interval; None if not known.
        throttled_ns: Throttled by the CPU limit of the rank's control group; None if not known.
        waits: How long what held it up (a value of `semconv.TrainingWaitKind`); the short ones missing.
        told_wait_ns: From which length on waits are in `waits`; None where none is.
    """

    sensor: str
    running_ns: int | None
    runnable_ns: int
    runnable_foreign_ns: int | None
    runnable_own_ns: int | None
    runnable_idle_ns: int | None
    blocked_ns: int | None
    blocked_loader_running_ns: int | None = None
    loader_running_ns: int | None = None
    throttled_ns: int | None = None
    blocked_loader_files_ns: int | None = None
    waits: Mapping[str, int] = MappingProxyType({})
    told_wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Parent:
    """The step, and the phase if any, in which a moment falls.

    Attributes:
        step: Step number.
        phase: Name of the phase, or None between phases.
        phase_index: Its index, or None.
        span_id: Span id of the phase, else of the rank's step.
    """

    step: int
    phase: str | None
    phase_index: int | None
    span_id: bytes


class PartitionReader(Protocol):
    """Tells where a rank's threads spent intervals of the monotonic clock, ns; None where that is not known."""

    def main_times(self, start_ns: int, end_ns: int) -> ThreadTimes | None:
        """Return the first thread's times in an interval."""

    def others_times(self, intervals: Sequence[tuple[int, int]]) -> Sequence[ThreadTimes | None]:
        """Return for each interval when at least one of the other threads could not run."""


class SpanBuilder:
    """Turns one rank's records into spans, and knows the parent of anything that happened in between.

    Args:
        identity: The rank.
        clock: Monotonic to Unix as the rank's ring keeps it.

    Attributes:
        device: The GPU that the rank uses, by the UUID that NVML prints; None where it is not known, or several.
    """

    def __init__(self, identity: Identity, clock: HostClock) -> None:
        self.identity = identity
        self._clock = clock
        self.device: str | None = None
        self._phases: deque[tuple[int, int, Parent]] = deque(maxlen=REMEMBERED_INTERVALS)
        self._steps: deque[tuple[int, int, Parent]] = deque(maxlen=REMEMBERED_INTERVALS)
        self._collectives: deque[tuple[int, int, str]] = deque(maxlen=REMEMBERED_INTERVALS)
        self._loader_wait = _LoaderWait()

    def spans(
        self, records: Sequence[Record], partition: PartitionReader | None = None
    ) -> list[bytes]:
        """Return the spans of these records as OTLP bytes, in their order.

        Args:
            records: As `RingReader.read` returned them.
            partition: Thread times by interval, from the host agent; None where there is none.
        """
        spans: list[bytes] = []
        collective_times = _collective_times(records, partition)
        for record in records:
            match record.kind:
                case RecordKind.STEP:
                    spans.extend(self._step_spans(record, partition))
                case RecordKind.PHASE:
                    spans.append(self._phase_span(record, partition))
                case RecordKind.COLLECTIVE:
                    spans.append(self._collective_span(record, next(collective_times)))
                case _:
                    spans.append(program_span(self, record))
        return spans

    def parent_of(self, mono_ns: int) -> Parent | None:
        """Return the step and phase in which a moment falls; None when that step is not closed or long gone."""
        step = _containing(self._steps, mono_ns)
        if step is None:
            return None
        return _containing(self._phases, mono_ns) or step

    def open_step(self, mono_ns: int) -> int | None:
        """Return the step that follows the last closed one, for a moment after that; None for others."""
        if not self._steps or mono_ns < self._steps[-1][1]:
            return None
        return self._steps[-1][2].step + 1

    def collective_of(self, mono_ns: int) -> str | None:
        """Return the operation of the last collective that was under way at a moment; None without one."""
        found = (name for start, end, name in reversed(self._collectives) if start <= mono_ns < end)
        return next(found, None)

    def closed_until_mono_ns(self) -> int:
        """Return the end of the last step that was closed; 0 before the first."""
        return self._steps[-1][1] if self._steps else 0

    def span(
        self,
        name: str,
        step: int,
        span_id: bytes,
        parent_id: bytes,
        bounds_mono_ns: tuple[int, int],
        attributes: list[bytes],
        linked_id: bytes = b"",
    ) -> bytes:
        """Return a span of this rank in a step's trace, linked to another of it or to none."""
        trace_id = ids.trace_id(self.identity.job, self.identity.attempt, step)
        offset_ns = self._clock.offset_ns
        bounds = (bounds_mono_ns[0] + offset_ns, max(bounds_mono_ns) + offset_ns)
        return encode_span(name, trace_id, span_id, parent_id, bounds, attributes, linked_id)

    def _step_spans(self, record: Record, partition: PartitionReader | None) -> list[bytes]:
        who = self.identity
        bounds = (record.start_mono_ns, record.end_mono_ns)
        root_id = ids.step_id(who.job, who.attempt, record.step)
        own_id = ids.rank_step_id(who.job, who.attempt, record.step, who.rank)
        number = key_value(semconv.TRAINING_STEP_NUMBER, record.step)
        outcome = (
            semconv.TrainingStepOutcome.INCOMPLETE
            if record.flags & RecordFlag.INCOMPLETE
            else semconv.TrainingStepOutcome.COMPLETE
        )
        self._steps.append((*bounds, Parent(record.step, None, None, own_id)))
        attributes = [number, key_value(semconv.TRAINING_STEP_OUTCOME, outcome.value)]
        if self.device is not None:
            attributes.append(key_value(semconv.HW_ID, self.device))
        times = partition.main_times(*bounds) if partition is not None else None
        loader_wait = self._loader_wait.take()
        if times is not None:
            attributes += _time_attributes(times)
            attributes += _loader_wait_attributes(
                loader_wait if times.blocked_loader_running_ns is not None else None
            )
            attributes += _second_attributes(
                (semconv.TRAINING_LOADER_RUNNING_TIME, semconv.TRAINING_CGROUP_THROTTLED_TIME),
                (times.loader_running_ns, times.throttled_ns),
            )
        attributes += _second_attributes(
            (semconv.TRAINING_GC_TIME, semconv.TRAINING_CPU_PROBE_TIME),
            (record.gc_ns, record.probe_ns),
        )
        spans = [self.span("training.rank_step", record.step, own_id, root_id, bounds, attributes)]
        if who.rank == 0:
            spans.insert(0, self.span("training.step", record.step, root_id, b"", bounds, [number]))
        return spans

    def _phase_span(self, record: Record, partition: PartitionReader | None) -> bytes:
        who = self.identity
        index = record.index or 0
        bounds = (record.start_mono_ns, record.end_mono_ns)
        span_id = ids.phase_id(who.job, who.attempt, record.step, who.rank, index)
        self._phases.append((*bounds, Parent(record.step, record.name, index, span_id)))
        attributes = [
            key_value(semconv.TRAINING_STEP_NUMBER, record.step),
            key_value(semconv.TRAINING_PHASE, record.name),
            key_value(semconv.TRAINING_PHASE_INDEX, index),
        ]
        times = partition.main_times(*bounds) if partition is not None else None
        loader_wait: tuple[int, int] | None = (0, 0)
        if record.name == TrainingPhase.DATA_LOAD:
            loader_wait = _loader_wait(times)
            attributes += _loader_wait_attributes(loader_wait)
        self._loader_wait.add(index, loader_wait)
        if times is not None:
            attributes += _time_attributes(times)
        attributes += _second_attributes(
            (semconv.TRAINING_GC_TIME, semconv.TRAINING_DEVICE_STREAM_TIME),
            (record.gc_ns, record.device_ns),
        )
        parent_id = ids.rank_step_id(who.job, who.attempt, record.step, who.rank)
        return self.span(record.name, record.step, span_id, parent_id, bounds, attributes)

    def _collective_span(self, record: Record, times: ThreadTimes | None) -> bytes:
        who = self.identity
        communicator = record.communicator.partition("|")[0]
        is_p2p = bool(record.flags & RecordFlag.POINT_TO_POINT)
        bounds = (record.start_mono_ns, record.end_mono_ns)
        self._collectives.append((*bounds, record.name))
        attributes = [
            key_value(semconv.TRAINING_STEP_NUMBER, record.step),
            key_value(semconv.COLLECTIVE_SEQUENCE, record.sequence),
            _collective_attributes(
                record.name, record.communicator, record.size_bytes, record.flags, record.root
            ),
        ]
        if record.index is None:
            parent_id = ids.rank_step_id(who.job, who.attempt, record.step, who.rank)
        else:
            parent_id = ids.phase_id(who.job, who.attempt, record.step, who.rank, record.index)
            attributes.append(key_value(semconv.TRAINING_PHASE, record.phase))
        if times is not None:
            attributes += _time_attributes(times)
        attributes += _second_attributes((semconv.COLLECTIVE_DEVICE_TIME,), (record.device_ns,))
        span_id = ids.collective_id(
            who.job, who.attempt, who.rank, communicator, record.sequence, is_p2p=is_p2p
        )
        shared_id = ids.collective_shared_id(
            who.job, who.attempt, communicator, record.sequence, is_p2p=is_p2p
        )
        return self.span(
            f"collective.{record.name}",
            record.step,
            span_id,
            parent_id,
            bounds,
            attributes,
            shared_id,
        )


def _collective_times(
    records: Sequence[Record], partition: PartitionReader | None
) -> Iterator[ThreadTimes | None]:
    """Yield the other threads' times in each collective; asked for at once, because that is much cheaper."""
    if partition is None:
        return itertools.repeat(None)
    return iter(
        partition.others_times(
            [
                (record.start_mono_ns, record.end_mono_ns)
                for record in records
                if record.kind is RecordKind.COLLECTIVE
            ]
        )
    )


# A step of training issues the same operations again and again.
@functools.lru_cache(maxsize=1024)
def _collective_attributes(
    operation: str, communicator: str, size_bytes: int, flags: int, root: int | None
) -> bytes:
    """Return what one collective has in common with the same one of other steps."""
    number, size, backend, name = (communicator.split("|", 3) + [""] * 4)[:4]
    attributes = [
        key_value(semconv.COLLECTIVE_OPERATION, operation),
        key_value(semconv.COLLECTIVE_COMMUNICATOR_ID, number),
        key_value(semconv.COLLECTIVE_COMMUNICATOR_NAME, name),
        key_value(semconv.COLLECTIVE_COMMUNICATOR_SIZE, int(size or 0)),
        key_value(semconv.COLLECTIVE_SIZE, size_bytes),
        key_value(semconv.COLLECTIVE_BACKEND, backend),
        key_value(semconv.COLLECTIVE_IS_POINT_TO_POINT, bool(flags & RecordFlag.POINT_TO_POINT)),
    ]
    if flags & RecordFlag.END_UNKNOWN:
        attributes.append(key_value(semconv.COLLECTIVE_IS_END_KNOWN, False))
    if root is not None:
        attributes.append(key_value(semconv.COLLECTIVE_ROOT, root))
    return b"".join(attributes)


class _LoaderWait:
    """Sums over one step's data_load phases of the time in which the main thread waited for its workers.

    A reader that takes over in the middle of a step has not seen all of its phases: then the sums are not known.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._sums: tuple[int, int] | None = (0, 0)
        self._phases = self._last_index = 0

    def add(self, index: int, wait: tuple[int, int] | None) -> None:
        """Take the next phase of the step: waits for workers that ran and that waited for files, ns."""
        self._phases += 1
        self._last_index = index
        sums = self._sums
        self._sums = (
            (sums[0] + wait[0], sums[1] + wait[1])
            if sums is not None and wait is not None
            else None
        )

    def take(self) -> tuple[int, int] | None:
        """Return the step's sums, ns, and begin the next step; None when a part is not known."""
        sums = self._sums if self._phases in (0, self._last_index + 1) else None
        self._begin()
        return sums


def _loader_wait(times: ThreadTimes | None) -> tuple[int, int] | None:
    if times is None or times.blocked_loader_running_ns is None:
        return None
    return times.blocked_loader_running_ns, times.blocked_loader_files_ns or 0


def _loader_wait_attributes(wait: tuple[int, int] | None) -> list[bytes]:
    running_ns, files_ns = wait if wait is not None else (None, None)
    return _second_attributes(
        (
            semconv.TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME,
            semconv.TRAINING_THREAD_BLOCKED_LOADER_FILES_TIME,
        ),
        (running_ns, files_ns or None),
    )


def _containing(intervals: deque[tuple[int, int, Parent]], mono_ns: int) -> Parent | None:
    for start, end, parent in reversed(intervals):
        if start <= mono_ns < end:
            return parent
        if end <= mono_ns:
            return None
    return None


def _time_attributes(times: ThreadTimes) -> list[bytes]:
    attributes = [
        key_value(semconv.TRAINING_THREAD_SENSOR, times.sensor),
        *_second_attributes(THREAD_TIME_KEYS, times[1:7]),
    ]
    if times.waits:
        attributes.append(key_value(semconv.TRAINING_WAIT_KINDS, tuple(times.waits)))
        waited_s = [ns * NS for ns in times.waits.values()]
        attributes.append(doubles(semconv.TRAINING_WAIT_TIMES, waited_s))
    attributes += _second_attributes((semconv.TRAINING_WAIT_MIN_TIME,), (times.told_wait_ns,))
    return attributes


def _second_attributes(keys: Iterable[str], times_ns: Iterable[int | None]) -> list[bytes]:
    """Return durations in ns as attributes in seconds; what is not known has none."""
    return [
        key_value(key, ns * NS) for key, ns in zip(keys, times_ns, strict=True) if ns is not None
    ]
