"""Say in words that a job ended, and by what."""

from __future__ import annotations

from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.passages import Passage
from rootwalk.graph.reasons import RULES, Reason
from rootwalk.graph.render.exclusions import excluded_rows

__all__ = ["end_headline", "end_passage", "has_ended_well", "is_end"]


def is_end(finding: Finding) -> bool:
    """Return whether a finding tells why the job ended, and not why it was slow or stood still."""
    return finding.kind is None


def has_ended_well(verdict: Verdict) -> bool:
    """Return whether a job ended by itself and without an error, as far as is known."""
    return verdict.end is None or verdict.end.kind == "completed"


def end_headline(finding: Finding) -> str:
    """Return the first line: who, and what was done to it."""
    reason = Reason(finding.reason)
    title = RULES[reason].title if reason in RULES else "its process is gone"
    return f"rank {finding.subject.rank} ({finding.subject.host}): {title}, and the job ended by it"


def end_passage(finding: Finding) -> Passage:
    """Return what is said of the end of a job."""
    step = None if finding.onset is None else finding.onset.step
    after = "before any step was complete" if step is None else f"after step {step}"
    rows = [
        ("job", f"ended {after}; {finding.confidence.band} confidence"),
        ("evidence", "; ".join(link.text for link in finding.chain)),
        *excluded_rows(finding),
        ("action", finding.action),
        ("owner", finding.owner),
    ]
    return Passage(end_headline(finding), tuple(rows))
