"""Something that takes long is done less often, by a clock made by hand.

s      0      2      4 ...  10
       |turn: 0.1 s of CPU  | due again at a hundredth of a CPU
"""

from __future__ import annotations

import pytest

from rootwalk.ebpf import pace
from rootwalk.ebpf.pace import Pace


class Clock:
    """The clock and the CPU time, moved by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.cpu_s = 5.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.cpu_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def test_turn_that_takes_long_is_paid_for(clock: Clock) -> None:
    paced = Pace(0.01, 2.0)
    assert paced.is_due()
    with paced.turn():
        clock.cpu_s += 0.1
    clock.now_s += 9.9
    assert not paced.is_due()
    clock.now_s += 0.2
    assert paced.is_due()


def test_turn_within_its_share_costs_nothing(clock: Clock) -> None:
    paced = Pace(0.01, 2.0)
    with paced.turn():
        clock.cpu_s += 0.019
    assert paced.is_due()


def fail(clock: Clock, paced: Pace) -> float:
    with paced.turn():
        clock.cpu_s += 1.0
        return clock.now_s / 0


def test_turn_that_fails_is_paid_for_too(clock: Clock) -> None:
    paced = Pace(0.01, 2.0)
    with pytest.raises(ZeroDivisionError):
        fail(clock, paced)
    assert not paced.is_due()
