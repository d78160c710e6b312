"""Whether a job is slower since it was started again with other versions, on all ranks alike.

    attempt 0   torch 2.14   ....120 ms a step....| ended
    attempt 1   torch 2.15                        |....150 ms a step, from its first warm step on....

A step change at a start is nothing that a job's own history shows, because the new attempt has none from before. What
every rank takes longer outside its collectives is everybody's: a rank that the others wait for takes longer there, and
they do not. Only what is told by both attempts counts, and only other versions make it a regression of the release.

Source:
    Faults B3 (F04: step change at a restart, all ranks, difference of versions) and B4 (all slow).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.detect import MIN_HISTORY_STEPS, noise_limit_s
from rootwalk.graph.findings import ScoreContext
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import EdgeKind, EdgePayload, Evidence, NodePayload, Verdict, Victims
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.graph.score import score
from rootwalk.graph.series import MAD_TO_SIGMA
from rootwalk.graph.verdict import Counted, settle, what_if
from rootwalk.instrumentation import semconv

__all__ = [
    "Attempt",
    "Regression",
    "build_regression",
    "compare",
    "conclude_release",
    "read_attempts",
]

# The last steps of an attempt are compared; its first ones warm up.
MAX_STEPS: Final = 50
WARM_UP_STEPS: Final = 10
# What all ranks have alike must be at least this part of the slowdown: else somebody is waited for.
MIN_COMMON: Final = 0.5
CAUSE: Final = 0

_LAST = """
SELECT max(attempt) FROM ranks WHERE job = ? AND attempt < ?
"""
_STEPS = """
WITH chosen AS (
    SELECT DISTINCT step FROM span_records
    WHERE name = 'training.rank_step' AND outcome = 'complete' AND job = $job AND attempt = $attempt
        AND step >= (SELECT min(step) FROM span_records
                     WHERE name = 'training.rank_step' AND job = $job AND attempt = $attempt) + $warm
    ORDER BY step DESC LIMIT $steps
), waited AS (
    SELECT rank, step, sum(end_unix_ns - start_unix_ns) AS ns FROM span_records
    WHERE starts_with(name, 'collective.') AND communicator_id IS NOT NULL AND job = $job AND attempt = $attempt
        AND step IN (SELECT step FROM chosen)
    GROUP BY ALL
)
SELECT s.rank, s.step, any_value(s.end_unix_ns - s.start_unix_ns) / 1e9, any_value(coalesce(w.ns, 0)) / 1e9,
       any_value(s.resource ->> $release)
FROM span_records s LEFT JOIN waited w ON w.rank = s.rank AND w.step = s.step
WHERE s.name = 'training.rank_step' AND s.outcome = 'complete' AND s.job = $job AND s.attempt = $attempt
    AND s.step IN (SELECT step FROM chosen)
