r"""What the device did as a graph: every kernel, copy and set of a profile, and what let each of them begin.

    host      |launch A|launch B|         |launch C|      |synchronize---------|
                  \        \                  \                              ^ sync edge
    stream 7       |-- A --|-- B --|  dry      |-- C --|                     |
    stream 20                                  event of C ~~~> |-- D --------|

Nodes are rows of arrays, by stream and start. An operation begins when the last of these has happened: its launch by
the host (launch edge, by correlation), the end of what came before it in its stream (stream edge), the end of what its
stream waits for (event edge). A call that waits for the device returns when that has ended (sync edge): one that
synchronises, a copy that blocks, a launch for which the queue has no room.

Event edges are there only where the trace tells them: with CUPTI's events of synchronisation (`cuda_sync`), which the
profiler leaves out unless it is asked for them. Pure.

Source:
    HolisticTraceAnalysis, critical path: a launch is on it only where the stream ran dry.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rootwalk.graph.importers.intervals import IntArray, as_rows
from rootwalk.graph.importers.kineto_profile import DeviceKind, Profile, Thread, Wait

__all__ = ["NOWHERE", "DeviceGraph", "Synchronizations", "build_device_graph"]

BoolArray = npt.NDArray[np.bool_]
# Numbers of operations and of names: a profile of gigabytes has millions.
SmallArray = npt.NDArray[np.int32]

# Before everything; also no operation.
NOWHERE: Final = np.iinfo(np.int64).min
# Host and device have clocks of their own, and old profiles round to microseconds: what a call waited for may seem
# to end so much after the call returned.
MAX_LATE_NS: Final = 10_000
# Of operations that end about when a call returns, so many are looked at for one that had been launched before.
_MAX_LATE_OPERATIONS: Final = 8
# CUDA takes about 1,024 launches that the device has not begun; the next one waits until it has. Public profiles show
# at most 1,021, and calls of 264 us in place of 5 from 1,000 on.
FULL_QUEUE_LAUNCHES: Final = 1_000
# A launch that takes no longer has not waited: with room in the queue nine of ten take 20 us at most.
MIN_BLOCKED_NS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Synchronizations:
    """Calls of the host that waited for the device, by their end.

    Attributes:
        end_ns: When each returned.
        released_ns: When what it waited for ended, at most `end_ns`.
        operation: What that was.
    """

    end_ns: IntArray
    released_ns: IntArray
    operation: IntArray


@dataclass(frozen=True, slots=True)
class DeviceGraph:
    """Operations of the device by stream and start; arrays over operations, ns.

    Attributes:
        name: Number of its name.
        kind: DeviceKind.
        start_ns: Its begin.
        end_ns: Its end.
        reached_ns: The last end in its stream so far.
        owner: Whose end that is.
        is_launched: Whether the call that launched it is known.
        launched_ns: When that call had launched it.
        awaited: What its stream was told to wait for and that ended last; -1 for nothing.
        is_dry: Its launch was the last to happen: its stream had run dry.
        is_told: What its stream was told to wait for was the last to happen.
        chain: The first operation of those that followed each other in the stream up to this one.
        waits: Calls that waited for the device.
    """

    name: SmallArray
    kind: SmallArray
    start_ns: IntArray
    end_ns: IntArray
    reached_ns: IntArray
    owner: SmallArray
    is_launched: BoolArray
    launched_ns: IntArray
    awaited: SmallArray
    is_dry: BoolArray
    is_told: BoolArray
    chain: SmallArray
    waits: Synchronizations


def build_device_graph(profile: Profile, threads: set[Thread]) -> DeviceGraph:
    """Return the device's operations with what let each of them begin.

    Args:
        profile: All of its events.
        threads: Those of the training loop, and of the backward passes that it waits for.
    """
    stream, kind, rows = _in_order(profile)
    name, start, end, correlation = (as_rows(profile.ran, 4)[rows, column] for column in range(4))
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = stream[1:] != stream[:-1]
    reached = _running_maximum(end, is_first)
    owner = _latest(end == reached)

    calls = _Calls(profile)
    begun, returned, is_launched = calls.find(correlation)
    # A copy that blocks is launched as its call begins, and the call waits for it.
    is_blocking = is_launched & (kind == DeviceKind.COPY) & (end > begun) & (end <= returned)
    launched = np.where(is_blocking, begun, returned)
    asked = np.where(is_launched, begun, start)
    del begun
    streams = _Streams(stream, _running_maximum(asked, is_first), end)
    awaited = _find_awaited(profile, calls, streams, end)
    operations = _Operations(start, end, correlation, is_launched, is_blocking, asked, returned)
    waits = _find_waits(profile, threads, calls, streams, operations)
    del calls, streams, operations, asked, returned, correlation, stream

    before = np.where(is_first, NOWHERE, np.roll(reached, 1))
    told = np.where(awaited >= 0, end[awaited], NOWHERE) if len(rows) else before
    ready = np.maximum(before, told)
    is_dry = is_launched & (launched > ready) & (start > ready)
    is_told = ~is_dry & (told > before)
    return DeviceGraph(
        name=name.astype(np.int32),
        kind=kind,
        start_ns=start,
        end_ns=end,
        reached_ns=reached,
        owner=owner,
        is_launched=is_launched,
        launched_ns=launched,
        awaited=awaited,
        is_dry=is_dry,
        is_told=is_told,
        chain=_latest(is_dry | is_told | is_first),
        waits=Synchronizations(*(waits[:, column] for column in range(3))),
    )


def _in_order(profile: Profile) -> tuple[IntArray, SmallArray, IntArray]:
    """Return stream and kind of the operations by stream and start, and which rows of the profile they are."""
    ran, lanes = as_rows(profile.ran, 4), as_rows(profile.lanes, 1)[:, 0]
    order = np.lexsort((ran[:, 2], ran[:, 1], lanes // len(DeviceKind)))
    stream, kind = np.divmod(lanes[order], len(DeviceKind))
    return stream, kind.astype(np.int32), order


def _latest(is_one: BoolArray) -> SmallArray:
    """Return for each row the last one so far that is one."""
    numbers = np.where(is_one, np.arange(len(is_one), dtype=np.int32), np.int32(0))
    return np.maximum.accumulate(numbers) if len(numbers) else numbers


def _find_waits(
    profile: Profile,
    threads: set[Thread],
    calls: _Calls,
    streams: _Streams,
    operations: _Operations,
) -> IntArray:
    """Return (return, end of what was waited for, number of that) of the host's calls that waited, by their return."""
    waits = np.concatenate(
        [
            _find_synchronizations(profile, threads, calls, streams, operations),
            _find_blocked(profile, threads, streams, operations),
        ]
    )
    return waits[np.lexsort((waits[:, 2], waits[:, 1], waits[:, 0]))]


