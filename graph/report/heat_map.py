"""The map of ranks and steps: which rank was late, and since when.

Cells of one colour are one path, cells side by side one rectangle of it: 64 ranks and 200 steps fit in little text.
The colours are classes; the style sheet gives them for light, dark and print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray, RankRow
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.report.axes import Columns, Tick, choose_columns, round_up

__all__ = ["LEVELS", "HeatMap", "draw_heat_map", "scale_top_s"]

# Colours; the last one is for everything above, too.
LEVELS: Final = 8
# More ranks share rows.
MAX_ROWS: Final = 128
# Rows with a name beside them, so that names do not touch.
NAME_HEIGHT: Final = 15
TALLEST_ROW: Final = 26
SHORTEST_ROW: Final = 5
WANTED_HEIGHT: Final = 512
# A rank is late when it is so in most steps: one slow step does not set the scale.
SCALE_QUANTILE: Final = 0.9
# Below this all is noise of the clocks, and the scale says so.
MIN_TOP_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row: its name, its values, and what the table says of it; `is_accused` where a finding names its rank.

    `span` is the first and the last of its ranks.
    """

    name: str
    span: tuple[int, int]
    host: str
    is_accused: bool
    before: str
    inside: str
    most: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Geometry of a map in cells, and its words.

    Attributes:
        height: Of all rows in the drawing.
        row_height: Of one.
        paths: One for each level from 1 on: level 0 is the ground.
        unknown: Cells that nobody measured.
        names: Row names with their heights.
        window: Where the window begins and ends.
        legend: What each level stands for.
        values_ms: Rows of milliseconds, -1 unknown, for the script that reads a cell out.
    """

    columns: Columns
    rows: tuple[MapRow, ...]
    height: float
    row_height: float
    paths: tuple[str, ...]
    unknown: str
    names: tuple[tuple[float, str, bool], ...]
    window: tuple[float, float] | None
    legend: tuple[str, ...]
    values_ms: tuple[tuple[int, ...], ...]

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Marks of the axis of steps."""
        return self.columns.ticks()


def scale_top_s(values_s: FloatArray) -> float:
    """Return where the last colour begins to be for everything above: what the latest rank usually is, rounded up."""
    usual = [
        float(np.quantile(row[~np.isnan(row)], SCALE_QUANTILE))
        for row in values_s
        if not np.isnan(row).all()
    ]
    return round_up(max([*usual, MIN_TOP_S]), is_fine=True)


def draw_heat_map(
    values_s: FloatArray,
    ranks: Sequence[RankRow],
    numbers: Sequence[int],
    verdict: Verdict,
    top_s: float,
) -> HeatMap:
    """Return the map of some ranks; steps and ranks that share a cell are shown by the latest of them.

    Args:
        values_s: Seconds, (ranks, steps), NaN unknown.
        ranks: The ranks of the rows.
        numbers: The numbers of the steps.
        verdict: Says which ranks are accused and which steps are the window.
        top_s: The end of the colour scale.
    """
    columns = choose_columns(numbers)
    accused = {rank for finding in verdict.findings for rank in finding.subject.ranks}
    size = -(-len(ranks) // MAX_ROWS)
    groups = [list(range(i, min(i + size, len(ranks)))) for i in range(0, len(ranks), size)]
    cells = np.array(
        [[_latest(values_s[np.ix_(g, range(a, b))]) for a, b in columns.bounds] for g in groups]
    )
    first, last = verdict.window.first_step, verdict.window.last_step
    is_inside = np.array([first is None or last is None or first <= n <= last for n in numbers])
    rows = tuple(
        _row([ranks[i] for i in group], values_s[group], is_inside, numbers, accused)
        for group in groups
    )
    level = np.minimum(np.nan_to_num(cells) / top_s * LEVELS, LEVELS - 1).astype(np.int64)
    level[np.isnan(cells)] = -1
    row_height = min(max(WANTED_HEIGHT / len(rows), SHORTEST_ROW), TALLEST_ROW)
    return HeatMap(
        columns=columns,
        rows=rows,
        height=round(row_height * len(rows), 1),
        row_height=round(row_height, 2),
        paths=tuple(_path(level == number) for number in range(1, LEVELS)),
        unknown=_path(level == -1),
        names=tuple(_names(rows, row_height)),
        window=columns.span(first, last),
        legend=tuple(seconds(top_s * number / LEVELS) for number in range(LEVELS)),
        values_ms=tuple(
            tuple(-1 if np.isnan(v) else round(float(v) * 1e3) for v in row) for row in cells
        ),
    )


def _latest(values_s: FloatArray) -> float:
    known = values_s[~np.isnan(values_s)]
    return float(known.max()) if known.size else float("nan")


def _path(is_drawn: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> str:
    """Return rectangles of one cell's height around the marked cells, in cells."""
    parts = []
    for y, row in enumerate(is_drawn):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        parts += [f"M{a} {y}h{b - a}v1h{a - b}z" for a, b in edges.reshape(-1, 2).tolist()]
    return "".join(parts)


def _row(
    ranks: Sequence[RankRow],
    values_s: FloatArray,
    is_inside: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    numbers: Sequence[int],
    accused: set[int],
) -> MapRow:
    name = f"rank {ranks[0].rank}"
    if len(ranks) > 1:
        name = f"ranks {ranks[0].rank} to {ranks[-1].rank}"
    hosts = sorted({row.host_name or row.host_id for row in ranks})
    by_step = np.array([_latest(values_s[:, i]) for i in range(values_s.shape[1])])
    inside, before = by_step[is_inside], by_step[~is_inside]
    most = "unknown"
    if not np.isnan(by_step).all():
        place = int(np.nanargmax(by_step))
        most = f"{seconds(float(by_step[place]))} at step {numbers[place]}"
    return MapRow(
        name=name,
        span=(ranks[0].rank, ranks[-1].rank),
        host=hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
        is_accused=any(row.rank in accused for row in ranks),
        before=_median(before),
        inside=_median(inside),
        most=most,
    )


def _median(values_s: FloatArray) -> str:
    known = values_s[~np.isnan(values_s)]
    return seconds(float(np.median(known))) if known.size else "unknown"


def _names(rows: Sequence[MapRow], row_height: float) -> Iterable[tuple[float, str, bool]]:
    """Yield the names that have room: those of accused ranks, and of every so many rows."""
    distance = max(-(-NAME_HEIGHT // max(row_height, 1.0)), 1.0)
    accused = [i for i, row in enumerate(rows) if row.is_accused]
    for i, row in enumerate(rows):
        has_room = all(abs(i - other) >= distance for other in accused)
        if row.is_accused or (i % distance == 0 and has_room):
            yield round((i + 0.5) * row_height, 1), row.name, row.is_accused
