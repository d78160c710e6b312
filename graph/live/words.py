"""Say in one line that a finding has opened, changed or closed, in the words of the verdict's first line."""

from __future__ import annotations

from typing import assert_never

from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.live.track import Change, Notice
from rootwalk.graph.render.digits import seconds

__all__ = ["render_notice"]


def render_notice(notice: Notice) -> str:
    """Return one line about one finding, the job first."""
    finding = notice.finding
    if finding.is_hang:
        return _render_hang(notice)
    since = f"{finding.job}: slow since step {finding.first_step}: {finding.text}"
    match notice.change:
        case Change.OPENED:
            return since
        case Change.CHANGED:
            was = "" if notice.previous is None else f"; before: {notice.previous.text}"
            return since + was
        case Change.CLOSED:
            return f"{finding.job}: over since step {finding.last_step + 1}: {finding.text}{_cost(finding)}"
        case _ as never:
            assert_never(never)


def _render_hang(notice: Notice) -> str:
    """Return one line about a job that stands still."""
    finding = notice.finding
    match notice.change:
        case Change.OPENED:
            return f"{finding.job}: stuck: {finding.text}"
        case Change.CHANGED:
            return f"{finding.job}: still stuck: {finding.text}"
        case Change.CLOSED:
            return f"{finding.job}: goes on: {finding.text}"
        case _ as never:
            assert_never(never)


def _cost(finding: LiveFinding) -> str:
    count = finding.last_step - finding.first_step + 1
    if finding.share_s is None:
        return f", {count} steps"
    cost = seconds(finding.share_s * count).replace("\N{NO-BREAK SPACE}", " ")
    return f", {count} steps, {cost} in all"
