"""Run live cases; print a line a run, keep every first attempt.

    PYTHONPATH=tests python -m gauntlet.live                                     every case once
    PYTHONPATH=tests python -m gauntlet.live --case hang_sleep --runs 5 --parallel 4
    PYTHONPATH=tests python -m gauntlet.live --kind "near miss" --variant "without bpf" --keep /tmp/runs

Jobs that hang mostly sleep, so several run at once; jobs that compute run alone. Runs are added to the results; nothing
is run again because it was wrong.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gauntlet.live.case import END, HANG, NEAR, choose
from gauntlet.live.judge import find_invalid, judge, read_opened, shows_line
from gauntlet.live.published import CASES, VARIANTS, add_live, describe_run, read_live
from gauntlet.live.session import WATCH_S, run_live
from rootwalk.instrumentation.errors import RootwalkError, UnavailableError

# Of an error, the last characters.
MOST_WORDS = 2000


class Places:
    """As many runs at once as there are places; one that computes takes all of them.

    Args:
        count: Of places.
    """

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._changed = threading.Condition()

    @contextmanager
    def take(self, *, every: bool) -> Iterator[None]:
        """Hold one place, or all."""
        wanted = self._count if every else 1
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


def run_once(
    name: str, number: int, variant: str, keep: Path | None, watch_s: float = WATCH_S
) -> dict[str, Any]:
    """Run a case once; return its row.

    Args:
        name: Of the case.
        number: Of the run, from 0: what the runs take turns in.
        variant: Which sensors are left out.
        keep: Folder for the files of runs that are wrong; None for nowhere.
        watch_s: How long a hang of which nothing is said is watched, s.
    """
    case = CASES[name]
    choice = choose(case, number)
    row: dict[str, Any] = {"variant": variant, "number": number, **describe_run()}
    row |= {"launcher": choice.launcher, "ranks": choice.ranks, "step_s": choice.step_s}
    row |= {"ending": choice.ending if not case.ends_itself else "by itself"}
    with tempfile.TemporaryDirectory(prefix="live-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        try:
            watched = run_live(case, choice, folder, VARIANTS[variant], watch_s)
        except UnavailableError as error:
            return row | {"not_run": str(error)}
        except (RootwalkError, OSError, subprocess.SubprocessError) as error:
            row["invalid"] = f"harness: {error}"[-MOST_WORDS:]
        else:
            row["invalid"] = find_invalid(case, choice, watched)
            row |= judge(case, watched, read_opened(folder / "store.duckdb"))
            row |= {"shows_line": shows_line(watched), "exit_code": watched.exit_code}
            row |= {"run_s": watched.run_s, "verdict_from": watched.verdict_from}
        if keep is not None and not (row.get("right") and row["invalid"] is None):
            keep_run(folder, keep / f"{name}-{variant.replace(' ', '-')}-{int(time.time())}")
    return row


def keep_run(folder: Path, copy: Path) -> None:
    """Copy what is needed to examine a run again."""
    copy.mkdir(parents=True)
    for name in ("store.duckdb", "verdict.json", "stdout.txt", "stderr.txt", "truth.jsonl"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy)
    if (folder / "steps").exists():
        shutil.copytree(folder / "steps", copy / "steps")


def describe(name: str, row: dict[str, Any]) -> str:
    """Return a run in a line."""
    head = f"{name} [{row['variant']}; {row['launcher']}, {row['ranks']} ranks, {row['ending']}]:"
    if row.get("not_run"):
        return f"{head} not run: {row['not_run']}"
    if "right" not in row:
        return f"{head} invalid: {row['invalid']}"
    word = "right" if row["right"] else "WRONG"
    named = "" if row["named_s"] is None else f", named after {row['named_s']} s"
    invalid = "" if row["invalid"] is None else f" (invalid: {row['invalid']})"
    rank = "right" if row["rank_right"] else "wrong"
    return f"{head} {word}{invalid}{named}; rank {rank}; {row['found']}; {row['first_line']}"


def read_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=sorted(CASES), default=[])
    parser.add_argument("--kind", action="append", choices=[HANG, END, NEAR], default=[])
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="all sensors")
    parser.add_argument("--runs", type=int, default=1, metavar="N")
    parser.add_argument("--parallel", type=int, default=4, metavar="N", help="jobs at once")
    parser.add_argument("--watch", type=float, default=WATCH_S, metavar="S", help="of a hang")
    parser.add_argument("--keep", type=Path, help="folder for the files of runs that are wrong")
    parser.add_argument("--no-results", action="store_true", help="print only, add no row")
    return parser.parse_args()


def main() -> int:
    """Run what is asked for; return 1 when a run that counts is wrong."""
    arguments = read_arguments()
    names = arguments.case or [
        name for name, case in CASES.items() if not arguments.kind or case.kind in arguments.kind
    ]
    names.sort(key=lambda name: CASES[name].needs_cpu)  # those that run alone come last
    places = Places(arguments.parallel)
    variant: str = arguments.variant

    def run(name: str, number: int) -> dict[str, Any]:
        with places.take(every=CASES[name].needs_cpu):
            return run_once(name, number, variant, arguments.keep, arguments.watch)

    wrong = 0
    with ThreadPoolExecutor(arguments.parallel) as pool:
        began = {name: sum(row["variant"] == variant for row in read_live(name)) for name in names}
        jobs = {
            pool.submit(run, name, began[name] + number): name
            for number in range(arguments.runs)
            for name in names
        }
        for job in as_completed(jobs):
            name, row = jobs[job], job.result()
            if not arguments.no_results:
                add_live(name, row)
            print(describe(name, row), flush=True)
            wrong += row.get("invalid") is None and row.get("right") is False
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
