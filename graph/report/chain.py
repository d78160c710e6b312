"""The path from symptom to cause, as the dependency graph has it: boxes from top to bottom, seconds on the arrows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.model import ChainLink, Finding
from rootwalk.graph.passages import visible
from rootwalk.graph.render.digits import seconds

__all__ = ["Arrow", "Box", "ChainPicture", "chain_ends", "draw_chain"]

BOX_WIDTH: Final = 330
BOX_HEIGHT: Final = 50
GAP: Final = 62
MAIN_X: Final = 0
SIDE_X: Final = 580
# Characters that fit into a box.
MAX_LABEL: Final = 36
_KINDS: Final = {"cpu": "CPU", "cgroup": "control group"}


@dataclass(frozen=True, slots=True)
class Box:
    """A node: its place, its kind and its name, shortened to fit; `full` is the whole name."""

    x: float
    y: float
    kind: str
    label: str
    full: str
    is_culprit: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge: from a point to a point, and what is said beside it."""

    x1: float
    y1: float
    x2: float
    y2: float
    text_x: float
    text_y: float
    kind: str
    seconds: str


@dataclass(frozen=True, slots=True)
class ChainPicture:
    """Geometry of one chain."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw_chain(finding: Finding, graph: DependencyGraph | None) -> ChainPicture:
    """Return the picture of a finding's chain; a node that leads nowhere else stands beside the path.

    Args:
        finding: Whose chain.
        graph: As the store has it, for names and for where edges lead; None where it is not there.
    """
    ends = chain_ends(finding.chain, graph)
    later = [{node for pair in ends[i + 1 :] for node in pair} for i in range(len(ends))]
    places: dict[str, tuple[float, float]] = {}
    row = 0
    for (source, target), needed in zip(ends, later, strict=True):
        for node in (source, target):
            if node in places:
                continue
            is_aside = node == target and source in places and node not in needed and bool(needed)
            if is_aside:
                places[node] = (SIDE_X, places[source][1])
            else:
                places[node] = (MAIN_X, row * (BOX_HEIGHT + GAP))
                row += 1
    culprit = finding.subject.node
    boxes = [_box(node, place, graph, node == culprit) for node, place in places.items()]
    arrows = [
        _arrow(places[source], places[target], link)
        for (source, target), link in zip(ends, finding.chain, strict=True)
        if source != target
    ]
    height = max((box.y for box in boxes), default=0.0) + BOX_HEIGHT
    return ChainPicture(SIDE_X + BOX_WIDTH, height, tuple(boxes), tuple(arrows))


def chain_ends(
    chain: tuple[ChainLink, ...], graph: DependencyGraph | None
) -> list[tuple[str, str]]:
    """Return source and target of each link: as the graph's edge has them, else the next link's node."""
    result: list[tuple[str, str]] = []
    edges = [] if graph is None else list(graph.edges())
    for i, link in enumerate(chain):
        mine = [e for e in edges if e.source == link.node and e.payload.kind == link.edge]
        # Of several edges the one with the link's seconds is meant.
        mine.sort(key=lambda e: e.payload.seconds != link.seconds)
        targets = [e.target for e in mine]
        nodes = [other.node for other in chain]
        known = [t for t in targets if t in nodes]
        if targets:
            result.append((link.node, (known or targets)[0]))
        else:
            result.append((link.node, nodes[i + 1] if i + 1 < len(nodes) else link.node))
    return result


def _box(
    node: str, place: tuple[float, float], graph: DependencyGraph | None, is_culprit: bool
) -> Box:
    payload = None if graph is None else graph.node(node)
    kind, _, name = node.partition(":")
    label = visible(payload.label if payload is not None else name)
    pid = payload.attributes.get("pid") if payload is not None else None
    end = "" if pid is None else f", pid {pid}"
    shown = _shortened(label, MAX_LABEL - len(end)) + end
    return Box(*place, _KINDS.get(kind, kind), shown, label + end, is_culprit)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _arrow(source: tuple[float, float], target: tuple[float, float], link: ChainLink) -> Arrow:
    words = link.edge.replace("_", " ")
    cost = f"{seconds(link.seconds)} a step" if link.seconds is not None else ""
    if source[0] != target[0]:
        y = source[1] + BOX_HEIGHT / 2
        x1, x2 = source[0] + BOX_WIDTH, target[0]
        return Arrow(x1, y, x2, y, (x1 + x2) / 2, y, words, cost)
    x = MAIN_X + BOX_WIDTH / 2
    is_down = target[1] > source[1]
    y1 = source[1] + BOX_HEIGHT if is_down else source[1]
    y2 = target[1] if is_down else target[1] + BOX_HEIGHT
    return Arrow(x, y1, x, y2, x + 14, (y1 + y2) / 2, words, cost)
