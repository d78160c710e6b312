"""Say a verdict about a hang in words; computes nothing, like `render`."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rootwalk.graph.hangs.live_rules import live_rule_of
from rootwalk.graph.hangs.rules import HANG_RULES
from rootwalk.graph.model import Finding, HangView, Outcome, Verdict
from rootwalk.graph.passages import Passage
from rootwalk.graph.reasons import Reason
from rootwalk.graph.render.calls import MAX_LISTED, call_rows, list_ranks
from rootwalk.graph.render.digits import money
from rootwalk.graph.render.exclusions import excluded_rows
from rootwalk.instrumentation import semconv

__all__ = ["hang_headline", "hang_passage", "hang_passages", "telling_frames"]

# Who says that a GPU no longer answers, and which where that is not told.
_SAID_BY: Final = {
    semconv.METRIC_HW_STATUS: ("NVML: {} failed", "GPUs of theirs"),
    semconv.EVENT_TRAINING_KERNEL_MESSAGE: (
        "the driver (Xid): {} lost",
        "a GPU of their host",
    ),
}
# Groups of stacks, and functions of each, that the text shows.
MAX_GROUPS: Final = 3
MAX_FRAMES: Final = 4
# Of a frame's file the name is enough beside its function.
_FOLDERS: Final = re.compile(r"(?<=\()[^()]*/(?=[^/()]+\)$)")
# A function of Python, with its file and line.
_PYTHON: Final = re.compile(r"\([^()]*:\d+\)$")
# What ranks without progress report of themselves.
_REPORTED: Final = frozenset((semconv.TRAINING_PROGRESS_IDLE_TIME, semconv.COLLECTIVE_PENDING_TIME))


def hang_passages(verdict: Verdict) -> list[Passage]:
    """Return what a verdict of kind `hang` says; what is about the whole hang follows its last finding."""
    hang = verdict.hang
    if hang is None:
        return []
    if verdict.outcome != Outcome.FINDING:
        if hang.basis is not None:
            return [Passage(_stuck(hang), _live_rows(hang))]
        what = f"{hang.operation} #{hang.sequence} of {hang.communicator}"
        text = f"not enough evidence: {what} hangs, and the dumps do not say why"
        return [Passage(text, tuple(call_rows(hang)))]
    passages = [hang_passage(finding) for finding in verdict.findings]
    rows: list[tuple[str, str]] = []
    if hang.cycle:
        rows.append(("cycle", "; ".join(hang.cycle)))
    if hang.basis is not None:
        rows += _live_rows(hang)
        passages[-1] = replace(passages[-1], rows=(*passages[-1].rows, *rows))
        return passages
    rows += call_rows(hang)
    if len(hang.stack_groups) > 1 and not any(call.place for call in hang.calls):
        rows += [
            ("stack", f"{list_ranks(group.ranks)}: {group.frames[0]}")
            for group in hang.stack_groups[:2]
        ]
    passages[-1] = replace(passages[-1], rows=(*passages[-1].rows, *rows))
    return passages


def _stuck(hang: HangView) -> str:
    """Return the first line about a job of which is not known who holds it up."""
    after = "" if hang.last_step is None else f" after step {hang.last_step}"
    what = "a collective" if hang.operation == "collective" else str(hang.operation)
    number = "" if hang.sequence is None else f" #{hang.sequence}"
    group = "" if hang.communicator is None else f" of {hang.communicator}"
    return (
        f"stuck for {hang.idle_s or 0.0:.0f} s{after}: {len(hang.joined)} ranks wait in"
        f" {what}{number}{group}, and who holds them up is not seen"
    )


def _live_rows(hang: HangView) -> tuple[tuple[str, str], ...]:
    """Return the groups of ranks by where their training threads stand, the smallest first."""
    return tuple(
        ("stack", f"{list_ranks(group.ranks)}: {telling_frames(group.frames)}")
        for group in hang.stack_groups[:MAX_GROUPS]
    )


def telling_frames(frames: Sequence[str]) -> str:
    """Return the frames of a stack that say where a thread stands: what it waits in, then the program's functions.

    How the kernel and the interpreter came from one to the other says nothing more.
    """
    first = next((f for f in frames if not f.endswith("[kernel]") and not f.startswith("0x")), None)
    python = [frame for frame in frames if _PYTHON.search(frame) and frame != first]
    kept = ([] if first is None else [first]) + python
    return " < ".join(_FOLDERS.sub("", frame) for frame in (kept or frames)[:MAX_FRAMES])


def _is_live(finding: Finding) -> bool:
    """Return whether the ranks' own reports show it, and no dumps."""
    return any(row.signal in _REPORTED for row in finding.evidence)


def hang_passage(finding: Finding) -> Passage:
    """Return what is said of one finding of a hang."""
    count = finding.victims.count
    if _is_live(finding):
        return _live_passage(finding)
    rows = (
        ("since", _time(finding)),
        ("evidence", _evidence(finding)),
        *excluded_rows(finding),
        ("victims", f"{count} {'rank waits' if count == 1 else 'ranks wait'}"),
        ("action", finding.action),
        ("owner", f"{finding.owner}, {finding.confidence.band} confidence"),
    )
    return Passage(hang_headline(finding), rows)


def _live_passage(finding: Finding) -> Passage:
    """Return what is said of a finding that the ranks' own reports show."""
    count, lost_s = finding.victims.count, finding.lost.wall_s or 0.0
    step = None if finding.onset is None else finding.onset.step
    after = "before the first step" if step is None else f"after step {step}"
    is_over = finding.state == "closed"
    head = f"{'was stuck' if is_over else 'stuck'} for {lost_s:.0f} s {after}"
    over = (("over", f"the job went on; {lost_s:.0f} s were lost"),) if is_over else ()
    rows = (
        ("since", _time(finding)),
        *over,
        *_cost_rows(finding),
        *excluded_rows(finding),
        ("victims", f"{count} {'rank waits' if count == 1 else 'ranks wait'}"),
        ("action", finding.action),
        ("owner", f"{finding.owner}, {finding.confidence.band} confidence"),
    )
    return Passage(f"{head}: {hang_headline(finding)}", rows)


def _cost_rows(finding: Finding) -> tuple[tuple[str, str], ...]:
    cost, device_s = finding.lost.cost, finding.lost.device_s
    if cost is None or device_s is None:
        return ()
    return (("cost", f"{money(cost)}: {device_s / 3600:.2f} device-hours stood still"),)


def hang_headline(finding: Finding) -> str:
    """Return the first line about one finding of a hang: who, and what it has not done."""
    if _is_live(finding):
        return _live_headline(finding)
    reason = Reason(finding.reason)
    rule = HANG_RULES[reason] if reason in HANG_RULES else live_rule_of(reason)
    operation = finding.chain[0].text.partition(" hangs in ")[2]
    return f"{list_ranks(finding.subject.ranks)}: {rule.title.format(operation=operation)}"


def _live_headline(finding: Finding) -> str:
    """Return who does what, from the chain; ranks that do the same together."""
    by_text: dict[str, list[int]] = {}
    for link in finding.chain[1:]:
        _, _, words = link.text.partition(" waits for rank ")
        if not words:
            return link.text
        rank, _, text = words.partition(": ")
        by_text.setdefault(text, []).append(int(rank))
    parts = [f"{list_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    more = len(finding.subject.ranks) - len(finding.chain) + 1
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


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
