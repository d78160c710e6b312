"""Read the end of a job from a store: what happened to its processes, how far its ranks came, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.dependencies import node_id
from rootwalk.graph.ends.departures import Departure, Manner
from rootwalk.graph.ends.events import ProcessEvents, read_events
from rootwalk.graph.ends.failure import EndKind, JobFailure, find_failure
from rootwalk.graph.ends.judge import JobEnd, find_end
from rootwalk.graph.ends.words import sender_of
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.store_columns import read_sensors

__all__ = ["EndCase", "LastRecord", "RankPlace", "Reach", "read_end", "read_reach"]

_SENSOR: Final = "lifecycle"
# Steps whose length is the usual one.
USUAL_STEPS: Final = 50
# How many times the scatter of a clock fit two times must be apart to be in a known order (99.7 %).
UNCERTAINTY_SIGMAS: Final = 3.0
_USUAL: Final = """
SELECT coalesce(median(duration_ns), 0) FROM steps
WHERE job = $job AND coalesce(attempt, 0) = $attempt AND is_complete AND duration_ns >= 0 AND step >= $first
"""
# What is sent about a rank whether or not it completes steps.
_LAST_SEEN: Final = """
SELECT rank, any_value(host_id), max(unix_ns) FROM (
    SELECT rank, host_id, unix_ns FROM metric_records
    WHERE job = $job AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL
    UNION ALL
    SELECT rank, host_id, unix_ns FROM log_records
    WHERE job = $job AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL)
WHERE unix_ns IS NOT NULL
GROUP BY rank
"""
# Where no step is known: when each rank last sent a span, and how far apart its spans begin at most.
_LAST_SPANS: Final = """
SELECT 'rank ' || rank, any_value(host_id), max(end_unix_ns), coalesce(max(gap), 0) FROM (
    SELECT rank, host_id, end_unix_ns,
           start_unix_ns - lag(start_unix_ns) OVER (PARTITION BY rank ORDER BY start_unix_ns) AS gap
    FROM span_records WHERE job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL)
WHERE end_unix_ns IS NOT NULL
GROUP BY rank
"""
# Where no span is known either: the same of the metrics of each host.
_LAST_POINTS: Final = """
SELECT host, any_value(host_id), max(unix_ns), coalesce(max(gap), 0) FROM (
    SELECT host, host_id, unix_ns, unix_ns - lag(unix_ns) OVER (PARTITION BY host ORDER BY unix_ns) AS gap
    FROM (SELECT DISTINCT coalesce(host_name, host_id) AS host, host_id, unix_ns FROM metric_records
          WHERE (job = ? OR job IS NULL) AND unix_ns IS NOT NULL AND starts_with(name, 'rootwalk.') IS FALSE))
WHERE host IS NOT NULL
GROUP BY host
"""
_RANKS: Final = (
    "SELECT rank, host_id, coalesce(host_name, host_id, 'unknown') FROM ranks"
    " WHERE job = ? AND coalesce(attempt, 0) = ? ORDER BY rank"
)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank runs."""

    rank: int
    host_id: str
    host_name: str


