"""Edges of the dependency graph that go on from a late thread to its device, as profiles show them.

    thread -waits_for-> gpu -running-> operation                          the device ran it longer
    thread -waits_for-> gpu -waits_for-> launches -running-> operation    its stream ran dry meanwhile

They carry no reason of their own: the finding is about the thread. Where one is missing in the store, or what it rests
on, the finding is worth less.
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.model import EdgeKind

__all__ = ["GOES_ON", "ON_PATH", "find_beyond"]

# Of an edge that goes on, and of the end of a chain: how many such edges follow it.
ON_PATH: Final = "device_path"
GOES_ON: Final = "edges_beyond"
_KINDS: Final = (EdgeKind.WAITS_FOR, EdgeKind.RUNNING)


def find_beyond(graph: DependencyGraph, thread: str | None, end: Edge) -> tuple[Edge, ...]:
    """Return the edges that go on from a late thread, in order; none where a chain does not."""
    due = end.payload.attributes.get(GOES_ON)
    found: list[Edge] = []
    node = thread
    while node is not None and due is not None and len(found) < int(due):
        leaving = [edge for kind in _KINDS for edge in graph.leaving(node, kind)]
        edge = next((one for one in leaving if one.payload.attributes.get(ON_PATH)), None)
        if edge is None:
            break
        found.append(edge)
        node = edge.target
    return tuple(found)
