"""Results of live runs: a file a case beside the other results, and the table that the page about hangs has of them."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gauntlet.live.case import END, HANG, NEAR, LiveCase
from gauntlet.live.hang_cases import HANGS
from gauntlet.live.other_cases import ENDS, NEARS
from gauntlet.results import RESULTS, add_run, counts, describe_machine, find_ninth, read_runs

CASES: dict[str, LiveCase] = {**HANGS, **ENDS, **NEARS}
ALL_SENSORS, WITHOUT_BPF, WITHOUT_HOOKS = "all sensors", "without bpf", "without instrumentation"
VARIANTS: dict[str, tuple[str, ...]] = {
    ALL_SENSORS: (),
    WITHOUT_BPF: ("--without", "bpf"),
    WITHOUT_HOOKS: ("--without", "instrumentation"),
}
PREFIX = "live_"
ROOT = Path(__file__).resolve().parents[3]
# The demo is no part of what is judged.
PRODUCT = (
    *("instrumentation", "ebpf", "otel_receiver", "graph"),
    ":(exclude)graph/commands/demo*.py",
)
TITLES = {
    HANG: "hangs",
    END: "ends",
    NEAR: "jobs that only take long",
}


@cache
def describe_run() -> dict[str, str]:
    """Return when, where, of which state of the product and with which versions runs are made.

    The commit is the last one that changed the product: a change of a case is none.
    """
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return describe_machine() | versions | {"commit": describe_product()}


def describe_product() -> str:
    """Return the last commit that changed one of the product's folders, marked when they have been edited since."""
    commit = ask_git("log", "-1", "--format=%h", "--abbrev=7", "--", *PRODUCT)
    is_edited = ask_git("status", "--porcelain", "--untracked-files=no", "--", *PRODUCT)
    return (commit or "unknown") + ("-dirty" if is_edited else "")


def ask_git(*words: str) -> str:
    """Return what git answers about this repository; empty when it does not."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def read_live(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the runs of a case in the order in which they were made."""
    return read_runs(PREFIX + name, folder)


def add_live(name: str, row: dict[str, Any], folder: Path = RESULTS) -> None:
    """Add one run."""
    add_run(PREFIX + name, row, folder)


def newest_commit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of each variant that were made of the state which its last row was made of."""
    last = {row["variant"]: row["commit"] for row in rows}
    return [row for row in rows if row["commit"] == last[row["variant"]]]


def earlier_commits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that `newest_commit` leaves out, in their order."""
    newest = newest_commit(rows)
    return [row for row in rows if row not in newest]


def count_right(case: LiveCase, rows: list[dict[str, Any]], variant: str) -> tuple[int, int]:
    """Return how many runs of a variant are right, of how many that count.

    Without a sensor the right rank is enough for a hang or an end, and `healthy` is always wrong.
    """
    counted = [row for row in rows if row["variant"] == variant and counts(row)]
    is_blind = variant != ALL_SENSORS and case.kind != NEAR
    key = "rank_right" if is_blind else "right"
    return sum(bool(row[key]) for row in counted), len(counted)


def render_count(case: LiveCase, rows: list[dict[str, Any]], variant: str) -> str:
    """Return a cell: how many of how many, or why there is none."""
    right, runs = count_right(case, rows, variant)
    if runs:
        return f"{right} of {runs}"
    reasons = [row["not_run"] for row in rows if row["variant"] == variant and "not_run" in row]
    return f"not run: {reasons[-1]}" if reasons else "not run"


def render_named(rows: list[dict[str, Any]]) -> str:
    """Return median and 90th percentile of the seconds until the right finding; a dash without any."""
    named = sorted(
        row["named_s"]
        for row in rows
        if row["variant"] == ALL_SENSORS and counts(row) and row["named_s"] is not None
    )
    if not named:
        return "-"
    return f"{named[len(named) // 2]:.0f}, {find_ninth(named):.0f}"


def render_group(kind: str, folder: Path) -> list[str]:
    """Return the table of the cases of one kind that were run; nothing without any."""
    lines = []
    for name, case in CASES.items():
        rows = newest_commit(read_live(name, folder))
        if case.kind != kind or not rows:
            continue
        cells = [case.text, *(render_count(case, rows, variant) for variant in VARIANTS)]
        if kind == HANG:
            cells.append(render_named(rows))
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    head = [TITLES[kind], "right", "right rank without BPF", "without instrumentation"]
    if kind == HANG:
        head.append("named after, s: median, 90th")
    if kind == NEAR:
        head[2] = "without BPF"
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, ""]


def read_newest(kind: str, variant: str, folder: Path) -> list[tuple[LiveCase, dict[str, Any]]]:
    """Return the runs of one kind and variant that count, of the newest state of each case, with their cases."""
    return [
        (case, row)
        for name, case in CASES.items()
        if case.kind == kind
        for row in newest_commit(read_live(name, folder))
        if row["variant"] == variant and counts(row)
    ]


def render_sums(folder: Path) -> list[str]:
    """Return what is right in all, a line a goal; nothing without runs."""
    lines = []
    for kind, goal in ((HANG, "95 %, named within 30 s"), (END, "95 %"), (NEAR, "all")):
        runs = read_newest(kind, ALL_SENSORS, folder)
        if runs:
            right = sum(bool(row["right"]) for _, row in runs)
            lines.append(f"- {TITLES[kind]}: {right} of {len(runs)} right (goal: {goal})")
    for variant in VARIANTS:
        runs = [run for kind in (HANG, END) for run in read_newest(kind, variant, folder)]
        if runs and variant != ALL_SENSORS:
            right = sum(bool(row["rank_right"]) for _, row in runs)
            healthy = sum(row["outcome"] == "healthy" for case, row in runs if has_cause(case))
            lines.append(
                f"- {variant}, hangs and ends: the right rank in {right} of {len(runs)} (goal: 70 %),"
                f" called healthy in {healthy} (goal: 0)"
            )
    lines += render_earlier(folder)
    return [*lines, ""] if lines else []


def render_earlier(folder: Path) -> list[str]:
    """Return what was right with earlier states of the product, by variant, in one line; nothing without such runs."""
    found = []
    for variant in VARIANTS:
        for kind, title in TITLES.items():
            sums = [
                count_right(case, earlier_commits(read_live(name, folder)), variant)
                for name, case in CASES.items()
                if case.kind == kind
            ]
            right, runs = (sum(numbers) for numbers in zip(*sums, strict=True))
            words = title if variant == ALL_SENSORS else f"{title} {variant}"
            if runs:
                found.append(f"{words} {right} of {runs}")
    return [f"- with earlier states of the product: {', '.join(found)}"] if found else []


def has_cause(case: LiveCase) -> bool:
    """Whether the job hangs or fails by itself, so that it must not be called healthy; Ctrl-C is the user's wish."""
    return case.expected.is_finding or bool(case.expected.line)


def generate_live(folder: Path = RESULTS) -> str:
    """Return the tables of all live cases: the runs of the newest state that each was run with."""
    lines = render_sums(folder)
    lines += [line for kind in TITLES for line in render_group(kind, folder)]
    places = {
        (row["date"], row["machine"], row["commit"])
        for name in CASES
        for row in newest_commit(read_live(name, folder))
    }
    where = "; ".join(f"{date}, {machine}, {commit}" for date, machine, commit in sorted(places))
    return "\n".join([*lines, f"{where or 'not run yet'}; `make hangs`.", ""])
