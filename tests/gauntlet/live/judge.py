"""Whether a live run counts, and whether what was said in it is right: while it lasted, and at its end.

Whether it counts is decided by what the job itself wrote down, before any verdict is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gauntlet.live.case import END, HANG, NEAR, Choice, Expected, LiveCase
from gauntlet.live.session import SAID, Watched
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import RootwalkError
from rootwalk.otel_receiver.store import query_store

# The issue's own bound.
NAMED_S = 30.0
# After a fault in one rank the others may still end the step that they are in, and the next one of a loader's.
LATE_STEPS = 2
NS = 1e9
NOT_JOINED = "NOT_JOINED"
HEALTHY, NO_VERDICT = "healthy", "no verdict"
ACCUSING_WORDS = re.compile(r"\b(stuck|hangs?|hung)\b")
OPENED_QUERY = (
    "SELECT unix_ns, rank, CAST(body AS VARCHAR), CAST(attributes AS VARCHAR), event_name"
    " FROM logs WHERE event_name IS NOT NULL ORDER BY unix_ns"
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A finding that was opened while the job ran.

    Attributes:
        unix_s: When it was named.
        rank: Who is to blame; None for no rank.
        reason: Its code.
        text: What was said.
    """

    unix_s: float
    rank: int | None
    reason: str
    text: str


def find_invalid(case: LiveCase, choice: Choice, watched: Watched) -> str | None:
    """Return why a run does not count; None when it does.

    Args:
        case: The case.
        choice: What the run took.
        watched: What the job did; its verdict is not looked at.
    """
    if case.script:
        return None
    begun = watched.begun_unix_s
    if begun is None:
        return "the fault was not reached"
    if not case.is_before_training:
        wanted = case.fault_step - 1
        for rank, steps in watched.steps.items():
            before = max((number for number, unix_s in steps if unix_s <= begun + 1.0), default=0)
            if before < wanted - LATE_STEPS:
                return f"rank {rank} had ended {before} steps of {wanted} before the fault"
    if case.kind == NEAR:
        return find_invalid_pause(case, watched, begun)
    if case.kind == HANG:
        last = max(steps[-1][0] for steps in watched.steps.values() if steps)
        reached = 0 if case.is_before_training else case.fault_step
        if last > reached + LATE_STEPS + steps_from_outside(case, choice):
            return f"the job went on to step {last}"
        if watched.ending_unix_s is None:
            return "the job ended by itself"
    return None


def steps_from_outside(case: LiveCase, choice: Choice) -> int:
    """Return how many steps a job may end until a fault from outside, which is polled for, has come."""
    return 0 if case.fault else 2 + int(1.0 / choice.step_s)


def find_invalid_pause(case: LiveCase, watched: Watched, begun_unix_s: float) -> str | None:
    """Return why a near miss does not count: its job did not pause, or did not go on to its end."""
    for rank, steps in watched.steps.items():
        longest = longest_pause(steps, begun_unix_s)
        if longest < case.lasts_s:
            return f"rank {rank} paused for {longest:.1f} s of {case.lasts_s:.0f} s"
        if steps[-1][0] != case.steps:
            return f"rank {rank} ended {steps[-1][0]} steps of {case.steps}"
    return None


def longest_pause(steps: Iterable[tuple[int, float]], begun_unix_s: float) -> float:
    """Return the longest time without the end of a step that lies in or after a moment, s."""
    ends = [unix_s for _, unix_s in steps]
    pauses = [end - begin for begin, end in pairwise(ends) if end > begun_unix_s]
    return max(pauses, default=0.0)


def read_opened(store: Path) -> list[Opened]:
    """Return the findings that were opened while the job ran, from its store; none without one."""
    if not store.exists():
        return []
    try:
        _, _, rows = query_store(store, OPENED_QUERY)
    except RootwalkError:
        return []
    opened = []
    for unix_ns, rank, body, attributes, event in rows:
        if event != semconv.EVENT_ROOTWALK_FINDING_OPENED:
            continue
        values = json.loads(attributes)
        rank = values.get(semconv.TRAINING_RANK, rank)
        reason = values.get(semconv.ROOTWALK_FINDING_REASON, "")
        opened.append(Opened(unix_ns / NS, rank, reason, str(json.loads(body or '""'))))
    return opened


def judge(case: LiveCase, watched: Watched, opened: list[Opened]) -> dict[str, Any]:
    """Return how right everything is that was said.

    Args:
        case: The case.
        watched: What the run did and said.
        opened: Findings that were opened while the job ran.

    Returns:
        `outcome`, `first_line`, `found` (kind, reason, ranks of the first three findings), `live` (seconds after the
        fault, reason, rank, text of each opened finding), `named_s` (of the first right one), `lines` (what Rootwalk
        said on standard error after the fault), `rank_right`, `final_right`, `live_right`, `blamed` (others that are
        accused, live or at the end) and `right`.
    """
    verdict = watched.verdict or {"outcome": NO_VERDICT, "findings": []}
    findings = verdict["findings"]
    begun = watched.begun_unix_s or 0.0
    ended = watched.ending_unix_s
    live = [one for one in opened if ended is None or one.unix_s <= ended]
    named = [one for one in live if is_named_live(case.expected, one)]
    first_line = find_first_line(watched.output)
    row: dict[str, Any] = {
        "outcome": verdict["outcome"],
        "first_line": first_line,
        "found": [[f["kind"], f["reason"], find_ranks(f)] for f in findings[:3]],
        "live": [[round(o.unix_s - begun, 1), o.reason, o.rank, o.text] for o in live],
        "named_s": round(named[0].unix_s - begun, 1) if named else None,
        "lines": [
            f"{line.unix_s - begun:.1f} {line.text}"
            for line in watched.lines
            if line.text.startswith(SAID) and line.unix_s >= begun
        ][:12],
        "blamed": len(find_blamed(case.expected, findings, live)),
        "rank_right": is_rank_right(case, verdict),
        "final_right": is_final_right(case, verdict, first_line),
    }
    if case.kind == NEAR:
        accusing = [line for line in row["lines"] if ACCUSING_WORDS.search(line)]
        row["live_right"] = not live and not accusing
    elif case.kind == HANG:
        row["live_right"] = bool(named) and row["named_s"] <= NAMED_S
    else:
        row["live_right"] = True
    row["right"] = row["final_right"] and row["live_right"] and not row["blamed"]
    return row


