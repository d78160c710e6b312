"""When the child processes of one rank (its loader workers) ran.

    thread 71 of a child   first seen |=======|--blocked--|====|-runnable-|===========| end
    asked                                 [-----------------------------------)         ran: what no piece covers

The scheduler tells of each child's threads when they did not run, and of each interval only when it has ended. So a
look at the threads as they are now belongs to it: it shows who is blocked still, and since when every thread is known
(the times of its states add up to its age). A moment after the last look is not known, nor one in which events were
lost, nor one before a child was followed. Waits below 20 us count as running. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rootwalk.ebpf.events import (
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadRecord,
    ThreadState,
    ThreadTotals,
)
from rootwalk.ebpf.intervals import Interval, find_union, subtract, sum_overlap_ns
from rootwalk.ebpf.waits import is_about_files

__all__ = ["WorkerHistory", "WorkerTimes"]

# As many as the rank's own threads may have: 64 workers that wait 60 times a second fill it in 10 s.
MAX_PIECES = 40_000
# Threads that have ended, and times in which events were lost: only a rank that closes no step collects so many.
MAX_REMEMBERED = 4096


class WorkerTimes(NamedTuple):
    """What all children did in an interval, ns.

    Attributes:
        running_ns: CPU time of all of them.
        waited_running_ns: For how long of the main thread's waits at least one of them ran.
        waited_files_ns: For how long of those waits none ran and at least one waited for a file or for memory.
    """

    running_ns: int
    waited_running_ns: int
    waited_files_ns: int


@dataclass(slots=True)
class _Thread:
    """One thread of a child: since when and until when it is known, and when it did not run, ns.

    `first_ns` is None before it was looked at, `end_ns` while it lives, `open_ns` while it runs. `begins` and `ends`
    are those of its waits, in order: searching plain numbers takes a tenth of the time that searching pairs takes.
    """

    first_ns: int | None = None
    end_ns: int | None = None
    open_ns: int | None = None
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def _age_ns(totals: ThreadTotals) -> int:
    return sum(totals[:5])  # running, runnable, blocked, blocked_io, stopped


class WorkerHistory:
    """The recent past of the threads of one rank's children.

    Args:
        known_from_ns: When the rank began to be followed; earlier nothing is known.
        max_pieces: Bound of the history, all threads together.
    """

    def __init__(self, known_from_ns: int, max_pieces: int = MAX_PIECES) -> None:
        self._known_from_ns = known_from_ns
        self._max_pieces = max_pieces
        self._seen_until_ns = known_from_ns
        self._threads: dict[int, _Thread] = {}
        self._adopted_ns: dict[int, int] = {}
        self._unknown: list[Interval] = []
        self._in_files: list[Interval] = []
        self._count = 0
        self.dropped = 0

    def add(self, event: SchedEvent | SampledInterval) -> None:
        """Remember that a child's thread did not run; of a sum, that it ran first and then did not."""
        if isinstance(event, SampledInterval):
            away_ns = event.runnable_ns + event.blocked_ns
            if not away_ns:
                return
            event = event._replace(start_ns=event.end_ns - away_ns)
        elif event.wait is not None and is_about_files(event.wait):
            self._in_files.append((event.start_ns, event.end_ns))
        thread = self._threads.get(event.tid)
        if thread is None or (thread.end_ns is not None and event.start_ns >= thread.end_ns):
            thread = self._begin(event.tid)
        if thread.open_ns is not None and event.end_ns > thread.open_ns:
            thread.open_ns = None  # told now, with its end
        begins, ends = thread.begins, thread.ends
        if ends and ends[-1] == event.start_ns:
            ends[-1] = event.end_ns  # blocked, then runnable: it did not run in between
            return
        index = bisect_right(
            ends, event.end_ns
        )  # the last one, unless another CPU's event is slightly late
        begins.insert(index, event.start_ns)
        ends.insert(index, event.end_ns)
        self._count += 1
        if self._count > self._max_pieces:
            self._drop_half()

    def end_thread(self, ended: ThreadExit) -> None:
        """Remember that a child's thread has ended, and by its totals when it began."""
        thread = self._threads.get(ended.tid) or self._begin(ended.tid)
        thread.first_ns = ended.end_ns - _age_ns(ended.totals)
        thread.end_ns = ended.end_ns
        thread.open_ns = None
        self._settle_adopted(ended.tid, thread.first_ns)

    def adopt(self, now_ns: int, is_asleep_by_tid: Mapping[int, bool]) -> None:
        """Take in a child that began before it was followed.

        One that sleeps is told when it wakes. One that runs is told when it is next switched in; until then it is not
        known for how long it has run.

        Args:
            now_ns: When its threads were looked at, after the scheduler was told to follow them.
            is_asleep_by_tid: What was seen.
        """
        self._unknown.append((self._known_from_ns, now_ns))
        for tid, is_asleep in is_asleep_by_tid.items():
            if not is_asleep and tid not in self._threads:
                self._adopted_ns[tid] = now_ns

    def look(self, now_ns: int, records: Mapping[int, ThreadRecord]) -> None:
        """Take the threads of all children as they are now, before the events up to now are read.

        Args:
            now_ns: A moment before the look.
            records: Thread id to state, of this rank's children only.
        """
        for tid, record in records.items():
            first_ns = record.since_ns - _age_ns(record.totals)
            thread = self._threads.get(tid)
            if thread is None or thread.end_ns is not None:
                thread = self._begin(tid)
            thread.first_ns = first_ns
            is_running = record.state == ThreadState.RUNNING
            thread.open_ns = None if is_running else record.since_ns
            self._settle_adopted(tid, first_ns)
        for tid, thread in self._threads.items():
            if tid not in records and thread.end_ns is None:
                thread.end_ns = now_ns  # its end is about to be told, with the moment
        self._seen_until_ns = now_ns
        self._bound()

    @property
    def adopted(self) -> list[int]:
        """Threads that ran when their process was adopted, and have not been switched in since."""
        return list(self._adopted_ns)

    def forget_adopted(self, tid: int, now_ns: int) -> None:
        """Say that an adopted thread is gone; what it did since then is not known."""
        self._settle_adopted(tid, now_ns)

    def mark_unknown(self, start_ns: int, end_ns: int) -> None:
        """Remember that events of an interval were lost."""
        self._unknown.append((start_ns, end_ns))

    def forget_before(self, mono_ns: int) -> None:
        """Drop what ended before a moment about which nobody will ask any more."""
        if mono_ns <= self._known_from_ns:
            return
        self._known_from_ns = mono_ns
        self._unknown = [part for part in self._unknown if part[1] >= mono_ns]
        self._in_files = [part for part in self._in_files if part[1] >= mono_ns]
        for tid, thread in list(self._threads.items()):
            if thread.end_ns is not None and thread.end_ns < mono_ns:
                self._count -= len(thread.ends)
                del self._threads[tid]
                continue
            old = bisect_left(thread.ends, mono_ns)
            del thread.begins[:old], thread.ends[:old]
            self._count -= old

    def times(self, start_ns: int, end_ns: int, blocked: Sequence[Interval]) -> WorkerTimes | None:
        """Return what the children did in an interval, and in the main thread's waits in it.

        Args:
            start_ns: Begin, ns.
            end_ns: End, ns.
            blocked: Parts of the interval, disjoint and in order.

        Returns:
            None when a part of the interval is not known.
        """
        if start_ns < self._known_from_ns or end_ns > self._seen_until_ns:
            return None
        if any(low < end_ns and start_ns < high for low, high in self._unknown):
            return None
        if any(since_ns < end_ns for since_ns in self._adopted_ns.values()):
            return None
        running: list[Interval] = []
        for thread in self._threads.values():
            _add_running(thread, start_ns, end_ns, running)
        total_ns = sum(high - low for low, high in running)
        if not blocked:
            return WorkerTimes(total_ns, 0, 0)
        ran = find_union(running)
        in_files = find_union(part for part in self._in_files if part[1] > start_ns)
        waited_files_ns = sum_overlap_ns(in_files, subtract(blocked, ran)) if in_files else 0
        return WorkerTimes(total_ns, sum_overlap_ns(ran, blocked), waited_files_ns)

    def _begin(self, tid: int) -> _Thread:
        """Begin a thread; one that had its number before is forgotten."""
        before = self._threads.get(tid)
        if before is not None:
            self._count -= len(before.ends)
        self._threads[tid] = _Thread()
        return self._threads[tid]

    def _settle_adopted(self, tid: int, first_ns: int) -> None:
        adopted_ns = self._adopted_ns.pop(tid, None)
        if adopted_ns is not None:
            self._unknown.append((adopted_ns, first_ns))

    def _bound(self) -> None:
        """Forget the older half of what only a rank that closes no step collects."""
        ends = [thread.end_ns for thread in self._threads.values() if thread.end_ns is not None]
        lists = (self._unknown, self._in_files)
        for moments in (ends, *([end_ns for _, end_ns in parts] for parts in lists)):
            if len(moments) > MAX_REMEMBERED:
                self.forget_before(sorted(moments)[len(moments) // 2] + 1)

    def _drop_half(self) -> None:
        ends = sorted(end for thread in self._threads.values() for end in thread.ends)
        before = self._count
        self.forget_before(ends[len(ends) // 2] + 1)
        self.dropped += before - self._count


def _add_running(thread: _Thread, start_ns: int, end_ns: int, running: list[Interval]) -> None:
    """Add the parts of an interval in which a thread ran; in one pass, for this is asked of every thread."""
    if thread.first_ns is None:
        return
    low, high = max(start_ns, thread.first_ns), end_ns
    for stop_ns in (thread.end_ns, thread.open_ns):
        if stop_ns is not None and stop_ns < high:
            high = stop_ns
    begins, ends = thread.begins, thread.ends
    for index in range(bisect_right(ends, low), len(ends)):
        if begins[index] >= high or low >= high:
            break
        if begins[index] > low:
            running.append((low, begins[index]))
        low = ends[index]
    if low < high:
        running.append((low, high))
