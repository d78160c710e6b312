"""Sum up what a store has of each worker, in the database: what comes out is a row for each rank and function.

What comes to this process are sums by rank and function, which do not grow with the steps; the database holds those,
and a number for each rank, step and phase. A function is an operation, a communication, a phase without the
communications in it, any other span of a step, or the innermost function of a sampled stack.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.profiles.reading import TimeKind, time_meaning
from rootwalk.graph.store_columns import NS
from rootwalk.graph.summaries.table import FunctionKind, Patterns, Summaries

__all__ = ["MAX_BEFORE", "MAX_FUNCTIONS", "read_summaries"]

# So many steps before the window are its past.
MAX_BEFORE: Final = 50
# Of each rank so many functions, those with most time: names that somebody makes up anew in each step have no end.
MAX_FUNCTIONS: Final = 500
# Trace, span and parent id, begin and end, as OTLP has them.
_IDS_AND_TIMES: Final = 16 + 8 + 8 + 8 + 8
# Eleven days: no call lasts longer, and the sum of its squares has room.
_MAX_NS: Final = 10**15

_JOB: Final = "job = $job AND coalesce(attempt, $attempt) = $attempt AND rank IS NOT NULL"
_STEP_TIMES: Final = f"""
SELECT rank, sum(duration_ns) FILTER (step >= $first) / 1e9, sum(duration_ns) FILTER (step < $first) / 1e9,
       min(start_unix_ns) FILTER (step >= $first), max(end_unix_ns) FILTER (step >= $first),
       min(start_unix_ns) FILTER (step < $first)
FROM steps WHERE {_JOB} AND step BETWEEN $begin AND $last AND end_unix_ns >= start_unix_ns GROUP BY rank
"""  # noqa: S608  (constants of this module)
# Read twice, not held: a copy of all rows would grow with the steps.
_SPANS: Final = f"""
WITH chosen AS NOT MATERIALIZED (
    SELECT rank, step, phase, step >= $first AS is_now, least(end_unix_ns - start_unix_ns, {_MAX_NS}) AS ns,
           CASE WHEN starts_with(name, 'collective.') THEN 'communication'
                WHEN starts_with(name, 'operation.') OR phase_index IS NULL THEN 'operation' ELSE 'phase' END AS kind,
           CASE WHEN starts_with(name, 'collective.')
                THEN coalesce(attributes ->> '$."training.operation.type"', operation, name)
                WHEN starts_with(name, 'operation.') THEN name[11:]
                WHEN phase_index IS NULL THEN name ELSE coalesce(phase, name) END AS function,
           {_IDS_AND_TIMES} + strlen(name) + strlen(attributes) AS raw_bytes
    FROM span_records
    WHERE {_JOB} AND step BETWEEN $begin AND $last AND end_unix_ns >= start_unix_ns
        AND name NOT IN ('training.step', 'training.rank_step')
        AND NOT starts_with(name, 'stall.') AND NOT starts_with(name, 'rootwalk.')
), inside AS (
    SELECT rank, step, phase, sum(ns)::BIGINT AS ns FROM chosen
    WHERE kind = 'communication' AND phase IS NOT NULL GROUP BY ALL
), own AS (
    SELECT c.rank, c.is_now, c.kind, c.function, c.raw_bytes,
           CASE WHEN c.kind = 'phase' THEN greatest(c.ns - coalesce(i.ns, 0), 0) ELSE c.ns END::HUGEINT AS ns
    FROM chosen c LEFT JOIN inside i
        ON c.kind = 'phase' AND i.rank = c.rank AND i.step = c.step AND i.phase = c.phase
)
SELECT rank, kind, function,
       count(*) FILTER (is_now), sum(ns) FILTER (is_now), sum(ns * ns) FILTER (is_now),
       count(*) FILTER (NOT is_now), sum(ns) FILTER (NOT is_now), sum(ns * ns) FILTER (NOT is_now),
       coalesce(sum(raw_bytes) FILTER (is_now), 0)
