"""Say a verdict from communication records in words; computes nothing, like `render`."""

from __future__ import annotations

from rootwalk.graph.flows.rules import FLOW_RULES
from rootwalk.graph.model import Finding, Outcome, Verdict
from rootwalk.graph.passages import Passage
from rootwalk.graph.reasons import Reason
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.render.exclusions import excluded_rows

__all__ = ["flow_passages", "is_flow"]


def is_flow(verdict: Verdict) -> bool:
    """Return whether a verdict has no steps but a time: it rests on communication records alone."""
    window = verdict.window
    return verdict.kind != "hang" and window.start_unix_ns is not None and window.first_step is None


def flow_passages(verdict: Verdict) -> list[Passage]:
    """Return what such a verdict says.

    Args:
        verdict: For which `is_flow` holds.
    """
    if verdict.outcome == Outcome.FINDING:
        return [_passage(verdict, finding) for finding in verdict.findings]
    if verdict.step_s is None:
        return [Passage("not enough evidence: communication records without steps")]
    each = f"{seconds(verdict.step_s)} an iteration"
    if verdict.outcome == Outcome.HEALTHY:
        text = (
            f"healthy: {each} by communication records alone; no rank comes later than its peers,"
            " and nothing has become slower, by 10 % of it"
        )
        return [Passage(text)]
    if verdict.kind == "slow" and verdict.healthy_step_s is not None:
        each += f", healthy {seconds(verdict.healthy_step_s)}"
    text = f"not enough evidence: {each}, and no cause that communication records support"
    return [Passage(text)]


def _passage(verdict: Verdict, finding: Finding) -> Passage:
    subject, rule = finding.subject, FLOW_RULES[Reason(finding.reason)]
    is_path = subject.node.startswith("path:")
    who = f"{'path' if is_path else 'communicator'} {subject.communicator}"
    if subject.rank is not None:
        who = f"rank {subject.rank} ({subject.host or 'unknown host'})"
    headline = f"{who}: {rule.title}, +{seconds(finding.seconds.share or 0.0)}/iteration"
    rows: list[tuple[str, str]] = []
    if verdict.step_s is not None and verdict.healthy_step_s is not None:
        text = f"{seconds(verdict.step_s)}, healthy {seconds(verdict.healthy_step_s)}, {finding.confidence.band}"
        rows.append(("iteration", f"{text} confidence, by communication records alone"))
    for row in finding.evidence:
        what = "transfers" if finding.reason == Reason.UNKNOWN_NET else "in collectives"
        text = f"{what} {seconds(row.value or 0.0)}/iteration"
        text += "" if row.peers is None else f", peers {seconds(row.peers)}"
        text += "" if row.history is None else f", before {seconds(row.history)}"
        rows.append(("evidence", text))
    rows += excluded_rows(finding)
    if finding.victims.count:
        count = finding.victims.count
        rows.append(("victims", f"{count} {'rank waits' if count == 1 else 'ranks wait'}"))
    rows += [("action", finding.action), ("owner", finding.owner)]
    return Passage(headline, tuple(rows))
