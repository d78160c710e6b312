"""What the store says about the ends of a job's processes: events of its ranks, of its command, and their last steps.

Times are Unix ns on the aligned clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rootwalk.graph.job_choice import JobKey
from rootwalk.instrumentation import semconv

__all__ = [
    "Kill",
    "LastStep",
    "ProcessEvents",
    "RankEnd",
    "RankException",
    "RunEnd",
    "SentSignal",
    "event_query",
    "read_events",
]

_OF_RANKS: Final = (
    semconv.EVENT_TRAINING_PROCESS_END,
    semconv.EVENT_TRAINING_PROCESS_SIGNAL,
    semconv.EVENT_TRAINING_PROCESS_OOM_KILL,
    semconv.EVENT_TRAINING_PROCESS_EXCEPTION,
)
_EVENTS: Final = """
SELECT event_name, rank, unix_ns, host_id, coalesce(host_name, host_id, 'unknown'),
       TRY_CAST(attributes ->> $pid AS BIGINT), (attributes ->> $is_child) = 'true',
       TRY_CAST(attributes ->> $code AS BIGINT), attributes ->> $signal,
       TRY_CAST(attributes ->> $sender AS BIGINT), attributes ->> $sender_name, attributes ->> $exception,
       attributes ->> $frames, attributes ->> $ended_by
FROM logs
WHERE job = $job AND unix_ns IS NOT NULL AND (event_name = $run_end
    OR (list_contains($names, event_name) AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL))
ORDER BY unix_ns, rank
"""
_LAST_STEPS: Final = """
SELECT rank, any_value(host_id), any_value(coalesce(host_name, host_id, 'unknown')), max(start_unix_ns),
       max(end_unix_ns), max(step)
FROM span_records
WHERE name = 'training.rank_step' AND outcome = 'complete' AND job = ? AND coalesce(attempt, 0) = ?
    AND rank IS NOT NULL AND step IS NOT NULL AND end_unix_ns >= start_unix_ns
GROUP BY rank ORDER BY rank
"""
_FIRST_TIME: Final = (
    "SELECT min(first_unix_ns) FROM jobs WHERE job = ? AND coalesce(attempt, 0) = ?"
)
_PATHS: Final = {
    "pid": semconv.PROCESS_PID,
    "is_child": semconv.TRAINING_PROCESS_IS_CHILD,
    "code": semconv.PROCESS_EXIT_CODE,
    "signal": semconv.TRAINING_SIGNAL_NAME,
    "sender": semconv.TRAINING_SIGNAL_SENDER_PID,
    "sender_name": semconv.TRAINING_SIGNAL_SENDER_NAME,
    "exception": semconv.EXCEPTION_TYPE,
    "ended_by": semconv.TRAINING_RUN_ENDED_BY,
}
_FRAMES: Final = f'$."{semconv.TRAINING_STACK_FRAMES}".arrayValue.values[*].stringValue'


@dataclass(frozen=True, slots=True)
class Kill:
    """A process of a rank that the kernel chose to kill for memory."""

    rank: int
    time_ns: int
    pid: int | None
    is_child: bool


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of a rank's own process, with an exit code or by a signal; neither where only its absence was seen."""

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
    sender_name: str | None = None


