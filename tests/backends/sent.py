"""What a job has sent, to hold against what back ends have: known from its making, or from a store of all of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.store import query_store
from support.job_requests import JobRequests

THREAD_TIMES = """
SELECT rank, attributes ->> 'training.thread.role', attributes ->> 'training.thread.state', arg_max(value, unix_ns)
FROM metrics WHERE name = 'training.thread.time' AND rank IS NOT NULL GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """The telemetry of one job.

    Attributes:
        job: Its id.
        ranks: Its ranks, 0 and up.
        span_ids: Ids of all spans by trace id, hex.
        thread_s: Last values of the counters of threads' times by (rank, role, state), s.
        slow_traces: Trace ids of the steps with the fault.
        fault_rank: Rank that has the fault.
        stall: Attribute and value that the stalls have which the fault makes.
        reason: Code that a verdict should give it.
    """

    job: str
    ranks: int
    span_ids: dict[str, frozenset[str]]
    thread_s: dict[tuple[int, str, str], float]
    slow_traces: tuple[str, ...]
    fault_rank: int
    stall: tuple[str, str]
    reason: str


def sent_by(requests: JobRequests) -> Sent:
    """Return what a made job has sent so far."""
    job, (fault,) = requests.job, requests.job.faults
    steps = range(fault.first_step, job.steps)
    return Sent(
        job.name,
        job.ranks,
        {requests.trace_id(step): frozenset(ids) for step, ids in requests.span_ids.items()},
        {(rank, "main", state): seconds for (rank, state), seconds in requests.thread_s.items()},
        tuple(requests.trace_id(step) for step in steps),
        fault.rank,
        (semconv.TRAINING_AGGRESSOR_NAME, fault.name),
        "CPU_CONTENTION",
    )


def sent_to(
    store: Path, job: str, ranks: int, fault_rank: int, stall: tuple[str, str], reason: str
) -> Sent:
    """Return what a store received of a job, the receiver being the one that sent it on.

    Args:
        store: The store, whole.
        job: Its id.
        ranks: How many it has.
        fault_rank: The rank that has the fault.
        stall: Attribute and value of the stalls which the fault makes; they say which steps are slow.
        reason: Its code.
    """
    span_ids = defaultdict(set)
    for trace_id, span_id in query_store(store, "SELECT trace_id, span_id FROM spans")[2]:
        span_ids[str(trace_id)].add(str(span_id))
    attribute, value = stall
    stalls = (
        f"SELECT DISTINCT trace_id FROM spans WHERE rank = {fault_rank} AND name LIKE 'stall.%'"  # noqa: S608
        f" AND attributes ->> '$.\"{attribute}\"' = '{value}' ORDER BY ALL"
    )
    return Sent(
        job,
        ranks,
        {trace_id: frozenset(ids) for trace_id, ids in span_ids.items()},
        {(r, role, state): s for r, role, state, s in query_store(store, THREAD_TIMES)[2]},
        tuple(str(trace_id) for (trace_id,) in query_store(store, stalls)[2]),
        fault_rank,
        stall,
        reason,
    )
