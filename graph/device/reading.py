"""Paths through the steps of profiles as the store has them: spans `training.device.path` with their operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingDevicePathKind as Kind

__all__ = ["TIME_OF_KIND", "DevicePath", "OperationKey", "paths_query", "read_paths"]

_PATH: Final = "training.device.path"
_OPERATION: Final = "training.device.operation"
TIME_OF_KIND: Final = {
    Kind.COMPUTATION: semconv.TRAINING_DEVICE_PATH_COMPUTATION_TIME,
    Kind.COLLECTIVE: semconv.TRAINING_DEVICE_PATH_COLLECTIVE_TIME,
    Kind.COPY: semconv.TRAINING_DEVICE_PATH_COPY_TIME,
    Kind.LAUNCH_GAP: semconv.TRAINING_DEVICE_PATH_LAUNCH_GAP_TIME,
    Kind.HOST: semconv.TRAINING_DEVICE_PATH_HOST_TIME,
    Kind.INPUT: semconv.TRAINING_DEVICE_PATH_INPUT_TIME,
    Kind.QUEUED: semconv.TRAINING_DEVICE_PATH_QUEUED_TIME,
    Kind.UNKNOWN: semconv.TRAINING_DEVICE_PATH_UNKNOWN_TIME,
}
# An importer tells so many operations of a step; of those that it does not tell each takes less than the least of them.
TOLD_OPERATIONS: Final = 8

# Kind and name.
OperationKey = tuple[Kind, str]


@dataclass(slots=True)
class DevicePath:
    """One step of one rank: seconds by kind, and of the operations that are told."""

    rank: int
    step: int
    seconds: Mapping[Kind, float] = field(default_factory=dict)
    operations: dict[OperationKey, float] = field(default_factory=dict)

    @property
    def untold_s(self) -> float:
        """The most that an operation that is not told may have taken."""
        is_cut = len(self.operations) >= TOLD_OPERATIONS
        return min(self.operations.values()) if is_cut else 0.0


def read_paths(
    connection: Any, job: str, attempt: int, steps: tuple[int, int]
) -> tuple[DevicePath, ...]:
    """Return the paths of steps first to last by rank and step.

    Args:
        connection: An open store.
        job: Its name.
        attempt: Which start of it.
        steps: The first and the last.
    """
    told = (
        *TIME_OF_KIND.values(),
        semconv.TRAINING_DEVICE_OPERATION_TIME,
        semconv.TRAINING_DEVICE_PATH_KIND,
        semconv.TRAINING_DEVICE_OPERATION_NAME,
    )
    columns = ", ".join("attributes ->> ?" for _ in told)
    rows = connection.execute(
        f"SELECT rank, step, name, {columns} FROM spans WHERE name IN (?, ?)"  # noqa: S608
        " AND job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL AND step BETWEEN ? AND ?"
        " ORDER BY rank, step, name, start_unix_ns, span_id",
        [*(f'$."{key}"' for key in told), _PATH, _OPERATION, job, attempt, *steps],
    ).fetchall()
    found: dict[tuple[int, int], DevicePath] = {}
    for rank, step, name, *values in rows:
        path = found.setdefault((rank, step), DevicePath(int(rank), int(step)))
        times, (time, kind, operation) = values[: len(TIME_OF_KIND)], values[len(TIME_OF_KIND) :]
        if name == _PATH:
            path.seconds = {
                which: float(text)
                for which, text in zip(TIME_OF_KIND, times, strict=True)
                if text is not None
            }
        elif kind in set(Kind) and operation and time is not None:
            path.operations[Kind(kind), str(operation)] = float(time)
    return tuple(path for path in found.values() if len(path.seconds) == len(TIME_OF_KIND))


def paths_query(job: str, ranks: tuple[int, ...], steps: tuple[int, int], name: str | None) -> str:
    """Return the SQL that shows a reader the paths of some ranks, or the operations of one name."""
    owner, listed = job.replace("'", "''"), ", ".join(map(str, ranks))
    which = f"name = '{_PATH}'"
    if name is not None:
        key = f'$."{semconv.TRAINING_DEVICE_OPERATION_NAME}"'
        told = name.replace("'", "''")
        which = f"name = '{_OPERATION}' AND attributes ->> '{key}' = '{told}'"
    where = f"job = '{owner}' AND rank IN ({listed}) AND {which} AND step BETWEEN {steps[0]} AND {steps[1]}"
    return f"SELECT rank, step, attributes FROM spans WHERE {where} ORDER BY rank, step"  # noqa: S608
