"""What a flight recorder tells of one rank: its communicators, and the operations that it has not finished.

Plain data between the importer, the store and the analysis of hangs; decides nothing. Times are Unix ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_OVER", "SYNCHRONISING", "Frontier", "PendingCall", "RankRecord"]

# Operations that end at no member before every member's device has taken part. An all-to-all may send nothing to some.
SYNCHRONISING: Final = frozenset(("all_reduce", "all_gather", "reduce_scatter", "barrier"))

# Calls of one communicator that are kept although they are over: as many as may have failed together, the buckets of
# one backward pass.
MAX_OVER: Final = 32


@dataclass(frozen=True, slots=True)
class Frontier:
    """How far one rank has come in one communicator.

    Attributes:
        communicator: Its name, the same at all members.
        description: What the job calls it; empty if it has no such name.
        members: The ranks of the job in it, in the communicator's order.
        issued: Number of the last collective that the rank's host has issued; None if it is not known.
        is_counted: Whether a call of the rank says so. If not, the number may be that of its last send or receive.
        has_messages: Whether a call of the rank says that it has sent or received in this communicator.
        ended: Number of a collective that has ended at the rank, so that all members have issued it; None if no call
            of the rank tells one, as those of `RankRecord.over` do not after which nothing waits.
            Where the dump has only unfinished calls, the one before them.
        is_whole: Whether `members` are all of its ranks. If not, they are those that this dump proves (`membership`).
    """

    communicator: str
    description: str
    members: tuple[int, ...]
    issued: int | None
    is_counted: bool = True
    has_messages: bool = False
    ended: int | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One rank's call of an operation that it has not finished.

    Attributes:
        order: Where it comes among the rank's calls; ascending.
        communicator: Name of its communicator.
        sequence: The number that all members give the same collective; of a send or receive the rank's own count.
        operation: Such as `all_reduce`, `send`, `recv`.
        peer: The other rank of a send or receive, None for a collective.
        elements: Numbers that each member gives or, for `scatter`, takes; None where members may differ.
        dtype: Their type; empty if not known.
        is_started: Whether the device has begun it; False as well where the recorder does not time it.
        created_unix_ns: When the host issued it.
        frames: Where the host issued it, innermost first, `function (file:line)`.
        place: The innermost of its frames outside PyTorch; empty if not known.
    """

    order: int
    communicator: str
    sequence: int
    operation: str
    peer: int | None
    elements: int | None
    dtype: str
    is_started: bool
    created_unix_ns: int
    frames: tuple[str, ...] = ()
    place: str = ""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One dump: the rank, how far it has come everywhere, and its unfinished calls in order.

    Attributes:
        last_frames: Where the host issued its last call, finished or not; empty if the recorder kept no stacks.
        seen_unix_ns: The latest time that the dump tells, before which it was not taken; None if it has no call.
        written_unix_ns: When its file was last written, after which it was not taken; None if not known.
        timeout_ns: The longest that a call of it may take; None if it does not say.
        bad_times: Calls that end before they begin, or were issued well before the call before them.
        last_place: The innermost of `last_frames` outside PyTorch; empty if not known.
        over: The last collectives of each communicator that are over without the dump saying how, in order: those of
            gloo, which look alike when they have ended and when they have failed. Without stacks.
    """

    rank: int
    version: str
    library: str
    frontiers: tuple[Frontier, ...]
    pending: tuple[PendingCall, ...]
    last_frames: tuple[str, ...] = ()
    seen_unix_ns: int | None = None
    written_unix_ns: int | None = None
    timeout_ns: int | None = None
    bad_times: int = 0
    over: tuple[PendingCall, ...] = ()
    last_place: str = ""
