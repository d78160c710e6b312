"""Say a verdict from metrics alone in words; computes nothing, like `render`."""

from __future__ import annotations

from rootwalk.graph.metrics.rules import RULES
from rootwalk.graph.metrics.words import quantity_text, subject_label
from rootwalk.graph.model import EvidenceView, Finding, Outcome, Verdict
from rootwalk.graph.passages import Passage

__all__ = ["is_metric", "metric_headline", "metric_passages"]

_MAX_EVIDENCE = 3


def is_metric(verdict: Verdict) -> bool:
    """Return whether a verdict rests on metrics alone: nothing else goes without any sensor of steps."""
    return verdict.window.first_step is None and any(
        sensor.sensor == "instrumentation" for sensor in verdict.missing_sensors
    )


def metric_passages(verdict: Verdict) -> list[Passage]:
    """Return what such a verdict says; `is_metric` holds for it."""
    if verdict.outcome == Outcome.FINDING:
        return [_passage(finding) for finding in verdict.findings]
    if verdict.outcome == Outcome.HEALTHY:
        text = "the work did not fall by 10 %, and nothing stands out among its peers"
        return [Passage(f"healthy, as far as metrics alone tell: {text}")]
    if verdict.kind == "slow":
        text = "the work fell or differs, and no metric says why"
        return [Passage(f"not enough evidence: by metrics alone, {text}")]
    return [Passage("not enough evidence: metrics alone, without steps and operations")]


def metric_headline(finding: Finding) -> str:
    """Return the first line about a finding: who, and what stands out there."""
    component = finding.subject.node.partition(":")[0]
    who = subject_label(component, finding.subject.host or "unknown host", finding.subject.device)
    shown = _measured(finding.evidence[0], finding.reason)
    return f"{who}: {shown} ({finding.reason}, {finding.confidence.band} confidence)"


def _passage(finding: Finding) -> Passage:
    *own, symptom = finding.evidence
    text = "what stands out when the work does, by metrics alone: it need not be the cause"
    rows = [("method", text), ("symptom", _row_text(symptom, None))]
    rows += [("evidence", _row_text(row, finding.reason)) for row in own[:_MAX_EVIDENCE]]
    rows += [("action", finding.action), ("owner", finding.owner)]
    return Passage(metric_headline(finding), tuple(rows))


def _row_text(row: EvidenceView, reason: str | None) -> str:
    return f"{_measured(row, reason)} ({row.signal})"


def _measured(row: EvidenceView, reason: str | None) -> str:
    """Return one measured value in words; of several rules of a metric, those of the rule with this reason."""
    rules = [r for r in RULES.values() if any(s.metric == row.signal for s in r.sources)]
    words = next((r.words for r in rules if r.reason == reason), rules[0].words)
    text = words if row.value is None else f"{words} {quantity_text(row.value, row.unit)}"
    text += "" if row.peers is None else f", peers {quantity_text(row.peers, row.unit)}"
    text += "" if row.history is None else f", before {quantity_text(row.history, row.unit)}"
    return text
