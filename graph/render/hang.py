"""Say a verdict about a hang in words; computes nothing, like `render`."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Final

from rootwalk.graph.hangs.rules import HANG_RULES
from rootwalk.graph.model import Finding, Outcome, Verdict
from rootwalk.graph.passages import Passage
from rootwalk.graph.reasons import Reason
from rootwalk.graph.render.calls import MAX_LISTED, call_rows, list_ranks
from rootwalk.graph.render.exclusions import excluded_rows
from rootwalk.instrumentation import semconv

__all__ = ["hang_passages"]

# Who says that a GPU no longer answers, and which where that is not told.
_SAID_BY: Final = {
    semconv.METRIC_HW_STATUS: ("NVML: {} failed", "GPUs of theirs"),
    semconv.EVENT_TRAINING_KERNEL_MESSAGE: (
        "the driver (Xid): {} lost",
        "a GPU of their host",
    ),
}


def hang_passages(verdict: Verdict) -> list[Passage]:
    """Return what a verdict of kind `hang` says; what is about the whole hang follows its last finding."""
    hang = verdict.hang
    if hang is None:
        return []
    if verdict.outcome != Outcome.FINDING:
        what = f"{hang.operation} #{hang.sequence} of {hang.communicator}"
        text = f"not enough evidence: {what} hangs, and the dumps do not say why"
        return [Passage(text, tuple(call_rows(hang)))]
    passages = [_passage(finding) for finding in verdict.findings]
    rows: list[tuple[str, str]] = []
    if hang.cycle:
        rows.append(("cycle", "; ".join(hang.cycle)))
    rows += call_rows(hang)
    if len(hang.stack_groups) > 1 and not any(call.place for call in hang.calls):
        rows += [
            ("stack", f"{list_ranks(group.ranks)}: {group.frames[0]}")
            for group in hang.stack_groups[:2]
        ]
    passages[-1] = replace(passages[-1], rows=(*passages[-1].rows, *rows))
    return passages


def _passage(finding: Finding) -> Passage:
    count = finding.victims.count
    rows = (
        ("since", _time(finding)),
        ("evidence", _evidence(finding)),
        *excluded_rows(finding),
        ("victims", f"{count} {'rank waits' if count == 1 else 'ranks wait'}"),
        ("action", finding.action),
        ("owner", f"{finding.owner}, {finding.confidence.band} confidence"),
    )
    return Passage(_headline(finding), rows)


def _headline(finding: Finding) -> str:
    rule = HANG_RULES[Reason(finding.reason)]
    operation = finding.chain[0].text.partition(" hangs in ")[2]
    return f"{list_ranks(finding.subject.ranks)}: {rule.title.format(operation=operation)}"


def _time(finding: Finding) -> str:
    unix_ns = finding.onset.unix_ns if finding.onset is not None else None
    if unix_ns is None:
        return "unknown"
    time = dt.datetime.fromtimestamp(unix_ns / 1e9, dt.UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _evidence(finding: Finding) -> str:
    parts = []
    known = [row for row in finding.evidence if row.value is not None and row.unit == "{call}"]
    if known:
        counts = ", ".join(f"{row.value:.0f}" for row in known[:MAX_LISTED])
        parts.append(f"unfinished calls: {counts}")
        if known[0].peers is not None:
            parts[0] += f" (peers {known[0].peers:.0f})"
    longest: dict[str, float] = {}
    for row in finding.evidence:
        if row.unit == "s" and row.value is not None:
            function = row.signal.partition(": ")[2]
            longest[function] = max(row.value, longest.get(function, 0.0))
    where = "a child in" if finding.reason == Reason.FORK_DEADLOCK else "in"
    parts += [
        f"{where} {name} for {value:.0f} s" for name, value in list(longest.items())[:MAX_LISTED]
    ]
    said = dict.fromkeys(row.signal for row in finding.evidence if row.signal in _SAID_BY)
    for words, some in map(_SAID_BY.__getitem__, said):
        parts.append(words.format(finding.subject.device or some))
    return "; ".join(parts) or "the members' dumps"
