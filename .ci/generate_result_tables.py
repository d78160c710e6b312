"""Generate the README's tables of measurements from the results that the benchmarks have left.

    python .ci/generate_result_tables.py [--check]

The numbers are those of tests/benchmarks/results; nobody types them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "tests" / "benchmarks" / "results"
COMMAND = "make result-tables"


def render_share(ratio: dict[str, Any] | None, runs: int) -> str:
    """Return median and range of a ratio, and how many runs are close."""
    if ratio is None:
        return "not told"
    median, lowest, highest = (f"{ratio[name]:.2f}" for name in ("median", "lowest", "highest"))
    return f"{median} ({lowest} to {highest}); {ratio['close']} of {runs}"


def render_percent(ratio: dict[str, Any] | None, runs: int) -> str:
    """Return median and range of a ratio as per cent, and how many runs are close."""
    if ratio is None:
        return "not told"
    median, lowest, highest = (f"{ratio[name]:.0%}" for name in ("median", "lowest", "highest"))
    low, high = lowest.replace("%", " %"), highest.replace("%", " %")
    return f"{median.replace('%', ' %')} ({low} to {high}); {ratio['close']} of {runs}"


def render_row(fault: str, score: dict[str, Any]) -> str:
    """Return the row of one fault."""
    right = f"{score['right']} of {score['runs']}"
    if fault == "none":
        return f"| `none` | {right} healthy | | | |"
    bands = ", ".join(f"{count} {band}" for band, count in score.get("bands", {}).items())
    cells = [
        f"`{fault}`",
        f"{right} ({bands})" if bands else right,
        render_share(score.get("share_ratio"), score["runs"]),
        render_share(score.get("predicted_ratio"), score["runs"]),
        render_percent(score.get("unexplained_ratio"), score["runs"]),
    ]
    return f"| {' | '.join(cells)} |"


def generate_runs(report: dict[str, Any]) -> str:
    """Return the table of demo runs, and where and when they were made."""
    places: dict[str, list[str]] = {}
    for fault, entry in report.items():
        places.setdefault(f"{entry['date']}, {entry['machine']}", []).append(f"`{fault}`")
    if len(places) == 1:
        where = next(iter(places))
    else:
        where = "; ".join(f"{', '.join(faults)}: {place}" for place, faults in places.items())
    lines = [
        "| fault | right (confidence) | its share of the slowdown; within 20 % "
        "| predicted over healthy step; within 10 % | unexplained of the slowdown; within 15 % |",
        "|---|---|---|---|---|",
        *(render_row(fault, entry["score"]) for fault, entry in report.items()),
        "",
        f"Median and range of the runs. {where}; `make bench-demo`.",
    ]
    return "\n".join(lines) + "\n"


def generate_ingest(report: dict[str, Any]) -> str:
    """Return the table of what the receiver takes in, and on what it was measured."""
    rows = [
        f"| {row['case']} | {row['records_per_cpu_s']:,} | {row['us_per_record']:g} | {row['limit']} |"
        for row in report["rows"]
    ]
    where = f"{report['cores']} cores, Python {report['python']}, DuckDB {report['duckdb']}"
    lines = [
        "| what is sent | records per CPU-second | CPU µs each | what limits it |",
        "|---|---|---|---|",
        *rows,
        "",
        f"Medians of {len(report['rows'][0]['rounds_per_cpu_s'])} rounds; {where}; `make bench-ingest`.",
    ]
    return "\n".join(lines) + "\n"


def render_cost(cost: dict[str, Any], limits_us: dict[str, float]) -> str:
    """Return the row of one level; the two kernel programs that take most are named."""
    programs = sorted(cost["programs_us"].items(), key=lambda item: -item[1])
    most = ", ".join(f"{name} {spent:.0f}" for name, spent in programs[:2])
    programs_us = sum(cost["programs_us"].values())
    limit_us = limits_us.get(str(cost["level"]))
    cells = [
        f"{cost['level']}{', lowered' if cost['is_lowered'] else ''}",
        f"{programs_us:,.0f} ({most})",
        f"{cost['agent_us']:,.0f}",
        f"{cost['in_process_us']:,.0f}",
        f"{programs_us + cost['agent_us'] + cost['in_process_us']:,.0f}",
        "" if limit_us is None else f"{limit_us:,.0f}",
        f"{cost['agent_bytes'] / 1e6:.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def generate_overhead(report: dict[str, Any]) -> str:
    """Return the table of what watching costs at each level, and how much longer steps were."""
    step_ms = report["levels"][0]["step_s"] * 1e3
    low, high = (f"{bound * 100:+.1f} %" for bound in report["interval"])
    mean = f"{sum(report['ratios']) / len(report['ratios']) * 100:+.1f} %"
    lines = [
        "| level | kernel programs | agent | hooks in the rank | all | wanted | agent's memory |",
        "|---|---|---|---|---|---|---|",
        *(render_cost(cost, report["limits_us"]) for cost in report["levels"]),
        "",
        f"CPU time of a rank and step in µs; {report['ranks']} ranks, 52 collectives in a step of {step_ms:.0f} ms; "
        "no user probe is set.",
        f"Steps at level 1 were {mean} longer, 95 % interval {low} to {high} ({len(report['ratios'])} pairs).",
        f"{report['date']}, {report['machine']}; `make bench-overhead`.",
    ]
    return "\n".join(lines) + "\n"


TABLES = {
    "runs": ("demo_runs.json", generate_runs),
    "ingest": ("ingest.json", generate_ingest),
    "overhead": ("overhead.json", generate_overhead),
}


def place_table(readme: str, name: str, table: str) -> str:
    """Return the README with a table between its marks.

    Raises:
        ValueError: If a mark is missing.
    """
    begin_mark = f"<!-- {name}: generated by `{COMMAND}`, do not edit -->"
    head, begin, rest = readme.partition(begin_mark)
    _, end, tail = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise ValueError(f"cannot place the table: {README.name} lacks {begin_mark}")
    return f"{head}{begin}\n{table}{end}{tail}"


def main() -> int:
    """Write the README, or with ``--check`` return 1 when a table of it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    arguments = parser.parse_args()
    readme = README.read_text(encoding="utf-8")
    wanted = readme
    for name, (results, generate) in TABLES.items():
        report = json.loads((RESULTS / results).read_text(encoding="utf-8"))
        wanted = place_table(wanted, name, generate(report))
    if wanted == readme:
        return 0
    if arguments.check:
        sys.stderr.write(f"{README.name} is stale: run `{COMMAND}`\n")
        return 1
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
