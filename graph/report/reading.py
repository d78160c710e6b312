"""Read what the page's pictures show, on the clock and in the steps of the verdict that they stand beside.

Bounded whatever the store has: so many rank-steps for the curve and the map, so many for the bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph import graph_store, job_choice
from rootwalk.graph.analysis import StepClock, step_clock
from rootwalk.graph.columns import (
    FloatArray,
    JobData,
    RankRow,
    shift_clocks,
    steps_of_ranks,
)
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import Verdict
from rootwalk.graph.report.flames import RankFlame, read_flames
from rootwalk.graph.report.shares import mean_shares

__all__ = ["RankShares", "ReportData", "SensorLine", "choose_ranks", "read_report", "told_query"]

NS: Final = 1e9
# Steps that are shown where the window is shorter: enough before it to see what was usual.
SHOWN_STEPS: Final = 200
# Steps shown before a longer window, and after every window where there are any.
STEPS_BEFORE: Final = 50
STEPS_AFTER: Final = 20
# Rank-steps that the curve and the map are drawn from, and the fewest steps: 10,240 ranks get 48.
MAX_RANK_STEPS: Final = 500_000
MIN_STEPS: Final = 10
# Ranks with a bar of their own; of more ranks those that stand out and an even sample of the others.
MAX_BARS: Final = 64
MAX_NAMED: Final = 16
# Rank-steps that the bars are the means of: they are walked in Python.
MAX_BAR_RANK_STEPS: Final = 12_800
QUOTE: Final = "'"

# One row a rank and step; values: job, attempt, first and last step.
_OF_STEPS: Final = "WHERE job = ? AND coalesce(attempt, 0) = ? AND step BETWEEN ? AND ?"
_LATENESS: Final = (
    "SELECT step, rank, max(late_ns) AS ns FROM (SELECT step, rank,"  # noqa: S608  (our own text)
    " start_unix_ns - min(start_unix_ns) OVER (PARTITION BY communicator_id, sequence) AS late_ns,"
    " count(*) OVER (PARTITION BY communicator_id, sequence) AS members"
    f" FROM collectives {_OF_STEPS} AND NOT coalesce(is_point_to_point, false))"
    " WHERE members > 1 GROUP BY step, rank ORDER BY step, rank"
)
_DURATION: Final = (
    f"SELECT step, rank, max(duration_ns) AS ns FROM steps {_OF_STEPS} AND is_complete"  # noqa: S608
    " GROUP BY step, rank ORDER BY step, rank"
)


@dataclass(frozen=True, slots=True)
class SensorLine:
    """The state that a sensor is in on `hosts` hosts; None where the agent did not say."""

    sensor: str
    status: str
    reason: str | None
    backend: str | None
    hosts: int


@dataclass(frozen=True, slots=True)
class RankShares:
    """Mean seconds a step of each rank in `ranks`, (ranks, `Share`), over `step_count` steps from first to last."""

    ranks: tuple[int, ...]
    seconds: FloatArray
    first_step: int
    last_step: int
    step_count: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a page is made from.

    Attributes:
        verdict: What is said.
        store_name: Name of the store's file, for the commands on the page.
        clock: The shown steps, without steps that a rank did not finish.
        ranks: All ranks of the job.
        lateness_s: (ranks, shown steps): how long after the first rank each rank called a collective, the longest of
            the step; where there is none to compare, the length of the rank's step. NaN unknown.
        is_lateness: Which of the two.
        lateness_query: SQL that gives these numbers, as ns.
        shares: Where the time of a step went; None where no step can be split.
        graph: The dependency graph as the store has it.
        sensors: The sensors of the job's hosts.
        flames: In which functions slow ranks were; empty where nobody sampled them.
    """

    verdict: Verdict
    store_name: str
    clock: StepClock | None = None
    ranks: tuple[RankRow, ...] = ()
    lateness_s: FloatArray | None = None
    is_lateness: bool = True
    lateness_query: str = ""
    shares: RankShares | None = None
    graph: DependencyGraph | None = None
    sensors: tuple[SensorLine, ...] = ()
    flames: tuple[RankFlame, ...] = ()


