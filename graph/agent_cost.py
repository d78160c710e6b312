"""What watching a job cost, as its agents told: CPU time, memory, events, bytes, what was dropped or given up.

Counters are sums over the hosts of the job. Unknown is None: a job without an agent of its own has no figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rootwalk.graph.model import Cost
from rootwalk.instrumentation import semconv

__all__ = ["AgentCost", "read_agent_cost"]


@dataclass(frozen=True, slots=True)
class AgentCost:
    """What the agents of a job cost; None where nobody told.

    Attributes:
        cpu_ratio: CPU time of agents and kernel programs over the time of the ranks' steps.
        rss_bytes: Resident memory of the largest agent.
        bytes_per_rank_step: OTLP bytes of spans.
        events_per_rank_step: Records that the kernel handed over.
        bpf_s: CPU time by kernel program.
        dropped: What was lost, by reason.
        lowered_hosts: Where an agent gave up detail at some time to keep its budget.
    """

    cpu_ratio: float | None = None
    rss_bytes: int | None = None
    bytes_per_rank_step: float | None = None
    events_per_rank_step: float | None = None
    bpf_s: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    lowered_hosts: tuple[str, ...] = ()

    def with_diagnosis(self, diagnose_s: float, peak_rss_bytes: int | None) -> Cost:
        """Return what the agents and a diagnosis cost together."""
        return Cost(
            diagnose_s=round(diagnose_s, 3),
            peak_rss_bytes=peak_rss_bytes,
            agent_cpu_ratio=self.cpu_ratio,
            agent_rss_bytes=self.rss_bytes,
            bytes_per_rank_step=self.bytes_per_rank_step,
            events_per_rank_step=self.events_per_rank_step,
            bpf_s=self.bpf_s,
            dropped=self.dropped,
            lowered_hosts=self.lowered_hosts,
        )


def read_agent_cost(connection: Any, job: str, attempt: int) -> AgentCost:
    """Return what the agents of a job cost."""
    rows = connection.execute(
        "SELECT name, coalesce(sensor, ''), coalesce(host_name, host_id, 'unknown'), sum(max_value), max(max_value)"
        " FROM metric_states WHERE job = ? GROUP BY ALL ORDER BY ALL",
        [job],
    ).fetchall()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    rss_bytes: int | None = None
    lowered = []
    for name, part, host, total, largest in rows:
        sums[name][part] += total
        if name == semconv.METRIC_ROOTWALK_AGENT_MEMORY_USAGE:
            rss_bytes = max(rss_bytes or 0, int(largest))
        elif name == semconv.METRIC_ROOTWALK_AGENT_DETAIL_LOWERED:
            lowered.append(str(host))
    steps_s, steps = _read_rank_steps(connection, job, attempt)
    bpf_s = sums[semconv.METRIC_ROOTWALK_BPF_RUN_TIME]
    agent_s = sums[semconv.METRIC_ROOTWALK_AGENT_CPU_TIME].get("")
    cpu_s = None if agent_s is None else agent_s + sum(bpf_s.values())
    dropped = sums[semconv.METRIC_ROOTWALK_DROPPED]
    return AgentCost(
        cpu_ratio=_over(cpu_s, steps_s, 5),
        rss_bytes=rss_bytes,
        bytes_per_rank_step=_over(sums[semconv.METRIC_ROOTWALK_AGENT_SENT_SIZE].get(""), steps, 1),
        events_per_rank_step=_over(sums[semconv.METRIC_ROOTWALK_AGENT_EVENTS].get(""), steps, 1),
        bpf_s={program: round(seconds, 6) for program, seconds in sorted(bpf_s.items())},
        dropped={reason: int(count) for reason, count in sorted(dropped.items())},
        lowered_hosts=tuple(sorted(set(lowered))),
    )


def _read_rank_steps(connection: Any, job: str, attempt: int) -> tuple[float, float]:
    """Return how long the steps of all ranks lasted, s, and how many there were."""
    row = connection.execute(
        "SELECT coalesce(sum(steps_s), 0), coalesce(sum(last_step - first_step + 1), 0) FROM rank_summaries"
        " WHERE job = ? AND coalesce(attempt, 0) = ? AND rank IS NOT NULL",
        [job, attempt],
    ).fetchone()
    return float(row[0]), float(row[1])


def _over(total: float | None, count: float, digits: int) -> float | None:
    return None if total is None or count <= 0.0 else round(total / count, digits)
