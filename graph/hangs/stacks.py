"""Stacks that the agent took of ranks while others waited for them (`run --profile-hz`), and what they say of a hang.

Owns how they are read from the store; what a stack means is `forked`'s and `on_device`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.hangs.judge import Blame, Hang
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv

__all__ = ["MIN_SPAN_NS", "MIN_WAIT_RATIO", "NS", "Found", "RankKey", "Sample", "plain_name"]
__all__ += ["read_samples", "reblame", "span_of", "stacks_query", "total_ns"]

NS: Final = 1_000_000_000
# Less is a wait as any other.
MIN_SPAN_NS: Final = 5 * NS
# Of that time; the profile's ends do not fall on those of the hang.
MIN_WAIT_RATIO: Final = 0.8

_SAMPLES: Final = (
    "SELECT s.unix_ns, p.duration_ns, s.sample_type, s.attributes ->> ?, s.stack,"
    " sum(CASE WHEN s.unit = 'count' THEN s.value * coalesce(p.period, 0) ELSE s.value END)::BIGINT"
    " FROM profile_samples s JOIN (SELECT DISTINCT profile_id, duration_ns, period FROM profiles"
    " WHERE job = ? AND rank = ?) p USING (profile_id)"
    " WHERE s.job = ? AND s.rank = ? AND coalesce(s.attempt, ?) = ? AND s.unix_ns >= ?"
    " AND s.sample_type IS DISTINCT FROM ?"
    " GROUP BY ALL ORDER BY ALL"
)

_SAMPLED: Final = "SELECT DISTINCT rank FROM profiles WHERE job = ? AND rank IS NOT NULL"

# Job, attempt, rank.
RankKey = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Time that a thread spent in one stack, ns; functions outermost first."""

    unix_ns: int
    end_ns: int
    is_wait: bool
    role: str
    stack: tuple[str, ...]
    spent_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """Why a rank did not join, and how surely."""

    reason: Reason
    wait: HostWait
    certainty: float


def read_samples(connection: Any, key: RankKey, begin_ns: int) -> list[Sample]:
    """Return the stacks of a rank since a moment."""
    job, attempt, rank = key
    role = f'$."{semconv.TRAINING_THREAD_ROLE}"'
    # Time in collectives, which a main thread's waits are told as a second time.
    known = [role, job, rank, job, rank, attempt, attempt, begin_ns, "collective_wait"]
    rows = connection.execute(_SAMPLES, known).fetchall()
    return [
        Sample(
            int(unix_ns),
            int(unix_ns) + int(duration_ns or 0),
            kind == "off_cpu",
            role or "",
            tuple((stack or "").split(";")),
            int(spent_ns or 0),
        )
        for unix_ns, duration_ns, kind, role, stack, spent_ns in rows
    ]


def span_of(samples: Iterable[Sample]) -> int:
    """Return from the first to the end of the last, ns; 0 without any."""
    ends = [(sample.unix_ns, sample.end_ns) for sample in samples]
    return max(end for _, end in ends) - min(begin for begin, _ in ends) if ends else 0


def total_ns(samples: Iterable[Sample]) -> int:
    """Return the time that threads spent in some stacks, ns."""
    return sum(sample.spent_ns for sample in samples)


def plain_name(function: str) -> str:
    """Return a function without its class or module."""
    return function.rpartition(".")[2]


def stacks_query(key: RankKey, since_ns: int, function: str) -> str:
    """Return the SQL that shows the stacks of a rank in a function."""
    job, _, rank = key
    name = job.replace("'", "''")
    return (
        "SELECT sample_type, stack, sum(value) AS value FROM profile_samples"  # noqa: S608
        f" WHERE job = '{name}' AND rank = {rank} AND unix_ns >= {since_ns}"
        f" AND contains(stack, '{function}') GROUP BY ALL ORDER BY value DESC"
    )


def reblame(
    connection: Any, job: str, hang: Hang, find: Callable[[int, int], Found | None]
) -> Hang:
    """Return a hang in which ranks that did not join are blamed for a better reason; those of one are one blame.

    Args:
        connection: An open store.
        job: Its name; ranks of it that have no stacks are not asked for.
        hang: What the dumps say.
        find: Returns it for a rank, since the others wait (Unix time, ns); None where there is none.
    """
    sampled = {int(rank) for (rank,) in connection.execute(_SAMPLED, [job]).fetchall()}
    blames: list[Blame] = []
    waits: dict[int, HostWait] = {}
    for blame in hang.blames:
        if blame.reason is not Reason.NOT_JOINED:
            blames.append(blame)
            continue
        since_ns = blame.operation.since_unix_ns
        asked = ((rank, find(rank, since_ns)) for rank in blame.ranks if rank in sampled)
        found = {rank: one for rank, one in asked if one is not None}
        for reason in dict.fromkeys(one.reason for one in found.values()):
            alike = {rank: one for rank, one in found.items() if one.reason is reason}
            waits |= {rank: one.wait for rank, one in alike.items()}
            certainty = min(blame.certainty, *(one.certainty for one in alike.values()))
            blames.append(replace(blame, reason=reason, ranks=tuple(alike), certainty=certainty))
        left = tuple(rank for rank in blame.ranks if rank not in found)
        if left:
            blames.append(replace(blame, ranks=left))
    if not waits:
        return hang
    blames.sort(key=lambda blame: (-blame.certainty, str(blame.reason), blame.ranks))
    return replace(hang, blames=tuple(blames), host_waits={**hang.host_waits, **waits})
