"""Which dumps speak of one moment: what an older one cannot know is not held against its rank.

    rank 0   call 7 ended, call 8 waits -----------|dump
    rank 1   call 6 ended ---|dump                          what rank 1 has done since is not known

A dump does not say when it was taken. It was not taken before the latest time in it, nor after its file was written;
and what has ended elsewhere, its rank has issued. Pure.

- Of ranks with other members of a communicator than most have, the dumps are of another launch.
- A rank waits for a call no longer than its timeout: dumps whose latest times are farther apart are not of one hang.
- A dump whose file was written before the last call of the others is older than they are.
- A dump without a call that has ended elsewhere, and cannot end before all have issued it, is older as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rootwalk.graph.hangs.flight_records import RankRecord

__all__ = ["CLOCK_SLACK_NS", "Doubled", "Progress", "Unlike", "find_later", "find_unlike"]

# PyTorch's own, where no call of a dump says it.
DEFAULT_TIMEOUT_NS: Final = 600_000_000_000
# Clocks of hosts and of the file system may differ by so much.
CLOCK_SLACK_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Doubled:
    """Ranks with several dumps that differ.

    Attributes:
        settled: Those whose later dump is known, and is used.
        unsettled: Those of which no dump is used.
    """

    settled: tuple[int, ...] = ()
    unsettled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Unlike:
    """Ranks whose dumps are not used, ascending.

    Attributes:
        members: With other members of a communicator than most dumps have.
        times: Of another time than most dumps.
        progress: Without a call that has ended elsewhere.
    """

    members: tuple[int, ...] = ()
    times: tuple[int, ...] = ()
    progress: tuple[int, ...] = ()

    @property
    def ranks(self) -> frozenset[int]:
        """All of them."""
        return frozenset((*self.members, *self.times, *self.progress))


class Progress:
    """How far every rank has come in every communicator."""

    def __init__(self, by_rank: Mapping[int, RankRecord]) -> None:
        self.frontiers = {
            (f.communicator, rank): f for rank, r in by_rank.items() for f in r.frontiers
        }
        self._with_messages = {f.communicator for f in self.frontiers.values() if f.has_messages}

    def issued(self, communicator: str, rank: int) -> int | None:
        """Return the number of the last collective that a rank has issued; None if no record says it.

        A number that no call shows may be that of a message, where there are any.
        """
        frontier = self.frontiers.get((communicator, rank))
        if frontier is None or frontier.is_counted:
            return None if frontier is None else frontier.issued
        return None if communicator in self._with_messages else frontier.issued

    def ended(self, communicator: str, rank: int) -> int:
        """Return the number of a collective that has ended at a rank, so that all have issued it; 0 without."""
        frontier = self.frontiers[communicator, rank]
        ended = frontier.ended if frontier.is_counted else self.issued(communicator, rank)
        return ended or 0


def find_unlike(by_rank: Mapping[int, RankRecord]) -> Unlike:
    """Return the ranks whose dumps do not speak of the same moment as most others."""
    members = _other_members(by_rank)
    left = {rank: record for rank, record in by_rank.items() if rank not in members}
    times = _other_times(left)
    left = {rank: record for rank, record in left.items() if rank not in times}
    times |= _written_before(left)
    left = {rank: record for rank, record in left.items() if rank not in times}
    return Unlike(tuple(sorted(members)), tuple(sorted(times)), tuple(sorted(_behind(left))))


def _other_members(by_rank: Mapping[int, RankRecord]) -> set[int]:
    # Records that were read together share equal members: few tuples are compared, however many ranks there are.
    votes: dict[str, dict[int, list[int]]] = {}
    shared: dict[int, tuple[int, ...]] = {}
    for rank, record in by_rank.items():
        for f in (f for f in record.frontiers if f.is_whole):
            shared[id(f.members)] = f.members
            votes.setdefault(f.communicator, {}).setdefault(id(f.members), []).append(rank)
    others: set[int] = set()
    for groups in votes.values():
        ranks_of: dict[tuple[int, ...], list[int]] = {}
        for key, ranks in groups.items() if len(groups) > 1 else ():
            ranks_of.setdefault(shared[key], []).extend(ranks)
        usual = max(ranks_of, key=lambda m: (len(ranks_of[m]), len(m), m), default=())
        others.update(r for members, ranks in ranks_of.items() if members != usual for r in ranks)
    return others


def _other_times(by_rank: Mapping[int, RankRecord]) -> set[int]:
    """Return the ranks outside the largest group of dumps with no gap between their times, the last of such groups."""
    told = {r: record.seen_unix_ns for r, record in by_rank.items() if record.seen_unix_ns}
    timeouts = [record.timeout_ns for record in by_rank.values() if record.timeout_ns]
    limit_ns = max(timeouts, default=DEFAULT_TIMEOUT_NS)
    groups: list[list[int]] = []
    before_ns = 0
    for rank in sorted(told, key=lambda rank: (told[rank], rank)):
        if not groups or told[rank] - before_ns > limit_ns:
            groups.append([])
        groups[-1].append(rank)
        before_ns = told[rank]
    largest = max(reversed(groups), key=len, default=[])
    return set(told) - set(largest)


def _written_before(by_rank: Mapping[int, RankRecord]) -> set[int]:
    """Return the ranks whose files were written before the last call of all."""
    last_ns = max((record.seen_unix_ns or 0 for record in by_rank.values()), default=0)
    return {
        rank
        for rank, record in by_rank.items()
        if record.written_unix_ns is not None
        # A file that is older than what is in it says nothing.
        and (record.seen_unix_ns or 0) <= record.written_unix_ns + CLOCK_SLACK_NS < last_ns
    }


def _behind(by_rank: Mapping[int, RankRecord]) -> set[int]:
    progress = Progress(by_rank)
    ended: dict[str, int] = {}
    for name, rank in progress.frontiers:
        ended[name] = max(ended.get(name, 0), progress.ended(name, rank))
    behind = set()
    for name, rank in progress.frontiers:
        issued = progress.issued(name, rank)
        if issued is not None and issued < ended[name]:
            behind.add(rank)
    return behind


def find_later(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the latest of several dumps of one rank; None if they do not tell which it is."""
    latest = records[0]
    for record in records[1:]:
        order = _order(latest, record)
        if not order:
            return None
        latest = record if order > 0 else latest
    return latest


def _order(first: RankRecord, second: RankRecord) -> int:
    """Return 1 if the second is later than the first, -1 if it is earlier, 0 if nothing tells."""
    if first.seen_unix_ns and second.seen_unix_ns and first.seen_unix_ns != second.seen_unix_ns:
        return 1 if second.seen_unix_ns > first.seen_unix_ns else -1
    before = {f.communicator: f.issued for f in first.frontiers if f.issued is not None}
    steps = {
        f.issued - before[f.communicator]
        for f in second.frontiers
        if f.issued is not None and f.communicator in before
    } - {0}
    if steps and (min(steps) > 0 or max(steps) < 0):
        return 1 if min(steps) > 0 else -1
    written = (first.written_unix_ns or 0, second.written_unix_ns or 0)
    return 0 if 0 in written or written[0] == written[1] else (1 if written[1] > written[0] else -1)
