"""Put the page together: the words of the verdict, the pictures, and a way from each number to its telemetry.

The page loads nothing and sends nothing: style and script are inside, named by their hashes in its content security
policy, so that nothing that a name smuggles in could run. Jinja escapes every value; what shows as nothing, or as
something else, is made visible first.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from rootwalk.graph.model import EvidenceView, Finding, Verdict
from rootwalk.graph.passages import flowing, visible
from rootwalk.graph.reasons import Signal
from rootwalk.graph.render.digits import money, seconds
from rootwalk.graph.render.hang import telling_frames
from rootwalk.graph.render.remarks import remarks
from rootwalk.graph.render.text import (
    opening,
    passages,
    render_text,
    shown_first,
    signal_name,
)
from rootwalk.graph.report.axes import LEFT, PLOT_WIDTH, WIDTH
from rootwalk.graph.report.bars import BAR_WIDTH, draw_bars
from rootwalk.graph.report.chain import BOX_HEIGHT, BOX_WIDTH, draw_chain
from rootwalk.graph.report.curve import BOTTOM, HEIGHT, TOP, draw_curve
from rootwalk.graph.report.flames import ROW_HEIGHT, DrawnFlame, draw_flame
from rootwalk.graph.report.heat_map import MAX_ROWS, HeatMap, draw_heat_map, scale_top_s
from rootwalk.graph.report.quantities import duration, quantity, ratio, size
from rootwalk.graph.report.reading import ReportData, choose_ranks, told_query
from rootwalk.graph.verdict import to_json

__all__ = [
    "list_ranges",
    "page_values",
    "read_template",
    "render_page",
    "template_environment",
    "time_words",
]

_TEMPLATES: Final = ("page.html", "pictures.html")
# What people can run to see the numbers of a picture; values as in `told_query`.
_EDGES: Final = (
    "SELECT source_id, kind, target_id, seconds, evidence_ids FROM edges"
    " WHERE job = ? AND ? IN (source_id, target_id)"
)
_STEP_TIMES: Final = (
    "SELECT step, (max(end_unix_ns) - min(start_unix_ns)) / 1e9 AS step_s FROM steps"
    " WHERE job = ? AND coalesce(attempt, 0) = ? AND step BETWEEN ? AND ? GROUP BY step ORDER BY step"
)
_PHASES: Final = (
    "SELECT step, rank, phase, duration_ns, running_ns, runnable_foreign_ns, runnable_own_ns, runnable_idle_ns,"
    " blocked_ns, gc_ns FROM phases WHERE job = ? AND coalesce(attempt, 0) = ? AND step BETWEEN ? AND ?"
    " ORDER BY step, rank, phase_index"
)
# Ranks that are listed one by one; ranges stand for neighbours.
MAX_RANGES: Final = 40


@dataclass(frozen=True, slots=True)
class MapView:
    """A map with what it is called."""

    title: str
    map: HeatMap


def render_page(report: ReportData) -> str:
    """Return the page as one HTML document."""
    verdict = report.verdict
    style, script = read_template("page.css"), read_template("page.js")
    return (
        template_environment()
        .get_template("page.html")
        .render(
            page_values(report),
            policy=(
                f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
                " base-uri 'none'; form-action 'none'"
            ),
            style=Markup(style),  # noqa: S704  (our own file)
            script=Markup(script),  # noqa: S704
            flames=_flames(report),
            text=render_text(verdict),
            json=to_json(verdict),
        )
    )


def page_values(report: ReportData) -> dict[str, Any]:
    """Return what templates with these pictures show of a report, by name."""
    verdict = report.verdict
    return {
        "report": report,
        "verdict": verdict,
        "opening": opening(verdict),
        "passages": passages(verdict),
        "remarks": remarks(verdict),
        "figures": _figures(verdict),
        "curve": draw_curve(report.clock, verdict) if report.clock is not None else None,
        "maps": _maps(report),
        "bars": draw_bars(report.shares, report.ranks, verdict) if report.shares else None,
        "bars_are_all": report.shares is not None and len(report.shares.ranks) == len(report.ranks),
        "chains": [draw_chain(finding, report.graph) for finding in verdict.findings],
        "costs": _costs(verdict),
        "queries": _queries(report),
        "plane": {"left": LEFT, "width": WIDTH, "plot": PLOT_WIDTH, "bar": BAR_WIDTH},
        "plot": {"height": HEIGHT, "top": TOP, "bottom": BOTTOM},
        "boxes": {"width": BOX_WIDTH, "height": BOX_HEIGHT},
        "flame_row": ROW_HEIGHT,
    }


def template_environment(more: Mapping[str, str] | None = None) -> Environment:
    """Return an environment that escapes every value; the templates of the page, and `more` by name."""
    known = {name: read_template(name) for name in _TEMPLATES}
    environment = Environment(
        loader=DictLoader(known | dict(more or {})),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {
        "seconds": seconds,
        "time": time_words,
        "ratio": ratio,
        "quantity": quantity,
        "signal": signal_name,
        "flowing": flowing,
        "ranges": list_ranges,
        "shell": shlex.quote,
        "link_query": _link_query,
        "evidence_order": _in_order,
        "telling": telling_frames,
    }
    return environment


def read_template(name: str) -> str:
    """Return the text of one of the page's files."""
    return (resources.files("rootwalk.graph.report") / "templates" / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def time_words(unix_ns: int | None) -> str:
    """Return a Unix time in UTC, to the second."""
    if unix_ns is None:
        return "unknown"
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def list_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with ranges for neighbours.

    >>> list_ranges([0, 1, 2, 5])
    '0 to 2, 5'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number, number])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in ranges[:MAX_RANGES]]
    if len(ranges) > MAX_RANGES:
        words.append("…")
    return ", ".join(words)


