"""What a step's time went to, by the last thing that each thing waited for: a partition of the step, to the nanosecond.

    host     |-- load --|- launches -|   ...   |synchronize-----|- log -|  end of the step
    device                   |-- A --|-- B --|--- C ------------|
    path     |  input   | gap |  A   |   B   |       C          |  gap  |

The walk begins at the step's end on the host and goes back: from a call that waited to what it waited for, from an
operation of the device to the one before it in its stream, or, where the stream had run dry, to the host that launched
it. What hides behind something else is not on it. Once on the host it stays there until a call that waited. Operations
that follow each other in a stream are taken as one piece, so that a step costs as many turns as its path has corners.

Source:
    Method C4; HolisticTraceAnalysis, critical path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.device.reading import TOLD_OPERATIONS
from rootwalk.graph.importers.intervals import Cover, IntArray, as_pairs, as_rows
from rootwalk.graph.importers.kineto_device import SmallArray, build_device_graph
from rootwalk.graph.importers.kineto_profile import DeviceKind, Profile, Thread
from rootwalk.graph.importers.kineto_steps import StepTimes
from rootwalk.instrumentation.semconv import TrainingDevicePathKind as Kind
from rootwalk.instrumentation.semconv import TrainingPhase

__all__ = ["MAX_OPERATIONS", "OUTSIDE_OPERATORS", "PathOperation", "StepPath", "walk_steps"]

# Of a step's path so many names are told one by one, those with most seconds: a step has hundreds.
MAX_OPERATIONS: Final = TOLD_OPERATIONS
# Where a step's path has more corners, what is left of the step is not known: contradictory times, mostly.
MAX_CORNERS: Final = 20_000
OUTSIDE_OPERATORS: Final = "outside operators"
# A launch reaches an idle stream in 3 to 20 us. One that takes longer than this waited for something else, mostly for
# another stream, which profiles seldom tell.
MAX_LAUNCH_NS: Final = 100_000
# Of the times of a step in which it is not known what was waited for, so many are held against what ran meanwhile.
MAX_UNTOLD: Final = 50

_KINDS: Final = (
    Kind.COMPUTATION,
    Kind.COLLECTIVE,
    Kind.COPY,
    Kind.LAUNCH_GAP,
    Kind.HOST,
    Kind.INPUT,
    Kind.QUEUED,
    Kind.UNKNOWN,
)
_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_OF_DEVICE: Final = {
    DeviceKind.COMPUTATION: Kind.COMPUTATION,
    DeviceKind.COLLECTIVE: Kind.COLLECTIVE,
    DeviceKind.COPY: Kind.COPY,
}
# Names that are no operation's.
_NO_NAME: Final = -1


@dataclass(frozen=True, slots=True)
class PathOperation:
    """Everything of one kind and name on a step's path; start and end are those of its longest part.

    `parts` is how many there are: operations of the device, or pieces of the host's time in an operator.
    """

    kind: Kind
    name: str
    path_ns: int
    parts: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StepPath:
    """What a step's time went to; the kinds add up to the step, `operations` are those with most of it."""

    ns_by_kind: dict[Kind, int]
    operations: tuple[PathOperation, ...]


def walk_steps(
    profile: Profile, thread: Thread, steps: list[StepTimes]
) -> Iterator[StepPath | None]:
    """Yield the path of each step, None where the device's times are not known.

    Args:
        profile: All of its events.
        thread: That of the training loop.
        steps: Its steps.
    """
    walker: _Walker | None = None
    for step in steps:
        if step.work.busy_ns is None:
            yield None
            continue
        walker = walker or _Walker(profile, thread)
        yield walker.walk(step.mark.start_ns, step.mark.end_ns)


@dataclass(slots=True)
class _Pieces:
    """Parts of a path while it is walked, (low, high) but for chains of operations: (first, last, until).

    `waits` are times in which a stream stood still though its next operation had been launched.
    """

    host: list[tuple[int, int]]
    chains: list[tuple[int, int, int]]
    waits: list[tuple[int, int]]
    unknown: list[tuple[int, int]]