FROM own GROUP BY rank, kind, function
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY sum(ns) DESC, kind, function) <= {MAX_FUNCTIONS}
"""  # noqa: S608
_STAGES: Final = f"""
SELECT rank, max(stage) FROM operations WHERE {_JOB} AND step = $last AND stage IS NOT NULL GROUP BY rank
"""  # noqa: S608
_PROFILE_TYPES: Final = f"""
SELECT DISTINCT sample_type, unit, period_type, period_unit, period FROM profile_records WHERE {_JOB} ORDER BY ALL
"""  # noqa: S608
# A profile that has nothing of a function saw none of it: the sums are over all profiles of the rank.
_SAMPLES: Final = f"""
WITH profiles AS (
    SELECT rank, received_unix_ns, dictionary_id, profile_index, duration_ns, unix_ns >= $from_ns AS is_now
    FROM profile_records
    WHERE {_JOB} AND duration_ns > 0 AND unix_ns BETWEEN $before_ns AND $until_ns
        AND sample_type IS NOT DISTINCT FROM $sample_type AND unit IS NOT DISTINCT FROM $unit
        AND period_type IS NOT DISTINCT FROM $period_type AND period_unit IS NOT DISTINCT FROM $period_unit
        AND period IS NOT DISTINCT FROM $period
), counted AS (
    SELECT rank, is_now, count(*) AS profiles FROM profiles GROUP BY ALL
), functions AS (
    SELECT k.dictionary_id, k.stack_index, string_split(l.frames, ';')[-1] AS function
    FROM profile_stacks k JOIN profile_locations l
        ON l.dictionary_id = k.dictionary_id AND l.location_index = k.location_indices[1]
), spent AS (
    SELECT p.rank, p.is_now, p.duration_ns, coalesce(f.function, 'unknown') AS function,
           sum(CASE WHEN len(s.sample_values) = 0 THEN len(s.times_unix_ns) ELSE list_sum(s.sample_values) END)
               * $scale_ns / 1e9 AS seconds,
           sum(4 + 8 * len(s.sample_values) + 8 * len(s.times_unix_ns) + strlen(s.attributes)) AS raw_bytes
    FROM profiles p
    JOIN profile_sample_records s ON s.received_unix_ns = p.received_unix_ns AND s.dictionary_id = p.dictionary_id
        AND s.profile_index = p.profile_index
    LEFT JOIN functions f ON f.dictionary_id = s.dictionary_id AND f.stack_index = s.stack_index
    GROUP BY p.rank, p.is_now, p.duration_ns, p.received_unix_ns, p.dictionary_id, p.profile_index, f.function
), rated AS (
    SELECT s.rank, s.is_now, s.function, count(*) AS calls, sum(s.seconds) AS total,
           sum(s.seconds * 1e9 / s.duration_ns) / any_value(c.profiles) AS mean,
           sum((s.seconds * 1e9 / s.duration_ns) ** 2) / any_value(c.profiles) AS square,
           sum(s.raw_bytes) AS raw_bytes
    FROM spent s JOIN counted c ON c.rank = s.rank AND c.is_now = s.is_now GROUP BY s.rank, s.is_now, s.function
)
SELECT rank, $kind AS kind, function, coalesce(sum(calls) FILTER (is_now), 0) AS calls,
       sum(total) FILTER (is_now) AS total, sum(mean) FILTER (is_now) AS mean,
       sum(sqrt(greatest(square - mean ** 2, 0))) FILTER (is_now) AS deviation,
       sum(total) FILTER (NOT is_now) AS total_before, sum(mean) FILTER (NOT is_now) AS mean_before,
       sum(sqrt(greatest(square - mean ** 2, 0))) FILTER (NOT is_now) AS deviation_before,
       coalesce(sum(raw_bytes) FILTER (is_now), 0) AS raw_bytes
