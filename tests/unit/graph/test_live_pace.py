"""How soon an episode is diagnosed again: by what the last diagnosis took."""

from __future__ import annotations

from rootwalk.graph.live.pace import EARLY_REPEATS, Pace

COST_S = 1.2


def ask_for(seconds: int, cost_s: float = COST_S) -> list[int]:
    """Ask as soon as it is allowed, at whole seconds; return when."""
    pace, asked = Pace(), []
    for now_s in range(seconds):
        if pace.may_ask(now_s):
            pace.note(now_s, cost_s)
            asked.append(now_s)
    return asked


def test_the_early_repeats_come_soon_and_the_others_do_not() -> None:
    assert ask_for(100) == [0, 5, 10, 15, 20, 44, 68, 92]


def test_those_of_the_first_seconds_are_early_however_many() -> None:
    assert ask_for(40, cost_s=0.5) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 26, 36]


def test_in_the_long_run_it_is_a_twentieth_of_a_core() -> None:
    assert len(ask_for(36_000)) * COST_S <= 36_000 / 20.0 + (1 + EARLY_REPEATS) * COST_S


def test_what_takes_long_waits_longer() -> None:
    assert ask_for(190, cost_s=5.0) == [0, 20, 40, 60, 80, 180]
