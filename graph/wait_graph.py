"""Who waits for whom, as numbers: the parts of a directed graph that wait for nothing outside themselves.

A part is a set of points each of which leads to every other. One that nothing leads out of is where waiting ends: a
point alone is what all others wait for, several are a cycle.

Source:
    R. Tarjan, Depth-first search and linear graph algorithms, 1972; without recursion, for chains of any length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

__all__ = ["final_parts"]

Point = TypeVar("Point", bound=Hashable)


def final_parts(waits_for: Mapping[Point, Iterable[Point]]) -> list[list[Point]]:
    """Return the parts that wait for nothing outside themselves, in the order in which they are found.

    >>> final_parts({"a": ["b"], "b": ["c", "d"], "c": ["b"], "d": []})
    [['d']]
    >>> sorted(final_parts({"a": ["b"], "b": ["a"]})[0])
    ['a', 'b']

    Args:
        waits_for: What each point waits for; every point is a key.
    """
    part_of: dict[Point, int] = {}
    parts: list[list[Point]] = []
    low: dict[Point, int] = {}
    order: dict[Point, int] = {}
    open_points: list[Point] = []
    for root in waits_for:
        if root in order:
            continue
        path = [(root, iter(waits_for[root]))]
        order[root] = low[root] = len(order)
        open_points.append(root)
        while path:
            point, following = path[-1]
            for other in following:
                if other not in order:
                    order[other] = low[other] = len(order)
                    open_points.append(other)
                    path.append((other, iter(waits_for[other])))
                    break
                if other not in part_of:
                    low[point] = min(low[point], order[other])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    low[before] = min(low[before], low[point])
                if low[point] == order[point]:
                    part: list[Point] = []
                    while not part or part[-1] != point:
                        part.append(open_points.pop())
                        part_of[part[-1]] = len(parts)
                    parts.append(part)
    return [
        part
        for index, part in enumerate(parts)
        if all(part_of[other] == index for point in part for other in waits_for[point])
    ]
