"""Decide from the stored dependency graph which causes stand, and how sure that is.

Reads the graph, its evidence and the window's context, nothing else: without an edge of a chain the finding does not
exist, and without a row of its evidence it is at most half as sure.

Source:
    Method C7: log-likelihood ratios clipped to [-3, 3], a softmax against 'unknown', times certainty and coverage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rootwalk.graph.columns import EXACT_SENSORS
from rootwalk.graph.counters.inclusion import included_causes
from rootwalk.graph.counters.starved import REFUTED
from rootwalk.graph.counters.weigh import REFINES, likelihood, refining_edges
from rootwalk.graph.dependencies import DependencyGraph, Edge, node_id
from rootwalk.graph.device.beyond import GOES_ON, find_beyond
from rootwalk.graph.findings import (
    QUIET_RATIO,
    Chain,
    ScoreContext,
    as_float,
    describe,
    excess_s,
    quiet_signals,
    victim_ranks,
)
from rootwalk.graph.model import Band, Confidence, EdgeKind, Evidence, Finding, Victims
from rootwalk.graph.operations.rules import rule_of
from rootwalk.graph.reasons import Reason, Rule, Signal

HIGH_SCORE = 0.8
MEDIUM_SCORE = 0.5
MAX_LLR = 3.0
# A cited row that is not there halves the score: enough to fall by a band from any score.
MISSING_EVIDENCE_FACTOR = 0.5
# Below this a chain is a guess.
MIN_SCORE = 0.05
# A competing state is in the way above this part of the cause.
COMPETING_RATIO = 0.5
# A few steps of a job or a profile show who is late, and not whether it stays so: never more than a low confidence.
MAX_FEW_SCORE = 0.49
# Steps of two processes under one rank are no rank's: whatever they show is at most a low confidence.
MAX_DOUBLED_SCORE = 0.4
# Who came last, and how long a step took, hang on clocks that nothing has put on one another, or who waited is told by
# sums alone: never high.
MAX_INDIRECT_SCORE = 0.79
# Part of what the exact sensor can decide that the coarse one can too: how long, not who.
PROC_COVERAGE = 0.5
# Sensors whose weight hangs on more than that they were there.
_COUNTED_APART = frozenset({"sched", "steps", "cgroup", "counter"})
# What can be late without anybody having waited for it.
_LATE = ("thread", "rank")


@dataclass(frozen=True, slots=True)
class ScoredFinding:
    """A finding, the number of the cause in the replay that it claims, and those that are the same fault's."""

    finding: Finding
    cause: int
    included: tuple[int, ...] = ()


def score(
    graph: DependencyGraph, evidence: tuple[Evidence, ...], context: ScoreContext
) -> tuple[ScoredFinding, ...]:
    """Return the findings that stand, by share and then id.

    Args:
        graph: The dependency graph as loaded from the store.
        evidence: Its evidence rows, likewise.
        context: The window.
    """
    rows = {row.id: row for row in evidence}
    found: list[ScoredFinding] = []
    for chain in _chains(graph, node_id("job", context.job)):
        scored = _score_chain(graph, rows, chain, context)
        if scored is not None:
            found.append(_refined(graph, rows, chain, context) or scored)
    included = {cause for one in found for cause in one.included}
    found = [one for one in found if one.cause not in included]
    return tuple(sorted(found, key=lambda f: (-(f.finding.seconds.share or 0.0), f.finding.id)))


def find_victims(graph: DependencyGraph, scored: tuple[ScoredFinding, ...]) -> Victims:
    """Return who waited for the first finding's culprit, from the edge that says so."""
    if not scored:
        return Victims()
    first = scored[0].finding
    link = next((item for item in first.chain if item.edge == "waits_for"), None)
    if link is None:
        return Victims()
    for edge in graph.edges():
        is_wait = edge.source == link.node and edge.payload.kind == "waits_for"
        target = graph.node(edge.target)
        if is_wait and target is not None and target.attributes.get("rank") == first.subject.rank:
            ranks = victim_ranks(edge.payload.attributes)
            return Victims(ranks, len(ranks), edge.payload.seconds)
    return Victims()


def _refined(
    graph: DependencyGraph, rows: dict[str, Evidence], chain: Chain, context: ScoreContext
) -> ScoredFinding | None:
    """Return what counters say of the cause at the end of a chain, the surest of it; None where none speaks."""
    found = []
    for edge in refining_edges(graph, chain.end):
        # A link hangs below the communicator, what all ranks have alike below their hosts; what slows a thread takes
        # the place of what it was taken for.
        is_below = edge.payload.kind == EdgeKind.TRANSFERS_OVER or chain.thread is None
        upper = chain.edges if is_below else chain.edges[:-1]
        scored = _score_chain(graph, rows, Chain((*upper, edge), chain.thread, edge), context)
        if scored is not None:
            found.append(scored)
    # Where all are as sure as can be, the likelier one beforehand.
    return max(
        found,
        key=lambda one: (
            one.finding.confidence.score or 0.0,
            context.priors.of(one.finding.reason),
        ),
        default=None,
    )


