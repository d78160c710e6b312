"""Where each rank's step went, as bars whose parts add up to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rootwalk.graph.columns import RankRow
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.report.axes import LEFT, WIDTH, Tick, round_up, ticks
from rootwalk.graph.report.reading import RankShares
from rootwalk.graph.report.shares import SHARE_NAMES, Share

__all__ = ["Bar", "Bars", "draw_bars"]

# Room at the right for the total and what stands out.
RIGHT: Final = 330
BAR_WIDTH: Final = WIDTH - LEFT - RIGHT
# Parts below this part of the longest bar cannot be seen; they are in the table.
MIN_SHOWN_RATIO: Final = 0.002
# What is worth a word beside the bar.
MIN_TOLD_RATIO: Final = 0.05
ROW_HEIGHTS: Final = ((16, 26.0), (32, 20.0))
SMALL_ROW: Final = 16.0
# Not told beside the bar: what a rank is there for; and in long lists, that it is a victim like all others.
_USUAL: Final = (Share.WORK,)
_USUAL_OF_MANY: Final = (Share.WORK, Share.RANKS)
MANY_RANKS: Final = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a bar; `share` names its colour."""

    x: float
    width: float
    share: str
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One rank: its parts, its total, what stands out, and the cells of its row in the table."""

    rank: int
    host: str
    y: float
    is_accused: bool
    pieces: tuple[Piece, ...]
    total: str
    told: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """All bars with the parts that occur, (class, words)."""

    bars: tuple[Bar, ...]
    row_height: float
    height: float
    legend: tuple[tuple[str, str], ...]
    x_ticks: tuple[Tick, ...]


def draw_bars(shares: RankShares, ranks: tuple[RankRow, ...], verdict: Verdict) -> Bars:
    """Return the bars of some ranks on one scale."""
    total_s = shares.seconds.sum(axis=1)
    top_s = round_up(float(total_s.max()) / 4) * 4 if total_s.max() > 0.0 else 1.0
    top_s = min(top_s, float(total_s.max()) * 1.02 or 1.0)
    occurring = [s for s in Share if shares.seconds[:, s].max() > MIN_SHOWN_RATIO * top_s]
    accused = {rank for finding in verdict.findings for rank in finding.subject.ranks}
    host_by_rank = {row.rank: row.host_name or row.host_id for row in ranks}
    row_height = next((h for most, h in ROW_HEIGHTS if len(shares.ranks) <= most), SMALL_ROW)
    usual = _USUAL_OF_MANY if len(shares.ranks) > MANY_RANKS else _USUAL
    bars = []
    for i, rank in enumerate(shares.ranks):
        values = {s: float(shares.seconds[i, s]) for s in Share}
        pieces, x = [], float(LEFT)
        for share in Share:
            width = BAR_WIDTH * values[share] / top_s
            if share in occurring and width > 0.0:
                text = f"rank {rank}, {SHARE_NAMES[share]}: {seconds(values[share])} a step"
                pieces.append(Piece(round(x, 1), round(width, 2), share.name.lower(), text))
            x += width
        bars.append(
            Bar(
                rank=rank,
                host=host_by_rank.get(rank, "unknown host"),
                y=round(i * row_height, 1),
                is_accused=rank in accused,
                pieces=tuple(pieces),
                total=seconds(float(total_s[i])),
                told=_told(values, float(total_s[i]), usual),
                cells=tuple(seconds(values[share]) for share in occurring),
            )
        )
    return Bars(
        bars=tuple(bars),
        row_height=row_height,
        height=round(row_height * len(bars), 1),
        legend=tuple((share.name.lower(), SHARE_NAMES[share]) for share in occurring),
        x_ticks=tuple(Tick(LEFT + BAR_WIDTH * v / top_s, seconds(v)) for v in ticks(top_s, 4)),
    )


def _told(values: dict[Share, float], total_s: float, usual: tuple[Share, ...]) -> str:
    """Return the largest part that is not the rank's own work, in words; nothing where all are small."""
    share = max((s for s in Share if s not in usual), key=lambda s: values[s])
    if values[share] < MIN_TOLD_RATIO * total_s:
        return ""
    return f"{seconds(values[share])} {SHARE_NAMES[share]}"
