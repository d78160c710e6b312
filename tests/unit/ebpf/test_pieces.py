"""What pieces add up to in an interval, against adding them up one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.events import EventFlag, SampledInterval, SchedEvent, ThreadState
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.pieces import History, Piece
from rootwalk.instrumentation.step_spans import ThreadTimes

US = 1_000
DAY_US = 86_400_000_000  # the clock of a machine that has run for a day


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Return a piece of up to 40 us of a thread that was not a rank's first."""
    start = draw(st.integers(0, 60))
    length = draw(st.integers(1, 40))
    runnable = draw(st.integers(1, length))
    foreign = draw(st.integers(0, runnable))
    own = draw(st.integers(0, runnable - foreign))
    idle = draw(st.integers(0, runnable - foreign - own))
    blocked = draw(st.integers(0, length - runnable))
    begin = (DAY_US + start) * US
    times = (runnable * US, foreign * US, own * US, idle * US, blocked * US)
    return Piece(begin, begin + length * US, *times)


intervals = st.tuples(st.integers(-5, 110), st.integers(0, 50)).map(
    lambda pair: ((DAY_US + pair[0]) * US + 333, (DAY_US + sum(pair)) * US + 777)
)


def add_piece(partition: RankPartition, piece: Piece, flags: int = 0) -> None:
    """Let a partition learn of a piece by a record of the kernel's sums."""
    start, end, runnable, foreign, own, idle, blocked, _ = piece
    record = SampledInterval(start, end, 8, 7, 1, flags, "t", runnable, blocked, foreign, own, idle)
    partition.add(record)


def shares(parts: Sequence[Piece], start: int, end: int) -> list[float]:
    """Return runnable, foreign, own, idle and blocked in an interval, each piece by itself."""
    sums = [0.0] * 5
    for piece in parts:
        inside = min(piece.end_ns, end) - max(piece.start_ns, start)
        if inside > 0:
            share = inside / (piece.end_ns - piece.start_ns)
            sums = [total + time * share for total, time in zip(sums, piece[2:7], strict=True)]
    return sums


def union_ns(parts: Sequence[Piece], start: int, end: int) -> int:
    """Return for how much of an interval at least one piece lasts."""
    total, reached = 0, start
    for piece in sorted(parts):
        low, high = max(piece.start_ns, reached), min(piece.end_ns, end)
        if high > low:
            total += high - low
            reached = high
    return total


def others_one_by_one(parts: Sequence[Piece], start: int, end: int) -> ThreadTimes:
    """Return what other threads did in one interval."""
    runnable, foreign, own, idle, _ = shares(parts, start, end)
    union = min(union_ns(parts, start, end), runnable)
    scale = union / runnable if runnable else 1.0
    divided = (round(foreign * scale), round(own * scale), round(idle * scale))
    return ThreadTimes("core", None, round(union), *divided, None)


@given(st.lists(pieces(), max_size=12), st.lists(intervals, max_size=6))
def test_others_times_are_those_of_each_interval_by_itself(
    parts: list[Piece], asked: list[tuple[int, int]]
) -> None:
    partition = RankPartition("core", 0)
    for piece in parts:
        add_piece(partition, piece)
    found = partition.others_times(asked)
    assert len(found) == len(asked)
    for times, (start, end) in zip(found, asked, strict=True):
        expected = others_one_by_one(parts, start, end)
        assert times is not None
        assert (times.sensor, times.running_ns, times.blocked_ns) == ("core", None, None)
        assert times[2:6] == pytest.approx(expected[2:6], abs=1)


@given(st.lists(st.tuples(st.integers(0, 9), pieces()), max_size=12), intervals)
def test_main_times_are_the_shares_of_its_pieces(
    spaced: list[tuple[int, Piece]], asked: tuple[int, int]
) -> None:
    partition, parts, now = RankPartition("core", 0), [], DAY_US * US
    for gap, piece in spaced:
        begin = now + gap * US
        now = begin + piece.end_ns - piece.start_ns
        parts.append(piece._replace(start_ns=begin, end_ns=now))
        add_piece(partition, parts[-1], EventFlag.LEADER)
    times = partition.main_times(*asked)
    runnable, foreign, own, idle, blocked = shares(parts, *asked)
    assert times is not None
    assert times.running_ns == pytest.approx(asked[1] - asked[0] - runnable - blocked, abs=2)
    assert times[2:7] == pytest.approx((runnable, foreign, own, idle, blocked), abs=1)


def test_only_what_is_known_of_several_intervals_is_told() -> None:
    partition = RankPartition("core", 10)
    event = SchedEvent(20, 40, 8, 7, 1, 0, ThreadState.RUNNABLE, 0, "t", (20, 0, 0, 0), ())
    partition.add(event)
    partition.mark_unknown(50, 60)
    known = ThreadTimes("core", None, 15, 15, 0, 0, None)
    nothing = ThreadTimes("core", None, 0, 0, 0, 0, None)
    asked = [(5, 30), (25, 50), (45, 55), (60, 70), (40, 30)]
    assert partition.others_times(asked) == [None, known, None, nothing, None]
    assert partition.others_times([]) == []


def test_sensor_that_samples_does_not_say_who_ran() -> None:
    partition = RankPartition("proc", 0)
    partition.add(SampledInterval(0, 50, 8, 7, 1, 0, "t", 30, 10))
    assert partition.others_times([(0, 25)]) == [
        ThreadTimes("proc", None, 15, None, None, None, None)
    ]


@given(st.lists(pieces(), max_size=12), intervals)
def test_history_finds_what_overlaps(parts: list[Piece], asked: tuple[int, int]) -> None:
    history, (start, end) = History(100, is_disjoint=False), asked
    for piece in parts:
        history.add(piece)
    expected = [piece for piece in parts if piece.start_ns < end and start < piece.end_ns]
    assert sorted(history.overlapping(start, end)) == sorted(expected)