@dataclass(frozen=True, slots=True)
class RankException:
    """An exception that ended a rank's program: its type, and its stack with the innermost frame first."""

    rank: int
    time_ns: int
    host_id: str
    host_name: str
    pid: int | None
    type_name: str
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of the command of `rootwalk run`: `ended_by` is command, user or signal."""

    time_ns: int
    exit_code: int | None
    signal: str | None
    ended_by: str


@dataclass(frozen=True, slots=True)
class LastStep:
    """The last step that a rank completed; of imported records, `end_ns` may be all that is later than `start_ns`."""

    number: int
    start_ns: int
    end_ns: int = 0
    host_id: str = ""
    host_name: str = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Everything in the order of time; `last_steps` has only ranks that completed a step."""

    kills: tuple[Kill, ...]
    ends: tuple[RankEnd, ...]
    signals: tuple[SentSignal, ...]
    last_steps: Mapping[int, LastStep]
    exceptions: tuple[RankException, ...] = ()
    run_ends: tuple[RunEnd, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known about the end of any process."""
        return not (self.kills or self.ends or self.exceptions or self.run_ends)


def read_events(
    connection: Any, key: JobKey, offset_s_by_host: Mapping[str, float]
) -> ProcessEvents:
    """Return what happened to the processes of one attempt, and the last complete step of each rank.

    Args:
        connection: An open store.
        key: The job and the attempt.
        offset_s_by_host: Host clock minus reference clock, s; hosts that are missing have 0.
    """

    def moved(time_ns: Any, host: Any) -> int:
        return int(time_ns) - round(offset_s_by_host.get(str(host), 0.0) * 1e9)

    asked = {
        **{part: f'$."{attribute}"' for part, attribute in _PATHS.items()},
        "frames": _FRAMES,
        "job": key.job,
        "attempt": key.attempt,
        "run_end": semconv.EVENT_ROOTWALK_RUN_END,
        "names": list(_OF_RANKS),
    }
    rows: dict[str, list[list[Any]]] = {}
    for name, rank, time_ns, host, *rest in connection.execute(_EVENTS, asked).fetchall():
        row = [None if rank is None else int(rank), moved(time_ns, host), str(host), *rest]
        rows.setdefault(str(name), []).append(row)
    for found in rows.values():
        found.sort(key=lambda row: (row[1], -1 if row[0] is None else row[0]))
    ((first_ns,),) = connection.execute(_FIRST_TIME, [key.job, key.attempt]).fetchall()
    steps = connection.execute(_LAST_STEPS, [key.job, key.attempt]).fetchall()
    return ProcessEvents(
        kills=_kills(rows.get(semconv.EVENT_TRAINING_PROCESS_OOM_KILL, [])),
        ends=_ends(rows.get(semconv.EVENT_TRAINING_PROCESS_END, [])),
        signals=_signals(rows.get(semconv.EVENT_TRAINING_PROCESS_SIGNAL, [])),
        last_steps=_last_steps(steps, moved),
        exceptions=_exceptions(rows.get(semconv.EVENT_TRAINING_PROCESS_EXCEPTION, [])),
        run_ends=_run_ends(rows.get(semconv.EVENT_ROOTWALK_RUN_END, []), first_ns),
    )


def _kills(rows: list[list[Any]]) -> tuple[Kill, ...]:
    return tuple(
        Kill(rank, time_ns, pid, bool(child)) for rank, time_ns, _, _, pid, child, *_ in rows
    )


def _ends(rows: list[list[Any]]) -> tuple[RankEnd, ...]:
    return tuple(
        RankEnd(rank, time_ns, host, str(name), pid, code, signal)
        for rank, time_ns, host, name, pid, is_child, code, signal, *_ in rows
        if not is_child
    )


def _signals(rows: list[list[Any]]) -> tuple[SentSignal, ...]:
    return tuple(
        SentSignal(rank, time_ns, signal, sender, sender_name)
        for rank, time_ns, _, _, _, is_child, _, signal, sender, sender_name, *_ in rows
        if not is_child
    )


def _exceptions(rows: list[list[Any]]) -> tuple[RankException, ...]:
    return tuple(
        RankException(rank, time_ns, host, str(name), pid, str(kind), tuple(frames or ()))
        for rank, time_ns, host, name, pid, _, _, _, _, _, kind, frames, _ in rows
        if kind
    )


def _run_ends(rows: list[list[Any]], first_ns: int | None) -> tuple[RunEnd, ...]:
    """Return the ends of the command that are not those of an earlier launch under the same name."""
    return tuple(
        RunEnd(row[1], row[6], row[7], str(row[-1] or "command"))
        for row in rows
        if first_ns is None or row[1] >= first_ns
    )


def _last_steps(rows: list[Any], moved: Callable[[Any, Any], int]) -> dict[int, LastStep]:
    return {
        int(rank): LastStep(
            int(step), moved(start_ns, host), moved(end_ns, host), str(host), str(name)
        )
        for rank, host, name, start_ns, end_ns, step in rows
    }


def event_query(key: JobKey, rank: int | None, *names: str) -> str:
    """Return the query that shows events of a rank's processes; without a rank, those of the command."""
    job = key.job.replace("'", "''")
    listed = ", ".join(f"'{name}'" for name in names)
    whose = (
        f" AND coalesce(attempt, 0) = {key.attempt} AND rank = {rank}" if rank is not None else ""
    )
    return (
        f"SELECT unix_ns, event_name, body FROM logs WHERE job = '{job}'"  # noqa: S608  (for a reader)
        f"{whose} AND event_name IN ({listed}) ORDER BY unix_ns"
    )
