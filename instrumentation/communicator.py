"""Collectives of one rank, as its own calls tell them: one record each, numbered as PyTorch numbers them.

Must not know torch. Safe from several threads that hold the interpreter lock.
"""

from __future__ import annotations

from functools import partial

from rootwalk.instrumentation.shared_ring import RecordFlag
from rootwalk.instrumentation.tracker import StepTracker

__all__ = ["Communicator"]

POINT_TO_POINT, END_UNKNOWN = int(RecordFlag.POINT_TO_POINT), int(RecordFlag.END_UNKNOWN)


class Communicator:
    """One process group of this rank: counts its operations as PyTorch does, and writes one record for each.

    Hooks call it fifty times a step, each time with little of it in the caches: it touches as little as it can.

    Args:
        tracker: The rank's tracker.
        description: `id|size|backend|name`.
        group: PyTorch's name of the group.

    Attributes:
        is_quiet: Nothing is counted or written, until `resume`.
    """

    def __init__(self, tracker: StepTracker, description: str, group: str = "") -> None:
        self.is_quiet = False
        self._tracker = tracker
        self._description = tracker.ring.intern(description)
        self._strings: dict[str, int] = {}
        self._collectives = 0
        self._point_to_points = 0
        self._group = group
        self._open: dict[int, tuple[tuple[int, int, int, int], int, int, int, int, int | None]] = {}

    @property
    def collectives(self) -> int:
        """How many collectives were issued."""
        return self._collectives

    def resume(self, collectives: int) -> None:
        """Count and write again.

        Args:
            collectives: How many were issued up to now, those of the pause among them.
        """
        self._collectives = collectives
        self.is_quiet = False

    def begin(
        self,
        operation_id: int,
        operation: str,
        size_bytes: int,
        *,
        is_p2p: bool,
        root: int | None = None,
    ) -> None:
        """Note the call of one operation; its id is unique in the group, its root a global rank."""
        if is_p2p:
            self._point_to_points += 1
            sequence, flags = self._point_to_points, POINT_TO_POINT
        else:
            self._collectives += 1
            sequence, flags = self._collectives, 0
        issued = self._tracker.begin_collective()
        string = self._strings.get(operation)
        if string is None:
            string = self._strings[operation] = self._tracker.ring.intern(operation)
        self._open[operation_id] = (issued, string, sequence, size_bytes, flags, root)

    def end(self, operation_id: int, *, is_known: bool) -> None:
        """Write the operation's record; `is_known` is whether it has completed now, or was only enqueued."""
        end = self._tracker.now()
        entry = self._open.pop(operation_id, None)
        if entry is None:
            return
        issued, string, sequence, size_bytes, flags, root = entry
        timed = self._tracker.timed
        if timed is not None and not is_known and not flags and timed.holds(issued[1]):
            write = partial(
                self._tracker.ring.write_collective,
                *(issued, end, END_UNKNOWN, string, sequence, size_bytes),
                *(self._description, root),
            )
            timed.hold(issued[1], (self._group, sequence), (issued[0], end), write)
            return
        self._tracker.ring.write_collective(
            issued,
            end,
            flags if is_known else flags | END_UNKNOWN,
            string,
            sequence,
            size_bytes,
            self._description,
            root,
        )
