"""The step-time curve: every shown step of the job, the window, and what is healthy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.analysis import StepClock
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.report.axes import Columns, Tick, choose_columns, ticks

__all__ = ["HEIGHT", "Curve", "draw_curve"]

HEIGHT: Final = 210
TOP: Final = 14
BOTTOM: Final = 168
# Steps far above all others, such as the first one, are cut off and marked: they would flatten everything else.
SHOWN_QUANTILE: Final = 0.97
HEADROOM: Final = 1.12


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line: where, and what it says."""

    y: float
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Geometry of the curve; `cut` are the columns whose steps took longer than the axis reaches."""

    columns: Columns
    line: str
    window: tuple[float, float] | None
    levels: tuple[Level, ...]
    y_ticks: tuple[Tick, ...]
    cut: tuple[tuple[float, str], ...]
    rows: tuple[tuple[str, str], ...]


def draw_curve(clock: StepClock, verdict: Verdict) -> Curve:
    """Return the curve of a job's steps; steps that share a column are drawn as their mean."""
    columns = choose_columns(clock.numbers)
    step_s = [float(clock.step_s[a:b].mean()) for a, b in columns.bounds]
    wanted = [float(np.quantile(step_s, SHOWN_QUANTILE))]
    wanted += [s for s in (verdict.step_s, verdict.healthy_step_s) if s is not None]
    top_s = max(wanted) * HEADROOM or 1.0

    def y(value_s: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * min(value_s / top_s, 1.0), 1)

    points = [f"{columns.x(i + 0.5):.1f},{y(s)}" for i, s in enumerate(step_s)]
    levels = []
    if verdict.healthy_step_s is not None:
        healthy = f"healthy {seconds(verdict.healthy_step_s)}"
        levels.append(Level(y(verdict.healthy_step_s), healthy, "healthy"))
    return Curve(
        columns=columns,
        line=" ".join(points),
        window=columns.span(verdict.window.first_step, verdict.window.last_step),
        levels=tuple(levels),
        y_ticks=tuple(Tick(y(value), seconds(value)) for value in ticks(top_s, 4)),
        cut=tuple(
            (round(columns.x(i + 0.5), 1), f"{columns.label(i)}: {seconds(s)}")
            for i, s in enumerate(step_s)
            if s > top_s
        ),
        rows=tuple((columns.label(i), seconds(s)) for i, s in enumerate(step_s)),
    )
