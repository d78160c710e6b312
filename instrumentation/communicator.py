"""Collectives of one rank, as its own calls tell them: one record each, numbered as PyTorch numbers them.

Must not know torch. Safe from several threads that hold the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rootwalk.instrumentation.ring_frontiers import FrontierEntry
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
        members: Global ranks of its members; empty where not known.

    Attributes:
        is_quiet: Nothing is counted or written, until `resume`.
    """

    def __init__(
        self,
        tracker: StepTracker,
        description: str,
        group: str = "",
        members: Sequence[int] = (),
    ) -> None:
        self.is_quiet = False
        self._tracker = tracker
        self._description = tracker.ring.intern(description)
        table = tracker.ring.frontiers
        self._frontier = table.claim(self._description, is_p2p=False, members=members)
        self._claim_p2p = partial(table.claim, self._description, is_p2p=True, members=members)
        self._frontier_p2p: FrontierEntry | None = None
        self._strings: dict[str, int] = {}
        self._collectives = 0
        self._point_to_points = 0
        self._group = group
        self._open: dict[int, tuple[tuple[int, int, int, int], int, int, int, int, int | None]] = {}

    @property
    def collectives(self) -> int:
        """How many collectives were issued."""
        return self._collectives

    def pause(self) -> None:
        """Count and write nothing, until `resume`."""
        self.is_quiet = True
        self._frontier.hide()
        if self._frontier_p2p is not None:
            self._frontier_p2p.hide()

    def resume(self, collectives: int) -> None:
        """Count and write again.

        Args:
            collectives: How many were issued up to now, those of the pause among them.
        """
        self._collectives = collectives
        self._frontier.skip_to(collectives)
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
            frontier = self._frontier_p2p
            if frontier is None:
                frontier = self._frontier_p2p = self._claim_p2p()
        else:
            self._collectives += 1
            sequence, flags = self._collectives, 0
            frontier = self._frontier
        issued = self._tracker.begin_collective()
        string = self._strings.get(operation)
        if string is None:
            string = self._strings[operation] = self._tracker.ring.intern(operation)
        self._open[operation_id] = (issued, string, sequence, size_bytes, flags, root)
        frontier.begin(sequence, issued[0], string, size_bytes, root)

    def end(self, operation_id: int, *, is_known: bool) -> None:
        """Write the operation's record; `is_known` is whether it has completed now, or was only enqueued."""
        end = self._tracker.now()
        entry = self._open.pop(operation_id, None)
        if entry is None:
            return
        issued, string, sequence, size_bytes, flags, root = entry
        frontier = self._frontier_p2p if flags else self._frontier
        if frontier is not None:
            frontier.end(sequence, end, is_known=is_known)
        timed = self._tracker.timed
        if timed is not None and not is_known and not flags and timed.holds(issued[1]):
            write = partial(
                self._write_timed,
                *(issued, end, END_UNKNOWN, string, sequence, size_bytes, root),
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

    def _write_timed(
        self,
        issued: tuple[int, int, int, int],
        end_mono_ns: int,
        flags: int,
        string: int,
        sequence: int,
        size_bytes: int,
        root: int | None,
        *,
        device_ns: int | None,
    ) -> None:
        """Write a collective of a device whose duration there is known by now, or will never be."""
        if device_ns is not None:
            self._frontier.confirm(sequence, self._tracker.now())
        self._tracker.ring.write_collective(
            *(issued, end_mono_ns, flags, string, sequence, size_bytes),
            *(self._description, root, device_ns),
        )