@dataclass(frozen=True, slots=True)
class LastRecord:
    """When a rank or a host last sent anything, and how long it was silent at most before, ns."""

    time_ns: int
    gap_ns: int


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the records of one attempt reach, on the aligned clock.

    Attributes:
        key: The job and the attempt.
        events: What happened to its processes, and the last step of each rank.
        ranks: The ranks that sent spans.
        usual_step_ns: Median of the last steps, 0 without any.
        last_seen_ns: When anything but spans was last sent about each rank.
        last_records: Of ranks, else of hosts, where no rank completed a step that is known.
        is_imported: Whether records came from files: then none is still on its way.
        is_aligned: Whether times of different hosts can be compared.
        uncertainty_ns: Of such times.
    """

    key: JobKey
    events: ProcessEvents
    ranks: tuple[RankPlace, ...]
    usual_step_ns: float
    last_seen_ns: Mapping[int, int]
    last_records: Mapping[str, LastRecord]
    is_imported: bool
    is_aligned: bool
    uncertainty_ns: float

    @property
    def last_step(self) -> int | None:
        """The last step that any rank completed."""
        return max((step.number for step in self.events.last_steps.values()), default=None)


@dataclass(frozen=True, slots=True)
class EndCase:
    """The end of a job.

    Attributes:
        key: The job and the attempt.
        failure: How it ended.
        out_of_memory: The kill for memory by which it ended, None where it was none.
        others: Its other ranks.
        coverage: The part of its ranks whose ends a sensor would have seen, 0 to 1.
        last_step: The last step that the rank which failed first completed, else any rank; None without any.
        sender: Who sent the signal that ended that rank; None where not seen.
    """

    key: JobKey
    failure: JobFailure
    out_of_memory: JobEnd | None
    others: tuple[int, ...]
    coverage: float
    last_step: int | None
    sender: str | None

    @property
    def process(self) -> str:
        """The node of the process that failed, or was killed; of a rank, where its process is not known."""
        culprit = self.failure.culprit
        if culprit is None:
            return node_id("job", self.key.job)
        pid = culprit.pid
        part = f"rank{culprit.rank}-ended" if pid is None else str(pid)
        if self.out_of_memory is not None:
            pid = self.out_of_memory.kill.pid
            part = f"rank{culprit.rank}-killed" if pid is None else str(pid)
        return node_id("process", culprit.host_name, part)


def read_reach(
    connection: Any,
    key: JobKey,
    offset_s_by_host: Mapping[str, float],
    *,
    is_aligned: bool,
    sigma_s: float,
) -> Reach:
    """Return how far the records of one attempt reach.

    Args:
        connection: An open store.
        key: The job and the attempt.
        offset_s_by_host: Host clock minus reference clock, s; hosts that are missing have 0.
        is_aligned: Whether times of different hosts can be compared.
        sigma_s: Scatter of the clock fit, s.
    """
    events = read_events(connection, key, offset_s_by_host)
    owner = {"job": key.job, "attempt": key.attempt}
    last = max((step.number for step in events.last_steps.values()), default=0)
    first = last - USUAL_STEPS + 1
    ((usual_ns,),) = connection.execute(_USUAL, owner | {"first": first}).fetchall()
    seen = connection.execute(_LAST_SEEN, owner).fetchall()
    places = connection.execute(_RANKS, [key.job, key.attempt]).fetchall()
    (imported,) = connection.execute("SELECT 1 FROM imported_requests LIMIT 1").fetchone() or (
        None,
    )
    return Reach(
        key=key,
        events=events,
        ranks=tuple(RankPlace(int(rank), str(host), str(name)) for rank, host, name in places),
        usual_step_ns=float(usual_ns),
        last_seen_ns={
            int(rank): int(ns) - round(offset_s_by_host.get(str(host), 0.0) * 1e9)
            for rank, host, ns in seen
        },
        last_records={} if events.last_steps else _last_records(connection, key, offset_s_by_host),
        is_imported=imported is not None,
        is_aligned=is_aligned,
        uncertainty_ns=UNCERTAINTY_SIGMAS * sigma_s * 1e9,
    )


def _last_records(
    connection: Any, key: JobKey, offset_s_by_host: Mapping[str, float]
) -> dict[str, LastRecord]:
    """Return when each rank, else each host, last sent anything."""
    rows = connection.execute(_LAST_SPANS, [key.job, key.attempt]).fetchall()
    rows = rows or connection.execute(_LAST_POINTS, [key.job]).fetchall()
    return {
        str(name): LastRecord(
            int(ns) - round(offset_s_by_host.get(str(host), 0.0) * 1e9), int(gap_ns)
        )
        for name, host, ns, gap_ns in rows
    }


def read_end(connection: Any, reach: Reach) -> EndCase | None:
    """Return how a job ended; None while it goes on, or where nothing is known of its end."""
    events = reach.events
    if events.is_empty:
        return None
    failure = find_failure(
        events,
        usual_step_ns=reach.usual_step_ns,
        uncertainty_ns=reach.uncertainty_ns,
        is_aligned=reach.is_aligned,
        last_seen_ns=reach.last_seen_ns,
        world_size=reach.key.world_size,
    )
    out_of_memory = find_end(events, is_aligned=reach.is_aligned) if events.kills else None
    if out_of_memory is not None:
        failure = _by_memory(events, out_of_memory, failure)
    if failure is None:
        return None
    culprit = failure.culprit
    ranks = {place.rank for place in reach.ranks} | events.last_steps.keys()
    ranks |= {end.rank for end in events.ends}
    step = None if culprit is None else events.last_steps.get(culprit.rank)
    rank_by_pid = {end.pid: end.rank for end in events.ends if end.pid is not None}
    return EndCase(
        key=reach.key,
        failure=failure,
        out_of_memory=out_of_memory,
        others=tuple(sorted(ranks - {None if culprit is None else culprit.rank})),
        coverage=_coverage(connection, reach),
        last_step=reach.last_step if culprit is None else None if step is None else step.number,
        sender=None if culprit is None else sender_of(culprit, rank_by_pid),
    )


def _by_memory(events: ProcessEvents, found: JobEnd, failure: JobFailure | None) -> JobFailure:
    """Return the end of a job by a kill for memory, in the words of any other end."""
    end = found.end
    culprit = Departure(
        *(end.rank, found.kill.time_ns, end.host_id, end.host_name, end.pid, Manner.FAILED, end)
    )
    run = events.run_ends[0] if events.run_ends else None
    victims = tuple(sorted({other.rank for other in events.ends} - {end.rank}))
    base = failure or JobFailure(
        EndKind.OUT_OF_MEMORY, culprit, (), (), victims, run, found.kill.time_ns
    )
    return replace(
        base, kind=EndKind.OUT_OF_MEMORY, culprit=culprit, rivals=(), alike=(), victims=victims
    )


def _coverage(connection: Any, reach: Reach) -> float:
    """Return the part of a job's ranks whose ends a sensor would have seen."""
    sensors = read_sensors(connection, reach.key.job)
    hosts = {row.host_name for row in sensors if (row.sensor, row.status) == (_SENSOR, "available")}
    ranks = {place.rank for place in reach.ranks}
    # Whose end was seen had such a sensor, whether or not that has said so itself.
    seen = {place.rank for place in reach.ranks if place.host_name in hosts}
    seen |= {end.rank for end in reach.events.ends}
    seen |= {exception.rank for exception in reach.events.exceptions}
    return len(seen) / max(reach.key.world_size or 0, len(ranks | seen), 1)
