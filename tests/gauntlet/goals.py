"""What the gauntlet is to reach, beside what its runs have reached so far."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gauntlet.case import Case
from gauntlet.judge import BLIND_VARIANTS
from gauntlet.results import counts, find_ninth, newest, tell_share

WIDTH = 120
HEAD = ("| goal | wanted | measured |", "|---|---|---|")
# So many runs of a case have to count. 35 cases do not harm their job, and 200 such runs are wanted; without a sensor a
# case is run once.
WANTED_RUNS, WANTED_QUIET_RUNS, WANTED_BLIND_RUNS = 5, 6, 1
WANTED_QUIET = 200
# One run in so many may be invalid.
RUNS_PER_INVALID = 5
# After the onset, s; or so many steps with the fault, where that is longer.
DETECTED_S, DETECTED_STEPS = 15.0, 5
NAMED_S, NAMED_STEPS = 20.0, 8
# After the bug, s: the watchdog's silence, the dumps, their import and the diagnosis.
HANG_NAMED_S = 30.0
# One after the other on two cores.
MOST_HOURS = 10.0
HOUR_S = 3600.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CaseRuns:
    """A case and its rows, of all variants."""

    case: Case
    rows: list[Row]

    def valid(self, *variants: str) -> list[Row]:
        """Return the runs of variants that count; with all sensors where none is named."""
        return [row for row in self.of(*variants) if counts(row)]

    def of(self, *variants: str) -> list[Row]:
        """Return the rows of variants; with all sensors where none is named."""
        return [row for row in self.rows if row["variant"] in (variants or ("all sensors",))]


def find_wanted(case: Case, variant: str = "all sensors") -> int:
    """Return how many runs of a case have to count."""
    if variant in BLIND_VARIANTS:
        return WANTED_BLIND_RUNS
    return WANTED_RUNS if case.is_fault else WANTED_QUIET_RUNS


def render_goals(cases: list[CaseRuns]) -> list[str]:
    """Return the table of goals; nothing without any run."""
    if not any(one.rows for one in cases):
        return []
    faults = [one for one in cases if one.case.is_fault and one.case.also is None]
    slow = [row for one in faults if one.case.truth.kind == "slow" for row in one.valid()]
    runs = [row for one in faults for row in one.valid()]
    goals = [
        ("a fault is named first", "at least 95 %", tell_count(runs, lambda row: row["top1"])),
        (
            "a fault is among the first three",
            "at least 99 %",
            tell_count(runs, lambda row: row["top3"]),
        ),
        (f"faults with {WANTED_RUNS} runs that count", "all", tell_complete(faults)),
        *find_quiet_goals([one for one in cases if not one.case.is_fault]),
        *find_size_goals(runs),
        (
            f"a slow fault is detected within {DETECTED_S:.0f} s or {DETECTED_STEPS} steps",
            "at least 95 %",
            tell_count(slow, lambda row: is_soon(row, "detected_s", DETECTED_S, DETECTED_STEPS)),
        ),
        (
            f"a slow fault is named within {NAMED_S:.0f} s or {NAMED_STEPS} steps",
            "at least 95 %",
            tell_count(slow, lambda row: is_soon(row, "named_s", NAMED_S, NAMED_STEPS)),
        ),
        (
            f"a hang: who is absent, and why, within {HANG_NAMED_S:.0f} s",
            "all",
            tell_count(
                [row for one in faults if one.case.hang for row in one.valid() if "named_s" in row],
                lambda row: row["named_s"] is not None and row["named_s"] <= HANG_NAMED_S,
            ),
        ),
        (
            "both of a pair of faults are the first two",
            "at least 80 %",
            tell_count(
                [row for one in cases if one.case.also is not None for row in one.valid()],
                lambda row: row["top1"],
            ),
        ),
        ("findings that are wrong without a sensor", "0", tell_blind(cases)),
        ("cases with more than one invalid run in five", "0", tell_invalid(cases)),
        (
            "as many runs as are wanted, without a sensor too",
            f"at most {MOST_HOURS:.0f} h",
            tell_hours(cases),
        ),
    ]
    return [*HEAD, *(f"| {' | '.join(cells)} |" for cells in goals), ""]


def render_ever(cases: list[CaseRuns]) -> list[str]:
    """Return what all runs that were ever made came to, with the code of their day; nothing without any."""
    runs = [(one, row) for one in cases for row in one.valid()]
    if not runs:
        return []
    faults = [row for one, row in runs if one.case.is_fault and one.case.also is None]
    quiet = [row for one, row in runs if not one.case.is_fault]
    accused = sum(row["blamed"] > 0 for row in quiet)
    named = tell_count(faults, lambda row: row["top1"])
    told = (
        f"Of each case the newest {WANTED_RUNS} runs that count ({WANTED_QUIET_RUNS} without a fault), and the "
        f"invalid ones among them. All runs that were ever made, with the code of their day: a fault is named first "
        f"in {named}; of {len(quiet)} near misses and healthy runs {accused} accuse somebody."
    )
    return [*textwrap.wrap(told, WIDTH), ""]


def find_quiet_goals(cases: list[CaseRuns]) -> list[tuple[str, str, str]]:
    """Return the goals of runs in which nobody is to be accused."""
    runs = [row for one in cases for row in one.valid()]
    accused = sum(row["blamed"] > 0 for row in runs)
    return [
        (
            "near misses and healthy runs",
            f"at least {WANTED_QUIET}",
            str(len(runs)) if runs else "not run",
        ),
        ("of them, accuse somebody", "0", str(accused) if runs else "not run"),
    ]


def find_size_goals(runs: list[Row]) -> list[tuple[str, str, str]]:
    """Return the goals of seconds and predicted step times, as parts of what the job's own clock says."""
    shares, predicted = (
        [abs(row[key]) for row in runs if key in row] for key in ("share_error", "predicted_error")
    )
    return [
        ("seconds off, median", "at most 15 %", tell_value(shares, statistics.median)),
        ("seconds off, 90th percentile", "at most 30 %", tell_value(shares, find_ninth)),
        (
            "predicted step time off, median",
            "at most 10 %",
            tell_value(predicted, statistics.median),
        ),
    ]


