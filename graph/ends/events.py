"""What the store tells of the ends of a job's processes: kills for memory, ends of ranks, signals to ranks, last steps.

Times are Unix ns on the aligned clock. Kills come first: where there is none, nothing else is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rootwalk.graph.job_choice import JobKey
from rootwalk.instrumentation import semconv

__all__ = [
    "Kill",
    "LastStep",
    "ProcessEvents",
    "RankEnd",
    "SentSignal",
    "event_query",
    "read_events",
]

_EVENTS: Final = """
SELECT rank, unix_ns, host_id, coalesce(host_name, host_id, 'unknown'), CAST(attributes ->> $pid AS BIGINT),
       (attributes ->> $is_child) = 'true', CAST(attributes ->> $code AS BIGINT), attributes ->> $signal,
       CAST(attributes ->> $sender AS BIGINT)
FROM logs
WHERE event_name = $name AND job = $job AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL AND unix_ns IS NOT NULL
ORDER BY unix_ns, rank
"""
_LAST_STEPS: Final = """
SELECT rank, any_value(host_id), max(start_unix_ns), max(step) FROM span_records
WHERE name = 'training.rank_step' AND outcome = 'complete' AND job = ? AND coalesce(attempt, 0) = ?
    AND rank IS NOT NULL
GROUP BY rank ORDER BY rank
"""
_PATHS: Final = {
    "pid": semconv.PROCESS_PID,
    "is_child": semconv.TRAINING_PROCESS_IS_CHILD,
    "code": semconv.PROCESS_EXIT_CODE,
    "signal": semconv.TRAINING_SIGNAL_NAME,
    "sender": semconv.TRAINING_SIGNAL_SENDER_PID,
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A process of a rank that the kernel chose to kill for memory."""

    rank: int
    time_ns: int
    pid: int | None
    is_child: bool


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of a rank's own process: with an exit code, or by a signal."""

    rank: int
    time_ns: int
    host_id: str
    host_name: str
    pid: int | None
    exit_code: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class SentSignal:
    """A signal that a rank's own process was sent; `sender_pid` None where the kernel or a terminal sent it."""

    rank: int
    time_ns: int
    name: str | None
    sender_pid: int | None


@dataclass(frozen=True, slots=True)
class LastStep:
    """The last step that a rank completed."""

    number: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Everything in the order of time."""

    kills: tuple[Kill, ...]
    ends: tuple[RankEnd, ...]
    signals: tuple[SentSignal, ...]
    last_steps: Mapping[int, LastStep]


def read_events(
    connection: Any, key: JobKey, offset_s_by_host: Mapping[str, float]
) -> ProcessEvents | None:
    """Return what was done to the processes of one attempt; None where none of them was killed for memory.

    Args:
        connection: An open store.
        key: The job and the attempt.
        offset_s_by_host: Host clock minus reference clock, s; hosts that are missing have 0.
    """

    def moved(time_ns: Any, host: Any) -> int:
        return int(time_ns) - round(offset_s_by_host.get(str(host), 0.0) * 1e9)

    def read(name: str) -> list[Any]:
        asked = {"name": name, "job": key.job, "attempt": key.attempt}
        paths = {part: f'$."{attribute}"' for part, attribute in _PATHS.items()}
        rows = connection.execute(_EVENTS, asked | paths).fetchall()
        told = [
            (int(rank), moved(time_ns, host), host, *rest) for rank, time_ns, host, *rest in rows
        ]
        return sorted(told, key=lambda row: (row[1], row[0]))

    kills = tuple(
        Kill(rank, time_ns, pid, bool(is_child))
        for rank, time_ns, _, _, pid, is_child, *_ in read(semconv.EVENT_TRAINING_PROCESS_OOM_KILL)
    )
    if not kills:
        return None
    ends = tuple(
        RankEnd(rank, time_ns, str(host), str(name), pid, code, signal)
        for rank, time_ns, host, name, pid, is_child, code, signal, _ in read(
            semconv.EVENT_TRAINING_PROCESS_END
        )
        if not is_child
    )
    signals = tuple(
        SentSignal(rank, time_ns, signal, sender)
        for rank, time_ns, _, _, _, is_child, _, signal, sender in read(
            semconv.EVENT_TRAINING_PROCESS_SIGNAL
        )
        if not is_child
    )
    rows = connection.execute(_LAST_STEPS, [key.job, key.attempt]).fetchall()
    steps = {int(rank): LastStep(int(step), moved(ns, host)) for rank, host, ns, step in rows}
    return ProcessEvents(kills, ends, signals, steps)


def event_query(key: JobKey, rank: int, *names: str) -> str:
    """Return the query that shows events of a rank's processes."""
    job = key.job.replace("'", "''")
    listed = ", ".join(f"'{name}'" for name in names)
    return (
        f"SELECT unix_ns, event_name, body FROM logs WHERE job = '{job}'"  # noqa: S608  (for a reader)
        f" AND coalesce(attempt, 0) = {key.attempt} AND rank = {rank} AND event_name IN ({listed}) ORDER BY unix_ns"
    )
