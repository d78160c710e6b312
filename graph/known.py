"""What is known of a job in which nobody can be named: where its steps go, and who waits for whom.

    a profile          device idle, for want of what; computing, copying, collectives, input; the busiest operation
    several ranks      which rank the others wait for, and for how long
    watched threads    running, ready to run, blocked

Numbers without an accusation: seconds a step, means over the steps of the window and, where no rank is named, over the
ranks. Owns what is worth saying; the words are `render`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.columns import JobData, ThreadState
from rootwalk.graph.input_waits import PROFILE_SCOPE
from rootwalk.graph.model import Known
from rootwalk.graph.reasons import Signal
from rootwalk.instrumentation import semconv

__all__ = ["DeviceTimes", "describe_known", "read_device_times"]

# Below this part of a step a number is not worth a reader's time.
MIN_PART: Final = 0.02
_PATH: Final = "training.device.path"
# What the path of a step goes over, as the spans of a profile have it.
_PARTS: Final = {
    "training.device.path.computation_time": "the device computed",
    "training.device.path.copy_time": "the device copied",
    "training.device.path.collective_time": "collectives ran on the device, and nothing else",
    "training.device.path.launch_gap_time": "the device had nothing to do, as nothing was launched",
    "training.device.path.input_time": "the host loaded input",
    "training.device.path.host_time": "the host worked and the device did not",
}


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What profiles say of the devices, seconds a step: sums by signal, and the operation that took longest."""

    step_s: float
    busy_s: float
    parts_s: dict[str, float]
    busiest: tuple[str, float] | None


def read_device_times(
    connection: Any, job: str, attempt: int, steps: tuple[int, int]
) -> DeviceTimes | None:
    """Return what profiles say of some steps; None for a job without them."""
    owner = [job, attempt, PROFILE_SCOPE, *steps]
    where = "job = ? AND coalesce(attempt, 0) = ? AND scope_name = ? AND step BETWEEN ? AND ?"
    sums = ", ".join(f"sum(TRY_CAST(attributes ->> '$.\"{name}\"' AS DOUBLE))" for name in _PARTS)
    path = connection.execute(
        f"SELECT count(*), {sums} FROM spans WHERE {where} AND name = ?",  # noqa: S608  (our own names)
        [*owner, _PATH],
    ).fetchone()
    count, step_ns, busy_s = connection.execute(
        "SELECT count(*), sum(end_unix_ns - start_unix_ns),"  # noqa: S608
        f" sum(TRY_CAST(attributes ->> '$.\"{semconv.TRAINING_DEVICE_BUSY_TIME}\"' AS DOUBLE))"
        f" FROM spans WHERE {where} AND name = 'training.rank_step'",
        owner,
    ).fetchone()
    if not count or busy_s is None:
        return None
    busiest = connection.execute(
        "SELECT attributes ->> '$.\"training.device.operation.name\"' AS operation,"  # noqa: S608
        " sum(TRY_CAST(attributes ->> '$.\"training.device.operation.time\"' AS DOUBLE)) AS seconds"
        f" FROM spans WHERE {where} AND name = 'training.device.operation'"
        " AND attributes ->> '$.\"training.device.path.kind\"' = 'computation'"
        " GROUP BY operation HAVING seconds > 0 ORDER BY seconds DESC, operation LIMIT 1",
        owner,
    ).fetchone()
    rows = max(int(path[0]), 1)
    return DeviceTimes(
        step_s=float(step_ns) / 1e9 / count,
        busy_s=float(busy_s) / count,
        parts_s={
            name: float(seconds or 0.0) / rows
            for name, seconds in zip(_PARTS, path[1:], strict=True)
        },
        busiest=None if busiest is None else (str(busiest[0]), float(busiest[1]) / count),
    )


def describe_known(
    data: JobData,
    clock: StepClock,
    question: Question,
    analysis: Analysis | None,
    device: DeviceTimes | None,
) -> tuple[Known, ...]:
    """Return what is known, the most telling first.

    Args:
        data: The job's telemetry.
        clock: The job's step clock.
        question: The window.
        analysis: What it cost, None where it was not replayed.
        device: What profiles say, None without them.
    """
    found: list[Known] = []
    if device is not None:
        found += _of_device(device)
    if analysis is not None:
        found += _of_waits(analysis)
    if device is None:
        found += _of_threads(data, clock, question)
    return tuple(found)


def _of_device(device: DeviceTimes) -> list[Known]:
    step_s = max(device.step_s, 1e-12)
    idle_s = max(device.step_s - device.busy_s, 0.0)
    text = f"the device is idle for {100 * idle_s / step_s:.0f} % of a step"
    found = [Known("training.device.idle_time", round(idle_s, 9), "s", None, text)]
    parts = sorted(device.parts_s.items(), key=lambda item: -item[1])
    found += [
        Known(name, round(seconds, 9), "s", None, _PARTS[name])
        for name, seconds in parts
        if seconds >= MIN_PART * step_s
    ]
    if device.busiest is not None:
        name, seconds = device.busiest
        if seconds < MIN_PART * step_s:
            return found
        text = f"the longest computation on the critical path: {name}"
        found.append(Known("training.device.operation.time", round(seconds, 9), "s", None, text))
    return found


def _of_waits(analysis: Analysis) -> list[Known]:
    """Return the rank that the others wait for longest, and for how long each of them does a step."""
    steps = max(len(analysis.window.step_numbers), 1)
    step_s = (analysis.window.end_s - analysis.window.start_s) / steps
    waits: dict[int, list[float]] = {}
    for (_, culprit), series in analysis.waits.series.items():
        waits.setdefault(culprit, []).append(float(series.sum()) / steps)
    if not waits:
        return []
    rank = max(waits, key=lambda one: (sum(waits[one]), -one))
    mean_s = float(np.mean(waits[rank]))
    if mean_s < MIN_PART * step_s:
        return []
    count = len(waits[rank])
    text = f"{count} rank{'s' * (count != 1)} waited for rank {rank}, each"
    return [Known(str(Signal.WAIT), round(mean_s, 9), "s", rank, text)]


def _of_threads(data: JobData, clock: StepClock, question: Question) -> list[Known]:
    numbers = clock.numbers[question.start : question.stop]
    rows = np.isin(data.steps.step, numbers)
    states = data.steps.states[rows]
    states = states[~np.isnan(states[:, ThreadState.RUNNING])]
    if not len(states):
        return []
    mean_s = np.nan_to_num(states).mean(axis=0)
    ready = [ThreadState.FOREIGN, ThreadState.OWN, ThreadState.IDLE, ThreadState.UNSPLIT]
    running = [ThreadState.RUNNING, ThreadState.GC, ThreadState.INTERRUPT]
    blocked = [s for s in ThreadState if s not in (*ready, *running)]
    step_s = max(float(mean_s.sum()), 1e-12)
    told = (
        (Signal.RUNNING, running, "the main threads ran"),
        (Signal.RUNNABLE, ready, "the main threads were ready to run and had no CPU"),
        (Signal.BLOCKED, blocked, "the main threads were blocked, waits for other ranks included"),
    )
    return [
        Known(str(signal), round(seconds, 9), "s", None, text)
        for signal, columns, text in told
        if (seconds := float(mean_s[columns].sum())) >= MIN_PART * step_s
    ]