class _Parts:
    """Parts of a path with kind, name and bounds, as arrays."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = [np.zeros((0, 4), dtype=np.int64)]

    def add(
        self,
        kind: Kind | IntArray,
        name: IntArray | SmallArray | int,
        low: IntArray,
        high: IntArray,
    ) -> None:
        number = _NUMBER[kind] if isinstance(kind, Kind) else kind
        columns = np.broadcast_arrays(number, name, low, high)
        rows = np.stack(columns, axis=1).astype(np.int64)
        self._rows.append(rows[rows[:, 3] > rows[:, 2]])

    def all(self) -> IntArray:
        return np.concatenate(self._rows)


class _Walker:
    """The graph of a profile, and the host's side of it."""

    def __init__(self, profile: Profile, thread: Thread) -> None:
        threads = {thread, *profile.backward_threads}
        self._names = profile.names.names
        self._graph = build_device_graph(profile, threads)
        self._busy = Cover(as_pairs(profile.device))
        loads = [
            (mark.start_ns, mark.end_ns)
            for mark in profile.marks[thread]
            if mark.phase is TrainingPhase.DATA_LOAD
        ]
        loading = np.array(sorted(loads), dtype=np.int64).reshape(-1, 2)
        self._loads = Cover(loading)
        used = np.concatenate([loading, np.column_stack((self._busy.starts, self._busy.ends))])
        self._used = Cover(used[np.lexsort((used[:, 1], used[:, 0]))])
        self._operators = _read_operators(profile, threads)
        self._ran: _Row | None = None

    def walk(self, low: int, high: int) -> StepPath:
        """Return what a step's time went to."""
        pieces = self._find_pieces(low, high)
        parts = _Parts()
        totals = dict.fromkeys(_KINDS, 0)
        for first, last, until in pieces.chains:
            self._add_chain(parts, (first, last), (low, until))
        for begin, end in pieces.waits:
            self._add_waits(parts, np.array([begin]), np.array([end]))
        for begin, end in pieces.unknown:
            parts.add(Kind.UNKNOWN, _NO_NAME, np.array([begin]), np.array([end]))
        rows = parts.all()
        lengths = rows[:, 3] - rows[:, 2]
        for kind in _KINDS:
            totals[kind] += int(lengths[rows[:, 0] == _NUMBER[kind]].sum())
        hosted = self._sum_host(pieces.host, totals)
        named = rows[rows[:, 1] != _NO_NAME]
        untold = rows[rows[:, 0] == _NUMBER[Kind.UNKNOWN]]
        operations = [*_sum_names(np.concatenate([named, self._beside(untold)]), self._names)]
        operations += hosted
        operations.sort(key=lambda one: (-one.path_ns, one.kind, one.name))
        return StepPath(totals, tuple(operations[:MAX_OPERATIONS]))

    def _find_pieces(self, low: int, high: int) -> _Pieces:
        """Walk back from the step's end to its begin."""
        graph, waits = self._graph, self._graph.waits
        pieces = _Pieces([], [], [], [])
        time, operation, position = high, -1, len(waits.end_ns)
        for _ in range(MAX_CORNERS):
            if time <= low:
                return pieces
            if operation < 0:
                position = min(position, int(np.searchsorted(waits.end_ns, time, side="right"))) - 1
                if position < 0 or waits.end_ns[position] <= low:
                    pieces.host.append((low, time))
                    return pieces
                released = min(int(waits.released_ns[position]), time)
                pieces.host.append((max(released, low), time))
                time, operation = released, int(waits.operation[position])
                continue
            first = int(graph.chain[operation])
            pieces.chains.append((first, operation, time))
            time = min(int(graph.start_ns[first]), time)
            if time <= low:
                return pieces
            if graph.is_dry[first]:
                launched = min(int(graph.launched_ns[first]), time)
                if time - launched > MAX_LAUNCH_NS:
                    pieces.waits.append((max(launched, low), time))
                else:
                    pieces.host.append((max(launched, low), time))
                time, operation = launched, -1
            elif graph.is_told[first]:
                operation = int(graph.awaited[first])
                ended = min(int(graph.end_ns[operation]), time)
                pieces.waits.append((max(ended, low), time))
                time = ended
            else:
                break
        pieces.unknown.append((low, time))
        return pieces

    def _add_chain(self, parts: _Parts, ends: tuple[int, int], bounds: tuple[int, int]) -> None:
        """Add the operations of a stream from the first to the last one, and the gaps between them.

        An operation that goes on beside the next ones of its stream fills the gaps that they leave.
        """
        graph, (low, until) = self._graph, bounds
        # A chain may have begun many steps before this one.
        reached = graph.reached_ns[ends[0] : ends[1] + 1]
        skipped = max(int(np.searchsorted(reached, low, side="right")) - 1, 0)
        ends = (ends[0] + skipped, ends[1])
        rows = slice(ends[0], ends[1] + 1)
        start, end, name = graph.start_ns[rows], graph.end_ns[rows], graph.name[rows]
        kinds = np.array([_NUMBER[_OF_DEVICE[kind]] for kind in DeviceKind], dtype=np.int64)
        kind = kinds[graph.kind[rows]]
        stop = np.append(np.minimum(end[:-1], start[1:]), until)
        parts.add(kind, name, np.clip(start, low, until), np.clip(stop, low, until))
        gap = slice(ends[0], ends[1])
        stop, following = stop[:-1], start[1:]
        reached = np.maximum(np.minimum(graph.reached_ns[gap], following), stop)
        owner = graph.owner[gap]
        stop, reached, following = (
            np.clip(each, low, until) for each in (stop, reached, following)
        )
        parts.add(kinds[graph.kind[owner]], graph.name[owner], stop, reached)
        is_launched = graph.is_launched[ends[0] + 1 : ends[1] + 1]
        parts.add(Kind.UNKNOWN, _NO_NAME, reached[~is_launched], following[~is_launched])
        self._add_waits(parts, reached[is_launched], following[is_launched])

    def _add_waits(self, parts: _Parts, low: IntArray, high: IntArray) -> None:
        """Add times in which a stream stood still though its next operation had been launched.

        While another stream runs, the trace does not tell whether this one waits for it. Such a time is put at the end
        of the others, where what was waited for ended.
        """
        queued = np.maximum(high - low, 0) - self._busy.each_within(low, high)
        parts.add(Kind.QUEUED, _NO_NAME, low, low + queued)
        parts.add(Kind.UNKNOWN, _NO_NAME, low + queued, high)

    def _split_host(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return which part of each interval of the host is input, a gap of launches, or beside the device's work."""
        loading = self._loads.each_within(low, high)
        gap = np.maximum(high - low, 0) - self._used.each_within(low, high)
        return loading, gap, np.maximum(high - low, 0) - loading - gap

    def _beside(self, untold: IntArray) -> IntArray:
        """Return what other streams ran in the longest of the times of which nobody tells what they were for."""
        parts = _Parts()
        if not len(untold):
            return parts.all()
        graph = self._graph
        if self._ran is None:
            self._ran = _outermost(graph.start_ns, graph.end_ns, graph.name)
        order = np.argsort(untold[:, 2] - untold[:, 3], kind="stable")[:MAX_UNTOLD]
        for low, high in untold[order, 2:].tolist():
            parts.add(Kind.UNKNOWN, *_within(self._ran, low, high))
        return parts.all()

    def _sum_host(
        self, pieces: list[tuple[int, int]], totals: dict[Kind, int]
    ) -> list[PathOperation]:
        """Add the host's parts to the totals; return them by operator."""
        pairs = np.array(pieces, dtype=np.int64).reshape(-1, 2)
        pairs = pairs[pairs[:, 1] > pairs[:, 0]]
        kinds = (Kind.INPUT, Kind.LAUNCH_GAP, Kind.HOST)
        for kind, each in zip(kinds, self._split_host(pairs[:, 0], pairs[:, 1]), strict=True):
            totals[kind] += int(each.sum())
        left = {kind: totals[kind] for kind in kinds}
        found = [_within(self._operators, low, high) for low, high in pairs.tolist()]
        empty = np.zeros(0, dtype=np.int64)
        name, low, high = (
            np.concatenate([empty, *(one[column] for one in found)]) for column in range(3)
        )
        parts = _Parts()
        for kind, each in zip(kinds, self._split_host(low, high), strict=True):
            if kind is not Kind.INPUT:
                left[kind] -= int(each.sum())
                parts.add(kind, name, low, low + each)
        result = list(_sum_names(parts.all(), self._names))
        longest = max(pairs.tolist(), key=lambda pair: pair[1] - pair[0], default=(0, 0))
        names = {Kind.INPUT: TrainingPhase.DATA_LOAD.value}
        result += [
            PathOperation(
                kind, names.get(kind, OUTSIDE_OPERATORS), left[kind], len(pairs), *longest
            )
            for kind in kinds
            if left[kind] > 0
        ]
        return result


_Row = tuple[IntArray, IntArray, IntArray]


def _read_operators(profile: Profile, threads: set[Thread]) -> _Row:
    """Return start, end and name of the outermost operators of some threads together, without overlap."""
    nothing = np.zeros(0, dtype=np.int64)
    found = [(nothing, nothing, nothing)]
    for thread in sorted(threads):
        if thread in profile.operators:
            pairs = as_rows(profile.operators[thread], 2)
            names = as_rows(profile.operator_names[thread], 1)[:, 0]
            found.append(_outermost(pairs[:, 0], pairs[:, 1], names))
    return _outermost(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _outermost(start: IntArray, end: IntArray, name: IntArray | SmallArray) -> _Row:
    """Return start, end and name of what is within nothing else, without overlap: what began first goes first."""
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    if len(end):
        reached = np.maximum.accumulate(end)
        start[1:] = np.maximum(start[1:], reached[:-1])
    is_kept = end > start
    return start[is_kept], end[is_kept], name[order][is_kept].astype(np.int64)


def _within(rows: _Row, low: int, high: int) -> _Row:
    """Return names and bounds of what lies within an interval, cut to it."""
    start, end, name = rows
    first = int(np.searchsorted(end, low, side="right"))
    stop = max(int(np.searchsorted(start, high)), first)
    chosen = slice(first, stop)
    return name[chosen], np.maximum(start[chosen], low), np.minimum(end[chosen], high)


def _sum_names(rows: IntArray, names: list[str]) -> Iterator[PathOperation]:
    """Yield everything of one kind and name, of the names with most of it."""
    if not len(rows):
        return
    lengths = rows[:, 3] - rows[:, 2]
    keys, which = np.unique(rows[:, 0] * len(names) + rows[:, 1], return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, which, lengths)
    for index in np.argsort(-sums, kind="stable")[:MAX_OPERATIONS].tolist():
        number, name = divmod(int(keys[index]), len(names))
        own = np.flatnonzero(which == index)
        longest = own[int(np.argmax(lengths[own]))]
        bounds = (int(rows[longest, 2]), int(rows[longest, 3]))
        yield PathOperation(_KINDS[number], names[name], int(sums[index]), len(own), *bounds)