def is_soon(row: Row, key: str, limit_s: float, limit_steps: int) -> bool:
    """Whether something came after the onset and in time; what did not come is late."""
    limit_s = max(limit_s, limit_steps * (row.get("faulty_s") or 0.0))
    return key in row and 0.0 <= row[key] <= limit_s


def tell_count(runs: list[Row], is_reached: Callable[[Row], bool]) -> str:
    """Return in how many runs something is so, of how many."""
    if not runs:
        return "not run"
    reached = sum(is_reached(row) for row in runs)
    return f"{tell_share(reached / len(runs))} ({reached} of {len(runs)})"


def tell_value(values: list[float], reduce: Callable[[list[float]], float]) -> str:
    """Return one number of many parts, and of how many."""
    return f"{tell_share(reduce(values))} (of {len(values)})" if values else "not run"


def tell_complete(cases: list[CaseRuns]) -> str:
    """Return how many cases have as many runs as are wanted, of how many."""
    runs = [len(one.valid()) for one in cases]
    if not any(runs):
        return "not run"
    return f"{sum(count >= WANTED_RUNS for count in runs)} of {len(runs)}"


def tell_blind(cases: list[CaseRuns]) -> str:
    """Return how many findings are wrong where a sensor was taken away, in how many runs."""
    rows = [row for one in cases for row in one.valid(*BLIND_VARIANTS) if "wrong" in row]
    return f"{sum(row['wrong'] for row in rows)} in {len(rows)} runs" if rows else "not run"


def tell_invalid(cases: list[CaseRuns]) -> str:
    """Return how many cases have too many invalid runs, of how many that were tried."""
    tried = [
        (len(one.valid()), sum(row.get("invalid") is not None for row in one.of())) for one in cases
    ]
    tried = [(valid, invalid) for valid, invalid in tried if valid + invalid]
    if not tried:
        return "not run"
    many = sum(invalid * RUNS_PER_INVALID > valid + invalid for valid, invalid in tried)
    return f"{many} of {len(tried)}"


def tell_hours(cases: list[CaseRuns]) -> str:
    """Return how long as many runs as are wanted took together, with the invalid ones among them."""
    made = [
        row
        for one in cases
        for variant in dict.fromkeys(row["variant"] for row in one.rows)
        for row in newest(one.of(variant), find_wanted(one.case, variant))
        if row.get("not_run") is None
    ]
    timed = [row["run_s"] for row in made if "run_s" in row]
    if not timed:
        return "not run"
    others = f", {len(made) - len(timed)} more without a time" if len(timed) < len(made) else ""
    return f"{sum(timed) / HOUR_S:.1f} h ({len(timed)} runs{others})"
