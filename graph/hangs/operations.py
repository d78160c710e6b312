"""The operations that some rank has not finished, put together from what every rank recorded.

A collective is known by its communicator and the number that all members give it; a send and its receive are paired in
their order between the two ranks, which is that of the transport. Pure: no store, no text, nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rootwalk.graph.hangs.flight_records import SYNCHRONISING, Frontier, PendingCall, RankRecord
from rootwalk.graph.hangs.moments import Progress

__all__ = ["Operation", "find_operations", "versions_of"]

# What a send and its receive are called together; no collective has this name.
MESSAGE: Final = "send"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that at least one rank has not finished.

    Attributes:
        communicator: Its name.
        description: What the job calls it, else its name.
        sequence: The number that its members give it; of a message the lower count of its ends.
        operation: Such as `all_reduce`; `send` for a message.
        members: All ranks that take part; of a message the sender and the receiver.
        calls: The unfinished calls, by rank.
        finished: Ranks that have finished it.
        absent: Ranks with a dump that have not issued it.
        presumed: Those of `absent` of which no record says how far they have come.
        gone: Members without a dump that can be used.
    """

    communicator: str
    description: str
    sequence: int
    operation: str
    members: tuple[int, ...]
    calls: Mapping[int, PendingCall]
    finished: tuple[int, ...]
    absent: tuple[int, ...]
    presumed: tuple[int, ...]
    gone: tuple[int, ...]

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that have issued it, finished or not."""
        return tuple(sorted({*self.calls, *self.finished}))

    @property
    def since_unix_ns(self) -> int:
        """When the first rank that has not finished it issued it."""
        return min(call.created_unix_ns for call in self.calls.values())

    @property
    def is_message(self) -> bool:
        """Whether it is a send and its receive."""
        return self.operation == MESSAGE

    @property
    def is_synchronising(self) -> bool:
        """Whether no member can finish it before every member's device has taken part."""
        return self.operation in SYNCHRONISING


def find_operations(by_rank: Mapping[int, RankRecord]) -> tuple[Operation, ...]:
    """Return every operation that some rank has not finished: collectives by communicator and number, then messages."""
    progress = Progress(by_rank)
    collectives: dict[tuple[str, int], dict[int, PendingCall]] = {}
    messages: dict[tuple[str, int, int], dict[int, list[PendingCall]]] = {}
    for rank, record in sorted(by_rank.items()):
        for call in record.pending:
            if call.peer is None:
                collectives.setdefault((call.communicator, call.sequence), {})[rank] = call
            else:
                ends = (rank, call.peer) if call.operation == "send" else (call.peer, rank)
                both = messages.setdefault((call.communicator, *ends), {})
                both.setdefault(rank, []).append(call)
    found = [_collective(progress, calls, by_rank) for _, calls in sorted(collectives.items())]
    for (communicator, sender, receiver), both in sorted(messages.items()):
        frontier = progress.frontiers[communicator, min(both)]
        found += _messages(frontier, (sender, receiver), both, by_rank)
    return tuple(found)


def _collective(
    progress: Progress, calls: dict[int, PendingCall], by_rank: Mapping[int, RankRecord]
) -> Operation:
    first = next(iter(calls.values()))
    frontier = progress.frontiers[first.communicator, next(iter(calls))]
    finished, absent, presumed, gone = [], [], [], []
    for rank in sorted(set(frontier.members) - set(calls)):
        if rank not in by_rank:
            gone.append(rank)
            continue
        issued = progress.issued(first.communicator, rank)
        if issued is not None and issued >= first.sequence:
            finished.append(rank)
            continue
        absent.append(rank)
        if issued is None:
            presumed.append(rank)
    names = [call.operation for call in calls.values()]
    return Operation(
        communicator=first.communicator,
        description=frontier.description or first.communicator,
        sequence=first.sequence,
        operation=max(sorted(set(names)), key=names.count),
        members=frontier.members,
        calls=calls,
        finished=tuple(finished),
        absent=tuple(absent),
        presumed=tuple(presumed),
        gone=tuple(gone),
    )


def _messages(
    frontier: Frontier,
    ends: tuple[int, int],
    both: Mapping[int, list[PendingCall]],
    by_rank: Mapping[int, RankRecord],
) -> list[Operation]:
    """Return the messages that one rank has for another, each with its calls at one end or both."""
    result = []
    for index in range(max(len(calls) for calls in both.values())):
        calls = {rank: both[rank][index] for rank in sorted(both) if index < len(both[rank])}
        others = [rank for rank in ends if rank not in calls]
        result.append(
            Operation(
                communicator=frontier.communicator,
                description=frontier.description or frontier.communicator,
                sequence=min(call.sequence for call in calls.values()),
                operation=MESSAGE,
                members=ends,
                calls=calls,
                finished=(),
                absent=tuple(rank for rank in others if rank in by_rank),
                presumed=(),
                gone=tuple(rank for rank in others if rank not in by_rank),
            )
        )
    return result


def versions_of(calls: Mapping[int, PendingCall]) -> list[list[int]]:
    """Return the ranks by what they called; a message has two sides and one version.

    Args:
        calls: Calls of one operation, by rank.
    """
    found: dict[tuple[str, int | None, str], list[int]] = {}
    for rank, call in calls.items():
        if call.peer is None:
            found.setdefault((call.operation, call.elements, call.dtype), []).append(rank)
    return list(found.values())
