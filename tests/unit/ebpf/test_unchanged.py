"""Values that stand still are sent once a minute.

s             0    5   10  ...  60   65   70
still         7    7    7        7    7    7
              x                  x
moves         1    2    2        2    2    3
              x    x                  x    x       65: a minute after 5
"""

from __future__ import annotations

from rootwalk.ebpf.reader import Measurement
from rootwalk.ebpf.unchanged import UnchangedFilter

STILL, MOVES = {"name": "still"}, {"name": "moves"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_moves_is_sent_at_once_and_what_stands_still_once_a_minute() -> None:
    clock = Clock()
    chosen = UnchangedFilter(clock)
    sent = []
    for clock.now_s, value in ((0, 1), (5, 2), (10, 2), (60, 2), (65, 2), (70, 3)):
        measurements = [Measurement("metric", 7, STILL), Measurement("metric", value, MOVES)]
        found = chosen.choose("metric", measurements)
        sent.append([str(one.attributes["name"]) for one in found])
    assert sent == [["still", "moves"], ["moves"], [], ["still"], ["moves"], ["moves"]]


def test_series_that_ends_and_begins_again_is_sent_at_once() -> None:
    chosen = UnchangedFilter(Clock())
    one = Measurement("metric", 7, STILL)
    assert chosen.choose("metric", [one]) == [one]
    assert chosen.choose("metric", []) == []
    assert chosen.choose("metric", [one]) == [one]
    chosen.forget("metric")
    chosen.forget("metric")
    assert chosen.choose("metric", [one]) == [one]


def test_metrics_and_ranks_are_told_apart() -> None:
    chosen = UnchangedFilter(Clock())
    one, other = Measurement("a", 7), Measurement("b", 7)
    assert [chosen.choose(group, [one, other]) for group in (None, 1, 2)] == [[one, other]] * 3


def test_what_has_not_arrived_is_chosen_again() -> None:
    chosen = UnchangedFilter(Clock())
    one = Measurement("metric", 7, STILL)
    assert chosen.choose("metric", [one]) == [one]
    chosen.forget_all()
    assert chosen.choose("metric", [one]) == [one]
