"""Rules that people use on Flight Recorder dumps, to stand beside the verdict: each names a rank, or nobody.

They see the same dumps. A rule names one rank; of a hang with two it can at best name half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rootwalk.graph.hangs.flight_records import RankRecord
from support.trace_rules import RESTART, ROUNDS, SIGMAS

Records = Sequence[RankRecord]


def slowest_rank(records: Records) -> int | None:
    """Name the rank that was heard of least recently: its last unfinished call is the oldest."""
    last = [(max(c.created_unix_ns for c in r.pending), r.rank) for r in records if r.pending]
    return min(last)[1] if last else None


def longest_span(records: Records) -> int | None:
    """Name the rank of the unfinished call that is open longest."""
    first = [(min(c.created_unix_ns for c in r.pending), r.rank) for r in records if r.pending]
    return min(first)[1] if first else None


def shortest_collective(records: Records) -> int | None:
    """Name the rank whose unfinished call is open shortest: it came last."""
    last = [(max(c.created_unix_ns for c in r.pending), -r.rank) for r in records if r.pending]
    return -max(last)[1] if last else None


def n_sigma(records: Records) -> int | None:
    """Name the rank whose number of unfinished calls deviates most, from 3 sigma on."""
    counts = np.array([len(record.pending) for record in records], dtype=np.float64)
    middle = float(np.median(counts))
    sigma = 1.4826 * float(np.median(np.abs(counts - middle)))
    if sigma <= 0.0:
        return None
    z = np.abs(counts - middle) / sigma
    return records[int(np.argmax(z))].rank if float(z.max()) > SIGMAS else None


def page_rank(records: Records) -> int | None:
    """Name the rank at which a random walk from who waits to who has not called stays most."""
    position = {record.rank: index for index, record in enumerate(records)}
    weight = np.zeros((len(records), len(records)))
    members = {f.communicator: f.members for r in records for f in r.frontiers}
    calls: dict[tuple[str, int], set[int]] = {}
    for record in records:
        for call in record.pending:
            if call.peer is None:
                calls.setdefault((call.communicator, call.sequence), set()).add(record.rank)
    for (communicator, _), joined in calls.items():
        for absent in set(members[communicator]) - joined:
            for rank in joined if absent in position else ():
                weight[position[rank], position[absent]] += 1.0
    total = weight.sum(axis=1, keepdims=True)
    even = np.full_like(weight, 1.0 / max(len(records), 1))
    move = np.divide(weight, total, out=even, where=total > 0.0)
    score = np.full(len(records), 1.0 / max(len(records), 1))
    for _ in range(ROUNDS):
        score = RESTART / score.size + (1.0 - RESTART) * score @ move
    return records[int(np.argmax(score.round(12)))].rank if weight.any() else None


DUMP_RULES: dict[str, Callable[[Records], int | None]] = {
    "slowest rank": slowest_rank,
    "longest span": longest_span,
    "shortest collective": shortest_collective,
    "N-sigma": n_sigma,
    "PageRank": page_rank,
}
