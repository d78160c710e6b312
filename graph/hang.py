"""Why a job hangs, from what every rank recorded: what waits for what, and where the waiting ends.

    operation --not issued by--> host of a rank --its last call--> operation
              --queued behind--> the rank's call before it
              --not finished though its peers have--> device of a rank
              --no dump--------> rank that is gone

Points without a way out are to blame; all ranks that lead to them are victims. Pure: no store, no text. The rules hold
for any job, for these reasons:

- A host that has issued nothing that is unfinished waits for no other rank; if others wait for its call, it is to blame.
- A host that has unfinished calls may wait for the last of them, and a device may take calls in the order in which they
  were issued: so blame moves on along both. Neither must be so (calls of other communicators run beside each other);
  blame that moves on needlessly ends at a rank that holds up others as well, and cycles made so are less certain.
- All-reduce, all-gather, reduce-scatter and barrier end nowhere before every member's device has taken part. What a peer
  has finished, a member's device has begun; and in one communicator a device begins a call when the one before has
  ended. So a rank whose record says "not finished" for an operation before one that a peer has finished has a
  device that no longer answers: PyTorch asks it at the dump. With one operation between them the missing part may
  still be on its way; then a rank is only blamed if it is the only one.
- Where the recorder times the device and some members have begun an operation that all have issued, those that have not
  and have nothing before it are held up by what else their device does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from rootwalk.graph.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.reasons import Reason
from rootwalk.graph.wait_graph import final_parts

__all__ = ["Blame", "Call", "Hang", "Operation", "find_hang"]

# Operations that end at no member before every member's device has taken part. An all-to-all may send nothing to some.
SYNCHRONISING: Final = frozenset(("all_reduce", "all_gather", "reduce_scatter", "barrier"))


class Kind(IntEnum):
    """Kinds of points, in the order of their numbers in `Point`."""

    OPERATION = 0
    HOST = 1
    DEVICE = 2
    GONE = 3
    MISMATCH = 4


# Kind, rank or number of the operation.
Point = tuple[Kind, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that at least one rank has not finished; a send and its receive are one.

    Attributes:
        communicator: Its name.
        description: What the job calls it.
        sequence: The number that its members give it; of a message the lowest count of its ends.
        operation: Such as `all_reduce`; `send` for a message.
        members: All ranks that take part.
        calls: The unfinished calls, by rank.
        finished: Ranks that have finished it.
        absent: Ranks that have a dump and have not issued it.
        gone: Members without a dump.
    """

    communicator: str
    description: str
    sequence: int
    operation: str
    members: tuple[int, ...]
    calls: Mapping[int, PendingCall]
    finished: tuple[int, ...]
    absent: tuple[int, ...]
    gone: tuple[int, ...]

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that have issued it, finished or not."""
        return tuple(sorted({*self.calls, *self.finished}))

    @property
    def since_unix_ns(self) -> int:
        """When the first rank that has not finished it issued it."""
        return min(call.created_unix_ns for call in self.calls.values())


@dataclass(frozen=True, slots=True)
class Blame:
    """One reason with the ranks that it holds for.

    Attributes:
        reason: Code of the contract.
        ranks: Who is to blame, ascending.
        operation: The operation that shows it best.
        certainty: 0 to 1: how surely the dumps say so.
        cycle: The operations of a cyclic wait, each waiting for the next; empty for other reasons.
    """

    reason: Reason
    ranks: tuple[int, ...]
    operation: Operation
    certainty: float
    cycle: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """What hangs and why.

    Attributes:
        operations: Every operation that some rank has not finished.
        blames: By reason, the surest first; empty if the dumps do not tell.
        victims: Ranks with an unfinished call that are not to blame.
        missing: Ranks of the job without a dump.
        ahead: Operations that a rank has finished and another, without which it cannot end, has not issued: the dumps
            are not of one moment.
    """

    operations: tuple[Operation, ...]
    blames: tuple[Blame, ...]
    victims: tuple[int, ...]
    missing: tuple[int, ...]
    ahead: int
    world: int


Call = PendingCall


@dataclass(slots=True)
class _Waits:
    """The graph under construction, and which ranks make each of its edges."""

    edges: dict[Point, list[Point]] = field(default_factory=dict)
    ranks: dict[tuple[Point, Point], set[int]] = field(default_factory=dict)

    def add(self, source: Point, target: Point, rank: int) -> None:
        self.edges.setdefault(source, []).append(target)
        self.edges.setdefault(target, [])
        self.ranks.setdefault((source, target), set()).add(rank)
