"""How one counter moved in slow steps: levels that fall to nothing, and sums that are told late."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.counters.formulas import Cost
from rootwalk.graph.counters.movement import (
    LOOK_S,
    Movement,
    Points,
    StepSpans,
    levels,
    met_onset,
    reached,
    since_nothing,
    sums,
    watch,
)
from rootwalk.graph.counters.points import Place
from rootwalk.graph.counters.rule import Counter, Formula, Kind
from rootwalk.graph.counters.seen import MAX_OUTSIDE, Seen, has_moved
from rootwalk.graph.reasons import Signal

QUIET, SLOW = 30, 10
# Round trips, ms, of both ranks of a job whose packets are late from 0 s on (pairs of looks that a real job left): one
# look before met a moment in which the machine was busy, the last was 2.1 s before.
ROUND_TRIPS_MS = (
    {-24.2: 5.8, -18.7: 3.1, -12.8: 3.8, -7.5: 12.8, -2.1: 2.1, 3.6: 14.6, 10.2: 14.7, 16.2: 13.0},
    {-24.2: 1.0, -18.7: 2.0, -12.8: 1.1, -7.5: 5.8, -2.1: 2.8, 3.6: 15.3, 10.2: 17.5, 16.2: 12.8},
)


def fall(left: float, slow_s: float = 40.0) -> Movement | None:
    """Return the movement of a level of 18 that is another one in slow steps."""
    steps = np.concatenate([np.full(QUIET, 10.0), np.full(SLOW, slow_s)])
    ends = np.cumsum(steps)
    amount = np.concatenate([np.full(QUIET, 18.0), np.full(SLOW, left)])
    return watch(Kind.FALL, amount, StepSpans(ends - steps, ends, QUIET))


@pytest.mark.parametrize("left", [2.0, 0.0], ids=["some", "none"])
def test_a_level_that_falls_has_moved_though_nothing_is_left(left: float) -> None:
    movement = fall(left)
    assert movement is not None
    assert movement.settled >= 8.0
    assert movement.overlap == pytest.approx(1.0)


def test_a_level_that_stays_has_not() -> None:
    movement = fall(18.0)
    assert movement is not None
    assert movement.overlap == 0.0


def rise(*round_trips: dict[float, float]) -> Movement | None:
    """Return the movement of round trips in steps of 0.18 s until 0 s and 0.28 s from then on."""
    steps = np.concatenate([np.full(130, 0.18), np.full(60, 0.28)])
    ends = np.cumsum(steps) - 130 * 0.18
    series = [points(*one.items()) for one in round_trips]
    spans = StepSpans(ends - steps, ends, 130)
    amount = levels(series, spans)
    assert amount is not None
    return watch(Kind.RISE, amount, spans)


def test_a_look_that_met_a_moment_is_no_movement_before() -> None:
    movement = rise(*ROUND_TRIPS_MS)
    assert movement is not None
    assert movement.outside <= MAX_OUTSIDE
    assert movement.overlap > 0.9
    assert movement.late_s < LOOK_S


def test_what_was_as_bad_before_has_moved_there() -> None:
    bad_before = {-12.8: 14.0, -7.5: 14.5}
    movement = rise(*(one | bad_before for one in ROUND_TRIPS_MS))
    assert movement is not None
    assert movement.outside > MAX_OUTSIDE


def points(*told: tuple[float, float]) -> Points:
    """Return a sum told at some times."""
    times, values = zip(*told, strict=True)
    return Points(np.array(times), np.array(values), True)


def test_a_sum_that_is_told_late_was_nothing_since_others_of_it_were_told() -> None:
    late, early = points((300.0, 4.0)), points((0.0, 2.0), (60.0, 2.0))
    steps = np.full(QUIET + SLOW, 10.0)
    ends = np.cumsum(steps)
    spans = StepSpans(ends - steps, ends, QUIET)
    grown = reached(since_nothing([late], [late, early]), spans)
    assert grown is not None
    assert grown[[0, QUIET - 2, QUIET - 1, -1]].tolist() == [0.0, 0.0, 4.0, 4.0]


def test_nothing_is_known_of_a_sum_before_anything_was_told() -> None:
    late = points((300.0, 4.0))
    assert since_nothing([late], [late]) == [late]


@pytest.mark.parametrize(
    ("sensor", "late_s", "is_in_time"),
    [
        ("tcp", 6.0, True),
        ("tcp", 10.0, False),
        ("nvml", 10.0, True),
        ("nvml", 13.0, False),
        ("affinity", 10.0, True),
    ],
)
def test_what_is_looked_at_more_rarely_may_be_seen_later(
    sensor: str, late_s: float, is_in_time: bool
) -> None:
    counter = Counter(Signal.PCIE_RATE, sensor, Kind.FALL, Formula.NONE)
    fallen = Movement(4e9, 63e9, -59e9, 15.0, -60.0, 0.7, 0.0, 0.6, late_s, 15.0)
    seen = Seen(counter, Place("h1"), fallen, Cost(None), 63e9, is_alike=False)
    assert has_moved(seen) is is_in_time


def test_dose_is_of_looks_where_the_steps_between_two_of_them_scatter() -> None:
    # What is lost costs a timeout in one step of six, and a look has one rate for all of its steps.
    step_s = np.full(240, 0.2)
    step_s[120::6] = 0.8
    end_s = np.cumsum(step_s)
    spans = StepSpans(end_s - step_s, end_s, 120)
    rate = np.where(np.arange(240) < 120, 1.0, 50.0)
    found = watch(Kind.EVENT, rate * step_s, spans)
    assert found is not None
    assert found.dose is not None
    assert found.dose > 0.5


def test_dose_of_what_falls_while_steps_take_longer_is_negative() -> None:
    step_s = np.linspace(0.2, 0.4, 240)
    end_s = np.cumsum(step_s)
    spans = StepSpans(end_s - step_s, end_s, 120)
    found = watch(Kind.GROWTH, np.linspace(9.0, 1.0, 240) * step_s, spans)
    assert found is not None
    assert found.dose is not None
    assert found.dose < -0.9


@pytest.mark.parametrize("look_s", [-0.1, -1.1, -4.4])
def test_a_look_that_met_the_onset_says_nothing_of_the_steps_before_it(look_s: float) -> None:
    steps = np.full(240, 0.2)
    steps[140:] = 0.3
    end_s = np.cumsum(steps) - 140 * 0.2
    spans = StepSpans(end_s - steps, end_s, 140)
    times = np.arange(look_s - 25.0, 35.0, 5.0)
    sent = Points(times, np.maximum(times, 0.0) * 100.0, is_thinned=False)
    amount = sums([sent], spans)
    assert amount is not None
    assert met_onset([sent], spans) == pytest.approx(look_s)
    found = watch(Kind.EVENT, amount, spans, known_until_s=met_onset([sent], spans))
    assert found is not None
    assert found.outside == 0.0
    assert found.overlap > 0.95
    # What came in the look before that one did not come with the slow steps.
    early = Points(times, np.maximum(times + 6.0 - look_s, 0.0) * 100.0, is_thinned=False)
    amount = sums([early], spans)
    assert amount is not None
    found = watch(Kind.EVENT, amount, spans, known_until_s=met_onset([early], spans))
    assert found is not None
    assert found.outside > MAX_OUTSIDE


def test_what_a_job_begins_with_is_no_movement_beside_ten_times_as_much() -> None:
    # Retransmissions of a real job: as many in the first five seconds as in the next fifteen, then ten times as many.
    steps = np.full(240, 0.2)
    steps[130:] = 0.3
    end_s = np.cumsum(steps) - 130 * 0.2
    spans = StepSpans(end_s - steps, end_s, 130)
    sent = Points(
        np.array([-26.0, -19.7, -14.3, -8.5, -3.3, 2.6, 8.7, 15.0, 20.8, 26.8, 33.5]),
        np.array([67, 1326, 1687, 2477, 2794, 5839, 9233, 16067, 20667, 24486, 32744], dtype=float),
        is_thinned=False,
    )
    amount = sums([sent], spans)
    assert amount is not None
    found = watch(Kind.EVENT, amount, spans, known_until_s=met_onset([sent], spans))
    assert found is not None
    assert found.outside == 0.0
    assert found.overlap > 0.9


def slowed(before: FloatArray, before_s: FloatArray) -> Movement | None:
    """Return the movement of what the same work takes, us, in steps of 0.19 s after those of so many seconds."""
    steps = np.concatenate([before_s, np.full(12, 0.19)])
    ends = np.cumsum(steps)
    taken = np.concatenate([before, np.full(12, 28.0)])
    return watch(Kind.LONGER, taken, StepSpans(ends - steps, ends, before.size))


def test_moments_in_which_work_took_longer_are_no_longer_work() -> None:
    """As on a core whose other thread works now and then: 3 of 10 looks met that, and steps took no longer."""
    met = np.arange(120) % 10 < 3
    jobs = [
        slowed(
            np.where(np.random.default_rng(seed).permutation(met), 27.0, 16.0), np.full(120, 0.155)
        )
        for seed in range(100)
    ]
    told = [one for one in jobs if one is not None and one.outside <= MAX_OUTSIDE]
    assert len(told) >= 75  # of single looks none
    assert all(one.overlap == pytest.approx(1.0) for one in told)
    stays = slowed(np.full(120, 27.0), np.full(120, 0.155))
    assert stays is not None
    assert stays.overlap == 0.0


@pytest.mark.parametrize(("step_s", "costs"), [(0.185, True), (0.155, False)])
def test_what_moved_in_steps_that_took_as_long_does_not_cost_nothing(
    step_s: float, costs: bool
) -> None:
    taken = np.concatenate([np.full(112, 16.0), np.full(8, 28.0)])
    movement = slowed(taken, np.concatenate([np.full(112, 0.155), np.full(8, step_s)]))
    assert movement is not None
    assert (movement.outside <= MAX_OUTSIDE) is costs


def test_what_moves_in_healthy_steps_costs_nothing_where_few_of_the_others_are_slow() -> None:
    """The middle of the slow steps is as long as before: no step before them is long for that."""
    steps = np.concatenate([0.1 + 0.001 * (np.arange(120) % 10), np.tile([0.1] * 4 + [0.4], 8)])
    ends = np.cumsum(steps)
    found = watch(Kind.EVENT, (steps > 0.1065).astype(float), StepSpans(ends - steps, ends, 120))
    assert found is not None
    assert found.outside > MAX_OUTSIDE


def told_until(last_s: float, steps: int = 40) -> tuple[StepSpans, list[Points]]:
    """Return healthy steps of 0.2 s until 0 s and slow ones of 0.3 s, and a sum told until some moment of them."""
    step_s = np.concatenate([np.full(100, 0.2), np.full(steps, 0.3)])
    end_s = np.cumsum(step_s) - 100 * 0.2
    return StepSpans(end_s - step_s, end_s, 100), [
        points((-20.0, 0.0), (0.0, 0.0), (last_s, 900.0))
    ]


def test_steps_of_which_the_look_is_still_to_come_say_nothing() -> None:
    # 12 s of slow steps, the last 6 of which no look has met
    spans, series = told_until(6.0)
    shares = []
    for here in (spans, spans.told(series)):
        amount = sums(series, here)
        assert amount is not None
        movement = watch(Kind.GROWTH, amount, here)
        assert movement is not None
        shares.append((movement.overlap, movement.growth))
    assert shares[0] == pytest.approx((0.5, 22.5))
    assert shares[1] == pytest.approx((1.0, 45.0))


@pytest.mark.parametrize(
    ("last_s", "steps"),
    [
        (6.0, 60),  # the look that would have told more has come
        (1.2, 20),  # hardly anything would be left
        (12.0, 40),  # everything is told
    ],
)
def test_else_all_of_them_count(last_s: float, steps: int) -> None:
    spans, series = told_until(last_s, steps)
    assert spans.told(series).end_s.size == spans.end_s.size
    assert spans.told([]).end_s.size == spans.end_s.size
