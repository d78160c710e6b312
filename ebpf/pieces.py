"""Pieces of what threads did, their history, and what they add up to.

A piece is a time in which a thread did not run, or an interval of which only sums are known. What a piece tells is
spread evenly over it when only a part is asked for. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from rootwalk.ebpf.events import SampledInterval, SchedEvent, ThreadState
from rootwalk.instrumentation.semconv import TrainingWaitKind

__all__ = ["History", "OverlapSums", "Piece", "piece_of"]

RUNNABLE = int(ThreadState.RUNNABLE)


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
        start_ns, end_ns, _, _, _, _, _, runnable_ns, blocked_ns, *parts = record
        return tuple.__new__(Piece, (start_ns, end_ns, runnable_ns, *parts, blocked_ns, None))
    start_ns, end_ns = record.start_ns, record.end_ns
    duration = end_ns - start_ns
    if record.state != RUNNABLE:
        return tuple.__new__(Piece, (start_ns, end_ns, 0, 0, 0, 0, duration, kind))
    foreign_ns, own_ns, kernel_ns, idle_ns = record.runner_ns
    parts = [foreign_ns + kernel_ns, own_ns, idle_ns]
    return tuple.__new__(Piece, (start_ns, end_ns, duration, *parts, 0, None))


class History:
    """Pieces ordered by their end; the oldest half goes when there are too many.

    Args:
        max_pieces: Bound of it.
        is_disjoint: They are of one thread, so that no two overlap.

    Attributes:
        known_from_ns: Pieces that ended before are gone, ns.
        dropped: Pieces that went because there were too many.
    """

    def __init__(self, max_pieces: int, *, is_disjoint: bool) -> None:
        self._is_disjoint = is_disjoint
        self._max_pieces = max_pieces
        self._ends: list[int] = []
        self._pieces: list[Piece] = []
        self.known_from_ns = 0
        self.dropped = 0
        self._longest_ns = 0

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        ends, end_ns = self._ends, piece.end_ns
        if end_ns - piece.start_ns > self._longest_ns:
            self._longest_ns = end_ns - piece.start_ns
        if ends and end_ns < ends[-1]:  # other CPUs' events may be slightly late
            index = bisect_right(ends, end_ns)
            ends.insert(index, end_ns)
            self._pieces.insert(index, piece)
        else:
            ends.append(end_ns)
            self._pieces.append(piece)
        if len(ends) > self._max_pieces:
            half = len(ends) // 2
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

    def overlapping(self, start_ns: int, end_ns: int) -> list[Piece]:
        """Return the pieces that overlap an interval, by their end."""
        first = bisect_right(self._ends, start_ns)
        if not self._is_disjoint:
            last = bisect_left(self._ends, end_ns + self._longest_ns)  # no later one reaches back
            return [piece for piece in self._pieces[first:last] if piece.start_ns < end_ns]
        last = bisect_left(self._ends, end_ns)
        while last < len(self._ends) and self._pieces[last].start_ns < end_ns:
            last += 1
        return self._pieces[first:last]


class OverlapSums:
    """What pieces that may overlap add up to, in any number of intervals.

        piece 1       |------------|
        piece 2             |------------|
        edges         |     |      |     |        between two of them every sum grows evenly

    The edges are sorted once; an interval is the difference of two moments.

    Args:
        pieces: In any order.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        edges: list[tuple[int, int, float, float, float, float]] = []
        for start_ns, end_ns, runnable_ns, foreign_ns, own_ns, idle_ns, _, _ in pieces:
            duration = end_ns - start_ns
            if duration > 0:
                runnable, foreign = runnable_ns / duration, foreign_ns / duration
                own, idle = own_ns / duration, idle_ns / duration
                edges.append((start_ns, 1, runnable, foreign, own, idle))
                edges.append((end_ns, -1, -runnable, -foreign, -own, -idle))
        edges.sort()
        self._moments = [0]
        # At each edge: runnable, foreign, own, idle and covered up to it, and how fast each grows from then on.
        self._rows = [((0.0, 0.0, 0.0, 0.0, 0), (0.0, 0.0, 0.0, 0.0, 0))]
        runnable = foreign = own = idle = 0.0
        runnable_rate = foreign_rate = own_rate = idle_rate = 0.0
        moment = covered = count = is_covered = 0
        for edge_ns, change, more_runnable, more_foreign, more_own, more_idle in edges:
            passed = edge_ns - moment
            moment = edge_ns
            runnable += runnable_rate * passed
            foreign += foreign_rate * passed
            own += own_rate * passed
            idle += idle_rate * passed
            covered += is_covered * passed
            runnable_rate += more_runnable
            foreign_rate += more_foreign
            own_rate += more_own
            idle_rate += more_idle
            count += change
            is_covered = 1 if count else 0
            self._moments.append(edge_ns)
            sums = (runnable, foreign, own, idle, covered)
            self._rows.append(
                (sums, (runnable_rate, foreign_rate, own_rate, idle_rate, is_covered))
            )

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float, float, float, int]:
        """Return runnable, foreign, own and idle inside an interval, and for how long at least one piece lasts, ns."""
        one, other = self._until(start_ns), self._until(end_ns)
        return (
            other[0] - one[0],
            other[1] - one[1],
            other[2] - one[2],
            other[3] - one[3],
            other[4] - one[4],
        )

    def _until(self, mono_ns: int) -> tuple[float, float, float, float, int]:
        index = bisect_right(self._moments, mono_ns) - 1
        passed = mono_ns - self._moments[index]
        (runnable, foreign, own, idle, covered), rates = self._rows[index]
        runnable_rate, foreign_rate, own_rate, idle_rate, is_covered = rates
        return (
            runnable + runnable_rate * passed,
            foreign + foreign_rate * passed,
            own + own_rate * passed,
            idle + idle_rate * passed,
            covered + is_covered * passed,
        )
