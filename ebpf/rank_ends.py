"""How ranks' programs end, by their own rings: the uncaught exception, and the end of a process without BPF.

The lifecycle program reports exit codes and signals of every rank that it follows. Where it is not there, or where a
rank was gone before it was seen, it is only known that the process is gone, and whether its exit handlers have run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rootwalk.ebpf.agent_events import AgentEvents, EventOwner
from rootwalk.ebpf.discovery import is_process_alive
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.reader import EventValue, Occurrence
from rootwalk.ebpf.watched import WatchedRank, WatchedRanks
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.shared_ring import RankException

__all__ = ["RankEnds"]

NS_PER_S = 1e9


class RankEnds:
    """Reports each end once.

    Args:
        has_lifecycle: Whether the lifecycle program reports the ends of the ranks that are watched.
        now: The monotonic clock, ns.
    """

    def __init__(self, *, has_lifecycle: bool, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._has_lifecycle = has_lifecycle
        self._now = now
        # By process id and when it started.
        self._reported: set[tuple[int, int | None]] = set()
        self._alive_ns: dict[tuple[int, int], int] = {}

    def update(
        self,
        streams: Iterable[RankStream],
        ranks: WatchedRanks,
        events: AgentEvents,
        find_owner: Callable[[int], EventOwner | None],
    ) -> None:
        """Report the ends since the last call.

        Args:
            streams: The rings, which were read in this round.
            ranks: The ranks that are watched.
            events: Where they are reported.
            find_owner: Returns whose a rank slot is.
        """
        for stream in streams:
            rank = ranks.find(stream.identity.pid)
            slot = rank.slot if rank is not None and stream in rank.streams else None
            found = []
            exception = stream.take_exception()
            if exception is not None:
                found.append(_exception(exception, stream.identity.pid, slot))
            key = (stream.identity.pid, stream.start_ticks)
            is_followed = self._has_lifecycle and slot is not None
            if stream.gone_mono_ns is not None and not is_followed and key not in self._reported:
                self._reported.add(key)
                found.append(_end_of_stream(stream, slot))
            if slot is not None:
                events.add(found, find_owner)
            else:
                events.add_of(EventOwner(stream.identity.resource_attributes()), found)
        if not self._has_lifecycle:
            for rank in ranks:
                if not rank.streams and (rank.pid, rank.start_ticks) not in self._reported:
                    events.add(self._check_ringless(rank), find_owner)

    def _check_ringless(self, rank: WatchedRank) -> list[Occurrence]:
        key = (rank.pid, rank.start_ticks)
        now_ns = self._now()
        if is_process_alive(*key):
            self._alive_ns[key] = now_ns
            return []
        self._reported.add(key)
        return [_end(rank.pid, rank.slot, now_ns, self._alive_ns.pop(key, None), None)]

    def forget(self, pid: int, start_ticks: int) -> None:
        """Forget a rank whose rings are all sent."""
        self._reported.discard((pid, start_ticks))
        self._alive_ns.pop((pid, start_ticks), None)


def _exception(exception: RankException, pid: int, slot: int | None) -> Occurrence:
    name = semconv.EVENT_TRAINING_PROCESS_EXCEPTION
    values = exception.attributes(pid)
    return Occurrence(name, exception.mono_ns, exception.text, values, slot=slot)


def _end_of_stream(stream: RankStream, slot: int | None) -> Occurrence:
    """Return the end of a rank by its ring; one that has closed it has written when."""
    closed_ns, gone_ns = stream.closed_mono_ns, stream.gone_mono_ns or 0
    if closed_ns is not None:
        return _end(stream.identity.pid, slot, closed_ns, None, True)
    return _end(stream.identity.pid, slot, gone_ns, stream.alive_mono_ns, False)


def _end(
    pid: int, slot: int | None, mono_ns: int, alive_ns: int | None, was_orderly: bool | None
) -> Occurrence:
    values: dict[str, EventValue] = {
        semconv.PROCESS_PID: pid,
        semconv.TRAINING_PROCESS_IS_CHILD: False,
    }
    text = f"process {pid} is gone"
    if was_orderly is not None:
        values[semconv.TRAINING_PROCESS_RAN_EXIT_HANDLERS] = was_orderly
        text += "; its exit handlers have run" if was_orderly else " without its exit handlers"
    if alive_ns is not None:
        values[semconv.TRAINING_PROCESS_UNSEEN_TIME] = max(0, mono_ns - alive_ns) / NS_PER_S
    return Occurrence(
        semconv.EVENT_TRAINING_PROCESS_END,
        mono_ns,
        text,
        values,
        is_bad=was_orderly is not True,
        slot=slot,
    )