def _chains(graph: DependencyGraph, job: str) -> list[Chain]:
    """Return every complete path from the symptom to an edge that carries a reason."""
    chains: list[Chain] = []
    common: dict[tuple[str, int], list[Edge]] = {}
    for first in graph.leaving(job, EdgeKind.SLOWED_BY):
        if "reason" in first.payload.attributes:
            cause = int(as_float(first.payload.attributes.get("cause")))
            common.setdefault((str(first.payload.attributes["reason"]), cause), []).append(first)
            continue
        for wait in graph.leaving(first.target, EdgeKind.WAITS_FOR):
            chains += _thread_chains(graph, (first, wait), wait.target)
        if (node := graph.node(first.target)) is not None and node.kind in _LATE:
            chains += _thread_chains(graph, (first,), first.target)
    chains += [Chain(tuple(edges), None, edges[0]) for _, edges in sorted(common.items())]
    return chains


def _thread_chains(graph: DependencyGraph, upper: tuple[Edge, ...], thread: str) -> list[Chain]:
    """Return the chains below a late main thread: its own, and those of the loader workers that it waited for."""
    chains = [Chain((*upper, *lower), thread, lower[-1]) for lower in _lower_ends(graph, thread)]
    for wait in graph.leaving(thread, EdgeKind.WAITS_FOR):
        chains += [
            Chain((*upper, wait, *lower), thread, lower[-1])
            for lower in _lower_ends(graph, wait.target)
        ]
    return chains


def _lower_ends(graph: DependencyGraph, late: str) -> list[tuple[Edge, ...]]:
    """Return the edges from what was late down to a cause, for each of its causes."""
    ends: list[tuple[Edge, ...]] = []
    runnable = graph.leaving(late, EdgeKind.RUNNABLE)
    if runnable:
        ends += [
            (runnable[0], end)
            for end in (
                *graph.entering(late, EdgeKind.CONTENDS_WITH),
                *graph.leaving(late, EdgeKind.THROTTLED_BY),
            )
        ]
    for kind in (EdgeKind.RUNNING, EdgeKind.BLOCKED):
        ends += [(end,) for end in graph.leaving(late, kind) if "reason" in end.payload.attributes]
    return ends


def _score_chain(
    graph: DependencyGraph, rows: dict[str, Evidence], chain: Chain, context: ScoreContext
) -> ScoredFinding | None:
    attributes = chain.end.payload.attributes
    rule = rule_of(Reason(str(attributes["reason"])), is_by_counter=REFINES in attributes)
    share_s, remove_s, add_s = (
        as_float(attributes[name]) for name in ("share_s", "remove_s", "add_s")
    )
    is_on_path = as_float(attributes["path_s"]) > 0.0
    if not is_on_path or share_s <= 0.0 or max(remove_s, add_s) <= 0.0 or REFUTED in attributes:
        return None
    chain = replace(chain, beyond=find_beyond(graph, chain.thread, chain.end))
    every = (*chain.edges, *chain.beyond)
    cited = sorted({item for edge in every for item in edge.payload.evidence_ids})
    present = {item: rows[item] for item in cited if item in rows}
    by_signal = _by_signal(chain, present)
    if _has_competitor(rule, by_signal, share_s):
        return None
    walk = min(
        (as_float(e.payload.attributes.get("certainty", 1.0)) for e in chain.edges), default=1.0
    )
    coverage = _coverage(graph, rule, chain)
    magnitude = str(attributes.get("magnitude") or rule.magnitude)
    prior = context.priors.of(rule.reason)
    strength = prior + _likelihood(rule, by_signal, magnitude, share_s, context)
    if REFINES in attributes:
        counter = by_signal.get(magnitude)
        if counter is None or str(attributes.get("needed") or magnitude) not in by_signal:
            return None
        # That the time was lost there, and that this counter moved with it.
        base = rule_of(Reason(str(attributes[REFINES])))
        lost_as = str(attributes["refined_magnitude"] or base.magnitude)
        strength = prior + _likelihood(base, by_signal, lost_as, share_s, context)
        strength += likelihood(counter, share_s)
    value = 1.0 / (1.0 + math.exp(-strength)) * walk * coverage
    rank = attributes["rank"]
    if context.doubled_ranks and (rank is None or int(as_float(rank)) in context.doubled_ranks):
        value = min(value, MAX_DOUBLED_SCORE)
    if context.is_balanced or not context.is_aligned:
        value = min(value, MAX_INDIRECT_SCORE)
    if context.is_short:
        value = min(value, MAX_FEW_SCORE)
    is_damaged = len(present) < len(cited) or len(every) < _edges_due(chain)
    if is_damaged:
        value *= MISSING_EVIDENCE_FACTOR ** (len(cited) - len(present) or 1)
    band = Band.HIGH if value >= HIGH_SCORE else Band.MEDIUM if value >= MEDIUM_SCORE else Band.LOW
    whole = (
        value
        if not is_damaged
        else value / MISSING_EVIDENCE_FACTOR ** (len(cited) - len(present) or 1)
    )
    if value < MIN_SCORE or (is_damaged and whole < MEDIUM_SCORE):
        return None
    confidence = Confidence(str(band), round(value, 3), round(walk, 3), round(coverage, 3))
    finding = describe(graph, chain, rule, confidence, present, by_signal, context)
    return ScoredFinding(finding, int(as_float(attributes["cause"])), included_causes(chain.end))