def read_report(connection: Any, verdict: Verdict, store_name: str) -> ReportData:
    """Return what the page about a verdict shows.

    Args:
        connection: Open for reading, on the store that the verdict is about.
        verdict: From `diagnose`, which leaves clock offsets and the graph in the store.
        store_name: Name of the store's file.
    """
    report = ReportData(verdict, store_name)
    if verdict.job.attempt is None:
        return report
    key = JobKey(verdict.job.id, verdict.job.attempt, verdict.job.world_size)
    graph, _ = graph_store.load_graph(connection, key)
    report = replace(report, graph=graph, sensors=_read_sensors(connection, key))
    last, rank_count = job_choice.read_extent(connection, key)
    first, stop = _shown_steps(verdict, last, rank_count)
    # One step before, for the clock: a step begins where the one before ended.
    outline = graph_store.read_outline(connection, key, (first - 1, stop))
    offsets, is_aligned = _read_offsets(connection, key, outline.ranks)
    outline = shift_clocks(outline, offsets)
    clock = _without(step_clock(outline), first)
    if not clock.numbers:
        return replace(report, ranks=outline.ranks)
    span = (clock.numbers[0], clock.numbers[-1])
    position_by_rank = {row.rank: i for i, row in enumerate(outline.ranks)}
    query = _LATENESS
    late_s = _matrix(connection, key, query, span, position_by_rank, clock) if is_aligned else None
    is_lateness = late_s is not None and not bool(np.isnan(late_s).all())
    if late_s is None or not is_lateness:
        query = _DURATION
        late_s = _matrix(connection, key, query, span, position_by_rank, clock)
    return replace(
        report,
        clock=clock,
        ranks=outline.ranks,
        lateness_s=late_s,
        is_lateness=is_lateness,
        lateness_query=told_query(query, key.job, key.attempt, *span),
        shares=_read_shares(connection, key, outline, offsets, clock, verdict, late_s),
        flames=read_flames(connection, outline, clock, verdict, offsets),
    )


