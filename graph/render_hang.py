"""Say a verdict about a hang in words; computes nothing, like `render`."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Sequence
from typing import Final

from rootwalk.graph.hang_rules import HANG_RULES
from rootwalk.graph.model import Finding, Outcome, Verdict
from rootwalk.graph.reasons import Reason

__all__ = ["hang_lines"]

WIDTH: Final = 80
# Ranks that are named one by one.
MAX_LISTED: Final = 8


def hang_lines(verdict: Verdict, line: Callable[[str, str], list[str]]) -> list[str]:
    """Return the lines of a verdict about a hang.

    Args:
        verdict: Of kind `hang`.
        line: Makes lines of a label and its text.
    """
    hang = verdict.hang
    if hang is None:
        return _wrapped("not enough evidence: no unfinished operation in the dumps that are here")
    if verdict.outcome != Outcome.FINDING:
        what = f"{hang.operation} #{hang.sequence} of {hang.communicator}"
        return _wrapped(f"not enough evidence: {what} hangs, and the dumps do not say why")
    lines: list[str] = []
    for finding in verdict.findings:
        lines += [""] if lines else []
        lines += _wrapped(_headline(finding))
        lines += line("since", _time(finding))
        lines += line("evidence", _evidence(finding))
        count = finding.victims.count
        lines += line("victims", f"{count} {'rank waits' if count == 1 else 'ranks wait'}")
        lines += line("action", finding.action)
        lines += line("owner", f"{finding.owner}, {finding.confidence.band} confidence")
    if hang.cycle:
        lines += line("cycle", "; ".join(hang.cycle))
    if len(hang.stack_groups) > 1:
        for group in hang.stack_groups[:2]:
            lines += line("stack", f"{_ranks(group.ranks)}: {group.frames[0]}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _headline(finding: Finding) -> str:
    rule = HANG_RULES[Reason(finding.reason)]
    operation = finding.chain[0].text.partition(" hangs in ")[2]
    return f"{_ranks(finding.subject.ranks)}: {rule.title.format(operation=operation)}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:MAX_LISTED])
    more = f" and {len(ranks) - MAX_LISTED} more" if len(ranks) > MAX_LISTED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


def _time(finding: Finding) -> str:
    unix_ns = finding.onset.unix_ns if finding.onset is not None else None
    if unix_ns is None:
        return "unknown"
    time = dt.datetime.fromtimestamp(unix_ns / 1e9, dt.UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _evidence(finding: Finding) -> str:
    parts = []
    known = [row for row in finding.evidence if row.value is not None]
    if known:
        counts = ", ".join(f"{row.value:.0f}" for row in known[:MAX_LISTED])
        parts.append(f"unfinished calls: {counts}")
        if known[0].peers is not None:
            parts[0] += f" (peers {known[0].peers:.0f})"
    parts += [item.because for item in finding.excluded]
    return "; ".join(parts) or "the members' dumps"
