"""How ranks' programs end, as their own rings tell it: the exception that nobody caught, and an end without BPF.

The lifecycle program tells exit codes and signals of every rank that it follows. Where it is not there, or where a rank
was gone before it was seen, it is only known that the process is gone, and whether its exit handlers have run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rootwalk.ebpf.agent_events import AgentEvents, EventOwner
from rootwalk.ebpf.discovery import is_process_alive
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.reader import EventValue, Occurrence
from rootwalk.ebpf.watched import WatchedRanks
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.shared_ring import RankException

__all__ = ["RankEnds"]


class RankEnds:
    """Tells each end once.

    Args:
        has_lifecycle: Whether the lifecycle program tells the ends of the ranks that are watched.
        now: The monotonic clock, ns.
    """

    def __init__(self, *, has_lifecycle: bool, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._has_lifecycle = has_lifecycle
        self._now = now
        # By process id and when it started.
        self._told: set[tuple[int, int | None]] = set()

    def look(
        self,
        streams: Iterable[RankStream],
        ranks: WatchedRanks,
        events: AgentEvents,
        find_owner: Callable[[int], EventOwner | None],
    ) -> None:
        """Tell what has ended since the last call.

        Args:
            streams: The rings, which were read in this round.
            ranks: The ranks that are watched.
            events: Where it is told.
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
            if stream.gone_mono_ns is not None and not is_followed and key not in self._told:
                self._told.add(key)
                was_orderly = stream.was_closed
                found.append(_end(key[0], slot, stream.gone_mono_ns, was_orderly=was_orderly))
            if slot is not None:
                events.add(found, find_owner)
            else:
                events.add_of(EventOwner(stream.identity.resource_attributes()), found)
        if not self._has_lifecycle:
            for rank in ranks:
                key = (rank.pid, rank.start_ticks)
                if rank.streams or key in self._told or is_process_alive(*key):
                    continue
                self._told.add(key)
                events.add([_end(rank.pid, rank.slot, self._now(), was_orderly=None)], find_owner)

    def forget(self, pid: int, start_ticks: int) -> None:
        """Forget a rank whose rings are all sent."""
        self._told.discard((pid, start_ticks))


def _exception(exception: RankException, pid: int, slot: int | None) -> Occurrence:
    name = semconv.EVENT_TRAINING_PROCESS_EXCEPTION
    values = exception.attributes(pid)
    return Occurrence(name, exception.mono_ns, exception.text, values, slot=slot)


def _end(pid: int, slot: int | None, mono_ns: int, *, was_orderly: bool | None) -> Occurrence:
    values: dict[str, EventValue] = {
        semconv.PROCESS_PID: pid,
        semconv.TRAINING_PROCESS_IS_CHILD: False,
    }
    text = f"process {pid} is gone"
    if was_orderly is not None:
        values[semconv.TRAINING_PROCESS_RAN_EXIT_HANDLERS] = was_orderly
        text += "; its exit handlers have run" if was_orderly else " without its exit handlers"
    return Occurrence(
        semconv.EVENT_TRAINING_PROCESS_END,
        mono_ns,
        text,
        values,
        is_bad=was_orderly is not True,
        slot=slot,
    )
