"""The recorded spans of a job's ranks as slices, on the aligned clock: steps, phases, operations, collectives, stalls.

Bounded: the last steps are read, and of a step that has too many spans the first ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rootwalk.graph.exporters.timeline import Argument, Slice, Track, main_track
from rootwalk.graph.job_choice import JobKey

__all__ = ["Place", "Recorded", "Scope", "read_slices"]

# Rows that are held beside the slices that are made from them.
ROWS_AT_ONCE: Final = 5_000
_SPAN: Final = ("trace_id", "span_id")


class Place(NamedTuple):
    """Where a rank ran; its clock minus the reference clock, ns."""

    host: str | None
    pid: int | None
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Scope:
    """What is drawn: whose spans, the ranks in the order in which they matter, of which steps; None for all."""

    key: JobKey
    ranks: Sequence[int]
    steps: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was read.

    Attributes:
        slices: Of every span that fits.
        steps: First and last step that are drawn; None where the spans are of no step, or there are none.
        ranks: How many ranks are drawn.
        left_out: Spans of the scope that are not drawn.
    """

    slices: list[Slice]
    steps: tuple[int, int] | None
    ranks: int
    left_out: int


@dataclass(frozen=True, slots=True)
class _View:
    """A view: its columns after rank, start and end, its condition, and what a row is."""

    name: str
    columns: tuple[str, ...]
    where: str
    draw: Callable[[int, dict[str, Any]], tuple[Track, str, str]]
    is_aligned: bool = False


def _step(rank: int, row: dict[str, Any]) -> tuple[Track, str, str]:
    return main_track(rank), f"step {row['step']}", "step"


def _phase(rank: int, row: dict[str, Any]) -> tuple[Track, str, str]:
    return main_track(rank), str(row["phase"]), "phase"


def _operation(rank: int, row: dict[str, Any]) -> tuple[Track, str, str]:
    name = f"{row['operation_type']} {row['operation_sequence']}"
    if row["communicator_id"] is None:
        return main_track(rank), name, "operation"
    return Track(rank, 2, "communication"), name, "collective"


def _collective(rank: int, row: dict[str, Any]) -> tuple[Track, str, str]:
    label = row["communicator_name"] or row["communicator_id"]
    name = f"{row['operation'] or 'collective'} {label}/{row['sequence']}"
    return Track(rank, 2, f"collectives {label}"), name, "collective"


def _stall(rank: int, row: dict[str, Any]) -> tuple[Track, str, str]:
    thread = " ".join(str(row[key]) for key in ("role", "thread_id") if row[key] is not None)
    cause = row["aggressor_name"] or row["wait_kind"]
    name = f"{row['state']}: {cause}" if cause else str(row["state"])
    return Track(rank, 3, f"thread {thread} off CPU".replace("  ", " ")), name, "stall"


_STATES: Final = (
    *("running_ns", "runnable_ns", "runnable_foreign_ns", "runnable_own_ns", "runnable_idle_ns"),
    *("blocked_ns", "gc_ns"),
)
_VIEWS: Final = (
    _View("steps", ("step", "is_complete", *_STATES, *_SPAN), "true", _step),
    _View("phases", ("step", "phase", *_STATES, *_SPAN), "true", _phase),
    _View(
        "operations",
        (
            *("step", "operation_type", "operation_sequence", "micro_batch", "stage", "replica"),
            *("communicator_id", "sequence", *_SPAN),
        ),
        "true",
        _operation,
    ),
    _View(
        "collectives",
        (
            *("step", "operation", "communicator_id", "communicator_name", "sequence"),
            *("bytes", "backend", "phase", "is_end_known", *_SPAN),
        ),
        "NOT EXISTS (FROM operations o WHERE o.job = v.job AND o.rank = v.rank AND o.span_id = v.span_id"
        " AND o.trace_id = v.trace_id)",
        _collective,
        is_aligned=True,
    ),
    _View(
        "stalls",
        (
            *("step", "role", "thread_id", "state", "cpu", "aggressor_kind", "aggressor_pid"),
            *("aggressor_name", "aggressor_cgroup", "aggressor_ns", "wait_kind", *_SPAN),
        ),
        "true",
        _stall,
    ),
)
# Names of arguments that do not say their unit in the store.
_NAMES: Final = {"bytes": "size_bytes"}


