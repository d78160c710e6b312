"""The verdict about a job that ended: its dependency graph, and what that says once it has been through the store.

    job -ended_by-> rank -ended_by-> process

No step that ended says what it cost: its seconds are unknown. It stands beside what made the job slow before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.ends.case import EndCase
from rootwalk.graph.ends.departures import Departure, Manner
from rootwalk.graph.ends.events import event_query
from rootwalk.graph.ends.failure import EndKind
from rootwalk.graph.ends.judge import JobEnd
from rootwalk.graph.ends.words import how_it_failed, say_end
from rootwalk.graph.hangs.rules import HANG_RULES
from rootwalk.graph.model import (
    Attributes,
    Band,
    ChainLink,
    Confidence,
    EdgeKind,
    EdgePayload,
    EndView,
    Evidence,
    EvidenceView,
    Excluded,
    Finding,
    FindingVictims,
    Lost,
    NodePayload,
    Onset,
    Outcome,
    Seconds,
    Subject,
    Verdict,
    Victims,
)
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.graph.score import HIGH_SCORE, MEDIUM_SCORE
from rootwalk.instrumentation import semconv

__all__ = ["add_end", "conclude_end", "reason_of", "view_end"]

_CAUSE, _END = "end/cause", "end/rank"
# Priors: the kernel's own word for the rank's process; for a child of it, what follows from the order of events.
OWN_CERTAINTY: Final = 0.95
CHILD_CERTAINTY: Final = 0.85
# The same for a rank that named its exception; for one that may have been a victim of what nobody saw; for one of
# which only the absence was noticed; for one that went silent with its host.
EXCEPTION_CERTAINTY: Final = 0.9
WEAK_CERTAINTY: Final = 0.55
UNSEEN_CERTAINTY: Final = 0.45
GONE_CERTAINTY: Final = 0.6
# Another rank failed at the same time, as far as clocks can tell: one of two.
RIVAL_FACTOR: Final = 0.5
_REASONS: Final = {
    EndKind.EXCEPTION: Reason.RANK_CRASHED,
    EndKind.EXIT_CODE: Reason.RANK_CRASHED,
    EndKind.CRASH: Reason.RANK_CRASHED,
    EndKind.KILLED: Reason.RANK_KILLED,
    EndKind.OUT_OF_MEMORY: Reason.OOM_KILL,
    EndKind.RANK_GONE: Reason.RANK_GONE,
}
_EVENTS: Final = (
    semconv.EVENT_TRAINING_PROCESS_EXCEPTION,
    semconv.EVENT_TRAINING_PROCESS_SIGNAL,
    semconv.EVENT_TRAINING_PROCESS_OOM_KILL,
    semconv.EVENT_TRAINING_PROCESS_END,
)


def reason_of(case: EndCase) -> Reason | None:
    """Return the code of a job's end; None where no rank failed by itself, or nothing says which."""
    culprit = case.failure.culprit
    if culprit is None:
        return None
    if case.failure.kind is EndKind.KILLED and not culprit.is_from_outside:
        return Reason.RANK_CRASHED
    return _REASONS.get(case.failure.kind)


def add_end(
    graph: DependencyGraph, case: EndCase, evidence: tuple[Evidence, ...]
) -> tuple[Evidence, ...]:
    """Add the end to a dependency graph, and return the evidence with that of its edges; safe twice."""
    reason, culprit = reason_of(case), case.failure.culprit
    if reason is None or culprit is None:
        return evidence
    key, rank = case.key, culprit.rank
    job_node, rank_node = node_id("job", key.job), node_id("rank", rank)
    if graph.node(job_node) is None:
        graph.add_node(job_node, NodePayload("job", key.job, {"attempt": key.attempt}))
    graph.add_node(rank_node, NodePayload("rank", f"rank {rank}", {"rank": rank}))
    label = _process(case)
    graph.add_node(case.process, NodePayload("process", label, {"rank": rank}))
    attributes: Attributes = {"reason": str(reason)}
    for source, target, row in ((job_node, rank_node, _END), (rank_node, case.process, _CAUSE)):
        payload = EdgePayload(EdgeKind.ENDED_BY, None, (row,), dict(attributes))
        graph.add_edge(source, target, payload)
    unknown = (None, None, None, None, None)
    signal, names = _measured(case, culprit)
    query = event_query(key, rank, *names)
    if reason is Reason.RANK_GONE and culprit.end is None:
        query = _steps_query(case, rank)
    end_row = (_END, semconv.EVENT_TRAINING_PROCESS_END, _delay_s(case, culprit), "s")
    return (
        *(row for row in evidence if row.id not in (_CAUSE, _END)),
        Evidence(_CAUSE, signal, 1.0, "1", *unknown, query, {"role": "magnitude"}),
        Evidence(*end_row, *unknown, event_query(key, rank, *_EVENTS), {"role": "context"}),
    )


