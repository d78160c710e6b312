"""Where a rank's threads spent any interval of the monotonic clock.

    pieces   |--blocked--|      |--runnable--|
    asked          [-------------------)            running = asked - runnable - blocked

A piece is a time in which a thread did not run, or an interval of which only sums are known. What a
piece tells is spread evenly over it when only a part is asked for. Time without a piece was spent running. History is
bounded; what was asked for and is no longer, or not yet, known is None. With it comes what the rank's children did and
for how long its control group was throttled meanwhile. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf

from rootwalk.ebpf.events import (
    EventFlag,
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadState,
)
from rootwalk.ebpf.intervals import Interval
from rootwalk.ebpf.pieces import History, OverlapSums, Piece, piece_of
from rootwalk.ebpf.reader import Cause, Spell
from rootwalk.ebpf.throttling import RankThrottling
from rootwalk.ebpf.workers import WorkerHistory
from rootwalk.instrumentation.semconv import TrainingThreadSensor, TrainingWaitKind
from rootwalk.instrumentation.step_spans import ThreadTimes

__all__ = ["RankPartition"]

# 40,000 pieces are 10 s of a thread that waits 4,000 times a second: longer than any sane step waits to be sent.
MAX_PIECES = 40_000
# Waits for one thing that add up to less than this in a phase explain nothing; each costs some bytes a phase.
MIN_TOLD_WAIT_NS = 100_000
# Plain numbers: `&` with an enum member costs as much as the rest of taking an event.
INHERITED, LEADER = int(EventFlag.INHERITED), int(EventFlag.LEADER)
KIND_OF_CAUSE = {
    Cause.INTERRUPT: TrainingWaitKind.INTERRUPT,
    Cause.RECLAIM: TrainingWaitKind.MEMORY_RECLAIM,
}
# A thread may block inside these; their blocked part is told under the second kind, and not under what the call was.
BLOCKED_PART = {TrainingWaitKind.MEMORY_RECLAIM: TrainingWaitKind.MEMORY_RECLAIM_WAIT}


class _Sums:
    """What disjoint pieces tell of an interval, ns; in one pass, for this is asked of every phase.

    Attributes:
        runnable: Runnable, not running.
        foreign: Of it, while another process or a kernel thread ran.
        own: Of it, while the rank itself ran.
        idle: Of it, while the CPU was idle.
        blocked: Blocked or stopped.
        blocks: When; of a sum, the thread ran first and then did not.
        waits: How long for what.
    """

    def __init__(self, pieces: Iterable[Piece], start_ns: int, end_ns: int) -> None:
        runnable = foreign = own = idle = blocked = 0.0
        self.blocks: list[Interval] = []
        self.waits: dict[TrainingWaitKind | None, float] = defaultdict(float)
        for low, high, runnable_ns, foreign_ns, own_ns, idle_ns, blocked_ns, kind in pieces:
            share, block = 1.0, (high - blocked_ns, high)
            if low < start_ns or high > end_ns:  # one at each end
                share = (min(high, end_ns) - max(low, start_ns)) / (high - low)
                block = (max(block[0], start_ns), min(high, end_ns))
            if blocked_ns:
                blocked += blocked_ns * share
                if block[0] < block[1]:
                    self.blocks.append(block)
            if runnable_ns:
                runnable += runnable_ns * share
                foreign += foreign_ns * share
                own += own_ns * share
                idle += idle_ns * share
            if kind is not None:
                self.waits[kind] += (high - low) * share
        self.runnable, self.foreign, self.own, self.idle = runnable, foreign, own, idle
        self.blocked = blocked


def _add_spells(
    waits: dict[TrainingWaitKind | None, float],
    pieces: Sequence[Piece],
    spells: Iterable[Piece],
    start_ns: int,
    end_ns: int,
) -> None:
    """Add what a thread lost inside an interval to what it waited for.

    Args:
        waits: How long for what, ns; changed.
        pieces: What the thread did.
        spells: What it lost, as pieces that were blocked for as long.
        start_ns: Begin, ns.
        end_ns: End, ns.
    """
    for spell in spells:
        low, high = max(spell.start_ns, start_ns), min(spell.end_ns, end_ns)
        density = spell.blocked_ns / max(spell.end_ns - spell.start_ns, 1)
        lost = density * (high - low)
        blocked_kind = BLOCKED_PART.get(spell.kind) if spell.kind is not None else None
        for piece in pieces if blocked_kind is not None else ():
            inside = min(piece.end_ns, high) - max(piece.start_ns, low)
            if piece.blocked_ns and inside > 0:
                part = density * inside * piece.blocked_ns / (piece.end_ns - piece.start_ns)
                waits[piece.kind] -= part
                waits[blocked_kind] += part
                lost -= part
        waits[spell.kind] += max(lost, 0.0)


class RankPartition:
    """The recent past of one rank's threads.

    Args:
        sensor: A value of `semconv.TrainingThreadSensor`.
        known_from_ns: When the rank's threads began to be followed; earlier nothing is known.
        max_pieces: Bound of the history, for the first thread and for all others together.
        throttling: What its control group tells; None where nothing does.
        kind_of: Tells what a blocked thread waited for.
        told_wait_ns: Waits from so long on come with what was waited for; None where none does.

    Attributes:
        workers: What its children did; None when the sensor cannot tell.
        tells_others: Whether the sensor tells of threads other than the first one now.
    """

    def __init__(
        self,
        sensor: str,
        known_from_ns: int,
        max_pieces: int = MAX_PIECES,
        throttling: RankThrottling | None = None,
        kind_of: Callable[[SchedEvent], TrainingWaitKind | None] = lambda _: None,
        told_wait_ns: int | None = None,
    ) -> None:
        self.sensor = sensor
        self._kind_of = kind_of
        self.tells_others = True
        self._told_waits: list[tuple[float, int | None]] = [(-inf, told_wait_ns)]
        self._is_sampled = sensor == TrainingThreadSensor.PROC.value
        self._throttling = throttling
        self.workers = None if self._is_sampled else WorkerHistory(known_from_ns)
        self._known_from_ns = known_from_ns
        self._main = History(max_pieces, is_disjoint=True)
        self._others = History(max_pieces, is_disjoint=False)
        # What held the first thread up while it seemed to run.
        self._spells = History(max_pieces, is_disjoint=False)
        self._unknown: list[tuple[int, int]] = []

    @property
    def dropped(self) -> int:
        """Pieces that were dropped because there were too many."""
        workers = self.workers.dropped if self.workers is not None else 0
        return self._main.dropped + self._others.dropped + self._spells.dropped + workers

    def add(self, record: SchedEvent | SampledInterval) -> None:
        """Remember what a thread of the rank's own process, or of its children, did."""
        if record.flags & INHERITED:
            if self.workers is not None:
                self.workers.add(record)
            return
        if record.flags & LEADER:
            kind = self._kind_of(record) if isinstance(record, SchedEvent) else None
            self._main.add(piece_of(record, kind))
        elif isinstance(record, SampledInterval):
            if record.runnable_ns:
                self._others.add(piece_of(record))
        elif record.state == ThreadState.RUNNABLE:
            self._others.add(piece_of(record))

    def add_spell(self, spell: Spell) -> None:
        """Remember what the rank's first thread lost to something of which its states do not tell."""
        kind = KIND_OF_CAUSE[spell.cause]
        self._spells.add(Piece(spell.start_ns, spell.end_ns, 0, 0, 0, 0, spell.lost_ns, kind))

    def end_thread(self, ended: ThreadExit) -> None:
        """Remember that a thread has ended."""
        if ended.flags & INHERITED and self.workers is not None:
            self.workers.end_thread(ended)

    def mark_unknown(self, start_ns: int, end_ns: int) -> None:
        """Remember that events of an interval were lost: nothing can be said about it."""
        self._unknown.append((start_ns, end_ns))
        if self.workers is not None:
            self.workers.mark_unknown(start_ns, end_ns)

    def tell_waits(self, told_wait_ns: int | None, since_ns: int) -> None:
        """Say that from a moment on waits from another length on come with what was waited for; None for no wait."""
        if told_wait_ns != self._told_waits[-1][1]:
            self._told_waits.append((since_ns, told_wait_ns))

    def forget_before(self, mono_ns: int) -> None:
        """Drop what ended before a moment about which nobody will ask any more."""
        while len(self._told_waits) > 1 and self._told_waits[1][0] < mono_ns:
            del self._told_waits[0]
        self._unknown = [part for part in self._unknown if part[1] >= mono_ns]
        self._main.forget_before(mono_ns)
        self._others.forget_before(mono_ns)
        self._spells.forget_before(mono_ns)
        if self.workers is not None:
            self.workers.forget_before(mono_ns)

    def main_times(self, start_ns: int, end_ns: int) -> ThreadTimes | None:
        """Return the first thread's times in an interval; None when a part of it is not known."""
        if not self._is_known(self._main, start_ns, end_ns):
            return None
        pieces = self._main.overlapping(start_ns, end_ns)
        sums = _Sums(pieces, start_ns, end_ns)
        duration = end_ns - start_ns
        runnable_ns = min(round(sums.runnable), duration)
        blocked_ns = min(round(sums.blocked), duration - runnable_ns)
        worker_times = None
        if self.workers is not None:
            worker_times = self.workers.times(start_ns, end_ns, sums.blocks)
        throttled_ns = None
        if self._throttling is not None:
            throttled_ns = self._throttling.throttled_ns(start_ns, end_ns)
        spells = self._spells.overlapping(start_ns, end_ns)
        _add_spells(sums.waits, pieces, spells, start_ns, end_ns)
        foreign_ns, own_ns, idle_ns = self._parts(sums.foreign, sums.own, sums.idle)
        return ThreadTimes(
            sensor=self.sensor,
            running_ns=duration - runnable_ns - blocked_ns,
            runnable_ns=runnable_ns,
            runnable_foreign_ns=foreign_ns,
            runnable_own_ns=own_ns,
            runnable_idle_ns=idle_ns,
            blocked_ns=blocked_ns,
            blocked_loader_running_ns=worker_times.waited_running_ns if worker_times else None,
            blocked_loader_files_ns=worker_times.waited_files_ns if worker_times else None,
            loader_running_ns=worker_times.running_ns if worker_times else None,
            throttled_ns=throttled_ns,
            waits={
                kind.value: round(total)
                for kind, total in sums.waits.items()
                if kind is not None and total >= MIN_TOLD_WAIT_NS
            },
            told_wait_ns=self._told_wait_ns(start_ns, end_ns),
        )

    def others_times(self, intervals: Sequence[Interval]) -> list[ThreadTimes | None]:
        """Return the times in which at least one other thread was runnable without running, for each interval.

        They are divided as the sum of those threads' waits is. None where a part of an interval is not known.
        """
        if not intervals or not self.tells_others:
            return [None] * len(intervals)
        first_ns, last_ns = min(low for low, _ in intervals), max(high for _, high in intervals)
        sums = OverlapSums(self._others.overlapping(first_ns, last_ns))
        return [
            self._others_times(sums, *interval) if self._is_known(self._others, *interval) else None
            for interval in intervals
        ]

    def _others_times(self, sums: OverlapSums, start_ns: int, end_ns: int) -> ThreadTimes:
        runnable, foreign, own, idle, covered = sums.between(start_ns, end_ns)
        union = min(covered, runnable)
        scale = union / runnable if runnable else 1.0
        foreign_ns, own_ns, idle_ns = self._parts(foreign * scale, own * scale, idle * scale)
        return ThreadTimes(self.sensor, None, round(union), foreign_ns, own_ns, idle_ns, None)

    def _is_known(self, history: History, start_ns: int, end_ns: int) -> bool:
        if start_ns > end_ns or start_ns < self._known_from_ns or start_ns < history.known_from_ns:
            return False
        for low, high in self._unknown:  # noqa: SIM110  (asked often, and mostly empty)
            if low < end_ns and start_ns < high:
                return False
        return True

    def _parts(
        self, foreign: float, own: float, idle: float
    ) -> tuple[int, int, int] | tuple[None, None, None]:
        """Return what ran meanwhile, ns; a sensor that looks now and then cannot tell."""
        return (None, None, None) if self._is_sampled else (round(foreign), round(own), round(idle))

    def _told_wait_ns(self, start_ns: int, end_ns: int) -> int | None:
        """Return from which length on waits are told of a whole interval; None where of a part of it none is."""
        lengths = []
        until_ns = inf
        for since_ns, told_wait_ns in reversed(self._told_waits):
            if since_ns < end_ns and start_ns < until_ns:
                if told_wait_ns is None:
                    return None
                lengths.append(told_wait_ns)
            until_ns = since_ns
        return max(lengths, default=None)