_BASELINES = {
    "history": "healthy, from its history",
    "peers": "healthy, as its fastest ranks",
    "ideal": "healthy, by replay",
    None: "healthy",
}


def _figures(verdict: Verdict) -> list[tuple[str, str]]:
    """Return the numbers that people compare, with their names."""
    figures = []
    if verdict.step_s is not None:
        figures.append(("a step", seconds(verdict.step_s)))
    if verdict.healthy_step_s is not None:
        figures.append((_BASELINES[verdict.healthy_from], seconds(verdict.healthy_step_s)))
    if verdict.predicted_step_s is not None:
        figures.append(("without the first cause", seconds(verdict.predicted_step_s)))
    lost = [f.lost for f in verdict.findings if f.lost.wall_s is not None]
    if lost:
        figures.append(("lost so far", duration(sum(item.wall_s or 0.0 for item in lost))))
        if all(item.device_s is not None for item in lost):
            device_s = sum(item.device_s or 0.0 for item in lost)
            figures.append(("lost so far, of all devices", duration(device_s)))
        if all(item.cost is not None for item in lost):
            figures.append(("cost so far", money(sum(item.cost or 0.0 for item in lost))))
    return figures


def _maps(report: ReportData) -> list[MapView]:
    """Return one map with all ranks; of very many ranks also one with those that stand out."""
    if report.clock is None or report.lateness_s is None or not report.ranks:
        return []
    top_s, numbers = scale_top_s(report.lateness_s), report.clock.numbers
    views = []
    if len(report.ranks) > MAX_ROWS:
        chosen = set(choose_ranks(report.ranks, report.verdict, report.lateness_s))
        places = [i for i, row in enumerate(report.ranks) if row.rank in chosen]
        some = draw_heat_map(
            report.lateness_s[places],
            [report.ranks[i] for i in places],
            numbers,
            report.verdict,
            top_s,
        )
        views.append(MapView("Ranks that stand out, and others at even distances", some))
    everything = draw_heat_map(report.lateness_s, report.ranks, numbers, report.verdict, top_s)
    is_grouped = len(everything.rows) < len(report.ranks)
    title = (
        "All ranks, neighbours together: the latest of each group" if is_grouped else "All ranks"
    )
    return [*views, MapView(title, everything)]


def _flames(report: ReportData) -> dict[str, list[DrawnFlame]]:
    """Return the flame graphs by the id of their finding."""
    result: dict[str, list[DrawnFlame]] = {}
    findings = {finding.id: finding for finding in report.verdict.findings}
    for case in report.flames:
        drawn = draw_flame(case, findings.get(case.finding))
        result.setdefault(case.finding, []).append(drawn)
    return result


def _in_order(finding: Finding) -> list[EvidenceView]:
    """Return a finding's evidence: what the text shows of it, then what grew most."""
    first = [*shown_first(finding), Signal.WAIT, Signal.STEP]

    def place(row: EvidenceView) -> tuple[int, float]:
        growth = (row.value or 0.0) - (row.history or 0.0)
        return first.index(row.signal) if row.signal in first else len(first), -growth

    return sorted(finding.evidence, key=place)


def _link_query(node: str, verdict: Verdict) -> str:
    return told_query(_EDGES, verdict.job.id, node)


def _queries(report: ReportData) -> dict[str, str]:
    """Return SQL for what the pictures show."""
    if report.clock is None:
        return {}
    job, attempt = report.verdict.job.id, report.verdict.job.attempt or 0
    span = (report.clock.numbers[0], report.clock.numbers[-1])
    queries = {"curve": told_query(_STEP_TIMES, job, attempt, *span)}
    if report.shares is not None:
        span = (report.shares.first_step, report.shares.last_step)
        queries["shares"] = told_query(_PHASES, job, attempt, *span)
    return queries


def _costs(verdict: Verdict) -> list[tuple[str, str]]:
    """Return what the observation cost, as far as somebody measured it."""
    cost = verdict.cost
    rows = [
        (
            "agents and kernel programs, of the time of the ranks' steps",
            _known(cost.agent_cpu_ratio, ratio),
        ),
        ("memory of the largest agent", _known(cost.agent_rss_bytes, size)),
        ("telemetry, for each rank and step", _known(cost.bytes_per_rank_step, size)),
        (
            "events, for each rank and step",
            _known(cost.events_per_rank_step, lambda n: f"{n:.1f} events"),
        ),
    ]
    rows += [(f"kernel program {name}, CPU time", seconds(s)) for name, s in cost.bpf_s.items()]
    rows += [(f"dropped, {name}", f"{count:,}") for name, count in cost.dropped.items()]
    rows += [
        ("this diagnosis took", _known(cost.diagnose_s, seconds)),
        ("and its memory was, at most", _known(cost.peak_rss_bytes, size)),
    ]
    return rows


def _known(value: Any, say: Any) -> str:
    return "not measured" if value is None else str(say(value))
