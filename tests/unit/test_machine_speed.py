"""The measure of the machine by which tests of healthy jobs say that a run counts."""

from __future__ import annotations

import os
import time

import pytest

from support.machine_speed import NS, MachineSpeed, slowdown_of


def looks(*took_us: float) -> list[tuple[int, float]]:
    """Return thirty looks of each duration, one a second."""
    every = [took for took in took_us for _ in range(30)]
    return [(at * NS, took * 1e-6) for at, took in enumerate(every)]


def test_what_took_longer_in_the_span_than_before_it() -> None:
    assert slowdown_of(looks(50, 80), 30 * NS, 60 * NS) == pytest.approx(0.6)


def test_what_comes_after_the_span_counts_for_nothing() -> None:
    assert slowdown_of(looks(50, 50, 90), 30 * NS, 59 * NS) == pytest.approx(0.0)


def test_an_even_machine_excuses_nothing() -> None:
    assert slowdown_of(looks(50, 50), 30 * NS, 60 * NS) == pytest.approx(0.0)


@pytest.mark.parametrize(("first_s", "last_s"), [(5, 60), (30, 40)])
def test_few_looks_excuse_nothing(first_s: int, last_s: int) -> None:
    assert slowdown_of(looks(50, 80), first_s * NS, last_s * NS) == 0.0


def test_it_looks_at_every_core_until_it_is_left() -> None:
    cores = os.sched_getaffinity(0)
    with MachineSpeed() as speed:
        time.sleep(1.0)
    seen = {core: len(looks) for core, looks in speed.looks.items()}
    assert seen.keys() == cores
    assert min(seen.values()) >= 3
    assert os.sched_getaffinity(0) == cores
    time.sleep(0.3)
    assert {core: len(looks) for core, looks in speed.looks.items()} == seen