def _shown_steps(verdict: Verdict, last: int, rank_count: int) -> tuple[int, int]:
    """Return the first and last step to show: the window, what came before, and a little after."""
    most = max(MAX_RANK_STEPS // max(rank_count, 1), MIN_STEPS)
    begin, end = verdict.window.first_step, verdict.window.last_step
    if begin is None or end is None:
        return max(last - min(SHOWN_STEPS, most) + 1, 0), last
    stop = min(end + STEPS_AFTER, last)
    first = min(begin - STEPS_BEFORE, stop - SHOWN_STEPS + 1)
    if stop - first + 1 > most:
        # What does not fit is the middle of the story's end: the onset is kept in sight.
        first = max(first, begin - most // 2)
        stop = min(stop, first + most - 1)
    return max(first, 0), stop


def _without(clock: StepClock, first: int) -> StepClock:
    """Return the clock from step `first` on."""
    kept = [i for i, number in enumerate(clock.numbers) if number >= first]
    return StepClock(tuple(clock.numbers[i] for i in kept), clock.start_s[kept], clock.end_s[kept])


def _read_offsets(
    connection: Any, key: JobKey, ranks: Sequence[RankRow]
) -> tuple[dict[int, float], bool]:
    """Return each rank's clock offset in seconds, and whether the ranks' clocks can be compared."""
    rows = connection.execute(
        "SELECT host_id, offset_ns FROM clock_offsets WHERE job = ? AND attempt = ?",
        [key.job, key.attempt],
    ).fetchall()
    by_host = {str(host): int(offset) / NS for host, offset in rows if offset is not None}
    hosts = {row.host_id for row in ranks}
    return {row.rank: by_host.get(row.host_id, 0.0) for row in ranks}, (
        len(hosts) < 2 or hosts <= by_host.keys()
    )


def told_query(query: str, *values: str | int) -> str:
    """Return a query with its values in the places of its question marks, for people to run."""
    parts = query.split("?")
    told = [f"'{v.replace(QUOTE, QUOTE * 2)}'" if isinstance(v, str) else str(v) for v in values]
    return "".join(part + value for part, value in zip(parts, [*told, ""], strict=True))


def _matrix(
    connection: Any,
    key: JobKey,
    query: str,
    span: tuple[int, int],
    position_by_rank: dict[int, int],
    clock: StepClock,
) -> FloatArray:
    """Return seconds by rank and shown step, NaN where the query has no row."""
    rows = connection.execute(query, [key.job, key.attempt, *span]).fetchnumpy()
    result = np.full((len(position_by_rank), len(clock.numbers)), np.nan)
    column = {number: i for i, number in enumerate(clock.numbers)}
    steps = [column.get(int(step), -1) for step in rows["step"]]
    ranks = [position_by_rank.get(int(rank), -1) for rank in rows["rank"]]
    is_null = np.ma.getmaskarray(np.ma.asarray(rows["ns"]))
    for step, rank, value, is_unknown in zip(steps, ranks, rows["ns"], is_null, strict=True):
        if step >= 0 and rank >= 0 and not is_unknown:
            result[rank, step] = float(value) / NS
    return result


def _read_shares(
    connection: Any,
    key: JobKey,
    outline: JobData,
    offsets: dict[int, float],
    clock: StepClock,
    verdict: Verdict,
    late_s: FloatArray,
) -> RankShares | None:
    """Return where the seconds of the window went, of all ranks or of those that stand out and a sample."""
    begin, end = verdict.window.first_step, verdict.window.last_step
    inside = [n for n in clock.numbers if begin is None or end is None or begin <= n <= end]
    ranks = choose_ranks(outline.ranks, verdict, late_s)
    numbers = inside[-max(MAX_BAR_RANK_STEPS // max(len(ranks), 1), 1) :]
    if not numbers or not ranks:
        return None
    span = (numbers[0], numbers[-1])
    origin = outline.origin_unix_ns
    details = replace(
        outline,
        phases=graph_store.read_phases(connection, key, origin, span, ranks)[0],
        collectives=graph_store.read_collectives(connection, key, origin, span, ranks),
        stalls=graph_store.read_stalls(connection, key, origin, span, ranks),
    )
    data = replace(shift_clocks(details, offsets), steps=steps_of_ranks(outline.steps, ranks))
    seconds_by_rank = mean_shares(data, tuple(numbers))
    if not seconds_by_rank:
        return None
    shown = tuple(sorted(seconds_by_rank))
    return RankShares(
        shown, np.array([seconds_by_rank[rank] for rank in shown]), *span, len(numbers)
    )


def choose_ranks(ranks: Sequence[RankRow], verdict: Verdict, late_s: FloatArray) -> tuple[int, ...]:
    """Return the ranks to show one by one: all, or the accused, the latest, and others at even distances."""
    if len(ranks) <= MAX_BARS:
        return tuple(row.rank for row in ranks)
    numbers = [row.rank for row in ranks]
    known = set(numbers)
    chosen: dict[int, None] = {}
    for finding in verdict.findings:
        chosen |= dict.fromkeys([r for r in finding.subject.ranks if r in known][:MAX_NAMED])
    mean_s = np.nan_to_num(late_s).mean(axis=1)
    latest = np.argsort(-mean_s, kind="stable")[:MAX_NAMED]
    chosen |= dict.fromkeys(numbers[int(i)] for i in latest)
    room = max(MAX_BARS - len(chosen), 0)
    places = np.linspace(0, len(numbers) - 1, room).round().astype(int)
    chosen |= dict.fromkeys(numbers[int(i)] for i in places)
    return tuple(sorted(chosen))


def _read_sensors(connection: Any, key: JobKey) -> tuple[SensorLine, ...]:
    rows = connection.execute(
        "SELECT sensor, coalesce(status, 'unknown'), reason, backend, count(*) FROM sensors"
        " WHERE (job = ? OR job IS NULL) AND sensor IS NOT NULL GROUP BY ALL ORDER BY ALL",
        [key.job],
    ).fetchall()
    return tuple(SensorLine(*row) for row in rows)
