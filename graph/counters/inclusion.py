"""One fault that costs a rank time in two ways is one finding: what a counter's reason has of the rank's other causes.

Owns which causes of a graph are included, and what all of them cost together; `score` takes them from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rootwalk.graph.counters.rule import CounterRule
from rootwalk.graph.counters.seen import rank_of, reason_of
from rootwalk.graph.dependencies import Edge
from rootwalk.graph.model import Attributes
from rootwalk.graph.replay import Counterfactual

__all__ = ["included_causes", "included_ends", "seconds_of", "together"]

# The attribute of an edge that lists the causes which its own has with it.
_INCLUDES = "includes"
_SECONDS = ("share_s", "remove_s", "add_s")


def included_ends(rule: CounterRule, end: Edge, ends: Iterable[Edge]) -> list[Edge]:
    """Return the ends of the same rank's other causes that are the same fault's where a rule speaks of one."""
    rank, share_s = rank_of(end), seconds_of(end)[0]
    own = [one for one in ends if rank is not None and rank_of(one) == rank]
    less = [one for one in own if reason_of(one) in rule.includes_less]
    return [
        *(one for one in own if reason_of(one) in rule.includes),
        *(one for one in less if seconds_of(one)[0] <= share_s),
    ]


def together(counterfactual: Counterfactual, ends: Sequence[Edge]) -> Attributes:
    """Return what some causes cost as one, for the edge of the first of them; nothing where it is alone."""
    causes = list(dict.fromkeys(_cause(one) for one in ends))
    if len(causes) < 2:
        return {}
    costs = counterfactual.together(causes)
    told = {
        f"together_{name}": round(cost, 9) + 0.0 for name, cost in zip(_SECONDS, costs, strict=True)
    }
    return {_INCLUDES: ",".join(map(str, causes[1:])), **told}


def included_causes(edge: Edge) -> tuple[int, ...]:
    """Return the numbers of the causes that an edge's own has with it."""
    listed = str(edge.payload.attributes.get(_INCLUDES) or "")
    return tuple(int(cause) for cause in listed.split(",") if cause)


def seconds_of(edge: Edge) -> tuple[float, float, float]:
    """Return share, remove and add of an edge's cause, with those that it includes."""
    attributes = edge.payload.attributes
    share_s, remove_s, add_s = (
        float(attributes.get(f"together_{name}", attributes[name]) or 0.0) for name in _SECONDS
    )
    return share_s, remove_s, add_s


def _cause(end: Edge) -> int:
    return int(end.payload.attributes["cause"] or 0)
