"""What runs of jobs that lose time from the start, or now and then, have said: the table of the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gauntlet.results import RESULTS, counts, read_runs
from gauntlet.start.cases import CASES, StartCase

__all__ = ["START_RESULTS", "generate_start"]

START_RESULTS = RESULTS / "start"
WORDS = {
    "work": "a rank computes more",
    "sleep": "a rank sleeps",
    "stop": "a rank is stopped by SIGSTOP",
    "hog": "another process on a rank's core",
    "collect": "a rank collects garbage",
    "load": "the loader workers of all ranks are slow",
}


def describe_case(case: StartCase) -> str:
    """Return a case in words."""
    if case.is_quiet:
        ranks = "" if case.ranks == 2 else f", {case.ranks} ranks"
        return f"quiet, loop `{case.shape}`{ranks}"
    when = "from the first step on" if not case.onset else f"from step {case.onset} on"
    if case.period > 1:
        when = f"every {case.period}. step"
    return f"{WORDS[case.fault]}, {when}, {100 * case.share:.0f} % of the time"


def total(rows: list[dict[str, Any]], name: str) -> int:
    """Return of how many runs something is so."""
    return sum(bool(row[name]) for row in rows)


def unsure(rows: list[dict[str, Any]]) -> int:
    """Return how many runs name nobody and are not called healthy."""
    return sum(row["outcome"] == "insufficient_evidence" for row in rows)


def render_row(name: str, case: StartCase, rows: list[dict[str, Any]]) -> str:
    """Return the row of one case."""
    valid = [row for row in rows if counts(row)]
    right = f"{total(valid, 'right')} of {len(valid)}"
    cells = [describe_case(case), f"{1000 * case.step_s:g} ms", right]
    cells += [str(total(valid, "blames")), str(unsure(valid)), f"`{name}`"]
    return f"| {' | '.join(cells)} |"


def generate_start(folder: Path = START_RESULTS) -> str:
    """Return the tables of all runs, none left out, and how many are right in all."""
    lines = []
    for title, is_quiet in (("fault", False), ("job without a fault", True)):
        chosen = {
            name: rows
            for name, case in CASES.items()
            if case.is_quiet == is_quiet and (rows := read_runs(name, folder))
        }
        if not chosen:
            continue
        valid = [row for rows in chosen.values() for row in rows if counts(row)]
        lines += [
            f"| {title} | step | right | blamed another rank | not enough evidence | case |",
            "|---|---|---|---|---|---|",
            *(render_row(name, CASES[name], rows) for name, rows in chosen.items()),
            f"| all | | {total(valid, 'right')} of {len(valid)} | {total(valid, 'blames')} | {unsure(valid)} | |",
            "",
        ]
    places = {
        (row["date"], row["machine"], row["commit"])
        for name in CASES
        for row in read_runs(name, folder)
    }
    where = "; ".join(f"{date}, {machine}, {commit}" for date, machine, commit in sorted(places))
    return "\n".join([*lines, f"{where or 'not run yet'}; `make gauntlet-start`.", ""])
