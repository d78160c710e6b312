"""The tables of the fault-injection suite in the documentation, from the committed results alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gauntlet.case import Case, load_cases
from gauntlet.device_cases import DEVICE_CASES, without_nvml
from gauntlet.goals import CaseRuns, find_wanted, render_ever, render_goals
from gauntlet.gpu_cases import GPU_CASES
from gauntlet.judge import BLIND_VARIANTS, find_word
from gauntlet.results import (
    DEVICE_RESULTS,
    GPU_RESULTS,
    RESULTS,
    newest,
    read_runs,
    summarise,
    tell_errors,
)

HEAD = ("case: what is done", "right", "among the first three", "seconds off: median, 90th", "told")
# The tables in their order.
GROUPS = ("fault", "pair of faults", "hang", "near miss", "healthy")


def render_case(case: Case, summary: dict[str, Any]) -> str:
    """Return the row of a case: as many runs as count, the others told beside them."""
    runs = summary["runs"]
    if summary["not_run"] and not runs:
        return f"| {case.text} | not run | | | {summary['not_run']} |"
    told = [tell_wrong(found) for found in summary["wrong"]]
    if summary["invalid"]:
        told.append(f"{summary['invalid']} invalid")
    truths = [case.truth] if case.also is None else [case.truth, case.also]
    wanted = " and ".join(", ".join(truth.reasons) for truth in truths)
    cells = [
        f"{case.text} ({wanted})" if case.is_fault else case.text,
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
    return f"named {', then '.join(name_findings(found))}"


def name_findings(found: list[list[Any]]) -> list[str]:
    """Return the code and the ranks of each finding."""
    words = []
    for reason, who, _ in found:
        ranks = who if isinstance(who, list) else [] if who is None else [who]
        words.append(f"{reason} {', '.join(map(str, ranks))}".strip())
    return words


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


def render_devices(folder: Path, places: set[tuple[str, str]]) -> list[str]:
    """Return the tables of devices that stand-ins play, with NVML and without it; adds where they were run."""
    lines = []
    for title, variant in (("with NVML", "all sensors"), ("nobody reads NVML", "without nvml")):
        rows = []
        for name, case in DEVICE_CASES.items():
            runs = newest(read_runs(name, folder), find_wanted(case))
            runs = [run for run in runs if run["variant"] == variant]
            places |= {(run["date"], run["machine"]) for run in runs}
            judged = case if variant == "all sensors" else without_nvml(case)
            if judged is not None:
                rows.append((judged, summarise(runs)))
        lines += render_group(f"a stand-in plays the GPU, {title}", rows)
    return lines


def render_gpu(folder: Path, places: set[tuple[str, str]]) -> list[str]:
    """Return the table of a real GPU; adds where it was run."""
    rows = []
    for name, case in GPU_CASES.items():
        runs = read_runs(name, folder)
        places |= {(run["date"], run["machine"]) for run in runs}
        rows.append((case, summarise(runs)))
    return render_group("a real GPU", rows)


def render_blind(cases: Iterable[CaseRuns]) -> list[str]:
    """Return what was said where a sensor was taken away, a word or more a run; nothing without such runs."""
    lines = []
    for one in cases:
        if one.valid(*BLIND_VARIANTS):
            cells = [
                "; ".join(tell_blind_run(row) for row in one.valid(variant))
                for variant in BLIND_VARIANTS
            ]
            lines.append(f"| {' | '.join([one.case.text, *cells])} |")
    if not lines:
        return []
    head = f"| case | {' | '.join(BLIND_VARIANTS)} |"
    return [head, "|---" * (1 + len(BLIND_VARIANTS)) + "|", *lines, ""]


def tell_blind_run(row: dict[str, Any]) -> str:
    """Return whether a run is right, vaguer or wrong, and what it said where it is not right."""
    word = find_word(row)
    said = ", ".join(name_findings(row["found"])) or f"`{row['outcome']}`"
    return word if word == "right" else f"{word}: {said}"


def group_cases(cases: dict[str, CaseRuns]) -> dict[str, list[tuple[Case, dict[str, Any]]]]:
    """Return the cases of each table with what their runs with all sensors say."""
    groups: dict[str, list[tuple[Case, dict[str, Any]]]] = {title: [] for title in GROUPS}
    for name, one in cases.items():
        groups[find_group(name, one.case)].append((one.case, summarise(one.of())))
    return groups


def find_group(name: str, case: Case) -> str:
    """Return the table that a case is in."""
    if not case.is_fault:
        return "healthy" if name.startswith("healthy") else "near miss"
    if case.hang:
        return "hang"
    return "fault" if case.also is None else "pair of faults"


def generate(folder: Path = RESULTS) -> str:
    """Return the tables of all cases that have results: the newest runs of each, and what all of them came to."""
    ever = {name: CaseRuns(case, read_runs(name, folder)) for name, case in load_cases().items()}
    cases = {
        name: CaseRuns(one.case, newest(one.rows, find_wanted(one.case)))
        for name, one in ever.items()
    }
    told_variants = ("all sensors", *BLIND_VARIANTS)
    places = {
        (run["date"], run["machine"]) for one in cases.values() for run in one.of(*told_variants)
    }
    groups = group_cases(cases)
    lines = [*render_goals(list(cases.values())), *render_ever(list(ever.values()))]
    for title, rows in groups.items():
        lines += render_group(title, rows)
        if title == "fault":
            lines += render_naive(summary for _, summary in rows)
    lines += render_blind(cases.values())
    lines += render_gpu(folder / GPU_RESULTS.name, places)
    lines += render_devices(folder / DEVICE_RESULTS.name, places)
    told = "; ".join(f"{date}, {machine}" for date, machine in sorted(places))
    return "\n".join([*lines, f"{told}; `make gauntlet`.", ""])
