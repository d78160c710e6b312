"""Who is in a communicator of which no dump tells all ranks, as those of gloo's processes (PyTorch 2.15).

    rank 0   calls in 1, 2      1 has at least ranks 0, 1 and 2
    rank 1   calls in 1, 2      2 has at least ranks 0 and 1
    rank 2   calls in 1         whether rank 2 is in 2, and rank 3 in either, is not known

Who has called in it is a member. Who has not may be none, and is never called absent: then nobody may be left to
blame. A circle of waiting between known members is one whoever else is in it, and a member that has not called what
others wait in holds them up. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rootwalk.graph.hangs.flight_records import RankRecord

__all__ = ["join_members"]


def join_members(by_rank: Mapping[int, RankRecord]) -> dict[int, RankRecord]:
    """Return the records, all with the members that they prove together.

    Args:
        by_rank: Records of one moment; of another launch they would prove members that are none.
    """
    proven: dict[str, set[tuple[int, ...]]] = {}
    for record in by_rank.values():
        for frontier in record.frontiers:
            if not frontier.is_whole:
                proven.setdefault(frontier.communicator, set()).add(frontier.members)
    if not proven:
        return dict(by_rank)
    joined = {name: tuple(sorted(set().union(*known))) for name, known in proven.items()}
    return {
        rank: replace(
            record,
            frontiers=tuple(
                f if f.is_whole else replace(f, members=joined[f.communicator])
                for f in record.frontiers
            ),
        )
        for rank, record in by_rank.items()
    }
