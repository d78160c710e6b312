"""The walk over what depends on what: from where the work fell to what is not as it is elsewhere. Pure.

    job -> host -> gpu, cpu, memory, disk, nic        and back, a quarter as likely

A walker goes on towards what is worse, and stays at what is worse than all around it (method C8).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from rootwalk.graph.dependencies import node_id, page_rank

__all__ = ["MAX_SCORE", "component_node", "walk_scores"]

# One metric that is a thousand deviations away says no more than one that is fifty.
MAX_SCORE: Final = 50.0
BACKWARD: Final = 0.25
# What is healthy may be passed, too.
_LEAST: Final = 0.01


def component_node(kind: str, host: str, part: str) -> str:
    """Return the id of a host's component; of the host itself for the kind `host`."""
    return node_id(kind, host) if not part or kind in ("host", "cpu") else node_id(kind, host, part)


def walk_scores(
    job: str, scores: Mapping[tuple[str, str], float], restart: Mapping[str, float]
) -> dict[str, float]:
    """Return where a walker is found that starts at the symptoms.

    Args:
        job: Node of the job.
        scores: How bad each component is, by the node of its host and its own.
        restart: Symptoms, nodes of the job, of hosts or of components, and how heavy each is.
    """
    worst: dict[str, float] = defaultdict(float)
    bad = {end: min(max(value, 0.0), MAX_SCORE) for end, value in scores.items()}
    for (host, _), value in bad.items():
        worst[host] = max(worst[host], value)
    weights: dict[tuple[str, str], float] = {}
    for host, value in worst.items():
        weights[job, host] = value + _LEAST
        weights[host, job] = BACKWARD * _LEAST
    for (host, node), value in bad.items():
        weights[host, node] = value + _LEAST
        weights[node, host] = BACKWARD * max(worst[host], _LEAST)
        # Its only neighbour is its host, which is as bad as the worst of its components: those it must beat.
        others = max((v for (h, n), v in bad.items() if h == host and n != node), default=0.0)
        if value > others:
            weights[node, node] = value - others
    return page_rank(weights, restart)
