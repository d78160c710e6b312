"""How far a rank has come in each communicator, in its ring: written at every call and end, read while it stands still.

    called    1 2 3 4 5 6 7          last called 7
    ended     x x x   x x            all up to 3 have ended; 4 is the oldest that has not

A kind of operation (collectives, point-to-point) of a communicator has one entry of 64 bytes and its members' ranks. A
writer takes no lock: it writes the whole entry in one call, with the number of its turn first and last, and again when
another thread had a turn meanwhile. A reader reads twice and takes what is the same. Standard library only.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from rootwalk.instrumentation.ring_file import MAX_NUMBER, is_communicator
from rootwalk.instrumentation.ring_layout import (
    COUNTER,
    FRONTIER,
    FRONTIER_BYTES,
    FRONTIER_CAPACITY,
    FRONTIER_COUNT_OFFSET,
    FRONTIERS_OFFSET,
    MAX_MEMBERS,
    MEMBERS_OFFSET,
    MOVED_OFFSET,
    MOVES_OFFSET,
)

__all__ = ["Frontier", "FrontierEntry", "FrontierTable", "decode_frontiers"]

MOVES, MOVED = MOVES_OFFSET // 8, MOVED_OFFSET // 8
# A writer needs a microsecond for an entry, so two readings in a row that differ more often are no chance.
READ_ATTEMPTS = 5
MAX_ROOT = 1 << 31
FRONTIER_WORDS = len(FRONTIER.unpack(bytes(FRONTIER.size)))


class Frontier(NamedTuple):
    """How far a rank has come with one kind of operation in one communicator.

    Attributes:
        communicator: `id|size|backend|name`.
        is_p2p: Whether these are sends and receives.
        called: Number of the last operation that the rank has called; 0 for none.
        ended: Number up to which every operation is known to have ended; 0 for none.
        operation: The last one that was called.
        size_bytes: Bytes that the rank contributes to it.
        root: Its root, or the other rank; None where it has none.
        pending_mono_ns: When the oldest operation that has not ended was called, ns; None where none is known not to
            have ended.
        members: Global ranks in the communicator's order; empty where they do not fit.
    """

    communicator: str
    is_p2p: bool
    called: int
    ended: int
    operation: str
    size_bytes: int
    root: int | None
    pending_mono_ns: int | None
    members: tuple[int, ...]


class FrontierTable:
    """The writing end: owns the table of one ring.

    Args:
        memory: The ring.

    Attributes:
        memory: The ring.
        words: The same as 64-bit words.
        turns: Numbers for the turns of all entries.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        self.turns = count(1)  # atomic under the interpreter lock
        self._used = 0

    def claim(
        self, communicator: int, *, is_p2p: bool, members: Sequence[int] = ()
    ) -> FrontierEntry:
        """Return an entry for one kind of operation of one communicator; one that writes nothing when all are used.

        Args:
            communicator: String of the communicator.
            is_p2p: Whether it is for sends and receives.
            members: Global ranks in the communicator's order; left out where they do not fit.
        """
        place = None
        if self._used < FRONTIER_CAPACITY:
            place = FRONTIERS_OFFSET + FRONTIER_BYTES * self._used
            self._used += 1
            if len(members) > MAX_MEMBERS:
                members = ()
            struct.pack_into(f"<{len(members)}I", self.memory, place + MEMBERS_OFFSET, *members)
            COUNTER.pack_into(self.memory, FRONTIER_COUNT_OFFSET, self._used)
        return FrontierEntry(self, place, communicator, is_p2p, len(members))


