"""The README's table of the gauntlet, from the committed results alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gauntlet.case import Case, load_cases
from gauntlet.results import RESULTS, read_runs, summarise, tell_errors

HEAD = ("case: what is done", "right", "among the first three", "seconds off: median, 90th", "told")


def render_case(case: Case, summary: dict[str, Any]) -> str:
    """Return the row of a case: as many runs as count, the others told beside them."""
    if summary["not_run"]:
        return f"| {case.text} | not run | | | {summary['not_run']} |"
    runs = summary["runs"]
    told = [tell_wrong(found) for found in summary["wrong"]]
    if summary["invalid"]:
        told.append(f"{summary['invalid']} invalid")
    wanted = f" ({', '.join(case.truth.reasons)})" if case.is_fault else ""
    cells = [
        case.text + wanted,
        f"{summary['top1']} of {runs}" if runs else "not run",
        f"{summary['top3']} of {runs}" if runs else "",
        tell_errors(summary["share_error"]) if case.is_fault else "",
        "; ".join(dict.fromkeys(told)),
    ]
    return f"| {' | '.join(cells)} |"


def tell_wrong(found: str | list[list[Any]]) -> str:
    """Return what a wrong verdict said: its findings, or its outcome."""
    if isinstance(found, str):
        return f"`{found}`"
    words = []
    for reason, who, _ in found:
        ranks = who if isinstance(who, list) else [] if who is None else [who]
        words.append(f"{reason} {', '.join(map(str, ranks))}".strip())
    return f"named {', then '.join(words)}"


def render_group(title: str, rows: Iterable[tuple[Case, dict[str, Any]]]) -> list[str]:
    """Return a table with its title and its sums."""
    known = [row for row in rows if row[1]["runs"] or row[1]["invalid"] or row[1]["not_run"]]
    if not known:
        return []
    runs, right, third, blamed = (
        sum(summary[key] for _, summary in known) for key in ("runs", "top1", "top3", "blamed")
    )
    errors = [error for _, summary in known for error in summary["share_error"]]
    told = f"somebody else accused in {blamed}"
    total = f"| all | {right} of {runs} | {third} of {runs} | {tell_errors(errors)} | {told} |"
    lines = [f"| {title} |" + "|".join(f" {word} " for word in HEAD[1:]) + "|", "|---" * 5 + "|"]
    return [*lines, *(render_case(case, summary) for case, summary in known), total, ""]


def render_naive(summaries: Iterable[dict[str, Any]]) -> list[str]:
    """Return how often rules that know the ranks only name the right one."""
    counts: dict[str, int] = {}
    runs = 0
    for summary in summaries:
        if summary["naive"]:
            runs += summary["runs"]
            for rule, count in summary["naive"].items():
                counts[rule] = counts.get(rule, 0) + count
    if not counts:
        return []
    told = "; ".join(f"{rule}: {count}" for rule, count in counts.items())
    return [f"Simple rules, told the onset, name the right rank (of {runs} runs): {told}.", ""]


def generate(folder: Path = RESULTS) -> str:
    """Return the tables of all cases that have results."""
    faults: list[tuple[Case, dict[str, Any]]] = []
    hangs: list[tuple[Case, dict[str, Any]]] = []
    near: list[tuple[Case, dict[str, Any]]] = []
    healthy: list[tuple[Case, dict[str, Any]]] = []
    places: set[tuple[str, str]] = set()
    for name, case in load_cases().items():
        runs = [run for run in read_runs(name, folder) if run["variant"] == "all sensors"]
        places |= {(run["date"], run["machine"]) for run in runs}
        group = healthy if name.startswith("healthy") else near
        if case.is_fault:
            group = hangs if case.hang else faults
        group.append((case, summarise(runs)))
    lines = render_group("fault", faults) + render_naive(summary for _, summary in faults)
    lines += render_group("hang", hangs) + render_group("near miss", near)
    lines += render_group("healthy", healthy)
    told = "; ".join(f"{date}, {machine}" for date, machine in sorted(places))
    return "\n".join([*lines, f"{told}; `make gauntlet`.", ""])
