"""What the device did, as an OTLP profile: nanoseconds of kernels and copies by the operators that asked for them.

    operators  |-aten::linear-------|
                 |-aten::addmm---|
    runtime         x launch                          same correlation
    device                            |-gemm------|   ──▶ gemm < aten::addmm < aten::linear: 1.2 ms

Work belongs to the step and phase in which it was asked for, which may be before it ran; where the profile does not
tell when that was, to those in which it began. Streams run beside each other: sums may be longer than the step.
"""

from __future__ import annotations

import bisect
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.importers.intervals import IntArray
from rootwalk.graph.importers.kineto_profile import Names, Profile
from rootwalk.graph.importers.kineto_steps import StepTimes
from rootwalk.graph.input_waits import PROFILE_SCOPE
from rootwalk.instrumentation import ids, profiles, semconv
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

__all__ = ["GPU_KERNEL", "Owner", "gpu_requests"]

# Pyroscope names a profile that it does not know by its period.
GPU_KERNEL: Final = profiles.ValueKind("gpu_kernel", "nanoseconds")
SAMPLES_PER_REQUEST: Final = 20_000
# Operators within each other that are told, the innermost ones.
MAX_OPERATORS: Final = 60

# Numbers of names, the innermost first; the kernel's is the first.
_Stack = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose device it was; `base_ns` is what the profile's times count from."""

    job: str
    attempt: int
    rank: int
    base_ns: int
    resource: dict[str, str | int]


@dataclass(frozen=True, slots=True)
class _Place:
    """A step and its phase; None where there is none."""

    step: int | None = None
    phase: str | None = None
    phase_index: int | None = None


def gpu_requests(profile: Profile, steps: list[StepTimes], owner: Owner) -> Iterator[ImportRequest]:
    """Yield requests with what the device did; none where the profile has nothing of it, or no times.

    Args:
        profile: All of its events.
        steps: In order, with their phases.
        owner: Whose it is.
    """
    ran = profile.ran
    if not ran or owner.base_ns + min(ran[1::4]) <= 0:
        return
    start_ns, end_ns = min(ran[1::4]), max(ran[2::4])
    sums = _sum(profile, steps)
    frames = _Frames(profile.names)
    samples = [_sample(frames, owner, place, stack, ns) for (place, stack), ns in sums.items()]
    for first in range(0, len(samples), SAMPLES_PER_REQUEST):
        some = samples[first : first + SAMPLES_PER_REQUEST]
        one = profiles.Profile(
            owner.resource,
            owner.base_ns + start_ns,
            end_ns - start_ns,
            GPU_KERNEL,
            some,
            GPU_KERNEL,
            1,
        )
        body = profiles.build_request([one], PROFILE_SCOPE, "")
        if body:
            yield ImportRequest(Signal.PROFILES, body, sum(bool(sample.value) for sample in some))


def _sum(profile: Profile, steps: list[StepTimes]) -> dict[tuple[_Place, _Stack], int]:
    """Return how long what ran in each place, by when it was asked for."""
    asked, stacks = _find_askers(profile)
    places = _Places(steps)
    sums: dict[tuple[_Place, _Stack], int] = defaultdict(int)
    ran = np.array(profile.ran, dtype=np.int64).reshape(-1, 4)
    found = np.searchsorted(asked[:, 0], ran[:, 3])
    found[found == len(asked)] = 0
    is_known = (ran[:, 3] >= 0) & (asked[found, 0] == ran[:, 3])
    times = np.where(is_known, asked[found, 1], ran[:, 1])
    numbers = np.where(is_known, asked[found, 2], 0)
    lengths = ran[:, 2] - ran[:, 1]
    rows = zip(_each(ran[:, 0]), _each(times), _each(numbers), _each(lengths), strict=True)
    for name, time_ns, number, length_ns in rows:
        sums[places.at(time_ns), (name, *stacks[number])] += length_ns
    return sums


def _each(numbers: IntArray) -> array[int]:
    """Return numbers to go through one by one, without a list of them all."""
    values = array("q")
    values.frombytes(np.ascontiguousarray(numbers).tobytes())
    return values


def _find_askers(profile: Profile) -> tuple[IntArray, list[_Stack]]:
    """Return (correlation, time, number of a stack) of every call, by correlation, and the stacks; 0 is none."""
    known: dict[_Stack, int] = {(): 0}
    parts = [np.full((1, 3), -1, dtype=np.int64)]
    for thread, pairs in profile.asked.items():
        calls = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        calls = calls[np.argsort(calls[:, 1], kind="stable")]
        operators = np.array(profile.operators.get(thread, ()), dtype=np.int64).reshape(-1, 2)
        order = np.lexsort((-operators[:, 1], operators[:, 0]))
        names = np.array(profile.operator_names.get(thread, ()), dtype=np.int64)[order]
        starts, ends = operators[order, 0], operators[order, 1]
        numbers = array("q")
        following = zip(_each(starts), _each(ends), _each(names), strict=True)
        after = next(following, None)
        open_ones = list[tuple[int, int]]()
        for time_ns in _each(calls[:, 1]):
            while after is not None and after[0] <= time_ns:
                while open_ones and open_ones[-1][0] <= after[0]:
                    open_ones.pop()
                open_ones.append(after[1:])
                after = next(following, None)
            while open_ones and open_ones[-1][0] <= time_ns:
                open_ones.pop()
            stack = tuple(name for _, name in reversed(open_ones[-MAX_OPERATORS:]))
            numbers.append(known.setdefault(stack, len(known)))
        parts.append(np.column_stack((calls, np.array(numbers, dtype=np.int64))))
    asked = np.concatenate(parts)
    return asked[np.argsort(asked[:, 0], kind="stable")], list(known)


class _Places:
    """Finds the step and phase of a moment."""

    def __init__(self, steps: list[StepTimes]) -> None:
        self._steps = steps
        self._starts = [step.mark.start_ns for step in steps]

    def at(self, time_ns: int) -> _Place:
        index = bisect.bisect_right(self._starts, time_ns) - 1
        if index < 0 or time_ns >= self._steps[index].mark.end_ns:
            return _Place()
        step = self._steps[index]
        for number, phase in enumerate(step.phases):
            if phase.mark.start_ns <= time_ns < phase.mark.end_ns:
                return _Place(step.mark.number, phase.mark.phase.value, number)
        return _Place(step.mark.number)


class _Frames:
    """The frames of stacks; equal stacks are the same object, which is then told once."""

    def __init__(self, names: Names) -> None:
        self._names = names.names
        self._known: dict[_Stack, tuple[profiles.Frame, ...]] = {}

    def of(self, stack: _Stack) -> tuple[profiles.Frame, ...]:
        found = self._known.get(stack)
        if found is None:
            kernel, *operators = (self._names[number] for number in stack)
            kind = profiles.FrameKind
            found = self._known[stack] = (
                profiles.Frame(kind.GPU, kernel),
                *(profiles.Frame(kind.OPERATOR, name) for name in operators),
            )
        return found


def _sample(
    frames: _Frames, owner: Owner, place: _Place, stack: _Stack, value_ns: int
) -> profiles.Sample:
    attributes: dict[str, profiles.Value] = {}
    link = None
    if place.step is not None:
        who = (owner.job, owner.attempt, place.step)
        span_id = ids.rank_step_id(*who, owner.rank)
        if place.phase is not None and place.phase_index is not None:
            attributes[semconv.TRAINING_PHASE] = place.phase
            span_id = ids.phase_id(*who, owner.rank, place.phase_index)
        link = ids.trace_id(*who), span_id
    return profiles.Sample(frames.of(stack), value_ns, attributes, link)
