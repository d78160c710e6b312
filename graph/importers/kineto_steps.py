"""Steps of a profile, each with its phases and what device and operators did in them.

    main thread |-ProfilerStep#5------------------------------------|-ProfilerStep#6---
                |enumerate(DataLoader)#|    ops ops ops   |Optimizer.step#|
    autograd                                  |backward|
    device           idle              |kernel|  |kernel kernel kernel|

What the device ran after a gap was launched by a call of the same correlation. If that call had returned before the gap
began, the stream was not dry, and the gap is the device's own: the host could do nothing against it.

Backward is between its first and its last operator, in pieces where other operators of the main thread lie between.
The device's times are known of a step only if the profile has what the step launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rootwalk.graph.importers.formats import BrokenPart
from rootwalk.graph.importers.intervals import Cover, IntArray, Starts, as_pairs
from rootwalk.graph.importers.kineto_profile import Mark, Profile, StepMark, Thread
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.semconv import TrainingPhase

__all__ = [
    "Idle",
    "PhaseTimes",
    "StepTimes",
    "Work",
    "find_main_thread",
    "measure_steps",
    "sort_steps",
]

# Times are rounded to microseconds in old profiles.
MAX_OVERLAP_NS: Final = 2_000
# Of a step's launches, so much has to be there as kernels: the last ones of a profile may be cut off.
MIN_LAUNCHED_RATIO: Final = 0.95


@dataclass(frozen=True, slots=True)
class Idle:
    """How a step kept the device from computing, ns.

    Attributes:
        launch_gap_ns: Nothing ran on the device and nothing was launched for it, while a thread was in an operator, and
            the main thread neither loaded data nor was in a call that waits for the device.
        queued_ns: Nothing ran on the device, though what it ran next had been launched.
        synchronize_ns: The main thread was in such a call.
        exposed_ns: Kernels of collectives ran on the device, and nothing else.
        communication_ns: At least one kernel of a collective ran.
    """

    launch_gap_ns: int
    queued_ns: int
    synchronize_ns: int
    exposed_ns: int
    communication_ns: int


@dataclass(frozen=True, slots=True)
class Work:
    """What went on in an interval, ns.

    Attributes:
        busy_ns: At least one kernel or copy ran on the device; None where that is not known.
        kernel_ns: Kernels that began in it, summed over the streams; None likewise.
        operator_ns: The main thread was in an operator.
        idle: What the device did not do, of steps only; None likewise.
    """

    busy_ns: int | None
    kernel_ns: int | None
    operator_ns: int
    idle: Idle | None = None


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """One phase of a step."""

    mark: Mark
    work: Work


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of the profile; `is_complete` is False where nothing happened in it: the profile ended."""

    mark: StepMark
    is_complete: bool
    work: Work
    phases: tuple[PhaseTimes, ...]


def find_main_thread(profile: Profile) -> Thread:
    """Return the thread that ran the training loop: the one with most of the steps' time.

    Raises:
        DecodeError: If the profile has no steps.
    """
    if not profile.steps:
        raise DecodeError(
            "cannot find the steps: saw no ProfilerStep#N in the profile, nor collectives on a device; needs a loop"
            " that calls prof.step()",
            hint="at the end of every iteration, with a schedule of 3 active steps or more",
        )
    return max(
        sorted(profile.steps),
        key=lambda thread: sum(mark.end_ns - mark.start_ns for mark in profile.steps[thread]),
    )


def sort_steps(marks: list[StepMark]) -> Iterator[StepMark | BrokenPart]:
    """Yield the steps of one thread in order, and those that contradict what came before them."""
    last: StepMark | None = None
    for mark in sorted(marks, key=lambda mark: (mark.start_ns, mark.number)):
        if last is not None and mark.number <= last.number:
            text = f"cannot order the steps: saw step {mark.number} after step {last.number}; needs rising numbers"
            yield BrokenPart(f"step {mark.number}", DecodeError(text))
        elif last is not None and mark.start_ns < last.end_ns - MAX_OVERLAP_NS:
            text = (
                f"cannot order the steps: saw step {mark.number} begin {(last.end_ns - mark.start_ns) / 1e6:.3f} ms"
                f" before step {last.number} ended; needs one after the other"
            )
            yield BrokenPart(f"step {mark.number}", DecodeError(text))
        else:
            last = mark
            yield mark


