"""What the counters of a finding are worth, from the graph and evidence that the store gives back.

Owns the edges that refine a cause, as the graph has them, and their log-likelihood ratio; writes nothing.
"""

from __future__ import annotations

from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.model import EdgeKind, Evidence

__all__ = ["REFINES", "likelihood", "refining_edges"]

# The attribute of an edge that names the reason out of which it tells its own.
REFINES = "refines"
MAX_LLR = 3.0
# Where two causes claim the same seconds, others move as much: half of it is worth nothing.
_KINDS = (EdgeKind.TRANSFERS_OVER, EdgeKind.SLOWED_BY)


def refining_edges(graph: DependencyGraph, end: Edge) -> list[Edge]:
    """Return the edges that say more of the cause at the end of a chain; nothing where no counter speaks."""
    attributes = end.payload.attributes
    wanted = (attributes.get("reason"), attributes.get("cause"))
    return [
        edge
        for node in dict.fromkeys((end.target, end.source))
        for kind in _KINDS
        for edge in graph.leaving(node, kind)
        if (edge.payload.attributes.get(REFINES), edge.payload.attributes.get("cause")) == wanted
    ]


def likelihood(row: Evidence, share_s: float) -> float:
    """Return the log-likelihood ratio of what a counter did, against its having moved by chance.

    Args:
        row: Its evidence, with overlap, dose and what physics explains.
        share_s: Seconds per step that there are to be explained.
    """
    part = row.attributes
    total = MAX_LLR * (2.0 * _number(part.get("overlap")) - 1.0)
    if part.get("dose") is not None:
        total += _clip(MAX_LLR * _number(part["dose"]))
    if row.z is not None:
        total += _clip((row.z - 3.0) / 2.0)
    explained_s = part.get("explained_s")
    if explained_s is not None and not part.get("is_bound") and share_s > 0.0:
        total += _clip(MAX_LLR * (1.5 * _number(explained_s) / share_s - 0.5))
    if row.peers is not None and row.value is not None:
        total += 1.5 if abs(row.value - row.peers) > 0.5 * abs(row.value) else -0.5
    return total


def _number(value: str | float | bool | None) -> float:
    return float(value) if value is not None else 0.0


def _clip(value: float) -> float:
    return max(-MAX_LLR, min(MAX_LLR, value))
