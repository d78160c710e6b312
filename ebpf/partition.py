"""Where a rank's threads spent any interval of the monotonic clock.

    pieces   |--blocked--|      |--runnable--|
    asked          [-------------------)            running = asked - runnable - blocked

A piece is a time in which a thread did not run, or an interval of which only sums are known. What a
piece tells is spread evenly over it when only a part is asked for. Time without a piece was spent running. History is
bounded; what was asked for and is no longer, or not yet, known is None. With it comes what the rank's children did and
for how long its control group was throttled meanwhile. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from rootwalk.ebpf.events import (
    EventFlag,
    RunnerKind,
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadState,
)
from rootwalk.ebpf.intervals import clip
from rootwalk.ebpf.reader import Cause, Spell
from rootwalk.ebpf.throttling import RankThrottling
from rootwalk.ebpf.workers import WorkerHistory
from rootwalk.instrumentation.semconv import TrainingThreadSensor, TrainingWaitKind
from rootwalk.instrumentation.step_spans import ThreadTimes

__all__ = ["Piece", "RankPartition", "piece_of"]

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


class Piece(NamedTuple):
    """A time in which a thread did not (only) run, and how long it did what, ns.

    `foreign_ns` holds kernel threads too. The three parts of `runnable_ns` may add up to less than it. `kind` is what
    a blocked thread waited for, or why it lost time while it ran; None where that is not known.
    """

    start_ns: int
    end_ns: int
    runnable_ns: int
    foreign_ns: int
    own_ns: int
    idle_ns: int
    blocked_ns: int
    kind: TrainingWaitKind | None = None


def piece_of(record: SchedEvent | SampledInterval, kind: TrainingWaitKind | None = None) -> Piece:
    """Return what a scheduler record says about its interval."""
    if isinstance(record, SampledInterval):
        return Piece(
            record.start_ns,
            record.end_ns,
            record.runnable_ns,
            record.foreign_ns,
            record.own_ns,
            record.idle_ns,
            record.blocked_ns,
        )
    duration = record.end_ns - record.start_ns
    if record.state != ThreadState.RUNNABLE:
        return Piece(record.start_ns, record.end_ns, 0, 0, 0, 0, duration, kind)
    sums = record.runner_ns
    return Piece(
        record.start_ns,
        record.end_ns,
        duration,
        sums[RunnerKind.FOREIGN] + sums[RunnerKind.KERNEL],
        sums[RunnerKind.OWN],
        sums[RunnerKind.IDLE],
        0,
    )


class _History:
    """Pieces ordered by their end; the oldest half goes when there are too many."""

    def __init__(self, max_pieces: int, *, is_disjoint: bool) -> None:
        self._is_disjoint = is_disjoint
        self._max_pieces = max_pieces
        self._ends: list[int] = []
        self._pieces: list[Piece] = []
        self.known_from_ns = 0
        self.dropped = 0
        self._longest_ns = 0

    def add(self, piece: Piece) -> None:
        self._longest_ns = max(self._longest_ns, piece.end_ns - piece.start_ns)
        if self._ends and piece.end_ns < self._ends[-1]:  # other CPUs' events may be slightly late
            index = bisect_right(self._ends, piece.end_ns)
            self._ends.insert(index, piece.end_ns)
            self._pieces.insert(index, piece)
        else:
            self._ends.append(piece.end_ns)
            self._pieces.append(piece)
        if len(self._ends) > self._max_pieces:
            half = len(self._ends) // 2
            self.dropped += half
            self._cut(half)

    def forget_before(self, mono_ns: int) -> None:
        """Drop what ended before a moment about which nobody will ask any more."""
        count = bisect_right(self._ends, mono_ns)
        if count * 4 < len(self._ends):  # moving a list for a few pieces costs more than they do
            return
        self._cut(count)
        self._longest_ns = max((piece.end_ns - piece.start_ns for piece in self._pieces), default=0)

    def _cut(self, count: int) -> None:
        if count:
            self.known_from_ns = self._ends[count - 1]
            del self._ends[:count], self._pieces[:count]

    def overlapping(self, start_ns: int, end_ns: int) -> Iterable[Piece]:
        """Yield the pieces that overlap an interval, by their end.

        Pieces of several threads may overlap each other, so the scan goes on until no longer piece can reach back.
        """
        for index in range(bisect_right(self._ends, start_ns), len(self._ends)):
            piece = self._pieces[index]
            if piece.start_ns < end_ns:
                yield piece
            elif self._is_disjoint or piece.end_ns - self._longest_ns >= end_ns:
                return


def _clipped(
    pieces: Iterable[Piece], start_ns: int, end_ns: int
) -> tuple[float, float, float, float, float]:
    """Return runnable, foreign, own, idle, blocked inside an interval, ns; written out, for it is asked a lot."""
    runnable = foreign = own = idle = blocked = 0.0
    for piece in pieces:
        piece_start, piece_end, runnable_ns, foreign_ns, own_ns, idle_ns, blocked_ns, _ = piece
        low = max(start_ns, piece_start)
        high = min(end_ns, piece_end)
        if high <= low:
            continue
        share = (high - low) / (piece_end - piece_start)
        runnable += runnable_ns * share
        foreign += foreign_ns * share
        own += own_ns * share
        idle += idle_ns * share
        blocked += blocked_ns * share
    return runnable, foreign, own, idle, blocked


def _waits(
    pieces: Sequence[Piece], spells: Iterable[Piece], start_ns: int, end_ns: int
) -> dict[str, int]:
    """Return how long what held a thread up inside an interval, ns; without what is not known or short.

    Args:
        pieces: What the thread did.
        spells: What it lost, as pieces that were blocked for as long.
        start_ns: Begin, ns.
        end_ns: End, ns.
    """
    sums: dict[TrainingWaitKind | None, float] = defaultdict(float)
    for piece in pieces:
        sums[piece.kind] += min(piece.end_ns, end_ns) - max(piece.start_ns, start_ns)
    for spell in spells:
        low, high = max(spell.start_ns, start_ns), min(spell.end_ns, end_ns)
        density = spell.blocked_ns / max(spell.end_ns - spell.start_ns, 1)
        lost = density * (high - low)
        blocked_kind = BLOCKED_PART.get(spell.kind) if spell.kind is not None else None
        for piece in pieces if blocked_kind is not None else ():
            inside = min(piece.end_ns, high) - max(piece.start_ns, low)
            if piece.blocked_ns and inside > 0:
                part = density * inside * piece.blocked_ns / (piece.end_ns - piece.start_ns)
                sums[piece.kind] -= part
                sums[blocked_kind] += part
                lost -= part
        sums[spell.kind] += max(lost, 0.0)
    return {
        kind.value: round(total)
        for kind, total in sums.items()
        if kind is not None and total >= MIN_TOLD_WAIT_NS
    }


def _union_ns(pieces: Iterable[Piece], start_ns: int, end_ns: int) -> int:
    """Return for how much of an interval at least one piece lasts, ns."""
    total, reached = 0, start_ns
    for piece in sorted(pieces):
        low, high = max(piece.start_ns, reached), min(piece.end_ns, end_ns)
        if high > low:
            total += high - low
            reached = high
    return total


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
        self._main = _History(max_pieces, is_disjoint=True)
        self._others = _History(max_pieces, is_disjoint=False)
        # What held the first thread up while it seemed to run.
        self._spells = _History(max_pieces, is_disjoint=False)
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

    def times(self, start_ns: int, end_ns: int, is_main: bool) -> ThreadTimes | None:
        """Return the times of an interval; None when a part of it is not known (`step_spans.PartitionReader`).

        Args:
            start_ns: Begin, ns.
            end_ns: End, ns.
            is_main: The first thread's whole partition; else the time in which at least one other thread of the
                process was runnable without running, divided as the sum of their waits is.
        """
        history = self._main if is_main else self._others
        if start_ns < max(self._known_from_ns, history.known_from_ns) or end_ns < start_ns:
            return None
        if not is_main and not self.tells_others:
            return None
        if any(low < end_ns and start_ns < high for low, high in self._unknown):
            return None
        pieces = list(history.overlapping(start_ns, end_ns))
        runnable, foreign, own, idle, blocked = _clipped(pieces, start_ns, end_ns)
        duration = end_ns - start_ns
        scale = 1.0
        if not is_main:
            union = min(_union_ns(pieces, start_ns, end_ns), runnable)
            scale = union / runnable if runnable else 1.0
            runnable = union
        runnable_ns = min(round(runnable), duration)
        blocked_ns = min(round(blocked), duration - runnable_ns)
        parts = (
            (None, None, None)
            if self._is_sampled
            else tuple(round(part * scale) for part in (foreign, own, idle))
        )
        waits = {}
        if is_main:
            spells = self._spells.overlapping(start_ns, end_ns)
            waits = _waits(pieces, spells, start_ns, end_ns)
        worker_times = None
        if is_main and self.workers is not None:
            # Of a sum, it ran first and then did not.
            blocks = clip(
                ((p.end_ns - p.blocked_ns, p.end_ns) for p in pieces if p.blocked_ns),
                start_ns,
                end_ns,
            )
            worker_times = self.workers.times(start_ns, end_ns, blocks)
        throttled_ns = None
        if is_main and self._throttling is not None:
            throttled_ns = self._throttling.throttled_ns(start_ns, end_ns)
        return ThreadTimes(
            sensor=self.sensor,
            running_ns=duration - runnable_ns - blocked_ns if is_main else None,
            runnable_ns=runnable_ns,
            runnable_foreign_ns=parts[0],
            runnable_own_ns=parts[1],
            runnable_idle_ns=parts[2],
            blocked_ns=blocked_ns if is_main else None,
            blocked_loader_running_ns=worker_times.waited_running_ns if worker_times else None,
            blocked_loader_files_ns=worker_times.waited_files_ns if worker_times else None,
            loader_running_ns=worker_times.running_ns if worker_times else None,
            throttled_ns=throttled_ns,
            waits=waits,
            told_wait_ns=self._told_wait_ns(start_ns, end_ns) if is_main else None,
        )

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
