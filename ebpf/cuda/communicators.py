"""NCCL's communicators as all of their members know them; mirrors `programs/communicators.h`.

Pure. A communicator has an id where its creation was seen; the id is the same at all members, and so is the number of
each of its collectives. What a member has called is the number of its last one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from rootwalk.ebpf.reader import Measurement, Value
from rootwalk.instrumentation import ids, semconv

__all__ = [
    "BIRTH",
    "COMMUNICATOR",
    "COMMUNICATOR_KEY",
    "CREATION",
    "IS_NUMBERED",
    "LIFETIMES",
    "UNFINISHED",
    "Communicators",
    "Lifetime",
    "Member",
    "Pairs",
]

# struct communicator_key, communicator, birth, unfinished, creation
COMMUNICATOR_KEY = struct.Struct("<I4xQ")
COMMUNICATOR = struct.Struct("<QQQII")
BIRTH = struct.Struct("<QQIIIIIi128s")
UNFINISHED = struct.Struct("<8Q8Q")
CREATION = struct.Struct("<QQQQI4x168s")
NUMBER = struct.Struct("<Q")
IS_NUMBERED = 1 << 63
# One that has ended is told of so long, for the last values of its sums.
KEPT_S = 60.0

Pairs = Iterable[tuple[bytes, bytes]]


class Lifetime(NamedTuple):
    """What a function makes or ends: a number of `enum lifetime`."""

    what: int

    @property
    def is_frequent(self) -> bool:
        """Whether a step has thousands of these."""
        return False

    @property
    def cookie(self) -> int:
        """The number that the program is told at each call."""
        return self.what


# Library -> its functions that make and end communicators (nccl.h of NCCL 2.30).
LIFETIMES: Mapping[str, Mapping[str, Lifetime]] = {
    "libnccl": {
        "ncclCommInitRank": Lifetime(1),
        "ncclCommInitRankConfig": Lifetime(1),
        "ncclCommInitRankScalable": Lifetime(2),
        "ncclCommSplit": Lifetime(3),
        "ncclCommShrink": Lifetime(4),
        "ncclCommGrow": Lifetime(5),
        "ncclCommInitAll": Lifetime(6),
        "ncclCommDestroy": Lifetime(7),
        "ncclCommAbort": Lifetime(7),
    }
}


class Member(NamedTuple):
    """A rank's end of a communicator.

    Attributes:
        id: What all members know it by; None where it was split from one that is not known.
        size: How many members it has; None where not known, as of one that was split.
        address: Where it lies in the rank's process; None for a split in which nothing was called yet.
        slot: The rank.
        pid: The process.
    """

    id: str | None
    size: int | None
    address: int | None
    slot: int
    pid: int

    @property
    def attributes(self) -> dict[str, Value]:
        """What tells it from others."""
        found = dict(self.common)
        if self.address is not None:
            found[semconv.TRAINING_NCCL_COMMUNICATOR] = f"{self.address:#x}"
        return found

    @property
    def common(self) -> dict[str, Value]:
        """What all members know of it."""
        found: dict[str, Value] = {}
        if self.id is not None:
            found[semconv.COLLECTIVE_COMMUNICATOR_ID] = self.id
        if self.size is not None:
            found[semconv.COLLECTIVE_COMMUNICATOR_SIZE] = self.size
        return found


class Communicators:
    """Remembers what the numbers stand for, for as long as they may be asked for."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._ended_s: dict[int, float] = {}

    def take(self, births: Pairs, present: Pairs = ()) -> None:
        """Learn what was made.

        Args:
            births: Of the map of births, all that is in it.
            present: The map of communicators, read before.
        """
        for key, value in sorted(births, key=lambda pair: NUMBER.unpack(pair[0])):
            address, parent, pid, slot, members, _, split, colour, unique_id = BIRTH.unpack(value)
            name: str | None = None
            if not parent:
                name = ids.nccl_communicator_id(unique_id)
            elif (whole := self._members.get(parent)) is not None and whole.id is not None:
                name = ids.nccl_split_id(whole.id, split, colour)
            (number,) = NUMBER.unpack(key)
            self._members[number] = Member(name, members or None, address or None, slot, pid)
        for key, value in present:
            (number, *_), (pid, address) = COMMUNICATOR.unpack(value), COMMUNICATOR_KEY.unpack(key)
            if (member := self._members.get(number)) is not None and member.address is None:
                self._members[number] = member._replace(address=address)

    def find(self, communicator: int) -> Member | None:
        """Return what a sum's communicator is; None for one that has no number, or has ended long ago."""
        return self._members.get(communicator ^ IS_NUMBERED)

    def measure(self, unfinished: Pairs, present: Pairs, now_s: float) -> Iterator[Measurement]:
        """Yield how far ranks are in the communicators that are there now.

        Args:
            unfinished: The map of splits that go on, in which nothing was called yet; read before the next.
            present: The map of communicators, read before that of births was taken.
            now_s: Monotonic clock, s.
        """
        numbers = {one for _, value in unfinished for one in UNFINISHED.unpack(value)[8:]}
        counts = {number: (0, 0) for number in numbers if number}
        for _, value in present:
            number, collectives, messages, _, _ = COMMUNICATOR.unpack(value)
            counts[number] = collectives, messages
        for number, (collectives, messages) in counts.items():
            member = self._members.get(number)
            if member is not None and member.id is not None:
                yield _count(member, collectives, is_message=False)
                if messages:
                    yield _count(member, messages, is_message=True)
        self._note_ends(set(counts), now_s)

    def _note_ends(self, present: set[int], now_s: float) -> None:
        for number in present:
            self._ended_s.pop(number, None)  # it was made while this was read
        for number in self._members.keys() - present:
            self._ended_s.setdefault(number, now_s)
        for number, ended_s in list(self._ended_s.items()):
            if now_s - ended_s > KEPT_S:
                del self._ended_s[number], self._members[number]

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Forget ranks that have ended, by their slots."""
        for number in [one for one, member in self._members.items() if is_gone(member.slot)]:
            del self._members[number]
            self._ended_s.pop(number, None)


def _count(member: Member, count: int, *, is_message: bool) -> Measurement:
    attributes = {**member.common, semconv.COLLECTIVE_IS_POINT_TO_POINT: is_message}
    return Measurement(semconv.METRIC_TRAINING_NCCL_OPERATIONS, count, attributes, member.slot)
