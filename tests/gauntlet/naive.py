"""Simple rules, which know the ranks only: what a person with a plot would say."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import duckdb

from gauntlet.case import RANK, Case
from gauntlet.job import Run

# The rank that spends the least time in collectives in the steps with the fault, as everybody else waits for it.
LEAST_WAIT = """
SELECT rank FROM collectives WHERE step >= ? GROUP BY rank ORDER BY sum(end_unix_ns - start_unix_ns) LIMIT 1
"""
# The rank whose main thread wanted a CPU and had none for longest.
MOST_RUNNABLE = """
SELECT rank FROM steps WHERE step >= ? GROUP BY rank ORDER BY sum(runnable_ns) DESC NULLS LAST LIMIT 1
"""


def ask_naive_rules(case: Case, run: Run, rank: int, folder: Path) -> dict[str, bool]:
    """Return whether each rule names the disturbed rank; nothing for a case without one.

    The rules are told in which step the fault began, which nobody tells the verdict; they always name somebody.
    """
    if case.truth.who != RANK or run.times.onset_step is None:
        return {}
    answers: dict[str, int | None] = {
        "longest step": ask_step_logs(folder / "steps", run.times.onset_step)
    }
    with duckdb.connect(str(folder / "store.duckdb"), read_only=True) as connection:
        for name, query in (("least in collectives", LEAST_WAIT), ("most runnable", MOST_RUNNABLE)):
            row = connection.execute(query, [run.times.onset_step]).fetchone()
            answers[name] = None if row is None else row[0]
    return {name: answer == rank for name, answer in answers.items()}


def ask_step_logs(folder: Path, first_step: int) -> int:
    """Return the rank with the longest mean step by its own log."""
    means = {}
    for path in folder.glob("rank*.jsonl"):
        entries = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        means[int(path.stem.removeprefix("rank"))] = statistics.fmean(
            entry["seconds"] for entry in entries if entry["step"] >= first_step
        )
    return max(means, key=lambda rank: means[rank])
