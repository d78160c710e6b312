"""Who a cause is, and how many seconds it is charged with in which operations.

Owns the ledger of the descent; knows nothing of how seconds are found or what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.reasons import Reason

# Place of a cause that sits in the rank's loader workers, not in its own process.
IN_WORKERS: Final = "workers"
# Place of the contention of a rank that came to the CPUs of another.
MOVED: Final = "moved"


@dataclass(frozen=True, slots=True, order=True)
class CauseKey:
    """Who and what: `rank` is None when no single rank is to blame, `pid` when no process is known.

    `place` tells causes of one reason and rank apart, where that is a difference; else it is empty.
    """

    reason: str
    rank: int | None
    pid: int | None
    place: str = ""

    def sort_key(self) -> tuple[str, int, int, str]:
        """Return a key in which None sorts first."""
        return (
            self.reason,
            -1 if self.rank is None else self.rank,
            -1 if self.pid is None else self.pid,
            self.place,
        )


@dataclass(frozen=True, slots=True)
class Crowd:
    """Processes of one name and control group that stand in the way of all ranks of a host alike."""

    host_id: str
    name: str
    cgroup: str | None
    pids: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def key(self) -> CauseKey:
        """The cause that it is: no rank's."""
        place = "/".join((self.host_id, self.name, self.cgroup or ""))
        return CauseKey(Reason.CPU_CONTENTION, None, None, place)

    @property
    def members(self) -> tuple[CauseKey, ...]:
        """The causes that it takes the place of: each process in each rank's way."""
        return tuple(
            CauseKey(Reason.CPU_CONTENTION, rank, pid) for rank in self.ranks for pid in self.pids
        )


@dataclass(slots=True)
class Amounts:
    """Seconds by cause and node while they are collected, and who is behind the causes that are crowds."""

    nodes: dict[CauseKey, list[IntArray]] = field(default_factory=dict)
    values: dict[CauseKey, list[FloatArray]] = field(default_factory=dict)
    crowds: dict[CauseKey, Crowd] = field(default_factory=dict)

    def add(self, key: CauseKey, nodes: IntArray, values: FloatArray) -> None:
        """Charge seconds in some operations to a cause."""
        kept = values != 0.0
        if kept.any():
            self.nodes.setdefault(key, []).append(nodes[kept])
            self.values.setdefault(key, []).append(values[kept])

    def total_s(self, key: CauseKey) -> float:
        """Return the seconds of one cause in all operations."""
        return float(sum(part.sum() for part in self.values[key]))

    def column(self, key: CauseKey, node_count: int) -> FloatArray:
        """Return the seconds of one cause in each operation, (nodes,)."""
        column = np.zeros(node_count)
        for nodes, values in zip(self.nodes[key], self.values[key], strict=True):
            np.add.at(column, nodes, values)
        return column
