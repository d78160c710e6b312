"""A rank's stacks as a flame graph: a row for each depth, a box for each place in the tree of calls. Pure.

    |main                                     |     width: the rank's seconds a step
    |forward       |backward     |log_step    |     peers: the median of what they spend at the same place

What is not wide enough to be seen is left out, and so is what all stacks begin with, which would be rows of one box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from rootwalk.graph.profiles.difference import StackTimes
from rootwalk.graph.profiles.frames import Frame, Stack

__all__ = ["MAX_ROWS", "Box", "Flame", "build_flame"]

# Narrower boxes than this part of the picture are left out.
MIN_WIDTH: Final = 0.003
# Rows that people scroll through.
MAX_ROWS: Final = 40
# A box that has this part of everything says nothing by its width.
WHOLE: Final = 0.995


@dataclass(frozen=True, slots=True)
class Box:
    """One place in the tree: where it is, from 0 to 1 of the width and from row 0, with its seconds a step."""

    frame: Frame
    row: int
    left: float
    width: float
    seconds: float
    usual: float


@dataclass(frozen=True, slots=True)
class Flame:
    """The boxes of a rank's stacks, rows from the outermost.

    Attributes:
        boxes: By row, then from left to right.
        rows: How many rows there are.
        above: Frames that all stacks begin with and that are not drawn, the outermost first.
        seconds: All that was measured, a step.
        usual: The same of those that it is held against.
        cut_rows: Rows that are not drawn, below the last one.
    """

    boxes: tuple[Box, ...]
    rows: int
    above: tuple[Frame, ...]
    seconds: float
    usual: float
    cut_rows: int


@dataclass(slots=True)
class _Node:
    children: dict[int, _Node] = field(default_factory=dict)
    seconds: float = 0.0
    others: list[float] = field(default_factory=list)


def build_flame(own: StackTimes, others: Sequence[StackTimes], frames: Sequence[Frame]) -> Flame:
    """Return the flame graph of a rank, each box with what others spend at its place.

    Args:
        own: The rank.
        others: Who it is held against, at least one.
        frames: By their numbers.
    """
    root = _Node()
    for stack, seconds in own.seconds.items():
        _walk(root, stack, seconds)
    for place, other in enumerate(others):
        _add_other(root, other.seconds, place, len(others))
    total = root.seconds
    above: list[Frame] = []
    top = root
    while total > 0.0 and len(top.children) == 1:
        ((number, child),) = top.children.items()
        if child.seconds < WHOLE * total or not child.children:
            break
        above.append(frames[number])
        top = child
    boxes: list[Box] = []
    deepest = _place(boxes, top, total, frames) if total > 0.0 else 0
    rows = min(deepest, MAX_ROWS)
    usual = median(root.others) if root.others else 0.0
    return Flame(tuple(boxes), rows, tuple(above), total, usual, deepest - rows)


def _walk(root: _Node, stack: Stack, seconds: float) -> None:
    node = root
    node.seconds += seconds
    for number in stack:
        child = node.children.get(number)
        if child is None:
            child = node.children[number] = _Node()
        child.seconds += seconds
        node = child


def _add_other(root: _Node, seconds: Mapping[Stack, float], place: int, count: int) -> None:
    """Add one peer's seconds to the places that the rank has as well."""
    for stack, value in seconds.items():
        node: _Node | None = root
        for number in (None, *stack):
            node = root if number is None else node.children.get(number) if node else None
            if node is None:
                break
            if not node.others:
                node.others = [0.0] * count
            node.others[place] += value


def _place(boxes: list[Box], top: _Node, total: float, frames: Sequence[Frame]) -> int:
    """Add the boxes below a node that are wide enough; return how many rows there would be."""
    deepest = 0
    row = [(top, 0.0)]
    while row:
        below: list[tuple[_Node, float]] = []
        for node, left in row:
            at = left
            for number in sorted(node.children, key=lambda n: frames[n]):
                child = node.children[number]
                width = child.seconds / total
                if width >= MIN_WIDTH:
                    if deepest < MAX_ROWS:
                        usual = median(child.others) if child.others else 0.0
                        frame = frames[number]
                        boxes.append(Box(frame, deepest, at, width, child.seconds, usual))
                    below.append((child, at))
                at += width
        deepest += bool(below)
        row = below
    return deepest