FROM rated GROUP BY rank, function
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY sum(total) DESC, function) <= {MAX_FUNCTIONS}
"""  # noqa: S608


def read_summaries(connection: Any, key: JobKey, steps: tuple[int, int] | None) -> Summaries:
    """Return what each rank of a job did in some steps, beside as many steps before them or fewer.

    Args:
        connection: To the store.
        key: The job.
        steps: First and last; None for all, which have no past.
    """
    extent = connection.execute(
        f"SELECT min(step), max(step) FROM steps WHERE {_JOB}",  # noqa: S608
        {"job": key.job, "attempt": key.attempt},
    ).fetchone()
    lowest, highest = (0, -1) if extent is None or extent[0] is None else extent
    first, last = (
        (int(lowest), int(highest)) if steps is None else (steps[0], min(steps[1], highest))
    )
    begin = max(first - min(last - first + 1, MAX_BEFORE), 0)
    job = {"job": key.job, "attempt": key.attempt}
    window = {**job, "begin": begin, "first": first, "last": last}
    times = connection.execute(_STEP_TIMES, window).fetchall()
    rows = [_of_sums(row) for row in connection.execute(_SPANS, window).fetchall()]
    known = [row for row in times if row[3] is not None]
    if known:
        from_ns, until_ns = min(row[3] for row in known), max(row[4] for row in known)
        before_ns = min((row[5] for row in times if row[5] is not None), default=from_ns)
        span = {**job, "from_ns": from_ns, "until_ns": until_ns, "before_ns": before_ns}
        rows += _read_samples(connection, span)
    stages = dict(connection.execute(_STAGES, {**job, "last": last}).fetchall())
    rows = [row for row in rows if row[3]]
    rows.sort(key=lambda row: (row[0], row[1], row[2]))
    return _table(rows, {int(rank): (now, past) for rank, now, past, *_ in times}, stages)


def _of_sums(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of sums as calls, total, mean and deviation in seconds, now and before.

    The sums are whole numbers: in whatever order the database adds them up, they are the same.
    """
    return (*row[:4], *_moments(*row[3:6]), *_moments(*row[6:9]), row[9])


def _moments(count: int, total: int | None, squares: int | None) -> tuple[float | None, ...]:
    if not count or total is None or squares is None:
        return None, None, None
    variance = (count * int(squares) - int(total) ** 2) / count**2
    return total / NS, total / count / NS, math.sqrt(variance) / NS


def _read_samples(connection: Any, span: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of sampled functions: one query for each way in which profiles of this job count time.

    Of a rank that tells the same time in two ways, as samples and as seconds, the seconds count.
    """
    job = {name: span[name] for name in ("job", "attempt")}
    rows: list[tuple[Any, ...]] = []
    seen: set[tuple[int, FunctionKind]] = set()
    names = ("sample_type", "unit", "period_type", "period_unit", "period")
    told_types = connection.execute(_PROFILE_TYPES, job).fetchall()
    for told in sorted(told_types, key=lambda told: told[1] == "count"):
        meaning = time_meaning(*told)
        if meaning is None:
            continue
        kind = FunctionKind.ON_CPU if meaning[0] is TimeKind.ON_CPU else FunctionKind.OFF_CPU
        values = {**span, **dict(zip(names, told, strict=True))}
        values |= {"kind": str(kind), "scale_ns": meaning[1]}
        found = connection.execute(_SAMPLES, values).fetchall()
        rows += [row for row in found if (row[0], kind) not in seen]
        seen |= {(row[0], kind) for row in found}
    return rows


def _table(
    rows: list[tuple[Any, ...]],
    step_s: dict[int, tuple[float | None, float | None]],
    stages: dict[int, int],
) -> Summaries:
    names = sorted({(FunctionKind(row[1]), str(row[2])) for row in rows})
    numbers = {name: number for number, name in enumerate(names)}
    raw_bytes: dict[int, int] = {}
    for row in rows:
        raw_bytes[int(row[0])] = raw_bytes.get(int(row[0]), 0) + int(row[10])

    def floats(column: int) -> FloatArray:
        return np.array([np.nan if row[column] is None else row[column] for row in rows])

    def steps_of(side: int) -> FloatArray:
        found = [step_s.get(int(row[0]), (None, None))[side] for row in rows]
        return np.array([value or np.nan for value in found], dtype=np.float64)

    return Summaries(
        rank=np.array([row[0] for row in rows], dtype=np.int64),
        stage=np.array([stages.get(int(row[0]), -1) for row in rows], dtype=np.int64),
        function=np.array(
            [numbers[FunctionKind(row[1]), str(row[2])] for row in rows], dtype=np.int64
        ),
        names=tuple(names),
        calls=np.array([row[3] for row in rows], dtype=np.int64),
        now=Patterns(floats(4) / steps_of(0), floats(5), floats(6)),
        before=Patterns(floats(7) / steps_of(1), floats(8), floats(9)),
        raw_bytes_by_rank=raw_bytes,
    )
