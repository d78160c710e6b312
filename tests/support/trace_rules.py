"""Rules that people use on traces, to stand beside the verdict: each names a rank, or nobody.

They see the same operations of one step as the walk, on the same clock.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rootwalk.graph.operations.arrays import Operations, group_maxima

FloatArray = npt.NDArray[np.float64]

# Deviations of the N-sigma rule, as usual.
SIGMAS = 3.0
# Probability of a jump back to any rank, and rounds until the ranks' order stands.
RESTART = 0.15
ROUNDS = 200


def _by_rank(operations: Operations, values: FloatArray) -> FloatArray:
    total = np.bincount(operations.rank, values, int(operations.rank.max()) + 1)
    seen = np.bincount(operations.rank, minlength=total.size) > 0
    return np.where(seen, total, np.nan)


def slowest_rank(operations: Operations) -> int | None:
    """Name the rank whose operations take longest in all."""
    return int(np.nanargmax(_by_rank(operations, operations.end_s - operations.start_s)))


def longest_span(operations: Operations) -> int | None:
    """Name the rank of the longest operation."""
    return int(operations.rank[int(np.argmax(operations.end_s - operations.start_s))])


def shortest_collective(operations: Operations) -> int | None:
    """Name the rank that is shortest in collectives, it does not wait: each gives its longest wait as votes."""
    seconds = operations.end_s - operations.start_s
    chosen = np.flatnonzero(operations.is_communication & ~operations.is_message)
    group = operations.group[chosen]
    order = chosen[np.lexsort((operations.rank[chosen], seconds[chosen], group))]
    heads = np.flatnonzero(np.diff(operations.group[order], prepend=-1))
    tails = np.append(heads[1:], order.size) - 1
    votes = np.zeros(int(operations.rank.max()) + 1)
    waited_s = seconds[order[tails]] - seconds[order[heads]]
    np.add.at(votes, operations.rank[order[heads]], waited_s)
    return int(np.argmax(votes)) if order.size else None


def n_sigma(operations: Operations) -> int | None:
    """Name the rank that deviates most from the others in the seconds of one type of operation, from 3 sigma on."""
    best, found = SIGMAS, None
    for kind in range(len(operations.types)):
        chosen = operations.type == kind
        if not chosen.any():
            continue
        seconds = np.where(chosen, operations.end_s - operations.start_s, 0.0)
        total = _by_rank(operations, seconds)
        ranks = np.unique(operations.rank[chosen])
        middle = float(np.median(total[ranks]))
        sigma = 1.4826 * float(np.median(np.abs(total[ranks] - middle)))
        if sigma <= 0.0:
            continue
        z = (total[ranks] - middle) / sigma
        if float(z.max()) > best:
            best, found = float(z.max()), int(ranks[int(np.argmax(z))])
    return found


def page_rank(operations: Operations) -> int | None:
    """Name the rank at which a random walk from who waits to who came last stays most."""
    size = int(operations.rank.max()) + 1
    arrived = group_maxima(operations.group, operations.start_s)
    is_last = operations.is_communication & (operations.start_s == arrived)
    last = np.full(int(operations.group.max()) + 1, -1, dtype=np.int64)
    last[operations.group[is_last]] = operations.rank[is_last]
    waits = np.flatnonzero(operations.is_communication & ~is_last)
    weight = np.zeros((size, size))
    waited_s = arrived[waits] - operations.start_s[waits]
    np.add.at(weight, (operations.rank[waits], last[operations.group[waits]]), waited_s)
    ranks = np.unique(operations.rank)
    weight = weight[np.ix_(ranks, ranks)]
    total = weight.sum(axis=1, keepdims=True)
    move = np.divide(weight, total, out=np.full_like(weight, 1.0 / ranks.size), where=total > 0.0)
    score = np.full(ranks.size, 1.0 / ranks.size)
    for _ in range(ROUNDS):
        score = RESTART / ranks.size + (1.0 - RESTART) * score @ move
    return int(ranks[int(np.argmax(score))])


RULES: dict[str, Callable[[Operations], int | None]] = {
    "slowest rank": slowest_rank,
    "longest span": longest_span,
    "shortest collective": shortest_collective,
    "N-sigma": n_sigma,
    "PageRank": page_rank,
}