def _running_maximum(values: IntArray, is_first: BoolArray) -> IntArray:
    """Return the largest value so far in each stream."""
    result = np.empty_like(values)
    bounds = [*np.flatnonzero(is_first).tolist(), len(values)]
    for low, high in pairwise(bounds):
        np.maximum.accumulate(values[low:high], out=result[low:high])
    return result


class _Calls:
    """Calls of the runtime by correlation."""

    def __init__(self, profile: Profile) -> None:
        asked = [as_rows(pairs, 2) for pairs in profile.asked.values()]
        nothing = np.zeros(0, dtype=np.int64)
        correlation = np.concatenate([nothing, *(pairs[:, 0] for pairs in asked)])
        begun = np.concatenate([nothing, *(pairs[:, 1] for pairs in asked)])
        order = np.lexsort((begun, correlation))
        self._correlation, self._begun = correlation[order], begun[order]
        returned = as_rows(profile.returned, 2)
        self._returned = returned[np.lexsort((returned[:, 1], returned[:, 0])), 1]

    def find(self, correlation: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
        """Return begin and end of the calls of some correlations, and which of them are known."""
        if not len(self._correlation):
            nothing = np.full(len(correlation), NOWHERE, dtype=np.int64)
            return nothing, nothing, np.zeros(len(correlation), dtype=np.bool_)
        found = np.searchsorted(self._correlation, correlation)
        found = np.minimum(found, len(self._correlation) - 1)
        is_known = (self._correlation[found] == correlation) & (correlation >= 0)
        begun = np.where(is_known, self._begun[found], NOWHERE)
        return begun, np.where(is_known, self._returned[found], NOWHERE), is_known


class _Streams:
    """Operations of each stream in the order in which they were launched, and all of them by their end."""

    def __init__(self, stream: IntArray, asked: IntArray, end: IntArray) -> None:
        self._asked = asked
        self._stream = stream
        self.by_end = np.argsort(end, kind="stable")
        self.ends = end[self.by_end]
        self._of_stream: dict[int, tuple[IntArray, IntArray]] = {}

    def first_after(self, stream: int, time_ns: int) -> int | None:
        """Return the first operation of a stream that was launched after a time."""
        low, high = self._bounds(stream)
        found = low + int(np.searchsorted(self._asked[low:high], time_ns, side="right"))
        return found if found < high else None

    def last_before(self, stream: int, time_ns: int) -> int | None:
        """Return the last operation of a stream that was launched before a time."""
        low, high = self._bounds(stream)
        found = low + int(np.searchsorted(self._asked[low:high], time_ns)) - 1
        return found if found >= low else None

    def ended(self, stream: int) -> tuple[IntArray, IntArray]:
        """Return a stream's operations by their end, and the ends."""
        if stream not in self._of_stream:
            is_own = self._stream[self.by_end] == stream
            self._of_stream[stream] = self.by_end[is_own], self.ends[is_own]
        return self._of_stream[stream]

    def _bounds(self, stream: int) -> tuple[int, int]:
        low, high = np.searchsorted(self._stream, [stream, stream + 1])
        return int(low), int(high)


def _find_awaited(profile: Profile, calls: _Calls, streams: _Streams, end: IntArray) -> SmallArray:
    """Return for each operation what its stream was told to wait for; of several the last to end."""
    awaited = np.full(len(end), -1, dtype=np.int32)
    told = as_rows(profile.waits, 6)
    told = told[(told[:, 0] == Wait.STREAM_FOR_EVENT) & (told[:, 1] >= 0) & (told[:, 2] >= 0)]
    recorded, _, is_known = calls.find(told[:, 3])
    for (_, waiting, source, _, _, time_ns), record_ns in zip(
        told[is_known].tolist(), recorded[is_known].tolist(), strict=True
    ):
        held = streams.first_after(waiting, time_ns)
        awaited_one = streams.last_before(source, record_ns)
        if held is None or awaited_one is None:
            continue
        if awaited[held] < 0 or end[awaited_one] > end[awaited[held]]:
            awaited[held] = awaited_one
    return awaited


@dataclass(frozen=True, slots=True)
class _Operations:
    """What is needed of the operations to tell which calls waited for them."""

    start_ns: IntArray
    end_ns: IntArray
    correlation: IntArray
    is_launched: BoolArray
    is_blocking: BoolArray
    asked_ns: IntArray
    returned_ns: IntArray


def _find_synchronizations(
    profile: Profile,
    threads: set[Thread],
    calls: _Calls,
    streams: _Streams,
    operations: _Operations,
) -> IntArray:
    """Return (return, end of what was waited for, number of that) of the calls that synchronise and had to wait.

    Where the trace does not tell what a call waits for, it is what ended last before the call returned.
    """
    end = operations.end_ns
    told = {row[4]: row for row in as_rows(profile.waits, 6).tolist()}
    found: list[tuple[int, int, int]] = []
    for thread in sorted(threads):
        pairs = np.array(profile.synchronizing.get(thread, ()), dtype=np.int64).reshape(-1, 2)
        for (start_ns, end_ns), by in zip(
            pairs.tolist(), profile.synchronized_by.get(thread, ()), strict=True
        ):
            wait = told.get(by)
            operation = None
            if wait is not None and wait[0] == Wait.FOR_EVENT and wait[2] >= 0 and wait[3] >= 0:
                record, _, (is_known,) = calls.find(np.array([wait[3]]))
                if is_known:
                    operation = streams.last_before(wait[2], int(record[0]))
            if operation is None:
                is_stream = wait is not None and wait[0] == Wait.FOR_STREAM and wait[1] >= 0
                ended = streams.ended(wait[1]) if wait is not None and is_stream else None
                by_end, ends = ended or (streams.by_end, streams.ends)
                operation = _last_ended(by_end, ends, operations.asked_ns, end_ns)
            if operation is None:
                continue
            ended_ns = int(end[operation])
            if start_ns < ended_ns <= end_ns + MAX_LATE_NS:
                found.append((end_ns, min(ended_ns, end_ns), operation))
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _last_ended(by_end: IntArray, ends: IntArray, asked: IntArray, returned_ns: int) -> int | None:
    """Return the last operation to end when a call returned, of those launched before that."""
    stop = int(np.searchsorted(ends, returned_ns + MAX_LATE_NS, side="right"))
    for position in range(stop - 1, max(stop - 1 - _MAX_LATE_OPERATIONS, -1), -1):
        operation = int(by_end[position])
        if asked[operation] < returned_ns:
            return operation
    return None


def _find_blocked(
    profile: Profile, threads: set[Thread], streams: _Streams, operations: _Operations
) -> IntArray:
    """Return the same of calls that only launch: copies that returned after they were done, launches without room."""
    parts = [
        as_rows(profile.asked[one], 2)[:, 0] for one in sorted(threads) if one in profile.asked
    ]
    own = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    of_host = operations.is_launched & np.isin(operations.correlation, own)
    begun, returned, end = operations.asked_ns, operations.returned_ns, operations.end_ns
    copies = np.flatnonzero(of_host & operations.is_blocking)

    # A graph of kernels is one launch: that of the first of them.
    launches = np.flatnonzero(operations.is_launched)
    launches = launches[np.argsort(operations.start_ns[launches], kind="stable")]
    _, first = np.unique(operations.correlation[launches], return_index=True)
    launches = launches[np.sort(first)]
    began = operations.start_ns[launches]
    launches = launches[np.argsort(begun[launches], kind="stable")]
    waiting = np.arange(len(launches)) - np.searchsorted(began, begun[launches])
    is_long = returned[launches] - begun[launches] >= MIN_BLOCKED_NS
    blocked = launches[(waiting >= FULL_QUEUE_LAUNCHES) & is_long & of_host[launches]]
    last = np.searchsorted(streams.ends, returned[blocked], side="right") - 1
    blocked, last = blocked[last >= 0], last[last >= 0]
    is_within = streams.ends[last] > begun[blocked]
    blocked, last = blocked[is_within], last[is_within]
    return np.concatenate(
        [
            np.stack([returned[copies], end[copies], copies], axis=1),
            np.stack([returned[blocked], streams.ends[last], streams.by_end[last]], axis=1),
        ]
    )
