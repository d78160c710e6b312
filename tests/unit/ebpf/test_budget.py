"""The budget on a clock that the test moves."""

from __future__ import annotations

import itertools

from rootwalk.ebpf.budget import CALM_S, LADDER, WINDOW_S, Budget

LOOK_S = 2.0
LIMIT = 0.003
LAST = len(LADDER) - 1


class Job:
    """One rank with steps of a second, and an agent whose cost the test sets."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.now_s = self.cost_s = self.step_s = 0.0

    def run(self, seconds: float, ratio: float, *, trains: bool = True) -> list[int]:
        """Look every two seconds; return the rungs."""
        rungs = []
        for _ in range(int(seconds / LOOK_S)):
            self.now_s += LOOK_S
            self.cost_s += ratio * LOOK_S
            self.step_s += LOOK_S if trains else 0.0
            self.budget.look(self.now_s, self.cost_s, self.step_s)
            rungs.append(self.budget.rung)
        return rungs


def test_cost_within_the_budget_changes_nothing() -> None:
    job = Job(Budget(LIMIT))
    assert set(job.run(600.0, 0.9 * LIMIT)) == {0}
    assert job.budget.limits.text == "full detail"
    assert abs((job.budget.cost_ratio or 0.0) - 0.9 * LIMIT) < 1e-9


def test_too_much_goes_down_one_rung_a_window_and_stops_at_the_last() -> None:
    job = Job(Budget(LIMIT))
    rungs = job.run(20 * WINDOW_S, 4 * LIMIT)
    assert rungs[: int(WINDOW_S / LOOK_S)] == [0] * 5  # a moment is no reason
    assert sorted(set(rungs)) == list(range(LAST + 1))
    assert rungs == sorted(rungs)
    assert job.budget.limits.max_rank_level == 0


def test_an_agent_is_made_blind_only_far_above_its_budget() -> None:
    job = Job(Budget(LIMIT))
    job.run(20 * WINDOW_S, 2.9 * LIMIT)
    limits = job.budget.limits
    assert (limits.max_level, limits.max_rank_level, limits.stalls_per_step) == (1, 2, 4)


def test_a_blind_agent_sees_again_once_it_is_not_far_above_its_budget() -> None:
    job = Job(Budget(LIMIT))
    job.run(20 * WINDOW_S, 4 * LIMIT)
    assert job.budget.rung == LAST
    job.run(20 * CALM_S, 1.5 * LIMIT)
    assert job.budget.limits.max_level == 1


def test_what_kernel_programs_cost_gives_up_nothing_of_what_they_tell() -> None:
    budget = Budget(LIMIT)
    for second in range(0, 600, 2):
        programs_s, agent_s = 10 * LIMIT * second, 0.4 * LIMIT * second
        budget.look(float(second), programs_s + agent_s, float(second), programs_s)
    assert budget.rung == 0


def test_what_is_calm_again_comes_back() -> None:
    job = Job(Budget(LIMIT))
    job.run(WINDOW_S + 2 * LOOK_S, 2 * LIMIT)
    assert job.budget.rung == 1
    job.run(2 * WINDOW_S, 0.9 * LIMIT)  # less than before, but the rung above would cost too much
    assert job.budget.rung == 1
    rungs = job.run(2 * CALM_S, 0.1 * LIMIT)
    assert rungs[-1] == 0


def test_a_guess_that_fails_doubles_the_time_to_the_next() -> None:
    # What is given up makes no difference: the cost is all the ranks' doing, and goes up and down with the rung.
    job = Job(Budget(LIMIT))
    ups = []
    before = 0
    for _ in range(2000):
        ratio = 1.5 * LIMIT if job.budget.rung == 0 else 0.2 * LIMIT
        rung = job.run(LOOK_S, ratio)[-1]
        if rung < before:
            ups.append(job.now_s)
        before = rung
        if job.budget.rung == 1:
            job.budget._left[-1] = (
                0.5 * LIMIT,
                0.2 * LIMIT,
            )  # told wrong: the rung above looks cheap
    waits = [b - a for a, b in itertools.pairwise(ups)]
    assert len(waits) >= 3
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(waits))


def test_where_nobody_trains_nothing_is_lowered() -> None:
    job = Job(Budget(LIMIT))
    assert set(job.run(300.0, 10 * LIMIT, trains=False)) == {0}
    assert job.budget.cost_ratio is None


def test_without_a_limit_cost_is_told_and_nothing_lowered() -> None:
    job = Job(Budget(None))
    assert set(job.run(300.0, 0.5)) == {0}
    assert job.budget.cost_ratio is not None
