"""Ranks that make no progress, as log events while it lasts.

    idle for   2 s        5 s   10 s  13 s  15 s  16 s  20 s ...  60 s      75 s ...
               usage is   event stack stack event stack event     event     event
               noted                                              + stack

A rank moves whenever its ring does: a record, a phase, a call or an end of a collective, a compilation. A rank without
a ring moves when its training thread goes to sleep of its own accord. Of a rank that moves only its ring's header is
read, which is in memory. Time in which the machine was suspended does not pass on the monotonic clock; time in which
this agent did not run itself is no idle time, because then the whole machine may have stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from rootwalk.ebpf.process_facts import ProcessReader, Usage
from rootwalk.ebpf.progress_events import (
    RankView,
    collective_events,
    flight_event,
    progress_event,
    stack_events,
)
from rootwalk.ebpf.reader import Occurrence
from rootwalk.ebpf.stack_taking import SnapshotTaker
from rootwalk.ebpf.watched import WatchedRank
from rootwalk.instrumentation.shared_ring import RingReader, Stage

__all__ = ["ProgressWatch"]

S: Final = 1_000_000_000
# A step of a large model has phases of seconds, but collectives in them: 5 s without any is worth an event, and the
# judge waits for 10 s at least.
FIRST_EVENT_NS: Final = 5 * S
# Up to an idle time, how long until the next event: a hang of hours is not to fill a store.
EVENT_PACES: Final = ((60 * S, 5 * S), (600 * S, 15 * S))
LAST_PACE_NS: Final = 60 * S
# Three stacks 3 s apart show whether the rank stands still; then they double.
STACK_TIMES_NS: Final = (10 * S, 13 * S, 16 * S, 30 * S, 60 * S)
# What is used from then on counts: nothing of /proc is read for a rank that moves every two seconds.
BASELINE_NS: Final = 2 * S
# A round is due twice a second; after so much more the agent itself was stopped.
LATE_NS: Final = 5 * S
# How often /proc is read of a rank without a ring.
RINGLESS_PACE_NS: Final = 2 * S


class _Stoppages:
    """When this agent stood still itself, for the idle times that lie around it."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._stops: list[tuple[int, int]] = []

    def begin(self, now_ns: int, round_ns: int) -> int:
        """Note that a round begins; return for how long the agent stood still before it, ns; 0 when it did not."""
        last = self._last_ns
        if last is None or now_ns - last <= round_ns + LATE_NS:
            return 0
        self._stops.append((last, now_ns))
        return now_ns - last

    def end(self, now_ns: int) -> None:
        """Note that a round ends: its own duration, with stacks of many ranks, is no stoppage."""
        self._last_ns = now_ns

    def within(self, start_ns: int, end_ns: int) -> int:
        """Return how much of an interval lies in stoppages, ns."""
        return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in self._stops)

    def forget_before(self, start_ns: int) -> None:
        """Forget the stoppages before a moment."""
        self._stops = [(start, end) for start, end in self._stops if end > start_ns]


@dataclass(slots=True)
class _Seen:
    """What is known of one rank.

    Attributes:
        ring: Its ring; None without one.
        movement: What differs when it moves.
        moved_ns: When it last did.
        written_ns: When it last did by its own ring; 0 where that does not say.
        checked_ns: When it was last checked.
        has_stepped: Whether a step had ended when it last moved.
        usual_ns: The longest time between two movements since then; None before there were two.
        usage: Its use of CPU and I/O soon after it last moved.
        next_event_ns: Idle time of the next event.
        next_stack: Number of the next stack of this idle time.
        next_read_ns: When /proc is to be read again of a rank without a ring.
        is_reported: Whether an event has said that it stands still.
    """

    ring: RingReader | None
    movement: tuple[int, ...]
    moved_ns: int
    written_ns: int
    checked_ns: int
    has_stepped: bool = False
    usual_ns: int | None = None
    usage: Usage | None = None
    next_event_ns: int = FIRST_EVENT_NS
    next_stack: int = 0
    next_read_ns: int = 0
    is_reported: bool = False