def conclude_end(
    verdict: Verdict, case: EndCase, graph: DependencyGraph, evidence: Sequence[Evidence]
) -> Verdict:
    """Return a verdict with the end of its job; without its finding where the stored graph does not bear that.

    A verdict that names a hang keeps its findings: the end of a job that hung is not its cause.

    Args:
        verdict: What the job's steps say.
        case: What was found.
        graph: The dependency graph as the store gives it back.
        evidence: Its evidence rows, likewise.
    """
    quiet = _until_then(verdict)
    is_hang = verdict.hang is not None and bool(verdict.findings)
    stands = _stands(case, graph, evidence)
    if is_hang or not stands:
        named = None if not stands else case.failure.culprit
        return replace(verdict, end=view_end(case, named, quiet))
    rows = {row.id: row for row in evidence}
    finding = _finding(case, [rows[_CAUSE], rows[_END]])
    is_alone = not verdict.findings
    kind = verdict.kind if verdict.findings or verdict.hang is not None else None
    return replace(
        verdict,
        outcome=Outcome.FINDING,
        kind=kind,
        findings=(*verdict.findings, finding),
        victims=Victims(case.others, len(case.others), None) if is_alone else verdict.victims,
        end=view_end(case, case.failure.culprit, quiet),
    )


def view_end(case: EndCase, culprit: Departure | None, until_then: str | None) -> EndView:
    """Return how a job ended, as the verdict shows it.

    Args:
        case: What was found.
        culprit: The rank that failed first; None where the verdict does not name it.
        until_then: What the steps before say in a word or two.
    """
    failure = replace(case.failure, culprit=culprit)
    run, exception = failure.run, None if culprit is None else culprit.exception
    code = None if run is None else run.exit_code
    signal = None if run is None else run.signal
    if culprit is not None and (culprit.exit_code is not None or culprit.signal is not None):
        code, signal = culprit.exit_code, culprit.signal
    sender = case.sender if culprit is not None else None
    return EndView(
        kind=str(failure.kind),
        rank=None if culprit is None else culprit.rank,
        exit_code=code,
        signal=signal,
        sender=sender,
        exception=None if exception is None else exception.type_name,
        place=exception.frames[0] if exception is not None and exception.frames else None,
        last_step=case.last_step,
        ended_by=None if run is None else run.ended_by,
        text=say_end(failure, case.last_step, sender, until_then),
    )


def _until_then(verdict: Verdict) -> str | None:
    """Return what a job was until it ended, in a word or two; None where that is not known."""
    if verdict.hang is not None or verdict.kind == "hang":
        return "stuck"
    if verdict.kind == "slow" or verdict.findings:
        return "slow"
    return "not slow" if verdict.outcome == Outcome.HEALTHY else None


def _stands(case: EndCase, graph: DependencyGraph, evidence: Sequence[Evidence]) -> bool:
    """Return whether the stored graph leads from the job to the process, with its evidence."""
    culprit = case.failure.culprit
    if reason_of(case) is None or culprit is None:
        return False
    rank_node = node_id("rank", culprit.rank)
    job_node = node_id("job", case.key.job)
    steps = ((job_node, rank_node), (rank_node, case.process))
    has_edges = all(
        any(edge.target == target for edge in graph.leaving(source, EdgeKind.ENDED_BY))
        for source, target in steps
    )
    return has_edges and {_END, _CAUSE} <= {row.id for row in evidence}


def _certainty(case: EndCase, culprit: Departure) -> float:
    if case.out_of_memory is not None:
        return OWN_CERTAINTY if case.out_of_memory.is_own else CHILD_CERTAINTY
    certainty = OWN_CERTAINTY
    if culprit.end is None and culprit.exception is None:
        certainty = GONE_CERTAINTY
    elif culprit.manner is Manner.WEAK:
        is_seen = culprit.exception is not None or culprit.exit_code is not None
        certainty = WEAK_CERTAINTY if is_seen or culprit.signal else UNSEEN_CERTAINTY
    elif culprit.exception is not None:
        certainty = EXCEPTION_CERTAINTY
    elif culprit.signal is None or (culprit.is_from_outside and culprit.sent is None):
        certainty = CHILD_CERTAINTY
    return certainty * (RIVAL_FACTOR if case.failure.rivals else 1.0)


