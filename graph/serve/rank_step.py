"""One rank in one step: what its threads did and waited for, as rows and as lanes of a picture.

phases       [data_load][ forward ]   [ backward          ][opt]
collectives                     [all_reduce ][ all_reduce ]
thread 1001                  [runnable: node_exporter ran]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rootwalk.graph.job_choice import JobKey

__all__ = ["Lane", "Piece", "RankStep", "read_rank_step"]

NS: Final = 1e9
# Pieces of one lane: a thread that stalls ten thousand times in a step is drawn by its longest stalls.
MAX_PIECES: Final = 400
MAX_THREADS: Final = 24

_STEP = (
    "SELECT s.step, s.start_unix_ns, s.end_unix_ns, s.trace_id, s.span_id, s.host_id, s.host_name, r.pid, r.local_rank"
    " FROM steps s LEFT JOIN ranks r ON r.job = s.job AND r.attempt IS NOT DISTINCT FROM s.attempt AND r.rank = s.rank"
    " WHERE s.job = ? AND coalesce(s.attempt, 0) = ? AND s.rank = ? AND s.step = ? AND s.is_complete"
    " AND s.end_unix_ns >= s.start_unix_ns ORDER BY s.end_unix_ns DESC LIMIT 1"
)
_WHERE = " WHERE job = ? AND coalesce(attempt, 0) = ? AND rank = ? AND step = ? AND end_unix_ns >= start_unix_ns"
_PHASES = (
    "SELECT phase, start_unix_ns, end_unix_ns, NULL FROM phases"  # noqa: S608  (our own text)
    + _WHERE
    + " ORDER BY start_unix_ns, phase_index LIMIT ?"
)
# On the rank's own clock, as everything else here: the view has them on the aligned one, where hosts' clocks differ.
_COLLECTIVES = (
    "SELECT coalesce(operation, 'collective') || ' ' || coalesce(communicator_name, communicator_id) || ' #'"
    " || sequence, c.start_unix_ns + coalesce(o.offset_ns, 0), c.end_unix_ns + coalesce(o.offset_ns, 0), bytes"
    " FROM collectives c LEFT JOIN clock_offsets o"
    " ON o.job = c.job AND o.attempt IS NOT DISTINCT FROM c.attempt AND o.host_id = c.host_id"
    " WHERE c.job = ? AND coalesce(c.attempt, 0) = ? AND rank = ? AND step = ? AND end_unix_ns >= start_unix_ns"
    " ORDER BY c.start_unix_ns LIMIT ?"
)
_STALLS = (
    "SELECT thread_id, thread_name, role, state, start_unix_ns, end_unix_ns, aggressor_name, aggressor_pid,"  # noqa: S608
    " wait_kind, waker_name FROM stalls" + _WHERE + " ORDER BY duration_ns DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a lane: seconds since the step began, what it was, and how the page colours it."""

    start_s: float
    end_s: float
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the picture, its pieces in order of start; `left_out` more were shorter than those."""

    name: str
    pieces: tuple[Piece, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RankStep:
    """What is known of one rank in one step; None where nobody said it. `step_s` is the rank's own step."""

    rank: int
    step: int
    step_s: float
    start_unix_ns: int
    host: str | None
    pid: int | None
    trace_id: str | None
    span_id: str | None
    lanes: tuple[Lane, ...]


def read_rank_step(connection: Any, key: JobKey, rank: int, step: int) -> RankStep | None:
    """Return one rank's step, None where the store has no complete one of that number."""
    about = [key.job, key.attempt, rank, step]
    row = connection.execute(_STEP, about).fetchone()
    if row is None:
        return None
    _, start_ns, end_ns, trace_id, span_id, host_id, host_name, pid, _ = row
    lanes = []
    for name, query, kind in (
        ("phases", _PHASES, "phase"),
        ("collectives", _COLLECTIVES, "collective"),
    ):
        rows = connection.execute(query, [*about, MAX_PIECES]).fetchall()
        pieces = tuple(
            Piece((a - start_ns) / NS, (b - start_ns) / NS, _with_bytes(text, size), kind)
            for text, a, b, size in rows
        )
        if pieces:
            lanes.append(Lane(name, pieces))
    lanes += _threads(connection, about, start_ns)
    return RankStep(
        rank=rank,
        step=step,
        step_s=(end_ns - start_ns) / NS,
        start_unix_ns=int(start_ns),
        host=host_name or host_id,
        pid=None if pid is None else int(pid),
        trace_id=trace_id,
        span_id=span_id,
        lanes=tuple(lanes),
    )


def _with_bytes(text: str, size: int | None) -> str:
    return str(text) if size is None else f"{text}, {int(size):,} bytes"


def _threads(connection: Any, about: list[Any], start_ns: int) -> list[Lane]:
    """Return a lane for each thread that stalled, those that stalled longest first."""
    rows = connection.execute(_STALLS, [*about, MAX_PIECES * MAX_THREADS]).fetchall()
    by_thread: dict[str, list[Piece]] = {}
    for thread, name, role, state, a, b, aggressor, pid, wait, waker in rows:
        label = f"{role or 'thread'} {thread if thread is not None else ''} {name or ''}".strip()
        words = [str(state).replace("_", " ")]
        if aggressor is not None:
            words.append(f"{aggressor}{'' if pid is None else f' (pid {pid})'} ran")
        if wait is not None:
            words.append(f"waited for {str(wait).replace('_', ' ')}")
        if waker is not None:
            words.append(f"woken by {waker}")
        kind = "foreign" if aggressor is not None else "blocked" if state == "blocked" else "held"
        by_thread.setdefault(label, []).append(
            Piece((a - start_ns) / NS, (b - start_ns) / NS, ", ".join(words), kind)
        )
    return [
        Lane(
            label,
            tuple(sorted(pieces[:MAX_PIECES], key=lambda p: (p.start_s, p.end_s))),
            max(len(pieces) - MAX_PIECES, 0),
        )
        for label, pieces in list(by_thread.items())[:MAX_THREADS]
    ]