GROUP BY s.rank, s.step
ORDER BY s.step, s.rank
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last steps of one start of a job.

    Attributes:
        number: Which start.
        step_s: Time of each step, the longest of its ranks', (steps,).
        own_s_by_rank: Median over the steps of what each rank took outside its collectives, s.
        releases: What the ranks say that they run; empty where one of them does not.
    """

    number: int
    step_s: FloatArray
    own_s_by_rank: Mapping[int, float]
    releases: frozenset[str]


@dataclass(frozen=True, slots=True)
class Regression:
    """What another release costs every rank.

    `share_s` a step is what all ranks have alike, of `step_s` - `healthy_s`, which are means and medians of steps.
    """

    job: str
    before: Attempt
    now: Attempt
    step_s: float
    healthy_s: float
    share_s: float


def read_attempts(connection: Any, key: JobKey) -> tuple[Attempt, Attempt] | None:
    """Return the start before this one and this one; None where one of them has told too few steps.

    Args:
        connection: An open store.
        key: The job and this start of it.
    """
    (last,) = connection.execute(_LAST, [key.job, key.attempt]).fetchone()
    if last is None:
        return None
    before, now = (_read(connection, key.job, number) for number in (int(last), key.attempt))
    return None if before is None or now is None else (before, now)


def _read(connection: Any, job: str, number: int) -> Attempt | None:
    asked = {
        "job": job,
        "attempt": number,
        "warm": WARM_UP_STEPS,
        "steps": MAX_STEPS,
        "release": f'$."{semconv.TRAINING_RELEASE}"',
    }
    rows = connection.execute(_STEPS, asked).fetchall()
    longest: dict[int, float] = {}
    own: dict[int, list[float]] = {}
    releases = set()
    for rank, step, length_s, waited_s, release in rows:
        longest[step] = max(longest.get(step, 0.0), length_s)
        own.setdefault(rank, []).append(length_s - waited_s)
        releases.add(release)
    if len(longest) < MIN_HISTORY_STEPS:
        return None
    return Attempt(
        number,
        np.array([longest[step] for step in sorted(longest)]),
        {rank: float(np.median(times)) for rank, times in own.items()},
        frozenset() if None in releases else frozenset(releases),
    )


def compare(job: str, before: Attempt, now: Attempt) -> Regression | None:
    """Return what another release costs; None where it is the same, or costs nothing that all ranks have alike."""
    if not before.releases or not now.releases or before.releases == now.releases:
        return None
    if before.own_s_by_rank.keys() != now.own_s_by_rank.keys():
        return None
    if float(np.median(now.step_s)) <= noise_limit_s(before.step_s):
        return None
    step_s, healthy_s = float(now.step_s.mean()), float(np.median(before.step_s))
    common_s = min(now.own_s_by_rank[rank] - own_s for rank, own_s in before.own_s_by_rank.items())
    share_s = min(common_s, step_s - healthy_s)
    if share_s < MIN_COMMON * (step_s - healthy_s):
        return None
    return Regression(job, before, now, step_s, healthy_s, share_s)


def build_regression(found: Regression) -> tuple[DependencyGraph, tuple[Evidence, ...]]:
    """Return the dependency graph that says so, and the evidence that it rests on."""
    graph = DependencyGraph()
    job_node = node_id("job", found.job)
    graph.add_node(job_node, NodePayload("job", found.job, {"attempt": found.now.number}))
    label = f"{_listed(found.now.releases)}, before {_listed(found.before.releases)}"
    release = node_id("release", found.job, str(found.now.number))
    graph.add_node(release, NodePayload("release", label, {}))
    scatter = MAD_TO_SIGMA * float(
        np.median(np.abs(found.before.step_s - np.median(found.before.step_s)))
    )
    sigma = max(scatter, 0.01 * found.healthy_s)
    owner = found.job.replace("'", "''")
    where = f"job = '{owner}' AND attempt IN ({found.before.number}, {found.now.number})"
    columns = "attempt, step, rank, duration_ns"
    row = Evidence(
        id=f"{Signal.STEP}/attempts",
        signal=str(Signal.STEP),
        value=round(found.step_s, 9),
        unit="s",
        peers=None,
        history=round(found.healthy_s, 9),
        z=round(min((found.step_s - found.healthy_s) / sigma, 1e3), 9),
        trace_id=None,
        span_id=None,
        query=" ".join(("SELECT", columns, "FROM steps WHERE", where, "ORDER BY 1, 2, 3")),
        attributes={},
    )
    share_s = round(found.share_s, 9)
    attributes: dict[str, str | int | float | bool | None] = {
        "reason": str(Reason.RELEASE_REGRESSION),
        "rank": None,
        "subject": release,
        "cause": CAUSE,
        "share_s": share_s,
        # There is one cause and nothing else to replay: without it all of the share is gone.
        "remove_s": share_s,
        "add_s": share_s,
        "path_s": share_s,
        "parallel": 1,
        "magnitude": None,
        "coverage": None,
    }
    payload = EdgePayload(EdgeKind.SLOWED_BY, share_s, (row.id,), attributes)
    graph.add_edge(job_node, release, payload)
    return graph, (row,)


def conclude_release(
    quiet: Verdict,
    found: Regression,
    graph: DependencyGraph,
    evidence: tuple[Evidence, ...],
    context: ScoreContext,
) -> Verdict | None:
    """Return the verdict about a start with other versions; None where the graph does not bear it.

    Args:
        quiet: What the job's own history says: nothing.
        found: What was found.
        graph: The dependency graph as the store gives it back.
        evidence: Its evidence rows, likewise.
        context: The window.
    """
    asked = replace(context, healthy_s=found.healthy_s, has_history=True)
    ideal_s = found.step_s - found.share_s
    counted = Counted(
        simulated_s=found.step_s,
        ideal_s=ideal_s,
        shares_s=(found.share_s,),
        slack_s=0.0,
        what_if=what_if(found.step_s, ideal_s),
        is_told=True,
    )
    slow = replace(quiet, kind="slow", healthy_step_s=round(found.healthy_s, 9))
    verdict = settle(slow, counted, score(graph, evidence, asked), Victims())
    return verdict if verdict.findings else None


def _listed(releases: frozenset[str]) -> str:
    return " and ".join(sorted(releases))