class FrontierEntry:
    """One kind of operation of one communicator: follows what was called and has ended. Safe from several threads.

    Args:
        table: Where the entry is written.
        place: Its offset in the ring; None for an entry that found no room.
        communicator: String of the communicator.
        is_p2p: Whether it is for sends and receives.
        member_count: How many members were written.
    """

    __slots__ = (
        "_fixed",
        "_last",
        "_memory",
        "_open",
        "_place",
        "_turn",
        "_turns",
        "_unknown",
        "_words",
        "called",
        "ended",
    )

    def __init__(
        self,
        table: FrontierTable,
        place: int | None,
        communicator: int,
        is_p2p: bool,
        member_count: int,
    ) -> None:
        self._memory, self._words, self._turns = table.memory, table.words, table.turns
        self._place = place
        self._fixed = (communicator, int(is_p2p), member_count)
        self._open: dict[int, int] = {}
        # The first operation of which it is not known whether it has ended; 0 for none.
        self._unknown = 0
        self._last = (0, 0, 0)
        self._turn = 0
        self.called = 0
        self.ended = 0

    def begin(
        self, sequence: int, mono_ns: int, operation: int, size_bytes: int, root: int | None
    ) -> None:
        """Note the call of an operation; `operation` is its string."""
        self._open[sequence] = mono_ns
        self.called = sequence
        self._last = (operation, size_bytes, 0 if root is None else root + 1)
        self._publish(mono_ns)

    def end(self, sequence: int, mono_ns: int, *, is_known: bool) -> None:
        """Note that an operation has ended, or that its end will not be known."""
        self._open.pop(sequence, None)
        if not is_known and not self._unknown:
            self._unknown = sequence
        self._publish(mono_ns)

    def confirm(self, sequence: int, mono_ns: int) -> None:
        """Note that an operation has ended whose end was not known, and all before it: a device does them in turn."""
        if sequence > self.ended and self._unknown:
            self.ended = sequence
            self._unknown = sequence + 1 if sequence < self.called else 0
            self._publish(mono_ns)

    def skip_to(self, sequence: int) -> None:
        """Note that the operations up to a number were not seen: which of them have ended is not known."""
        self._open.clear()
        self._unknown = max(sequence, 1)
        self.called = sequence

    def hide(self) -> None:
        """Take the entry out of the table until the next operation: what follows is not seen."""
        if self._place is not None:
            FRONTIER.pack_into(self._memory, self._place, *(0,) * FRONTIER_WORDS)

    def _publish(self, mono_ns: int) -> None:
        place = self._place
        if place is None:
            return
        words = self._words
        self._turn = words[MOVES] = next(self._turns)
        words[MOVED] = mono_ns
        while True:
            turn, oldest, pending = self._turn, 0, 0
            for oldest, pending in self._open.items():  # noqa: B007  (the first one is wanted)
                break
            first = oldest or self.called + 1
            unknown = self._unknown
            if unknown and unknown < first:
                first = unknown
            if first > self.ended:
                self.ended = first - 1
            communicator, is_p2p, members = self._fixed
            operation, size_bytes, root = self._last
            # In one call, which no other thread of this interpreter can come into.
            FRONTIER.pack_into(
                *(self._memory, place, turn, communicator, is_p2p, operation, members),
                *(self.called, self.ended, size_bytes, root, pending, turn),
            )
            if (
                turn == self._turn
            ):  # else another thread had a turn, whose state this may have missed
                return


def decode_frontiers(
    read: Callable[[], bytes], string: Callable[[int], str]
) -> list[Frontier] | None:
    """Return how far a rank has come in each communicator; without an entry that is just being written.

    Args:
        read: Returns a copy of the entries that are in use, 320 bytes each.
        string: Returns the string of a number.

    Returns:
        None when an entry is not one that a rank writes.
    """
    tables = [read(), read()]
    while len(tables) < READ_ATTEMPTS and tables[-1] != tables[-2]:
        tables.append(read())
    found = []
    for place in range(0, min(map(len, tables[-2:])), FRONTIER_BYTES):
        entry = tables[-1][place : place + FRONTIER_BYTES]
        (turn, communicator, is_p2p, operation, members, *numbers, last_turn) = (
            FRONTIER.unpack_from(entry)
        )
        if entry != tables[-2][place : place + FRONTIER_BYTES] or turn != last_turn or not turn:
            continue
        called, ended, size_bytes, root, pending = numbers
        text = string(communicator)
        if max(called, ended, size_bytes, pending) >= MAX_NUMBER or root > MAX_ROOT:
            return None
        if not is_communicator(text):
            return None
        ranks = struct.unpack_from(f"<{min(members, MAX_MEMBERS)}I", entry, MEMBERS_OFFSET)
        found.append(
            Frontier(
                text,
                bool(is_p2p),
                called,
                ended,
                string(operation),
                size_bytes,
                root - 1 if root else None,
                pending or None,
                ranks,
            )
        )
    return found