def _finding(case: EndCase, rows: Sequence[Evidence]) -> Finding:
    reason, culprit = reason_of(case), case.failure.culprit
    assert reason is not None  # noqa: S101  (`_stands` has been asked)
    assert culprit is not None  # noqa: S101
    rule = HANG_RULES[reason] if reason is Reason.RANK_GONE else RULES[reason]
    certainty = _certainty(case, culprit)
    score = round(certainty * case.coverage, 3)
    band = Band.HIGH if score >= HIGH_SCORE else Band.MEDIUM if score >= MEDIUM_SCORE else Band.LOW
    key = f"{case.key.job}|{case.key.attempt}|{reason}|{case.process}|end"
    return Finding(
        id=hashlib.sha256(key.encode()).hexdigest()[:8],
        state="closed",
        kind=None,
        method="walk",
        severity="critical",
        reason=str(reason),
        layer=rule.layer,
        owner=rule.owner,
        subject=Subject(
            node=case.process,
            rank=culprit.rank,
            ranks=tuple(sorted({culprit.rank, *case.failure.alike})),
            host=culprit.host_name,
            device=None,
            stage=None,
            communicator=None,
            aggressor=None,
        ),
        pattern="fixed",
        onset=Onset(case.last_step, case.failure.time_ns),
        detected_unix_ns=None,
        named_unix_ns=None,
        seconds=Seconds(None, None, None),
        predicted_step_s=None,
        lost=Lost(None, None, None, None),
        confidence=Confidence(str(band), score, round(certainty, 3), round(case.coverage, 3)),
        victims=FindingVictims(len(case.others), None),
        chain=_chain(case, culprit),
        evidence=tuple(
            EvidenceView(
                *(row.signal, row.value, row.unit, row.peers, row.history),
                *(row.z, row.trace_id, row.span_id, row.query),
            )
            for row in rows
        ),
        excluded=_excluded(reason),
        action_code=rule.action_code,
        action=rule.action,
    )


def _excluded(reason: Reason) -> tuple[Excluded, ...]:
    if reason is Reason.OOM_KILL:
        because = "no rank had ended before, and nobody had sent this one a signal"
        return (Excluded(str(Reason.RANK_GONE), because),)
    if reason is Reason.RANK_GONE:
        return ()
    return tuple(Excluded(code, because) for code, _, because in RULES[reason].excludes)


def _chain(case: EndCase, culprit: Departure) -> tuple[ChainLink, ...]:
    edge, found = str(EdgeKind.ENDED_BY), case.out_of_memory
    rank = f"rank {culprit.rank}"
    how = f"by {culprit.signal}" if culprit.signal is not None else f"with code {culprit.exit_code}"
    if culprit.signal is None and culprit.exit_code is None:
        how = "as far as was seen"
    if found is not None:
        text = (
            f"{rank} ended {found.delay_ns / 1e9:.3f} s after the kernel had killed "
            f"{_process(case)} for memory"
        )
    else:
        text = how_it_failed(case.failure.kind, culprit, case.sender)
    return (
        ChainLink(
            node_id("job", case.key.job),
            edge,
            None,
            f"{case.key.job} ended by {rank}, the first to end, {how}",
        ),
        ChainLink(node_id("rank", culprit.rank), edge, None, text),
    )


def _measured(case: EndCase, culprit: Departure) -> tuple[str, tuple[str, ...]]:
    """Return the signal that a finding rests on, and the events that show it."""
    if case.out_of_memory is not None:
        return str(Signal.KILLED), (semconv.EVENT_TRAINING_PROCESS_OOM_KILL,)
    if culprit.exception is not None:
        name = semconv.EVENT_TRAINING_PROCESS_EXCEPTION
        return name, (name,)
    if culprit.sent is not None:
        return str(Signal.SENT_SIGNAL), (semconv.EVENT_TRAINING_PROCESS_SIGNAL,)
    return str(Signal.RANK_END), (semconv.EVENT_TRAINING_PROCESS_END,)


def _delay_s(case: EndCase, culprit: Departure) -> float | None:
    """Return the time from the failure to the end of the process, s."""
    return None if culprit.end is None else (culprit.end.time_ns - culprit.time_ns) / 1e9


def _steps_query(case: EndCase, rank: int) -> str:
    job = case.key.job.replace("'", "''")
    return (
        f"SELECT step, start_unix_ns, duration_ns FROM steps WHERE job = '{job}'"  # noqa: S608  (for a reader)
        f" AND coalesce(attempt, 0) = {case.key.attempt} AND rank = {rank} ORDER BY step DESC LIMIT 3"
    )


def _process(case: EndCase) -> str:
    found: JobEnd | None = case.out_of_memory
    culprit = case.failure.culprit
    pid = culprit.pid if found is None and culprit is not None else None
    if found is not None:
        pid = found.kill.pid
    name = "a process" if pid is None else f"process {pid}"
    if found is None:
        return name
    return f"{name} (its own)" if found.is_own else f"{name} (a child of it)"