def _edges_due(chain: Chain) -> int:
    attributes = chain.end.payload.attributes
    if chain.thread is None:
        return int(as_float(attributes.get("parallel", 1)))
    return len(chain.edges) + int(as_float(attributes.get(GOES_ON, 0)))


def _by_signal(chain: Chain, present: dict[str, Evidence]) -> dict[str, Evidence]:
    """Return the evidence by signal; what the last edge cites goes first."""
    result: dict[str, Evidence] = {}
    for edge in (chain.end, *chain.edges):
        for item in edge.payload.evidence_ids:
            if item in present:
                result.setdefault(present[item].signal, present[item])
    return result


def _has_competitor(rule: Rule, by_signal: dict[str, Evidence], share_s: float) -> bool:
    """Return whether 'nobody in its way' is refuted for a reason that needs it."""
    if rule.reason is not Reason.WORK_IMBALANCE:
        return False
    return any(
        (excess_s(by_signal.get(s)) or 0.0) > COMPETING_RATIO * share_s
        for s in (Signal.FOREIGN, Signal.IDLE)
    )


def _likelihood(
    rule: Rule,
    by_signal: dict[str, Evidence],
    signal: str,
    share_s: float,
    context: ScoreContext,
) -> float:
    """Return the summed log-likelihood ratios of one reason; `signal` is what explains its seconds."""
    magnitude = by_signal.get(signal)
    end = by_signal.get(Signal.AGGRESSOR) or magnitude
    explained_s = max(excess_s(magnitude) or 0.0, excess_s(end) or 0.0)
    # All of the seconds explained is worth the maximum, a third of them nothing.
    total = _clip(MAX_LLR * (1.5 * explained_s / share_s - 0.5))
    if magnitude is not None and magnitude.z is not None:
        total += _clip((magnitude.z - 3.0) / 2.0)
    if magnitude is not None and magnitude.peers is not None and magnitude.value is not None:
        total += 1.5 if magnitude.value > 2.0 * magnitude.peers else -1.5
    dose = magnitude.attributes.get("dose") if magnitude is not None else None
    if dose is not None:
        total += _clip(MAX_LLR * as_float(dose))
    for _, other, _ in quiet_signals(rule, by_signal):
        total += (
            0.5
            if other < QUIET_RATIO * share_s
            else -0.5
            if other > COMPETING_RATIO * share_s
            else 0.0
        )
    step = by_signal.get(Signal.STEP)
    if not context.has_history and step is not None:
        # Without the job's own history the onset cannot be compared: a prior that peers alone must overcome.
        total -= 1.0
    return total


def _clip(value: float) -> float:
    return max(-MAX_LLR, min(MAX_LLR, value))


def _coverage(graph: DependencyGraph, rule: Rule, chain: Chain) -> float:
    """Return the weight of the sensors that decide this reason and that were there."""
    told = chain.end.payload.attributes.get("coverage")
    if told is not None:
        return as_float(told)
    node = graph.node(chain.thread) if chain.thread is not None else None
    threads = [node] if node is not None else [p for _, p in graph.nodes() if p.kind == "thread"]
    sensors = {str(payload.attributes.get("sensor")) for payload in threads}
    strength = 0.0
    if sensors and "None" not in sensors:
        strength = 1.0 if sensors <= EXACT_SENSORS else PROC_COVERAGE
    weights = dict(rule.coverage)
    seen = [str(p.attributes.get("readers", "")).split(",") for p in threads]
    readers = set(seen[0]).intersection(*seen[1:]) if seen else set()
    readers.add(str(chain.end.payload.attributes.get("sensor")))  # of the counter that speaks
    by_readers = sum(
        weight for sensor, weight in weights.items() if sensor in readers - _COUNTED_APART
    )
    is_cgroup_seen = node is not None and bool(node.attributes.get("is_cgroup_seen"))
    cgroup = weights.get("cgroup", 0.0) if is_cgroup_seen else 0.0
    counter = weights.get("counter", 0.0) if REFINES in chain.end.payload.attributes else 0.0
    known = weights.get("steps", 0.0) + cgroup + counter + by_readers
    return weights.get("sched", 0.0) * strength + known
