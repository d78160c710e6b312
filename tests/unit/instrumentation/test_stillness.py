"""A rank that makes no progress sends its Flight Recorder once, and a rank that trains never does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rootwalk.instrumentation import stillness
from rootwalk.instrumentation.stillness import MIN_STILL_S, USUAL_GAPS, Stillness


@dataclass
class FakeRing:
    """Words of a ring that the test moves."""

    moves: int = 0

    def movement(self) -> tuple[int, ...]:
        return (self.moves,)


class FakeDump:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> bool:
        self.asked += 1
        return True


@dataclass
class Rank:
    """A rank under a clock of the test's."""

    monkeypatch: pytest.MonkeyPatch
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.ring, self.dump = FakeRing(), FakeDump()
        self.monkeypatch.setattr(stillness, "FlightDump", lambda _: self.dump)
        self.watch = Stillness(self.ring, "http://127.0.0.1:1", lambda: self.now_s)  # type: ignore[arg-type]

    def wait(self, seconds: float, *, moves_every_s: float | None = None) -> None:
        """Let time pass, with a check each second."""
        since_s = 0.0
        for _ in range(round(seconds)):
            self.now_s += 1.0
            since_s += 1.0
            if moves_every_s is not None and since_s >= moves_every_s:
                self.ring.moves, since_s = self.ring.moves + 1, 0.0
            self.watch.look()


def test_a_rank_that_trains_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.wait(600, moves_every_s=2)
    assert rank.dump.asked == 0


def test_a_rank_that_stands_still_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.wait(30, moves_every_s=1)
    rank.wait(MIN_STILL_S - 2)
    assert rank.dump.asked == 0
    rank.wait(300)
    assert rank.dump.asked == 1


def test_it_is_asked_again_when_it_stands_still_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.wait(30, moves_every_s=1)
    rank.wait(20)
    rank.wait(5, moves_every_s=1)
    rank.wait(USUAL_GAPS * 25)
    assert rank.dump.asked == 2


def test_long_steps_are_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.wait(40, moves_every_s=20)
    asked = rank.dump.asked
    rank.wait(600, moves_every_s=20)
    assert rank.dump.asked == asked <= 2  # until the first steps have shown how long they take


def test_a_rank_that_never_moved_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.wait(120)
    assert rank.dump.asked == 1
