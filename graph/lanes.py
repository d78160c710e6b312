"""Cut a rank's steps into regions, and a region into execution, issues and waits.

A region is a phase or the gap before the next one. Owns the decision which intervals of the main thread were waits
for a collective: blocked intervals that end with one where the scheduler was watched, else the blocked tail.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rootwalk.graph.columns import EXACT_SENSORS, FloatArray, JobData, ThreadState

# A blocked thread is woken within this time of the end of what it waited for; also the error of end times,
# which are taken in another thread.
WAKE_TOLERANCE_S = 0.001
# A collective's end is noted by the thread that completes it. The main thread it wakes may take that thread's core
# first: then the note comes late, by some time slices of a contended core. Measured 4 ms with one stranger on it.
MAX_LATE_NOTE_S = 0.010
# A phase that nobody watched ends with a wait where so much of the time since its last call was blocked.
MIN_WAITED_RATIO = 0.5
# Shorter waits cannot be told from the scatter of the records.
MIN_WAIT_S = 20e-6
# So many collectives before a moment are looked at for one that is still under way.
MAX_OPEN_CALLS = 64
_BACKWARD = "backward"
STEP_GAP = "host"


class CollectiveCall(NamedTuple):
    """One collective of one rank: its row in the table, when it was issued and when it was done."""

    row: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Region:
    """A phase of one rank's step, or the time between two phases.

    `states` are seconds per `ThreadState`, NaN where unknown; `issued` are the collectives that the rank issued
    in it, `pending` those that could end in it, `blocked` the main thread's blocked intervals;
    `is_watched` says that the scheduler sensor reported every such interval of 1 ms or more.
    """

    name: str
    ordinal: int
    start_s: float
    end_s: float
    states: FloatArray
    issued: tuple[CollectiveCall, ...]
    pending: tuple[CollectiveCall, ...]
    blocked: tuple[tuple[float, float], ...]
    is_watched: bool = False


class Piece(NamedTuple):
    """Execution, the issue of a collective (`issued_row`), or a wait for one (`waited_row`)."""

    start_s: float
    end_s: float
    issued_row: int | None = None
    waited_row: int | None = None
    collective_end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RankRows:
    """Row numbers of one rank in time order."""

    steps: dict[int, int]
    phases: dict[int, list[int]]
    calls: list[CollectiveCall]
    call_starts: list[float]
    blocked: list[tuple[float, float]]
    blocked_starts: list[float]


def regions_of(data: JobData, step_numbers: tuple[int, ...]) -> dict[int, list[list[Region]]]:
    """Return for each rank that has all these steps its regions, step by step, tiling each step."""
    wanted = set(step_numbers)
    result: dict[int, list[list[Region]]] = {}
    for rank, rows in _rows_by_rank(data, wanted).items():
        if wanted <= rows.steps.keys():
            result[rank] = [list(_step_regions(data, rows, step)) for step in step_numbers]
    return result


def _rows_by_rank(data: JobData, wanted: set[int]) -> dict[int, RankRows]:
    by_rank: dict[int, RankRows] = {}
    for rank in np.unique(data.steps.rank).tolist():
        by_rank[rank] = RankRows({}, {}, [], [], [], [])
    for row, (rank, step) in enumerate(
        zip(data.steps.rank.tolist(), data.steps.step.tolist(), strict=True)
    ):
        if step in wanted:
            by_rank[rank].steps[step] = row
    for row, (rank, step) in enumerate(
        zip(data.phases.rank.tolist(), data.phases.step.tolist(), strict=True)
    ):
        if step in wanted and rank in by_rank:
            by_rank[rank].phases.setdefault(step, []).append(row)
    calls = data.collectives
    order = np.argsort(calls.start_s, kind="stable")
    for row, rank, start_s, end_s in zip(
        order.tolist(),
        calls.rank[order].tolist(),
        calls.start_s[order].tolist(),
        calls.end_s[order].tolist(),
        strict=True,
    ):
        owner = by_rank.get(rank)
        if owner is not None:
            owner.calls.append(CollectiveCall(row, start_s, end_s))
            owner.call_starts.append(start_s)
    for stall in sorted(data.stalls, key=lambda item: item.start_s):
        if stall.role == "main" and stall.state == "blocked" and stall.rank in by_rank:
            by_rank[stall.rank].blocked.append((stall.start_s, stall.end_s))
            by_rank[stall.rank].blocked_starts.append(stall.start_s)
    for owner in by_rank.values():
        correct_late_notes(owner, (*owner.blocked, *_presumed_waits(data, owner)))
    return by_rank


def _presumed_waits(data: JobData, rows: RankRows) -> Iterator[tuple[float, float]]:
    """Yield the blocked time with which a phase seems to end whose blocked intervals nobody watched."""
    for step, phases in rows.phases.items():
        if step not in rows.steps or data.steps.sensor[rows.steps[step]] in EXACT_SENSORS:
            continue
        for phase in phases:
            low, high = float(data.phases.start_s[phase]), float(data.phases.end_s[phase])
            last = bisect.bisect_left(rows.call_starts, high) - 1
            since_s = max(low, rows.call_starts[last] if last >= 0 else low)
            blocked_s = float(data.phases.states[phase][ThreadState.BLOCKED])
            if blocked_s > max(
                MIN_WAITED_RATIO * (high - since_s), MIN_WAIT_S
            ):  # not where it is NaN
                yield max(since_s, high - blocked_s), high


def correct_late_notes(rows: RankRows, waits: Iterable[tuple[float, float]]) -> None:
    """Move the end of a collective back to the end of the wait that it ended, where its note came late; in place.

    main thread   ---|~~~~~~~~ blocked ~~~~~~~~|--- runs ---
    collective      [------------------------------]          noted late: it cannot have ended after the wait

    Args:
        rows: Of one rank.
        waits: Its main thread's blocked intervals, or what is presumed to be one.
    """
    for low, high in waits:
        first = bisect.bisect_right(rows.call_starts, low)
        open_calls = [
            i for i in range(max(first - MAX_OPEN_CALLS, 0), first) if rows.calls[i].end_s > low
        ]
        if any(rows.calls[i].end_s <= high + WAKE_TOLERANCE_S for i in open_calls):
            continue
        late = [i for i in open_calls if rows.calls[i].end_s <= high + MAX_LATE_NOTE_S]
        if late:
            ended = min(late, key=lambda i: rows.calls[i].end_s)
            rows.calls[ended] = rows.calls[ended]._replace(end_s=high)


def _step_regions(data: JobData, rows: RankRows, step: int) -> Iterator[Region]:
    """Yield phases and the gaps between them, in order, without overlap."""
    row = rows.steps[step]
    start_s, end_s = float(data.steps.start_s[row]), float(data.steps.end_s[row])
    phases = sorted(rows.phases.get(step, []), key=lambda p: float(data.phases.start_s[p]))
    cuts: list[tuple[str, float, float, FloatArray | None]] = []
    time_s = start_s
    for phase in phases:
        low = min(max(float(data.phases.start_s[phase]), time_s), end_s)
        high = min(max(float(data.phases.end_s[phase]), low), end_s)
        if low > time_s:
            cuts.append((STEP_GAP, time_s, low, None))
        cuts.append((data.phases.phase[phase], low, high, data.phases.states[phase]))
        time_s = high
    if end_s > time_s:
        cuts.append((STEP_GAP, time_s, end_s, None))
    gap_states = _gap_states(data.steps.states[row], cuts)
    ordinals: dict[str, int] = {}
    for name, low, high, states in cuts:
        ordinal = ordinals.get(name, 0)
        ordinals[name] = ordinal + 1
        own = states if states is not None else gap_states * (high - low)
        yield _region(
            rows, name, ordinal, (low, high), own, start_s, data.steps.sensor[row] in EXACT_SENSORS
        )


def _gap_states(
    step_states: FloatArray, cuts: list[tuple[str, float, float, FloatArray | None]]
) -> FloatArray:
    """Return the states of the time outside phases, per second of it; NaN where unknown."""
    gap_s = sum(high - low for _, low, high, states in cuts if states is None)
    if gap_s <= 0.0:
        return np.full(step_states.size, np.nan)
    inside = sum((states for *_, states in cuts if states is not None), np.zeros(step_states.size))
    return np.asarray(np.maximum(step_states - inside, 0.0) / gap_s, dtype=np.float64)


def _region(
    rows: RankRows,
    name: str,
    ordinal: int,
    bounds: tuple[float, float],
    states: FloatArray,
    step_start_s: float,
    is_watched: bool,
) -> Region:
    low, high = bounds
    first = bisect.bisect_left(rows.call_starts, step_start_s - (high - step_start_s))
    begin = bisect.bisect_left(rows.call_starts, low)
    stop = bisect.bisect_left(rows.call_starts, high)
    pending = tuple(c for c in rows.calls[first:stop] if low < c.end_s <= high + WAKE_TOLERANCE_S)
    stalls = bisect.bisect_left(rows.blocked_starts, high)
    blocked: list[tuple[float, float]] = []
    for start_s, end_s in reversed(rows.blocked[:stalls]):
        if end_s <= low:
            break
        blocked.append((max(start_s, low), min(end_s, high)))
    issued = tuple(rows.calls[begin:stop])
    return Region(
        name, ordinal, low, high, states, issued, pending, tuple(reversed(blocked)), is_watched
    )


def cut_region(region: Region) -> Iterator[Piece]:
    """Yield the pieces of a region in order: execution and waits tile it, issues are moments in it."""
    events: list[tuple[float, int, Piece]] = [
        (call.start_s, 0, Piece(call.start_s, call.start_s, call.row, None, call.end_s))
        for call in region.issued
    ]
    events += [(wait.start_s, 1, wait) for wait in find_waits(region)]
    time_s = region.start_s
    for at_s, _, piece in sorted(events, key=lambda event: event[:2]):
        if at_s > time_s:
            yield Piece(time_s, at_s)
            time_s = at_s
        if piece.issued_row is not None:
            yield piece
        elif piece.end_s > time_s:
            yield Piece(time_s, piece.end_s, None, piece.waited_row, piece.collective_end_s)
            time_s = piece.end_s
    if region.end_s > time_s:
        yield Piece(time_s, region.end_s)


def find_waits(region: Region) -> list[Piece]:
    """Return the intervals in which the main thread waited for a collective, in order.

    First the blocked intervals that the scheduler sensor saw and that end with a collective: from its issue on, for
    nobody waits for what is still to come. Then, for a collective whose end no such interval covers, the time from the
    last issue to its end, as far as the thread's blocked time reaches: what was running or runnable there was not
    waiting.
    """
    waits = _watched_waits(region)
    blocked_s = float(region.states[ThreadState.BLOCKED])
    is_known = not np.isnan(blocked_s)
    left_s = blocked_s - sum(w.end_s - w.start_s for w in waits) if is_known else np.inf
    # A longer wait would have been reported.
    longest_s = WAKE_TOLERANCE_S if region.is_watched else np.inf
    issue_times = [call.start_s for call in region.issued]
    starts = [wait.start_s for wait in waits]
    for call in sorted(region.pending, key=lambda item: -item.end_s):
        end_s = min(call.end_s, region.end_s)
        # Waits do not overlap: of those that began before, the last is the last to end.
        place = bisect.bisect_left(starts, end_s)
        last_s = waits[place - 1].end_s if place else region.start_s
        if place and end_s <= last_s + WAKE_TOLERANCE_S:
            continue
        position = bisect.bisect_right(issue_times, end_s)
        low = max(last_s, issue_times[position - 1] if position else region.start_s)
        length = min(end_s - low, left_s, longest_s)
        if length > MIN_WAIT_S:
            waits.insert(place, Piece(end_s - length, end_s, None, call.row, call.end_s))
            starts.insert(place, end_s - length)
            left_s -= length
        if not is_known and region.name == _BACKWARD:
            break
    return waits


def _watched_waits(region: Region) -> list[Piece]:
    """Return the blocked intervals, or their ends, that the end of a collective ended, in order."""
    # Of calls that end together the first is the last in this order.
    order = sorted(range(len(region.pending)), key=lambda i: (region.pending[i].end_s, -i))
    by_end = [region.pending[i] for i in order]
    ends = [call.end_s for call in by_end]
    waits: list[Piece] = []
    for low, high in region.blocked:
        first = bisect.bisect_right(ends, low)
        stop = bisect.bisect_right(ends, high + WAKE_TOLERANCE_S)
        call = next((c for c in reversed(by_end[first:stop]) if c.start_s < high), None)
        if call is not None and high > low:
            waits.append(Piece(max(low, call.start_s), high, None, call.row, call.end_s))
    return waits
