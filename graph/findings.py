"""Turn a chain of the dependency graph into a finding: its subject, words, seconds and evidence.

Owns the fields of the contract's `findings`; how sure a finding is comes from score.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from rootwalk.graph.containers import container_of, pod_of
from rootwalk.graph.counters.inclusion import seconds_of
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.model import (
    Aggressor,
    ChainLink,
    Confidence,
    EdgeKind,
    Evidence,
    EvidenceView,
    Excluded,
    Finding,
    FindingVictims,
    Lost,
    NodePayload,
    Onset,
    Seconds,
    Subject,
)
from rootwalk.graph.reasons import Reason, Rule
from rootwalk.graph.reasons.priors import Priors, default_priors

# A competing state is quiet below this part of the cause.
QUIET_RATIO = 0.10
# A finding that costs at least this part of a healthy step stops people's work.
CRITICAL_RATIO = 0.10


@dataclass(frozen=True, slots=True)
class ScoreContext:
    """What score must know of the window; seconds per step.

    `doubled_ranks` are those whose steps come from more than one process; `is_aligned` is False where clocks of some
    hosts could not be put on that of the others; `is_balanced` where sums alone tell who waited; `is_short` where a few
    steps are all that is known; `priors` say how likely each reason is before anything is measured.
    """

    job: str
    attempt: int
    world_size: int
    step_s: float
    healthy_s: float
    step_count: int
    onset_step: int
    onset_unix_ns: int
    is_open: bool
    has_history: bool
    doubled_ranks: frozenset[int] = frozenset()
    is_aligned: bool = True
    is_balanced: bool = False
    is_short: bool = False
    priors: Priors = field(default_factory=default_priors)


@dataclass(frozen=True, slots=True)
class Chain:
    """Edges from the symptom to one cause; the last one carries the reason.

    `beyond` are those that go on from the thread to its device, where the store has profiles of the rank.
    """

    edges: tuple[Edge, ...]
    thread: str | None
    end: Edge
    beyond: tuple[Edge, ...] = ()


def as_float(value: str | float | bool | None) -> float:
    """Return an attribute as a number, 0 where it is missing."""
    return float(value) if value is not None else 0.0


def excess_s(row: Evidence | None) -> float | None:
    """Return how far a measurement lies above its history in seconds; None where it is missing."""
    if row is None or row.value is None:
        return None
    return row.value - (row.history or 0.0)


def describe(
    graph: DependencyGraph,
    chain: Chain,
    rule: Rule,
    confidence: Confidence,
    present: dict[str, Evidence],
    by_signal: dict[str, Evidence],
    context: ScoreContext,
) -> Finding:
    """Return the finding that a chain stands for, from what the graph and its evidence say."""
    attributes = chain.end.payload.attributes
    share_s, remove_s, add_s = seconds_of(chain.end)
    subject = _subject(graph, chain)
    victims, waited_s = _victims(chain)
    key = f"{context.job}|{context.attempt}|{rule.reason}|{subject.node}|{context.onset_step}"
    lost_s = share_s * context.step_count
    pattern = _pattern(rule, subject, attributes.get("pattern"))
    action = _action(graph, rule, subject, pattern)
    return Finding(
        id=hashlib.sha256(key.encode()).hexdigest()[:8],
        state="open" if context.is_open else "closed",
        kind="slow",
        method="walk",
        severity="critical" if share_s >= CRITICAL_RATIO * context.healthy_s else "warning",
        reason=str(rule.reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=subject,
        pattern=pattern,
        onset=Onset(context.onset_step, context.onset_unix_ns),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(share_s, remove_s, add_s),
        predicted_step_s=round(context.step_s - remove_s, 9),
        lost=Lost(
            context.step_count, round(lost_s, 9), round(lost_s * context.world_size, 9), None
        ),
        confidence=confidence,
        victims=FindingVictims(len(victims), waited_s),
        chain=tuple(_link(graph, edge) for edge in (*chain.edges, *chain.beyond)),
        evidence=tuple(_view(present[item]) for item in present),
        excluded=_excluded(rule, by_signal, share_s),
        action_code=rule.action_code,
        action=action,
    )


def _action(graph: DependencyGraph, rule: Rule, subject: Subject, pattern: str | None) -> str:
    """Return what to do; nobody moves or limits a rank of the same job, or one of those that are late in turn."""
    if rule.reason is Reason.WORK_IMBALANCE and pattern == "rotating":
        return "the work follows the batches: even them out over the ranks, by length or cost; no worker is bad"
    if subject.aggressor is None:
        return rule.action.replace("pid {pid}", "those processes")
    payload = graph.node(subject.node)
    if payload is not None and payload.attributes.get("peer") is not None:
        return "give each rank of the job CPUs of its own, or start no more ranks than there are"
    return rule.action.format(pid=subject.aggressor.pid)


def _pattern(rule: Rule, subject: Subject, told: str | float | bool | None) -> str | None:
    """Return the pattern that the chain tells, else the one that follows from who is to blame."""
    if told is not None:
        return str(told) or None
    if subject.rank is not None:
        return "fixed"
    return None if rule.layer == "network" else "uniform"


def _subject(graph: DependencyGraph, chain: Chain) -> Subject:
    attributes = chain.end.payload.attributes
    node = str(attributes["subject"])
    payload = graph.node(node)
    thread = graph.node(chain.thread) if chain.thread is not None else None
    rank = int(as_float(attributes["rank"])) if attributes["rank"] is not None else None
    aggressor = None
    if (
        payload is not None
        and payload.kind == "process"
        and payload.attributes.get("pid") is not None
    ):
        cgroup = payload.attributes.get("cgroup")
        pid = int(as_float(payload.attributes["pid"]))
        group = None if cgroup is None else str(cgroup)
        aggressor = Aggressor(pid, payload.label, group, container_of(group), pod_of(group))
    is_communicator = payload is not None and payload.kind == "communicator"
    stage = attributes.get("stage")
    return Subject(
        node=node,
        rank=rank,
        ranks=() if rank is None else (rank,),
        host=_host(payload, thread),
        device=_device(payload),
        stage=None if stage is None else int(as_float(stage)),
        communicator=payload.label
        if payload is not None and is_communicator
        else _communicator(graph, chain),
        aggressor=aggressor,
    )


def _host(payload: NodePayload | None, thread: NodePayload | None) -> str | None:
    """Return the host of a late thread, else that of a link."""
    node = thread if thread is not None else payload
    host = node.attributes.get("host") if node is not None else None
    return str(host) if host is not None else None


def _device(payload: NodePayload | None) -> str | None:
    """Return which GPU is to blame, as its producer names it."""
    device = payload.attributes.get("device") if payload is not None else None
    return None if device is None else str(device)


def _communicator(graph: DependencyGraph, chain: Chain) -> str | None:
    """Return whose transfers a link slowed down."""
    source = graph.node(chain.end.source)
    return source.label if source is not None and source.kind == "communicator" else None


def victim_ranks(edge_attributes: dict[str, str | int | float | bool | None]) -> tuple[int, ...]:
    """Return the ranks that an edge `waits_for` lists as victims."""
    listed = str(edge_attributes.get("victims") or "")
    return tuple(int(rank) for rank in listed.split(",") if rank)


def _victims(chain: Chain) -> tuple[tuple[int, ...], float | None]:
    for edge in chain.edges:
        # A thread that waits for its own loader workers is not their victim: the step is.
        if edge.payload.kind == EdgeKind.WAITS_FOR and "victims" in edge.payload.attributes:
            return victim_ranks(edge.payload.attributes), edge.payload.seconds
    return (), None


def _link(graph: DependencyGraph, edge: Edge) -> ChainLink:
    """Return one edge as the verdict shows it: its kind and the node that it leaves, `edges.source_id`."""
    source, target = graph.node(edge.source), graph.node(edge.target)
    left = source.label if source is not None else edge.source
    right = target.label if target is not None else edge.target
    kind = edge.payload.kind
    place = "on" if target is not None and target.kind == "host" else "in"
    texts = {
        EdgeKind.SLOWED_BY: f"{left} was slowed by {right}",
        EdgeKind.WAITS_FOR: f"{left} waited for the {right}",
        EdgeKind.RUNNABLE: f"the {left} was runnable, not running, on {right}",
        EdgeKind.RUNNING: f"the {left} ran longer {place} {right}",
        EdgeKind.BLOCKED: f"the {left} lost time on {right}",
        EdgeKind.CONTENDS_WITH: f"{left} ran in its place",
        EdgeKind.TRANSFERS_OVER: f"{left} transfers over {right}",
        EdgeKind.THROTTLED_BY: f"the {left} was runnable, held back by the {right}",
    }
    return ChainLink(edge.source, str(kind), edge.payload.seconds, texts[EdgeKind(kind)])


def _view(row: Evidence) -> EvidenceView:
    return EvidenceView(
        row.signal,
        row.value,
        row.unit,
        row.peers,
        row.history,
        row.z,
        row.trace_id,
        row.span_id,
        row.query,
    )


def quiet_signals(rule: Rule, by_signal: dict[str, Evidence]) -> tuple[tuple[str, float, str], ...]:
    """Return (look-alike, excess of the signal that decides it, text) for each look-alike that a sensor can decide.

    Of several signals the first that was measured counts.
    """
    found: dict[str, tuple[str, float, str]] = {}
    for reason, signal, text in rule.excludes:
        other = excess_s(by_signal.get(signal))
        if other is not None and reason not in found:
            found[reason] = (reason, other, text)
    return tuple(found.values())


def _excluded(rule: Rule, by_signal: dict[str, Evidence], share_s: float) -> tuple[Excluded, ...]:
    # Adding zero turns a rounded "-0.000" into "0.000".
    return tuple(
        Excluded(reason, text.format(value=round(other, 3) + 0.0))
        for reason, other, text in quiet_signals(rule, by_signal)
        if other < QUIET_RATIO * share_s
    )
