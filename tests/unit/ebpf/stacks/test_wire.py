"""What profiles take on the wire: longer together first, then fewer samples, and back."""

from __future__ import annotations

from rootwalk.ebpf.stacks.wire import (
    MAX_HALVINGS,
    MAX_INTERVAL_S,
    RANK_BYTES_PER_S,
    SEND_INTERVAL_S,
    WirePace,
)


def test_four_ranks_may_take_less_than_1_mb_a_minute() -> None:
    assert 4 * 60 * RANK_BYTES_PER_S < 1_000_000


def test_what_fits_changes_nothing() -> None:
    pace = WirePace(1000)
    for _ in range(5):
        pace.note(5 * 4 * 700, 5.0, 4)
    assert (pace.interval_s, pace.halvings) == (SEND_INTERVAL_S, 0)


def test_too_much_is_told_together_first_then_sampled_less() -> None:
    pace, seen = WirePace(1000), []
    for _ in range(4):
        pace.note(1_000_000, pace.interval_s, 4)
        seen.append((pace.interval_s, pace.halvings))
    assert seen == [(10.0, 0), (20.0, 0), (20.0, 1), (20.0, 2)]


def test_detail_comes_back_in_the_other_order() -> None:
    pace = WirePace(1000)
    for _ in range(3):
        pace.note(1_000_000, pace.interval_s, 4)
    seen = []
    for _ in range(4):
        pace.note(100, pace.interval_s, 4)
        seen.append((pace.interval_s, pace.halvings))
    assert seen == [(20.0, 0), (10.0, 0), (5.0, 0), (5.0, 0)]


def test_no_size_and_no_time_has_an_end() -> None:
    pace = WirePace(1000)
    for _ in range(100):
        pace.note(10**12, 0.0, 0)
    assert (pace.interval_s, pace.halvings) == (MAX_INTERVAL_S, MAX_HALVINGS)
    pace.note(0, 0.0, 0)
    assert pace.halvings == MAX_HALVINGS - 1
