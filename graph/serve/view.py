"""Parts of the live page as HTML, with the report's own pictures and words: the same data gives the same picture."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rootwalk.graph.passages import visible
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.report.axes import LEFT, PLOT_WIDTH, WIDTH, ticks
from rootwalk.graph.report.page import (
    page_values,
    template_environment,
    time_words,
)
from rootwalk.graph.report.quantities import quantity
from rootwalk.graph.report.reading import ReportData
from rootwalk.graph.serve.rank_step import Lane, RankStep
from rootwalk.graph.serve.route import Hop
from rootwalk.graph.serve.static_files import library_paths

__all__ = [
    "render_job",
    "render_login",
    "render_rank_step",
    "render_route",
    "render_shell",
]

_TEMPLATES: Final = ("shell.html", "job.html", "rank_step.html", "route.html", "login.html")
LANE_HEIGHT: Final = 26
# Narrower pieces cannot be seen; they are in the table.
MIN_WIDTH: Final = 0.6
# Widths of letters at the size of the names, for those that fit into their piece.
LETTER_WIDTH: Final = 6.6


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    kind: str
    name: str
    text: str


def render_shell(version: str) -> str:
    """Return the page without what it shows: it asks for that."""
    libraries = {path.rpartition("/")[2]: path for path in library_paths()}
    return _render("shell.html", {"version": version, "libraries": libraries})


def render_login(has_failed: bool) -> str:
    """Return the page that asks for a token."""
    return _render("login.html", {"has_failed": has_failed})


def render_job(report: ReportData) -> str:
    """Return the answer and its pictures."""
    return _render("job.html", page_values(report))


def render_rank_step(
    step: RankStep | None, rank: int, number: int, steps: tuple[int, int] | None, query: str
) -> str:
    """Return what one rank did in one step.

    Args:
        step: What is known; None where the store has no such complete step.
        rank: The rank that was asked for.
        number: The step that was asked for.
        steps: First and last step to go to, None unknown.
        query: SQL that lists the rank's waits.
    """
    boxes, marks = ([], []) if step is None else _boxes(step)
    values = {
        "step": step,
        "rank": rank,
        "number": number,
        "steps": steps,
        "boxes": boxes,
        "marks": marks,
        "lane_height": LANE_HEIGHT,
        "plane": {"left": LEFT + 24, "width": WIDTH, "plot": PLOT_WIDTH - 24},
        "rows": []
        if step is None
        else [(lane, piece) for lane in step.lanes for piece in lane.pieces],
        "query": query,
    }
    return _render("rank_step.html", values)


def render_route(hops: tuple[Hop, ...], ends: tuple[int, int], window_s: int) -> str:
    """Return the hops between two ranks; an empty route where one of them is not in the job."""
    rows = [
        (hop, [f"{fact.words} {quantity(fact.value, fact.unit)}" for fact in hop.facts])
        for hop in hops
    ]
    return _render("route.html", {"rows": rows, "ends": ends, "window_s": window_s})


def _boxes(step: RankStep) -> tuple[list[_Box], list[tuple[float, str]]]:
    """Return the drawing of all lanes, and the marks of its axis."""
    left, width = LEFT + 24, PLOT_WIDTH - 24
    length_s = max([step.step_s, *(p.end_s for lane in step.lanes for p in lane.pieces)], default=0)
    scale = width / length_s if length_s > 0 else 0.0
    boxes = []
    for row, lane in enumerate(step.lanes):
        for piece in lane.pieces:
            x = left + max(piece.start_s, 0.0) * scale
            wide = (piece.end_s - max(piece.start_s, 0.0)) * scale
            if wide < MIN_WIDTH:
                continue
            name = visible(piece.text)
            shown = name if len(name) * LETTER_WIDTH < wide - 8 else ""
            length = seconds(piece.end_s - piece.start_s)
            text = f"{lane.name}, from {seconds(piece.start_s)} for {length}: {piece.text}"
            boxes.append(
                _Box(round(x, 1), row * LANE_HEIGHT, round(wide, 1), piece.kind, shown, text)
            )
    marks = [(round(left + value * scale, 1), seconds(value)) for value in ticks(length_s, 6)]
    return boxes, marks


def lane_name(lane: Lane) -> str:
    """Return a lane's name, short enough to stand beside it."""
    name = visible(lane.name)
    return name if len(name) <= 20 else name[:19] + "…"


def _render(name: str, values: dict[str, Any]) -> str:
    text: str = _environment().get_template(name).render(values)
    return text


@functools.cache
def _environment() -> Any:
    environment = template_environment({name: _text(name) for name in _TEMPLATES})
    environment.filters |= {"clock": time_words, "lane": lane_name}
    return environment


def _text(name: str) -> str:
    return (resources.files("rootwalk.graph.serve") / "templates" / name).read_text("utf-8")
