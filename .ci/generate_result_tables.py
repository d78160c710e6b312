"""Generate the documents' tables of measurements from the results that the benchmarks have left.

    python .ci/generate_result_tables.py [--check]

The numbers are those of tests/benchmarks/results; nobody types them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from documents import ROOT, Documents

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


def generate_score(report: dict[str, Any]) -> str:
    """Return the table of verdicts about public traces, beside what simple rules say."""
    traces = report["traces"]
    rules = list(next(iter(traces.values()))["rules"])
    rows = []
    for name, found in traces.items():
        share_s = found["whole"][0]["share_s"] if found["whole"] else 0.0
        answer = found["whole"][0]["answer"] if found["whole"] else "nobody"
        cells = [
            f"{name}: {found['cause']}",
            f"{found['right']} of {found['steps']}",
            str(found["accused_others"]),
            f"{answer}, {share_s:.3g} s of {found['step_s']:.3g} s",
            f"{found['slowdown']:.3f} ({found['published']:.3f})",
            *(str(found["rules"][rule]["right"]) for rule in rules),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    lines = [
        "| trace and known cause | steps right, each alone | steps that accuse another rank "
        f"| whole trace, its share of a step | slowdown (published) | {' | '.join(rules)} |",
        f"|---|---|---|---|---|{'---|' * len(rules)}",
        *rows,
        *render_others(report, rules),
        "",
        f"{report['date']}, {report['machine']}; `make score`.",
    ]
    return "\n".join(lines) + "\n"


def render_size(row: dict[str, Any], limits_s: dict[str, float]) -> str:
    """Return the row of one job."""
    limit_s = limits_s.get(str(row["ranks"])) if row["operations"] == 50 else None
    named = "; ".join(
        f"`{n['reason']}` rank {n['rank']}, {n['share_s']:.3f} s" for n in row["named"]
    )
    cells = [
        f"{row['ranks']:,}",
        f"{row['spans'] / 1e6:.1f} M",
        f"{row['seconds']:.1f} ({row['cpu_s']:.1f})",
        "" if limit_s is None else f"{limit_s:g}",
        f"{row['peak_bytes'] / 1e9:.2f}",
        f"`{row['fault']}` on rank {row['culprit']}, {row['longer_s']:.3f} s"
        if row["fault"]
        else "nothing",
        named or row["outcome"],
    ]
    return f"| {' | '.join(cells)} |"


def generate_job_scale(report: dict[str, Any]) -> str:
    """Return the table of what a diagnosis of a large job takes, and what it says."""
    lines: list[str] = []
    for operations in sorted({row["operations"] for row in report["rows"]}):
        lines += [
            f"About {operations} operations of a rank in a step:",
            "",
            "| ranks | spans | s (of CPU) | wanted, s | peak memory, GB | injected, and what it costs a step | named |",
            "|---|---|---|---|---|---|---|",
            *(
                render_size(r, report["limits_s"])
                for r in report["rows"]
                if r["operations"] == operations
            ),
            "",
        ]
    loads = [row["load"] for row in report["rows"]]
    lines += [
        f"28 healthy steps and 16 in question; best of {min(row['runs'] for row in report['rows'])} or more. Load when "
        f"measured: {min(loads):.0f} to {max(loads):.0f}. {report['date']}, {report['machine']}; `make bench-scale`."
    ]
    return "\n".join(lines) + "\n"


def generate_operation_scale(report: dict[str, Any]) -> str:
    """Return the table of what a diagnosis of a large operation trace takes, and what it says."""
    rows = []
    for row in report["rows"]:
        injected = "a stage" if row["culprit"] is None else f"rank {row['culprit']}"
        whom = "stage" if row["culprit"] is None else "rank"
        named = "; ".join(
            f"`{n['reason']}` {whom} {n[whom]}, {n['share_s']:.3f} s" for n in row["named"]
        )
        cells = [
            f"{row['ranks']:,}",
            f"{row['operations'] / 1e6:.2f} M",
            f"{row['seconds']:.1f} ({row['cpu_s']:.1f})",
            f"{report['limits_s'][str(row['ranks'])]:g}",
            f"{row['peak_bytes'] / 1e9:.2f}",
            injected,
            named or row["outcome"],
        ]
        rows.append(f"| {' | '.join(cells)} |")
    loads = [row["load"] for row in report["rows"]]
    lines = [
        "| ranks | operations | s (of CPU) | wanted, s | peak memory, GB | slower | named |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"16 steps; best of {min(row['runs'] for row in report['rows'])} or more. Load when measured:"
        f" {min(loads):.0f} to {max(loads):.0f}. {report['date']}, {report['machine']}; `make bench-operations`.",
    ]
    return "\n".join(lines) + "\n"


def render_others(report: dict[str, Any], rules: list[str]) -> list[str]:
    """Return the rows of hangs and profiles: one verdict each; of a rule what it names, and if that is a victim."""
    rows = []
    for name, found in (report["hangs"] | report["profiles"]).items():
        share = ""
        if found.get("share_s"):
            share = f", {found['share_s']:.2g} s of {found['step_s']:.2g} s"
        said = []
        for rule in rules:
            told = found["rules"].get(rule)
            is_right = told is not None and told["right"]
            said.append("-" if told is None else f"{int(is_right)}: {told['answer']}")
        cells = [
            f"{name}: {found['cause']}",
            f"{int(found['right'])} of 1",
            str(found["accused_others"]),
            f"{found['answer']}{share}",
            "-",
            *said,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def render_doses(head: str, doses: list[str]) -> list[str]:
    """Return the head of a table with a column a dose."""
    named = " | ".join(f"{dose} %" for dose in doses)
    return [f"| {head} | {named} |", f"|---|{'---|' * len(doses)}"]


def generate_injected(report: dict[str, Any]) -> str:
    """Return the tables of workers that were made slower: one, a stage, all; and two at once."""
    doses = list(report["stage"])
    lines = render_doses("slower by", doses)
    if "one" in report:
        lines += render_one(report["one"])
    stage = [f"{d['named']} of {d['stages']}; {d['workers']}" for d in report["stage"].values()]
    lines.append(f"| a stage: the split is named; a worker is | {' | '.join(stage)} |")
    every = [f"{'yes' if d['same'] else 'no'}; {d['workers']}" for d in report["all"].values()]
    lines.append(f"| all workers: the same verdict; a worker is named | {' | '.join(every)} |")
    if "two" in report:
        lines += ["", *render_two(report["two"])]
    return "\n".join([*lines, "", f"{report['date']}, {report['machine']}; `make injected`.", ""])


def render_one(one: dict[str, Any]) -> list[str]:
    """Return the rows of single workers, over few steps and many."""
    windows = list(next(iter(one.values()))["steps"])
    ranges = [f"{min(d['longer']):.1%} to {max(d['longer']):.1%}" for d in one.values()]
    rows = [f"| one worker: steps are longer by | {' | '.join(ranges).replace('%', ' %')} |"]
    over = f"{', '.join(windows[:-1])} and {windows[-1]} steps"
    for label, key in (
        ("of all workers it costs most", "worst"),
        ("it is named", "right"),
        ("another is named", "wrong"),
    ):
        cells = [
            f"{', '.join(str(d['steps'][n][key]) for n in windows)} of {d['workers']}"
            for d in one.values()
        ]
        rows.append(f"| one worker, over {over}: {label} | {' | '.join(cells)} |")
    return rows


def render_two(two: dict[str, Any]) -> list[str]:
    """Return the table of two workers at once."""
    errors = [[abs(e) for e in d["errors"]] for d in two.values()]
    off = [f"{statistics.median(e):.0%}; {max(e):.0%}" if e else "-" for e in errors]
    rows = {
        "pairs of which each costs enough": [f"{d['told']} of {d['pairs']}" for d in two.values()],
        "of these, both are named": [f"{d['both']} of {d['told']}" for d in two.values()],
        "another is named": [f"{d['wrong']} of {d['pairs']}" for d in two.values()],
        "seconds are off by: median; at most": [cell.replace("%", " %") for cell in off],
    }
    head = render_doses("two workers, no uneven split, slower by", list(two))
    return [*head, *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows.items())]


def generate_healthy(report: dict[str, Any]) -> str:
    """Return how many generated runs were called healthy."""
    return (
        f"{report['healthy']} of {report['runs']} generated runs are `healthy`; their work varies as that of "
        f"{report['workers']} real workers.\n{report['date']}, {report['machine']}; `make healthy`.\n"
    )


TABLES = {
    "runs": ("demo_runs.json", generate_runs),
    "ingest": ("ingest.json", generate_ingest),
    "overhead": ("overhead.json", generate_overhead),
    "score": ("score.json", generate_score),
    "job scale": ("job_scale.json", generate_job_scale),
    "operation scale": ("operation_scale.json", generate_operation_scale),
    "injected": ("injected.json", generate_injected),
    "healthy": ("healthy.json", generate_healthy),
}


def generate_gauntlet() -> str:
    """Return the tables of the gauntlet, whose results are a file a case."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gauntlet.table import generate

    return generate()


def generate_live() -> str:
    """Return the tables of jobs that hang, end or only take long, whose results are a file a case."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gauntlet.live.published import generate_live

    return generate_live()


def generate_start() -> str:
    """Return the tables of jobs that lose time from the start or now and then, whose results are a file a case."""
    sys.path.insert(0, str(ROOT / "tests"))
    from gauntlet.start.published import generate_start

    return generate_start()


def main() -> int:
    """Write the tables, or with ``--check`` return 1 when one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    arguments = parser.parse_args()
    documents = Documents(COMMAND)
    for name, (results, generate) in TABLES.items():
        documents.place(name, generate(json.loads((RESULTS / results).read_text(encoding="utf-8"))))
    documents.place("gauntlet", generate_gauntlet())
    documents.place("live hangs", generate_live())
    documents.place("from the start", generate_start())
    return documents.settle(check=arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())