def measure_steps(
    profile: Profile, thread: Thread, marks: list[StepMark], *, is_whole: bool
) -> list[StepTimes]:
    """Return the steps with their phases.

    Args:
        profile: All of its events.
        thread: That of the training loop.
        marks: Its steps in order.
        is_whole: Whether the profile was read to its end; else the device's times are not known.
    """
    meter = _Meter(profile, thread, is_whole=is_whole)
    return [meter.step(mark) for mark in marks]


def _by_start(groups: list[IntArray]) -> IntArray:
    """Return intervals of several groups by their start, (intervals, 2)."""
    pairs = np.concatenate(groups).reshape(-1, 2)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _find_queued(profile: Profile, busy: Cover) -> IntArray:
    """Return when the device ran nothing though what it ran next had been launched, (gaps, 2) by their start.

    A gap ends with what began first then; where no call is known to have launched that, the gap is not among them.

    Source:
        The critical path of HolisticTraceAnalysis: a launch is on it only where the stream ran dry.
    """
    gaps = np.column_stack((busy.ends[:-1], busy.starts[1:]))
    returned = np.array(profile.returned, dtype=np.int64).reshape(-1, 2)
    if not len(gaps) or not len(returned):
        return np.zeros((0, 2), dtype=np.int64)
    returned = returned[np.argsort(returned[:, 0], kind="stable")]
    ran = np.array(profile.ran, dtype=np.int64).reshape(-1, 4)
    ran = ran[np.argsort(ran[:, 1], kind="stable")]
    launched_by = ran[np.searchsorted(ran[:, 1], gaps[:, 1]), 3]
    found = np.minimum(np.searchsorted(returned[:, 0], launched_by), len(returned) - 1)
    is_queued = (returned[found, 0] == launched_by) & (returned[found, 1] <= gaps[:, 0])
    return np.asarray(gaps[is_queued], dtype=np.int64)