class RankSource(Protocol):
    """What the watch needs of a rank; `WatchedRank` has it."""

    slot: int
    pid: int
    helpers: set[int]

    @property
    def ring(self) -> RingReader | None:
        """Its ring that this agent reads; None without one."""


class ProgressWatch:
    """Follows how ranks move, and reports those that do not.

    Args:
        snapshots: Takes stacks of a process's threads.
        processes: Reads processes.
        has_hooks: Whether ranks without a ring are known to have hooks that would make one: then they have not come to
            their process group.
        now: The monotonic clock, ns.
    """

    def __init__(
        self,
        snapshots: SnapshotTaker,
        processes: ProcessReader | None = None,
        *,
        has_hooks: bool = False,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._snapshots = snapshots
        self._processes = ProcessReader() if processes is None else processes
        self._has_hooks = has_hooks
        self._now = now
        self._stoppages = _Stoppages()
        self._seen: dict[int, _Seen] = {}

    def update(self, ranks: Iterable[WatchedRank | RankSource], round_s: float) -> list[Occurrence]:
        """Return the events of this round.

        Args:
            ranks: The ranks of this agent whose processes run.
            round_s: How often this is called at present, s.
        """
        now_ns = self._now()
        stopped_ns = self._stoppages.begin(now_ns, int(round_s * S))
        found: list[Occurrence] = []
        for rank in ranks:
            seen = self._seen.get(rank.slot)
            if seen is not None and stopped_ns and seen.usage is not None:
                seen.usage = (
                    None  # what was used before the stoppage says nothing of the time after it
                )
            found += self._check(rank, seen, now_ns)
        oldest = min((seen.moved_ns for seen in self._seen.values()), default=now_ns)
        self._stoppages.forget_before(oldest)
        self._stoppages.end(self._now())
        return found

    def forget(self, slot: int, pid: int) -> None:
        """Forget a rank that has ended."""
        self._seen.pop(slot, None)
        self._processes.forget(pid)
        self._snapshots.forget(pid)

    def close(self) -> None:
        """Release what takes stacks."""
        self._snapshots.close()

    def _check(
        self, rank: WatchedRank | RankSource, seen: _Seen | None, now_ns: int
    ) -> list[Occurrence]:
        ring = rank.ring
        if ring is None and seen is not None and now_ns < seen.next_read_ns:
            return []
        movement = self._movement(rank, ring)
        if movement is None:
            return []  # gone
        written_ns = ring.moved_mono_ns() if ring is not None else 0
        if seen is None:
            first_ns = written_ns if 0 < written_ns < now_ns else now_ns
            seen = self._seen[rank.slot] = _Seen(ring, movement, first_ns, written_ns, now_ns)
            seen.has_stepped = _has_stepped(ring)
        elif seen.ring is not ring or seen.movement != movement:
            return self._note_movement(rank, seen, ring, movement, written_ns, now_ns)
        seen.checked_ns = now_ns
        if ring is None:
            seen.next_read_ns = now_ns + RINGLESS_PACE_NS
        return self._note_idleness(rank, seen, now_ns)

    def _movement(
        self, rank: WatchedRank | RankSource, ring: RingReader | None
    ) -> tuple[int, ...] | None:
        if ring is not None:
            return ring.movement()
        wakeups = self._processes.wakeups(rank.pid, rank.pid)
        return None if wakeups is None else (wakeups,)

    def _note_movement(
        self,
        rank: WatchedRank | RankSource,
        seen: _Seen,
        ring: RingReader | None,
        movement: tuple[int, ...],
        written_ns: int,
        now_ns: int,
    ) -> list[Occurrence]:
        is_new = written_ns != seen.written_ns and 0 < written_ns <= now_ns
        moved_ns = written_ns if is_new else now_ns
        has_stepped = _has_stepped(ring)
        if has_stepped and seen.ring is ring:
            # With the first step's end only the time after the last round counts: the step itself may have compiled.
            since_ns = seen.moved_ns if seen.has_stepped else seen.checked_ns
            seen.usual_ns = max(seen.usual_ns or 0, self._passed(since_ns, moved_ns))
        was_reported = seen.is_reported
        seen.ring, seen.movement, seen.moved_ns, seen.written_ns = (
            ring,
            movement,
            moved_ns,
            written_ns,
        )
        seen.has_stepped, seen.checked_ns = has_stepped, now_ns
        seen.usage, seen.is_reported = None, False
        seen.next_event_ns, seen.next_stack = FIRST_EVENT_NS, 0
        seen.next_read_ns = now_ns + RINGLESS_PACE_NS if ring is None else 0
        if not was_reported:
            return []
        view = self._view(rank, seen, 0)
        return [
            progress_event(view, now_ns, None, None, None),
            *collective_events(view, now_ns, self._passed),
        ]

    def _note_idleness(
        self, rank: WatchedRank | RankSource, seen: _Seen, now_ns: int
    ) -> list[Occurrence]:
        idle_ns = self._passed(seen.moved_ns, now_ns)
        if idle_ns < BASELINE_NS:
            return []
        thread = _thread_of(rank, seen.ring)
        if seen.usage is None:
            seen.usage = self._processes.usage(rank.pid, thread, rank.helpers)
        found: list[Occurrence] = []
        if idle_ns >= seen.next_event_ns:
            seen.next_event_ns = _next_event_ns(idle_ns)
            seen.is_reported = True
            view = self._view(rank, seen, idle_ns)
            facts = self._processes.facts(rank.pid, thread)
            usage = self._processes.usage(rank.pid, thread, rank.helpers)
            found.append(progress_event(view, now_ns, facts, seen.usage, usage))
            found += collective_events(view, now_ns, self._passed)
        if idle_ns >= _stack_ns(seen.next_stack):
            while idle_ns >= _stack_ns(seen.next_stack):
                seen.next_stack += 1
            stacks = self._snapshots.take(rank.pid, self._children(rank))
            found += stack_events(rank.slot, stacks, now_ns)
        if seen.ring is not None and seen.next_stack:
            dump = seen.ring.take_flight()
            if dump is not None:
                found.append(flight_event(rank.slot, rank.pid, dump, now_ns))
        return found

    def _view(self, rank: WatchedRank | RankSource, seen: _Seen, idle_ns: int) -> RankView:
        ring = seen.ring
        stage = Stage(ring.stage) if ring is not None and ring.stage else None
        if ring is None and self._has_hooks:
            stage = Stage.STARTED
        return RankView(
            rank.slot,
            rank.pid,
            stage,
            idle_ns,
            seen.usual_ns,
            ring.is_compiling if ring is not None else None,
            ring.live_state() if ring is not None else None,
            tuple(ring.frontiers()) if ring is not None else (),
            ring.identity.world_size if ring is not None else 0,
        )

    def _passed(self, start_ns: int, end_ns: int) -> int:
        """Return the time between two moments in which this agent ran, ns."""
        return max(0, end_ns - start_ns - self._stoppages.within(start_ns, end_ns))

    @staticmethod
    def _children(rank: WatchedRank | RankSource) -> Collection[int]:
        return tuple(sorted(rank.helpers))


def _has_stepped(ring: RingReader | None) -> bool:
    state = ring.live_state() if ring is not None else None
    return state is not None and (state.step > 0 or state.pending_end_mono_ns > 0)


def _thread_of(rank: WatchedRank | RankSource, ring: RingReader | None) -> int:
    """Return the thread that trains: the process's first where the ring names no other."""
    return (ring.training_thread if ring is not None else None) or rank.pid


def _next_event_ns(idle_ns: int) -> int:
    """Return the idle time of the event after one at an idle time, ns."""
    pace = next((pace for until, pace in EVENT_PACES if idle_ns < until), LAST_PACE_NS)
    return idle_ns - idle_ns % pace + pace


def _stack_ns(number: int) -> int:
    """Return the idle time of a stack, from 0, ns."""
    last = len(STACK_TIMES_NS) - 1
    return STACK_TIMES_NS[number] if number <= last else STACK_TIMES_NS[last] << number - last
