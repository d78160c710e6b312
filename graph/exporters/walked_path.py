"""The walked path of a verdict as slices: where the time went, and at each meeting on it who waited for whom.

    walked path   |- rank 0: forward -|- rank 2: backward -|- dp0/81 moves -|     of the job
    rank 0        |~~~~ waits for rank 2: dp0/81 ~~~~*~~~~~|
    rank 2                            arrives last * --'

A meeting is a collective or a message on the path: those who were there wait for the last to come, and an arrow goes
from its arrival to each of them. Where the path was at one that waited, it jumps to the last.

Pure: from what the analysis found to a timeline's slices. Times of a job's analysis are seconds since its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.analysis import Analysis
from rootwalk.graph.columns import IntArray, JobData
from rootwalk.graph.exporters.timeline import Argument, Slice, Track, main_track, wait_track
from rootwalk.graph.operations.graph import OperationGraph
from rootwalk.graph.operations.walk import StepPath
from rootwalk.graph.steps import Group, OpKind, StepGraph
from rootwalk.graph.walk import Path, Segment, SegmentKind

__all__ = ["PATH_TRACK", "Walked", "draw_operations", "draw_walk"]

PATH_TRACK: Final = Track(None, 0, "walked path")
# Ranks that are shown waiting at a meeting, beside the one that the path came from: those that waited longest.
MAX_VICTIMS: Final = 15
# Pieces of the path that are drawn, the last ones of the window.
MAX_PIECES: Final = 20_000
# Waits that are drawn, the last ones.
MAX_WAITS: Final = 40_000
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Walked:
    """The path, drawn: its slices, how many arrows are among them, and how much of it is left out."""

    slices: list[Slice]
    arrows: int
    left_out: int


@dataclass(frozen=True, slots=True)
class _Wait:
    """A rank waits: times in ns."""

    rank: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Who came last to what; `certainty` is None where the path did not jump."""

    culprit: int
    arrived_ns: int
    label: str
    step: int
    certainty: float | None
    waits: tuple[_Wait, ...]


def draw_walk(data: JobData, analysis: Analysis) -> Walked:
    """Return the path of a window of steps."""
    graph, path = analysis.window, analysis.path
    region_by_slot = {number: region for (region, _, _), number in graph.keys.slots.items()}
    name_by_region = {number: name for (_, name, _), number in graph.keys.regions.items()}

    def ns(seconds: float) -> int:
        return data.origin_unix_ns + round(seconds * _NS)

    slices = []
    for segment in path.segments[:MAX_PIECES]:
        region = name_by_region.get(region_by_slot.get(int(graph.slot[segment.node]), -1), "")
        slices.append(_piece(graph, segment, region, ns(segment.start_s), ns(segment.end_s)))
    meetings = _meetings(graph, path, ns)
    drawn = _draw(meetings)
    return Walked(
        [*slices, *drawn.slices],
        drawn.arrows,
        max(len(path.segments) - MAX_PIECES, 0) + drawn.left_out,
    )


def _meetings(graph: StepGraph, path: Path, ns: Callable[[float], int]) -> Iterator[_Meeting]:
    """Yield the meetings on the path, the last first."""
    waiting: dict[int, list[int]] = {}
    for node in np.flatnonzero(graph.kind == OpKind.WAIT).tolist():
        waiting.setdefault(int(graph.wait_on[node]), []).append(node)
    jumps = {jump.group: jump for jump in path.jumps}
    met: dict[int, int] = {}
    for segment in path.segments:
        if segment.kind is SegmentKind.TRANSFER:
            met.setdefault(int(graph.group[segment.node]), segment.node)
    for jump in path.jumps:
        members = graph.groups[jump.group].members
        met.setdefault(jump.group, int(members[graph.rank[members] == jump.victim][0]))
    for number, node in met.items():
        group = graph.groups[number]
        needed = _needed(group, node)
        ready_s = graph.ready_s(needed)
        last = int(needed[np.argsort(ready_s, kind="stable")[-1]])
        arrived_s = float(ready_s.max())
        waits = [
            _Wait(int(graph.rank[n]), ns(float(graph.op_start_s[n])), ns(float(graph.op_end_s[n])))
            for member in group.members.tolist()
            if member != last and last in _needed(group, member)
            for n in waiting.get(member, ())
            if float(graph.op_start_s[n]) < arrived_s
        ]
        jumped = jumps.get(number)
        yield _Meeting(
            culprit=int(graph.rank[last]),
            arrived_ns=ns(arrived_s),
            label=group.label,
            step=int(graph.step_numbers[int(graph.step[last])]),
            certainty=None if jumped is None else jumped.certainty,
            waits=_longest(waits, int(graph.rank[node])),
        )


def _needed(group: Group, member: int) -> IntArray:
    """Return whom a member of a collective waits for."""
    if group.depends_on is None:
        return group.members
    needed: IntArray = group.depends_on[group.members.tolist().index(member)]
    return needed


def _piece(graph: StepGraph, segment: Segment, region: str, start_ns: int, end_ns: int) -> Slice:
    rank, node = int(graph.rank[segment.node]), segment.node
    name = f"rank {rank}: {region or 'other'}"
    if segment.kind is SegmentKind.TRANSFER:
        name = f"{graph.groups[int(graph.group[node])].label} moves"
    elif segment.kind is SegmentKind.GAP:
        name = f"rank {rank}: nothing recorded"
    arguments: tuple[tuple[str, Argument], ...] = (
        ("rank", rank),
        ("step", int(graph.step_numbers[int(graph.step[node])])),
        ("kind", str(segment.kind)),
        ("path_s", round(segment.end_s - segment.start_s, 9)),
    )
    return Slice(PATH_TRACK, start_ns, end_ns, name, "path", arguments)