def read_slices(
    connection: Any, scope: Scope, places: Mapping[int, Place], max_slices: int
) -> Recorded:
    """Return the spans of a scope, those of its last steps where it has more than may be drawn.

    Args:
        connection: To the store.
        scope: What is drawn.
        places: Of every rank of the scope.
        max_slices: The most spans that are drawn.
    """
    counts = _count(connection, scope)
    total = sum(counts.values())
    if not scope.ranks or not total:
        return Recorded([], None, 0, 0)
    ranks, steps = scope.ranks, scope.steps
    numbered = sorted((step for step in counts if step is not None), reverse=True)
    room, first = max_slices - counts.get(None, 0), None
    for step in numbered:
        if counts[step] > room and first is not None:
            break
        room, first = room - counts[step], step
    if first is not None:
        steps = (first, numbered[0])
        if room < 0:
            # Even one step is too much.
            few = max(len(ranks) * max_slices // max(counts[first], 1), 1)
            ranks = ranks[:few]
    chosen = Scope(scope.key, ranks, steps)
    slices: list[Slice] = []
    for view in _VIEWS:
        for item in _read(connection, view, chosen, places):
            if len(slices) == max_slices:
                break
            slices.append(item)
    return Recorded(slices, steps if numbered else None, len(ranks), total - len(slices))


def _where(view: _View, scope: Scope) -> tuple[str, list[Any]]:
    where = (
        f"FROM {view.name} v WHERE v.job = ? AND coalesce(v.attempt, 0) = ? AND v.rank IN (SELECT unnest(?))"
        f" AND v.end_unix_ns >= v.start_unix_ns AND ({view.where})"
    )
    values: list[Any] = [scope.key.job, scope.key.attempt, list(scope.ranks)]
    if scope.steps is not None:
        where += " AND v.step BETWEEN ? AND ?"
        values += scope.steps
    return where, values


def _count(connection: Any, scope: Scope) -> dict[int | None, int]:
    """Return how many spans there are, by step."""
    counts: dict[int | None, int] = {}
    for view in _VIEWS:
        where, values = _where(view, scope)
        query = f"SELECT v.step, count(*) {where} GROUP BY v.step"
        for step, count in connection.execute(query, values).fetchall():
            counts[step] = counts.get(step, 0) + count
    return counts


def _read(
    connection: Any, view: _View, scope: Scope, places: Mapping[int, Place]
) -> Iterator[Slice]:
    """Yield the rows of a view, the last first."""
    where, values = _where(view, scope)
    # The view of collectives is on the clock of an earlier diagnosis: put back, then shifted like the others.
    shift = "0"
    if view.is_aligned:
        shift = (
            "coalesce((SELECT any_value(c.offset_ns) FROM clock_offsets c WHERE c.job = v.job"
            " AND c.attempt IS NOT DISTINCT FROM v.attempt AND c.host_id = v.host_id), 0)"
        )
    columns = ", ".join(f"v.{name}" for name in view.columns)
    cursor = connection.cursor()
    cursor.execute(
        f"SELECT v.rank, v.start_unix_ns + {shift}, v.end_unix_ns + {shift}, {columns} {where}"
        " ORDER BY v.start_unix_ns DESC, v.rank, v.span_id",
        values,
    )
    while rows := cursor.fetchmany(ROWS_AT_ONCE):
        for rank, start_ns, end_ns, *rest in rows:
            row = dict(zip(view.columns, rest, strict=True))
            track, name, category = view.draw(rank, row)
            offset_ns = places[rank].offset_ns
            yield Slice(
                track, start_ns - offset_ns, end_ns - offset_ns, name, category, _arguments(row)
            )


def _arguments(row: dict[str, Any]) -> tuple[tuple[str, Argument], ...]:
    return tuple((_NAMES.get(key, key), value) for key, value in row.items() if value is not None)
