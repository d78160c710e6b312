"""A hang by the agent's counts of NCCL's calls, where no flight recorder tells it: who has not called what others have.

    rank    0    1    2    3       communicator of four, nothing has moved for minutes
    called  41   41   40   41      rank 2 has not called operation 41, in which the others wait

Counts are turned into records as flight recorders' and judged as those are. They say less, so all of this has to hold,
else nothing is said:

- no count of the job has grown for two minutes, and no step has ended since: a host runs ahead of its device, so that
  counts of a job that goes on differ all the time;
- every member of every communicator is told of, up to the end: of another nobody knows what it has called;
- nobody is to blame but for not having called: what a call was, and what a device has begun, are not counted;
- who is to blame has no other way to wait for a rank that is seen here: no sends and receives, which counts do not
  pair, and no calls in communicators whose making was not seen.

What a rank waits for outside NCCL (gloo, a store, a file) is not seen: certainty is no more than `COUNTS_ONLY`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.hangs.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.hangs.judge import Blame, Hang, find_hang
from rootwalk.graph.model import Evidence
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation.semconv import (
    COLLECTIVE_COMMUNICATOR_ID,
    COLLECTIVE_COMMUNICATOR_SIZE,
    COLLECTIVE_IS_POINT_TO_POINT,
    METRIC_TRAINING_NCCL_CALLS,
    METRIC_TRAINING_NCCL_OPERATIONS,
    TRAINING_NCCL_COMMUNICATOR,
)

__all__ = ["Count", "CountedHang", "count_evidence", "judge_counts", "read_counted_hang"]

# An agent tells a value that stands still once a minute: twice is no chance. Longer than what keeps hosts waiting in a
# job that is well, but for checkpoints, in which all have called the same.
MIN_STILL_NS: Final = 120_000_000_000
# What was not told for so long has ended: more than that minute.
ENDED_NS: Final = 90_000_000_000
# A step that ends so much later than the last count grew was still under way; counts are told every 5 s.
STEP_SLACK_NS: Final = 10_000_000_000
# So much of the end is read: what stands still for longer is told in it too, once a minute.
READ_NS: Final = 3600_000_000_000
# Prior: a host may wait in something else than NCCL.
COUNTS_ONLY: Final = 0.6
# What is not known of a call.
OPERATION: Final = "operation"

_SERIES: Final = """
SELECT rank, communicator, any_value(size), is_message, max(value), max(unix_ns),
       min(unix_ns) FILTER (value = highest)
