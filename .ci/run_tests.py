"""Run tests in two turns: those that disturb nobody side by side, then those that measure the machine, each alone.

    python .ci/run_tests.py test -m "not long" tests/unit tests/integration [--durations=15 -k store ...]

Everything after the name goes to pytest. The name is that of `.setup/junit-NAME.xml`, which holds both turns; the last
line adds them up. The interpreter's own environment is tested. Which test is `alone`, tests/conftest.py says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

STATE = Path(__file__).resolve().parent.parent / ".setup"
# Tests share one disk, and some take 1 GB.
MOST_WORKERS = 4
NO_TESTS = 5
ALONE = "alone"


def select(arguments: list[str], more: str) -> list[str]:
    """Return pytest's arguments with one more condition on marks."""
    arguments = list(arguments)
    if "-m" not in arguments:
        return [*arguments, "-m", more]
    place = arguments.index("-m") + 1
    arguments[place] = f"({arguments[place]}) and {more}"
    return arguments


def run_turn(arguments: list[str], report: Path, sent: Path) -> int:
    """Run pytest once and return its exit status; no test to run is no failure. Names that were sent go to a folder."""
    report.unlink(missing_ok=True)
    # -P: what is installed is tested, not what lies in this folder.
    command = [sys.executable, "-P", "-m", "pytest", *arguments, f"--junitxml={report}"]
    environment = os.environ | {"ROOTWALK_SENT_FOLDER": str(sent)}
    code = subprocess.run(command, env=environment, check=False).returncode
    return 0 if code == NO_TESTS else code


def count(reports: list[Path]) -> Counter[str]:
    """Return how many tests passed, failed, broke and were skipped."""
    counts: Counter[str] = Counter()
    for report in reports:
        # Our own pytest has just written this file.
        for suite in ET.parse(report).iter("testsuite"):  # noqa: S314
            numbers = {key: int(suite.get(key, "0")) for key in ("failures", "errors", "skipped")}
            counts["failed"] += numbers["failures"]
            counts["errors"] += numbers["errors"]
            counts["skipped"] += numbers["skipped"]
            counts["passed"] += int(suite.get("tests", "0")) - sum(numbers.values())
    return counts


def join(reports: list[Path], path: Path) -> None:
    """Write one report with the suites of all."""
    root = ET.Element("testsuites")
    for report in reports:
        root.extend(ET.parse(report).iter("testsuite"))  # noqa: S314  (as above)
        report.unlink()
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def main() -> int:
    """Run both turns; return the first failure's exit status."""
    name, *arguments = sys.argv[1:]
    STATE.mkdir(exist_ok=True)
    begun_s = time.monotonic()
    workers = ["-n", "logical", "--maxprocesses", str(MOST_WORKERS), "--dist", "loadfile"]
    turns = [
        ([*select(arguments, f"not {ALONE}"), *workers], STATE / f"turn-{name}-side-by-side.xml"),
        (select(arguments, ALONE), STATE / f"turn-{name}-alone.xml"),
    ]
    sent = STATE / "sent" / name
    shutil.rmtree(sent, ignore_errors=True)
    sent.mkdir(parents=True)
    codes = [run_turn(command, report, sent) for command, report in turns]
    reports = [report for _, report in turns if report.exists()]
    counts = count(reports)
    join(reports, STATE / f"junit-{name}.xml")
    words = ", ".join(
        f"{counts[key]} {key}" for key in ("failed", "passed", "skipped", "errors") if counts[key]
    )
    spent_s = time.monotonic() - begun_s
    sys.stdout.write(f"===== {words or 'no tests ran'} in {spent_s:.2f}s =====\n")
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main())