class _Meter:
    """A profile's intervals, sorted once."""

    def __init__(self, profile: Profile, thread: Thread, *, is_whole: bool) -> None:
        own = as_pairs(profile.operators[thread])
        others = [as_pairs(pairs) for key, pairs in profile.operators.items() if key != thread]
        self._operators = Cover(own)
        self._any_operator = Starts(np.concatenate([own, *others]).reshape(-1, 2))
        backward = as_pairs(profile.backward)
        self._backward = Cover(backward)
        # Operators of the main thread that are not within backward's own.
        within = np.searchsorted(self._backward.starts, own[:, 0], side="right") - 1
        is_inside = (within >= 0) & (own[:, 0] < self._ends_of(within))
        self._between: IntArray = own[~is_inside, 0]
        self._busy = Cover(as_pairs(profile.device))
        self._kernels = Starts(as_pairs(profile.kernels))
        self._is_device_known = is_whole and len(profile.device) > 0 and not profile.broken_device
        self._waits = Cover(as_pairs(profile.synchronizing[thread]))
        self._communication = Cover(as_pairs(profile.communication))
        self._computation = Cover(as_pairs(profile.computation))
        queued = _find_queued(profile, self._busy)
        self._queued = Cover(queued)
        # What a loader does while the device is idle is the input's.
        loads = [
            (mark.start_ns, mark.end_ns)
            for mark in profile.marks[thread]
            if mark.phase is TrainingPhase.DATA_LOAD
        ]
        used = [
            as_pairs(profile.device),
            as_pairs(profile.synchronizing[thread]),
            queued,
            np.array(loads, dtype=np.int64).reshape(-1, 2),
        ]
        self._used = Cover(_by_start(used))
        self._used_or_operator = Cover(_by_start([*used, own, *others]))
        launches = np.concatenate(
            [np.array(pairs, dtype=np.int64).reshape(-1, 2) for pairs in profile.launches.values()]
            or [np.zeros((0, 2), dtype=np.int64)]
        )
        launches = launches[np.argsort(launches[:, 1], kind="stable")]
        self._launch_starts: IntArray = launches[:, 1]
        is_there = np.isin(launches[:, 0], np.array(profile.launched, dtype=np.int64))
        self._launched_before = np.concatenate([[0], np.cumsum(is_there)])
        self._marks = sorted(profile.marks[thread], key=lambda mark: (mark.start_ns, -mark.end_ns))
        self._mark_starts = np.array([mark.start_ns for mark in self._marks], dtype=np.int64)

    def _ends_of(self, index: IntArray) -> IntArray:
        ends = self._backward.ends
        return ends[np.maximum(index, 0)] if len(ends) else np.zeros(len(index), dtype=np.int64)

    def step(self, mark: StepMark) -> StepTimes:
        low, high = mark.start_ns, mark.end_ns
        first, stop = self._any_operator.bounds(low, high)
        is_known = self._is_device_known and self._has_launched(low, high)
        phases = [
            PhaseTimes(phase, self._work(phase.start_ns, phase.end_ns, is_known))
            for phase in self._phases(low, high)
        ]
        work = self._work(low, high, is_known)
        if is_known:
            work = replace(work, idle=self._idle(low, high))
        return StepTimes(mark, stop > first, work, tuple(phases))

    def _idle(self, low: int, high: int) -> Idle:
        busy_ns = self._busy.within(low, high)
        return Idle(
            self._used_or_operator.within(low, high) - self._used.within(low, high),
            self._queued.within(low, high),
            self._waits.within(low, high),
            busy_ns - self._computation.within(low, high),
            self._communication.within(low, high),
        )

    def _work(self, low: int, high: int, is_known: bool) -> Work:
        busy_ns = self._busy.within(low, high) if is_known else None
        kernel_ns = self._kernels.within(low, high) if is_known else None
        return Work(busy_ns, kernel_ns, self._operators.within(low, high))

    def _has_launched(self, low: int, high: int) -> bool:
        """Return whether the profile has nearly all of what was launched in an interval."""
        first, stop = np.searchsorted(self._launch_starts, [low, high])
        there = self._launched_before[stop] - self._launched_before[first]
        return bool(there >= MIN_LAUNCHED_RATIO * (stop - first))

    def _phases(self, low: int, high: int) -> list[Mark]:
        """Return the phases that begin in a step, without those within others, and without overlap."""
        first, stop = np.searchsorted(self._mark_starts, [low, high])
        marks = self._marks[first:stop]
        if not any(mark.phase is TrainingPhase.BACKWARD for mark in marks):
            marks = sorted(
                [*marks, *self._backward_pieces(low, high)],
                key=lambda mark: (mark.start_ns, -mark.end_ns),
            )
        phases: list[Mark] = []
        reached = low
        for mark in marks:
            end_ns = min(mark.end_ns, high)
            start_ns = max(mark.start_ns, reached)
            if end_ns > start_ns:
                phases.append(Mark(mark.phase, start_ns, end_ns, mark.is_own_loader))
                reached = end_ns
        return phases

    def _backward_pieces(self, low: int, high: int) -> Iterator[Mark]:
        first, stop = np.searchsorted(self._backward.starts, [low, high])
        if first == stop:
            return
        starts, ends = self._backward.starts[first:stop], self._backward.ends[first:stop]
        between = np.searchsorted(self._between, starts[1:]) > np.searchsorted(
            self._between, ends[:-1]
        )
        cuts = np.flatnonzero(between) + 1
        for one, after in zip([0, *cuts], [*cuts, len(starts)], strict=True):
            yield Mark(TrainingPhase.BACKWARD, int(starts[one]), int(ends[after - 1]))
