"""Which functions a slow rank was in, as flame graphs held against its peers: read, and drawn.

Only findings that a stack can explain, and only ranks that were sampled, have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rootwalk.graph.analysis import StepClock
from rootwalk.graph.columns import JobData
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.profiles.comparison import KINDS_BY_REASON, compare
from rootwalk.graph.profiles.flame import Box, Flame, build_flame
from rootwalk.graph.profiles.reading import TimeKind
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.render.stacks import frame_rows
from rootwalk.graph.report.axes import WIDTH

__all__ = ["MAX_FLAMES", "ROW_HEIGHT", "DrawnFlame", "RankFlame", "draw_flame", "read_flames"]

ROW_HEIGHT: Final = 22
# Pictures of one page: the first findings cost most.
MAX_FLAMES: Final = 4
# A name needs room for some letters, of this width.
MIN_TEXT: Final = 34.0
# Lines of the table, and frames above the picture that are told.
MAX_LINES: Final = 12
MAX_ABOVE: Final = 6
# Classes of colour: by how much of the larger of both the two differ; below the last part of the picture they do not.
_MORE: Final = ((0.6, "f-more2"), (0.2, "f-more1"))
_LESS: Final = ((0.6, "f-less2"), (0.2, "f-less1"))
MIN_DIFFERENCE: Final = 0.01
_KIND_WORDS: Final = {TimeKind.ON_CPU: "on a CPU", TimeKind.OFF_CPU: "off the CPU"}


@dataclass(frozen=True, slots=True)
class RankFlame:
    """One flame graph: of which finding, rank and kind of time, and who it is held against; no ranks for itself."""

    finding: str
    reason: str
    rank: int
    kind: TimeKind
    peers: tuple[int, ...]
    flame: Flame


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """One box: its colour's class, what it says when pointed at, and the name that fits in it, else nothing."""

    x: float
    y: int
    width: float
    colour: str
    text: str
    name: str
    is_named: bool


@dataclass(frozen=True, slots=True)
class DrawnFlame:
    """A flame graph with its words; `lines` are (function, rank, others, difference), the largest difference first."""

    title: str
    others: str
    above: str
    boxes: tuple[DrawnBox, ...]
    height: int
    note: str
    lines: tuple[tuple[str, str, str, str], ...]


def read_flames(
    connection: Any,
    data: JobData,
    clock: StepClock,
    verdict: Verdict,
    ahead_s_by_rank: Mapping[int, float],
) -> tuple[RankFlame, ...]:
    """Return the flame graphs of a verdict's findings; none where nobody sampled the rank or anybody to compare.

    Args:
        connection: Open for reading.
        data: The job; its ranks and the shown steps.
        clock: The shown steps.
        verdict: What is said.
        ahead_s_by_rank: How far the clock of each rank's host is ahead.
    """
    first, last = verdict.window.first_step, verdict.window.last_step
    if first is None or last is None:
        return ()
    window = [i for i, number in enumerate(clock.numbers) if first <= number <= last]
    history = [i for i, number in enumerate(clock.numbers) if number < first]
    ahead_s = {row.host_id: ahead_s_by_rank.get(row.rank, 0.0) for row in data.ranks}
    result: list[RankFlame] = []
    for finding in verdict.findings:
        rank, kinds = finding.subject.rank, KINDS_BY_REASON.get(finding.reason, ())
        if rank is None or not kinds or len(result) >= MAX_FLAMES:
            continue
        found = compare(connection, data, clock, rank, (window, history), ahead_s)
        for kind in kinds if found is not None else ():
            if found is None or kind not in found.own:
                continue
            others, peers = found.others(kind), found.peers
            if not others:
                peers, others = (), [found.before[kind]] if kind in found.before else []
            flame = build_flame(found.own[kind], others, found.frames)
            if others and flame.boxes:
                result.append(RankFlame(finding.id, finding.reason, rank, kind, peers, flame))
    return tuple(result[:MAX_FLAMES])


def draw_flame(case: RankFlame, finding: Finding | None) -> DrawnFlame:
    """Return the boxes of a flame graph with their words.

    Args:
        case: What to draw.
        finding: Whose evidence names frames, which are marked.
    """
    flame = case.flame
    named = set() if finding is None else {_named(row.signal) for row in frame_rows(finding)}
    others = "its peers" if case.peers else "itself before"
    least = MIN_DIFFERENCE * max(flame.seconds, flame.usual)
    boxes = []
    for box in flame.boxes:
        label = box.frame.label
        width = round(box.width * WIDTH, 2)
        boxes.append(
            DrawnBox(
                x=round(box.left * WIDTH, 2),
                y=box.row * ROW_HEIGHT,
                width=width,
                colour=_colour(box, least),
                text=f"{label}: {seconds(box.seconds)} a step, {others} {seconds(box.usual)}",
                name=box.frame.function if width >= MIN_TEXT else "",
                is_named=label in named,
            )
        )
    above = " > ".join(frame.function for frame in flame.above[-MAX_ABOVE:])
    cut = flame.cut_rows
    return DrawnFlame(
        title=f"Rank {case.rank} {_KIND_WORDS[case.kind]}: {seconds(flame.seconds)} a step, {others}"
        f" {seconds(flame.usual)}",
        others=others,
        above=f"… > {above}" if len(flame.above) > MAX_ABOVE else above,
        boxes=tuple(boxes),
        height=flame.rows * ROW_HEIGHT,
        note=f"{cut} more row{'s' if cut != 1 else ''} below are not drawn" if cut else "",
        lines=_lines(flame),
    )


def _named(signal: str) -> str:
    """Return the label of the frame that a signal names, without its caller."""
    return signal.partition(": ")[2].rpartition(" > ")[2]


def _colour(box: Box, least: float) -> str:
    """Return the class of a box: more than the others, less, or as much."""
    difference = box.seconds - box.usual
    if abs(difference) < least:
        return "f-same"
    part = abs(difference) / max(box.seconds, box.usual)
    steps = _MORE if difference > 0.0 else _LESS
    return next((name for limit, name in steps if part >= limit), "f-same")


def _lines(flame: Flame) -> tuple[tuple[str, str, str, str], ...]:
    """Return the functions that differ most at any one place, as words."""
    best: dict[str, Box] = {}
    for box in flame.boxes:
        known = best.get(box.frame.label)
        if known is None or abs(box.seconds - box.usual) > abs(known.seconds - known.usual):
            best[box.frame.label] = box
    order = sorted(best.items(), key=lambda item: (-abs(item[1].seconds - item[1].usual), item[0]))
    return tuple(
        (
            label,
            seconds(box.seconds),
            seconds(box.usual),
            ("+" if box.seconds >= box.usual else "") + seconds(box.seconds - box.usual),
        )
        for label, box in order[:MAX_LINES]
    )
