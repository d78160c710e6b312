"""Timelines: every slice is on a lane that nests, and the wire format is protobuf's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph.exporters import wire
from rootwalk.graph.exporters.dot import quoted
from rootwalk.graph.exporters.perfetto_format import PerfettoFile
from rootwalk.graph.exporters.timeline import MAX_LANES, Process, Slice, Track, lanes_of

TRACK = Track(0, 1, "operations")
JOB = Track(None, 0, "walked path")


def slice_at(start: int, end: int | None, track: Track = TRACK) -> Slice:
    return Slice(track, start, end, "s", "c")


def bounds(slices: list[Slice]) -> list[list[tuple[int, int | None]]]:
    return [[(s.start_ns, s.end_ns) for s in lane.slices] for lane in lanes_of(slices)]


def test_what_nests_is_on_one_lane_outer_first() -> None:
    """|---- 0..10 ----|  and inside  |0..4| |4..10|, then an instant at 4 and one at the end."""
    slices = [slice_at(*pair) for pair in ((4, 10), (0, 4), (10, None), (0, 10), (4, None))]
    assert bounds(slices) == [[(0, 10), (0, 4), (4, 10), (4, None), (10, None)]]


def test_what_overlaps_has_a_lane_of_its_own() -> None:
    assert bounds([slice_at(0, 6), slice_at(4, 10), slice_at(6, 8)]) == [
        [(0, 6), (6, 8)],
        [(4, 10)],
    ]


def test_tracks_are_in_order_the_jobs_first() -> None:
    tracks = [Track(1, 0, "b"), Track(0, 2, "a"), Track(0, 1, "z"), JOB]
    lanes = lanes_of([slice_at(0, 1, track) for track in tracks])
    assert [lane.track for lane in lanes] == [JOB, tracks[2], tracks[1], tracks[0]]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 10))), max_size=MAX_LANES
    )
)
def test_lanes_nest_and_lose_nothing(drawn: list[tuple[int, int | None]]) -> None:
    slices = [slice_at(start, None if d is None else start + d) for start, d in drawn]
    lanes = lanes_of(slices)
    assert sorted(map(repr, slices)) == sorted(repr(s) for lane in lanes for s in lane.slices)
    for lane in lanes:
        for place, inner in enumerate(lane.slices):
            for outer in lane.slices[:place]:
                assert inner.start_ns >= outer.start_ns
                assert inner.start_ns >= outer.stop_ns or inner.stop_ns <= outer.stop_ns


def test_more_than_the_lanes_hold_is_cut_to_fit() -> None:
    slices = [slice_at(n, 1000 + n) for n in range(MAX_LANES + 5)]
    assert len(lanes_of(slices)) == MAX_LANES
    file = PerfettoFile(1_000_000)
    file.add(Process(0, "rank 0"), lanes_of(slices))
    assert (file.slices, file.left_out) == (MAX_LANES + 5, 0)


def test_numbers_on_the_wire() -> None:
    """The examples of protobuf's own page on its encoding, and the largest numbers."""
    assert wire.number(1, 150).hex() == "089601"
    assert wire.text(2, "testing").hex() == "120774657374696e67"
    assert wire.packed(6, [3, 270, 86942]).hex() == "3206038e029ea705"
    assert wire.varint(-1).hex() == "ff" * 9 + "01"
    assert wire.fixed64(1, 2**64 - 1).hex() == "09" + "ff" * 8
    assert wire.double(1, 1.0).hex() == "09000000000000f03f"
    assert wire.number(1, 0) == wire.text(1, "") == b""
    assert wire.text(1, "\udc80") == b"\x0a\x01?"


def test_names_of_dot_are_quoted() -> None:
    assert quoted('a "b" \\N\n') == '"a \\"b\\" \\\\N\\n"'
    assert quoted("\x1b\udc80") == '"⟨U+001B⟩⟨U+DC80⟩"'
