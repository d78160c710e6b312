"""When a job counts as stuck, and since when: by the spells without progress of its ranks."""

from __future__ import annotations

import pytest

from rootwalk.graph.hangs.live_evidence import LiveEvidence, Moment, RankProgress, Spell
from rootwalk.graph.hangs.stuck import Still, find_still, is_stuck, stuck_after_s

NS = 1_000_000_000


def spell(rank: int, since_s: float, told_s: float, resumed_s: float | None = None) -> Spell:
    resumed_ns = None if resumed_s is None else round(resumed_s * NS)
    return Spell(rank, round(since_s * NS), round(told_s * NS), resumed_ns)


def evidence(idle_s: float, **changes: object) -> LiveEvidence:
    moment = Moment(round((100.0 + idle_s) * NS), idle_s, "training", usual_s=0.2, state="sleeping")
    ranks = {rank: RankProgress(rank, "host", (moment,)) for rank in range(2)}
    known: dict[str, object] = {
        "job": "j1",
        "attempt": 0,
        "since_ns": 100 * NS,
        "until_ns": round((100.0 + idle_s) * NS),
        "is_open": True,
        "world_size": 2,
        "ranks": ranks,
        "known": frozenset(ranks),
    }
    return LiveEvidence(**(known | changes))  # type: ignore[arg-type]


def test_job_stands_still_from_when_the_last_rank_does() -> None:
    spells = [spell(0, 100.0, 120.0), spell(1, 104.0, 119.0)]
    assert find_still(spells, {0, 1}, {}) == [Still(104 * NS, 120 * NS, is_open=True)]


def test_rank_without_a_report_makes_progress() -> None:
    assert find_still([spell(0, 100.0, 120.0)], {0, 1}, {}) == []


def test_rank_that_is_gone_makes_none() -> None:
    (still,) = find_still([spell(0, 100.0, 120.0)], {0, 1}, {1: 99 * NS})
    assert still.since_ns == 100 * NS


def test_job_of_which_every_rank_is_gone_has_ended() -> None:
    assert find_still([spell(0, 100.0, 120.0)], {0, 1}, {0: 99 * NS, 1: 99 * NS}) == []


def test_time_that_is_over_ends_with_the_first_rank_that_goes_on() -> None:
    spells = [spell(0, 100.0, 130.0, 131.0), spell(1, 101.0, 130.0, 132.0)]
    assert find_still(spells, {0, 1}, {}) == [Still(101 * NS, 131 * NS - 1, is_open=False)]


def test_each_of_several_times_is_found() -> None:
    spells = [
        *(spell(0, 100.0, 130.0, 131.0), spell(1, 101.0, 130.0, 132.0)),
        *(spell(0, 200.0, 240.0), spell(1, 201.0, 240.0)),
    ]
    assert [one.is_open for one in find_still(spells, {0, 1}, {})] == [False, True]


def test_short_pause_is_left_out() -> None:
    spells = [spell(0, 100.0, 105.0, 108.0), spell(1, 101.0, 105.0, 109.0)]
    assert find_still(spells, {0, 1}, {}) == []


@pytest.mark.parametrize("ending_s", [129.0, 132.0])
def test_what_moves_because_the_job_ends_does_not_show_that_it_went_on(ending_s: float) -> None:
    spells = [spell(0, 100.0, 130.0, 131.0), spell(1, 101.0, 130.0, 131.0)]
    (still,) = find_still(spells, {0, 1}, {}, [round(ending_s * NS)])
    assert (still.is_open, still.is_ending) == (True, True)
    assert still.until_ns == min(round(ending_s * NS), 131 * NS - 1)


def test_end_long_after_the_job_went_on_is_another_thing() -> None:
    spells = [spell(0, 100.0, 130.0, 131.0), spell(1, 101.0, 130.0, 131.0)]
    (still,) = find_still(spells, {0, 1}, {}, [200 * NS])
    assert not still.is_open


@pytest.mark.parametrize(("idle_s", "expected"), [(9.9, False), (10.1, True)])
def test_ten_seconds_are_the_least(idle_s: float, expected: bool) -> None:
    assert is_stuck(evidence(idle_s)) is expected


def test_three_times_the_usual_gap_is_the_least_of_a_slow_job() -> None:
    moment = Moment(140 * NS, 40.0, "training", usual_s=20.0, state="sleeping")
    ranks = {0: RankProgress(0, "host", (moment,))}
    known = {"ranks": ranks, "known": frozenset(ranks)}
    assert stuck_after_s(evidence(40.0, **known)) == 60.0
    assert not is_stuck(evidence(40.0, **known))
    # By its steps the job has never paused for longer than 2 s.
    assert is_stuck(evidence(40.0, usual_s=2.0, **known))


def test_job_that_is_suspended_as_a_whole_is_not_stuck() -> None:
    moment = Moment(140 * NS, 40.0, "training", state="stopped")
    stopped = RankProgress(0, "host", (moment,))
    asleep = RankProgress(1, "host", (Moment(140 * NS, 40.0, "training", state="sleeping"),))
    assert not is_stuck(evidence(40.0, ranks={0: stopped}, known=frozenset((0,))))
    assert is_stuck(evidence(40.0, ranks={0: stopped, 1: asleep}))