FROM (
    SELECT rank, attributes ->> ? AS communicator, TRY_CAST(attributes ->> ? AS BIGINT) AS size,
           coalesce(attributes ->> ?, 'false') = 'true' AS is_message, value, unix_ns,
           max(value) OVER (PARTITION BY rank, communicator, is_message) AS highest
    FROM metrics
    WHERE name = ? AND job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL AND unix_ns >= ?
          AND isfinite(value)
)
WHERE communicator IS NOT NULL
GROUP BY rank, communicator, is_message
ORDER BY rank, communicator, is_message
"""


@dataclass(frozen=True, slots=True)
class Count:
    """What a rank has called in a communicator.

    Attributes:
        rank: The rank.
        communicator: Its id.
        size: How many members it has; None where not known.
        is_message: Whether sends and receives, else collectives.
        called: How many, up to the end.
        seen_unix_ns: When that was told last.
        since_unix_ns: When it was told first: nothing was called since.
    """

    rank: int
    communicator: str
    size: int | None
    is_message: bool
    called: int
    seen_unix_ns: int
    since_unix_ns: int


@dataclass(frozen=True, slots=True)
class CountedHang:
    """A hang, the records that it was judged by, and whose they are."""

    job: str
    attempt: int
    records: Sequence[RankRecord]
    hang: Hang


def read_counted_hang(connection: Any, job: str | None) -> CountedHang | None:
    """Return what hangs in a job by the counts of its agents; None where they do not say that something does."""
    rows = connection.execute(
        "SELECT job, max(coalesce(attempt, 0)), max(unix_ns) FROM metrics"
        " WHERE name = ? AND job IS NOT NULL AND rank IS NOT NULL AND unix_ns IS NOT NULL GROUP BY job",
        [METRIC_TRAINING_NCCL_OPERATIONS],
    ).fetchall()
    chosen = [row for row in rows if job in (None, row[0])]
    if len(chosen) != 1:
        return None
    key = (str(chosen[0][0]), int(chosen[0][1]))
    begin_ns = int(chosen[0][2]) - READ_NS
    counts = [
        Count(
            int(rank),
            str(communicator),
            None if size is None else int(size),
            bool(is_message),
            *(int(called), int(seen), int(since)),
        )
        for rank, communicator, size, is_message, called, seen, since in connection.execute(
            _SERIES,
            [
                f'$."{COLLECTIVE_COMMUNICATOR_ID}"',
                f'$."{COLLECTIVE_COMMUNICATOR_SIZE}"',
                f'$."{COLLECTIVE_IS_POINT_TO_POINT}"',
                *(METRIC_TRAINING_NCCL_OPERATIONS, *key, begin_ns),
            ],
        ).fetchall()
    ]
    last_step_ns = connection.execute(
        "SELECT coalesce(max(end_unix_ns), 0) FROM steps WHERE job = ? AND coalesce(attempt, 0) >= ?",
        list(key),
    ).fetchone()[0]
    unseen = connection.execute(
        "SELECT DISTINCT rank FROM metrics WHERE name = ? AND job = ? AND coalesce(attempt, 0) = ? AND unix_ns >= ?"
        " AND value > 0 AND rank IS NOT NULL AND (attributes ->> ?) IS NOT NULL AND (attributes ->> ?) IS NULL",
        [
            *(METRIC_TRAINING_NCCL_CALLS, *key, begin_ns),
            f'$."{TRAINING_NCCL_COMMUNICATOR}"',
            f'$."{COLLECTIVE_COMMUNICATOR_ID}"',
        ],
    ).fetchall()
    judged = judge_counts(counts, int(last_step_ns), {int(rank) for (rank,) in unseen})
    return None if judged is None else CountedHang(*key, *judged)


def judge_counts(
    counts: Iterable[Count], last_step_unix_ns: int = 0, unseen: Iterable[int] = ()
) -> tuple[Sequence[RankRecord], Hang] | None:
    """Return records and what hangs by them; None where nothing is known to hang.

    Args:
        counts: Of all ranks of a job.
        last_step_unix_ns: When a step has ended last.
        unseen: Ranks with calls in communicators whose making was not seen.
    """
    there = _present(list(counts))
    moved_ns = max((count.since_unix_ns for count in there), default=0)
    end_ns = max((count.seen_unix_ns for count in there), default=0)
    if end_ns - moved_ns < MIN_STILL_NS or last_step_unix_ns > moved_ns + STEP_SLACK_NS:
        return None
    by_communicator: dict[str, dict[int, Count]] = {}
    for count in there:
        if not count.is_message:
            by_communicator.setdefault(count.communicator, {})[count.rank] = count
    if any(_is_partial(members.values(), end_ns) for members in by_communicator.values()):
        return None
    records = _to_records(by_communicator, end_ns)
    hang = find_hang(records)
    if not hang.operations:
        return None
    unsure = {*unseen, *(count.rank for count in there if count.is_message and count.called)}
    blames = tuple(
        replace(blame, certainty=min(blame.certainty, COUNTS_ONLY)) for blame in hang.blames
    )
    blamed = {rank for blame in blames for rank in blame.ranks}
    is_told = all(blame.reason is Reason.NOT_JOINED for blame in blames)
    if not is_told or blamed & unsure:
        waiting = {rank for operation in hang.operations for rank in operation.calls}
        return records, replace(hang, blames=(), victims=tuple(sorted(waiting)))
    return records, replace(hang, blames=blames)


def _present(counts: list[Count]) -> list[Count]:
    """Return the counts of communicators that some member still has: others have been destroyed."""
    end_ns = max((count.seen_unix_ns for count in counts), default=0)
    present = {c.communicator for c in counts if end_ns - c.seen_unix_ns <= ENDED_NS}
    return [count for count in counts if count.communicator in present]


def _is_partial(members: Iterable[Count], end_ns: int) -> bool:
    """Return whether a member of a communicator is not told of, or no longer."""
    told = list(members)
    is_whole = all(count.size in (None, len(told)) for count in told)
    return not is_whole or any(end_ns - count.seen_unix_ns > ENDED_NS for count in told)


def _to_records(by_communicator: dict[str, dict[int, Count]], end_ns: int) -> list[RankRecord]:
    """Return the counts as records: what a member has called that another has not is unfinished."""
    frontiers: dict[int, list[Frontier]] = {}
    pending: dict[int, list[PendingCall]] = {}
    for name, members in sorted(by_communicator.items()):
        ranks = tuple(sorted(members))
        first = min(count.called for count in members.values()) + 1
        for rank, count in sorted(members.items()):
            frontiers.setdefault(rank, []).append(Frontier(name, "", ranks, count.called))
            if count.called >= first:
                # Begun: counts do not say in which order a device takes calls of several communicators.
                call = PendingCall(
                    0, name, first, OPERATION, None, None, "", True, count.since_unix_ns
                )
                pending.setdefault(rank, []).append(call)
    records = []
    for rank, known in sorted(frontiers.items()):
        calls = sorted(pending.get(rank, ()), key=lambda call: call.created_unix_ns)
        ordered = tuple(replace(call, order=order) for order, call in enumerate(calls))
        records.append(RankRecord(rank, "", "", tuple(known), ordered, seen_unix_ns=end_ns))
    return records


def count_evidence(job: str, records: Sequence[RankRecord], blame: Blame) -> dict[int, Evidence]:
    """Return what each blamed rank has called in the communicator that shows it, beside the other members."""
    name = blame.operation.communicator
    called = {
        record.rank: float(frontier.issued or 0)
        for record in records
        for frontier in record.frontiers
        if frontier.communicator == name
    }
    others = [value for member, value in called.items() if member not in blame.ranks]
    usual = statistics.median(others) if others else None
    return {
        rank: Evidence(
            f"{blame.reason}-{rank}",
            METRIC_TRAINING_NCCL_OPERATIONS,
            called.get(rank),
            "{operation}",
            usual,
            *(None, None, None, None),
            _query(job, rank, name),
            {"role": "magnitude"},
        )
        for rank in blame.ranks
    }


def _query(job: str, rank: int, communicator: str) -> str:
    quoted = job.replace("'", "''")
    return (
        f"SELECT max(value) FROM metrics WHERE name = '{METRIC_TRAINING_NCCL_OPERATIONS}'"  # noqa: S608
        f" AND job = '{quoted}' AND rank = {rank}"
        f" AND (attributes ->> '$.\"{COLLECTIVE_COMMUNICATOR_ID}\"') = '{communicator}'"
        f" AND coalesce(attributes ->> '$.\"{COLLECTIVE_IS_POINT_TO_POINT}\"', 'false') = 'false'"
    )