def find_first_line(output: str) -> str:
    """Return the headline of the final text, which is all that is on standard output, as one line."""
    lines = [line for line in output.splitlines() if line.strip()]
    head = lines[:1]
    for line in lines[1:]:
        if not line.startswith("  "):
            break
        head.append(line)
    return " ".join(line.strip() for line in head)


def find_ranks(finding: dict[str, Any]) -> list[int]:
    """Return the ranks that a finding accuses."""
    subject = finding["subject"]
    ranks = set(subject["ranks"]) | ({subject["rank"]} - {None})
    return sorted(ranks)


def is_rank_right(case: LiveCase, verdict: dict[str, Any]) -> bool:
    """Whether the right rank is accused, or none where none is to blame; a job that hung or failed is never healthy."""
    is_well = case.kind == NEAR or (not case.expected.is_finding and not case.expected.line)
    is_known = verdict["outcome"] not in ((NO_VERDICT,) if is_well else (NO_VERDICT, HEALTHY))
    return is_known and has_right_rank(case.expected, verdict)


def has_right_rank(expected: Expected, verdict: dict[str, Any]) -> bool:
    """Whether the first finding accuses the right rank, or no finding accuses any where none is to blame."""
    findings = verdict["findings"]
    if expected.rank is None:
        return all(
            not find_ranks(finding) or finding["reason"] in expected.tolerated
            for finding in findings
        )
    return bool(findings) and find_ranks(findings[0]) == [expected.rank]


def is_named_live(expected: Expected, opened: Opened) -> bool:
    """Whether a finding that was opened is the right one, as far as its event says."""
    reasons = {*expected.reasons, *([NOT_JOINED] if expected.function else [])}
    return opened.rank == expected.rank and opened.reason in reasons


def find_blamed(expected: Expected, findings: list[dict[str, Any]], live: list[Opened]) -> set[int]:
    """Return the ranks that are accused, live or at the end, and are not to blame."""
    accused = {rank for finding in findings for rank in find_ranks(finding)}
    accused |= {one.rank for one in live if one.rank is not None}
    return accused - {expected.rank}


def is_final_right(case: LiveCase, verdict: dict[str, Any], first_line: str) -> bool:
    """Whether the verdict at the end is right, with its first line."""
    expected, findings = case.expected, verdict["findings"]
    if case.kind == NEAR:
        return not findings and verdict["outcome"] != NO_VERDICT and not is_accusing(first_line)
    if not re.search(expected.line, first_line):
        return False
    if not expected.is_finding:
        is_well = case.kind != END or verdict["outcome"] != HEALTHY or not expected.line
        return is_well and has_right_rank(expected, verdict)
    if not findings or not has_right_rank(expected, verdict):
        return False
    return findings[0]["kind"] in expected.kinds and has_reason(
        expected, findings[0], verdict, first_line
    )


def is_accusing(text: str) -> bool:
    """Whether a line calls the job stuck."""
    return ACCUSING_WORDS.search(text) is not None


def has_reason(
    expected: Expected, finding: dict[str, Any], verdict: dict[str, Any], first_line: str
) -> bool:
    """Whether a finding has a right code, or says that the rank has not joined and in which function it is."""
    if finding["reason"] in expected.reasons:
        return True
    return (
        finding["reason"] == NOT_JOINED
        and bool(expected.function)
        and (expected.function in first_line or shows_function(expected, finding, verdict))
    )


def shows_function(expected: Expected, finding: dict[str, Any], verdict: dict[str, Any]) -> bool:
    """Whether the rank's stack or the chain of its finding names the function."""
    texts = [link["text"] for link in finding["chain"]]
    for group in (verdict["hang"] or {}).get("stack_groups", []):
        if expected.rank in group["ranks"]:
            texts += group["frames"]
    return any(expected.function in text for text in texts)


def shows_line(watched: Watched) -> bool | None:
    """Whether the verdict names a line within the function that the truth names; None without such a truth."""
    truth = next((one for one in watched.truth if "function" in one), None)
    if truth is None or watched.verdict is None:
        return None
    first, last = truth["lines"]
    groups = (watched.verdict["hang"] or {}).get("stack_groups", [])
    texts = [frame for group in groups for frame in group["frames"]]
    texts += [link["text"] for f in watched.verdict["findings"] for link in f["chain"]]
    pattern = rf"\b{re.escape(truth['function'])} \([^()]*:(\d+)\)"
    return any(first <= int(found) <= last for text in texts for found in re.findall(pattern, text))