def draw_operations(
    graph: OperationGraph, paths: list[StepPath], begin_ns_by_step: dict[int, int]
) -> Walked:
    """Return the path of each step of recorded operations; of a step that began nobody knows when, nothing.

    Args:
        graph: The operations, times from the beginning of their step.
        paths: One path a step, in the order of the steps.
        begin_ns_by_step: When each step began, Unix ns.
    """
    rows = graph.operations
    slices: list[Slice] = []
    meetings: list[_Meeting] = []
    left_out = 0
    for number, path in reversed(list(zip(graph.step_numbers.tolist(), paths, strict=True))):
        begin = begin_ns_by_step.get(number)
        if begin is None or len(slices) + len(path.nodes) > MAX_PIECES:
            left_out += len(path.nodes)
            continue

        def ns(seconds: float, begin: int = begin) -> int:
            return begin + round(seconds * _NS)

        def label(node: int) -> str:
            return f"{rows.types[int(rows.type[node])]} {int(rows.sequence[node])}"

        ends = [path.end_s, *path.starts_s]
        for node, start_s, end_s, is_gap in zip(
            path.nodes, path.starts_s, ends, path.is_gap, strict=False
        ):
            rank = int(rows.rank[node])
            name = f"rank {rank}: {'nothing recorded' if is_gap else label(node)}"
            arguments: tuple[tuple[str, Argument], ...] = (
                ("rank", rank),
                ("step", number),
                ("kind", "gap" if is_gap else "operation"),
                ("path_s", round(end_s - start_s, 9)),
            )
            slices.append(Slice(PATH_TRACK, ns(start_s), ns(end_s), name, "path", arguments))
        meetings += _operation_meetings(graph, path, label, ns, number)
    drawn = _draw(iter(meetings))
    return Walked([*slices, *drawn.slices], drawn.arrows, left_out + drawn.left_out)


def _operation_meetings(
    graph: OperationGraph,
    path: StepPath,
    label: Callable[[int], str],
    ns: Callable[[float], int],
    step: int,
) -> Iterator[_Meeting]:
    rows = graph.operations
    sure_by_group = {int(rows.group[node]): sure for node, _, _, sure in path.jumps}
    met: dict[int, int] = {}
    for node in [*path.nodes, *(node for node, *_ in path.jumps)]:
        if rows.group[node] >= 0:
            met.setdefault(int(rows.group[node]), node)
    for group, node in met.items():
        members = np.flatnonzero(rows.group == group)
        last = int(members[np.argsort(rows.start_s[members], kind="stable")[-1]])
        arrived_s = float(rows.start_s[last])
        waits = [
            _Wait(int(rows.rank[m]), ns(float(rows.start_s[m])), ns(arrived_s))
            for m in members.tolist()
            if float(rows.start_s[m]) < arrived_s and rows.rank[m] != rows.rank[last]
        ]
        yield _Meeting(
            culprit=int(rows.rank[last]),
            arrived_ns=ns(arrived_s),
            label=label(node),
            step=step,
            certainty=sure_by_group.get(group),
            waits=_longest(waits, int(rows.rank[node])),
        )


def _longest(waits: list[_Wait], victim: int) -> tuple[_Wait, ...]:
    """Return the longest waits, and those of the rank that the path came from."""
    waits.sort(key=lambda w: (w.rank != victim, w.start_ns - w.end_ns, w.rank))
    own = sum(wait.rank == victim for wait in waits)
    return tuple(waits[: own + MAX_VICTIMS])


def _draw(meetings: Iterator[_Meeting]) -> Walked:
    slices: list[Slice] = []
    arrows = left_out = 0
    for met in meetings:
        if not met.waits:
            continue
        if arrows + len(met.waits) > MAX_WAITS:
            left_out += len(met.waits)
            continue
        shared: tuple[tuple[str, Argument], ...] = (
            ("culprit_rank", met.culprit),
            ("step", met.step),
            ("met_in", met.label),
        )
        numbers = tuple(range(arrows + 1, arrows + 1 + len(met.waits)))
        arrows += len(met.waits)
        sure: tuple[tuple[str, Argument], ...] = ()
        if met.certainty is not None:
            sure = (("jump_certainty_ratio", round(met.certainty, 6)),)
        came = f"arrives last: {met.label}"
        slices.append(
            Slice(
                *(main_track(met.culprit), met.arrived_ns, None, came, "jump"),
                *((*shared, *sure), numbers),
            )
        )
        for number, wait in zip(numbers, met.waits, strict=True):
            track = wait_track(wait.rank)
            waited_s = round((wait.end_ns - wait.start_ns) / _NS, 9)
            name = f"waits for rank {met.culprit}: {met.label}"
            told = (*shared, ("wait_s", waited_s))
            slices.append(Slice(track, wait.start_ns, wait.end_ns, name, "wait", told))
            there = f"rank {met.culprit} is there"
            slices.append(
                Slice(track, met.arrived_ns, None, there, "jump", shared, arrow_to=number)
            )
    return Walked(slices, arrows, left_out)
