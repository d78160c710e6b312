"""How often a reader reads.

s         0    1    2    3    4 ... 11
reading   x                       x        one that took 1.1 ms of CPU time rests for 11 s
"""

from __future__ import annotations

from collections.abc import Iterator

from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.reader import Measurement


class Machine:
    """A clock, and readings that cost what the test says."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = self.cost_s = 0.0
        self.readings = 0

    def pace(self, interval_s: float = 0.0) -> Pace:
        return Pace(interval_s, lambda: self.now_s, lambda: self.cpu_s)

    def read(self) -> Iterator[Measurement]:
        self.readings += 1
        self.cpu_s += self.cost_s
        yield Measurement("system.cpu.time", self.readings)


def test_cheap_reader_reads_whenever_it_is_asked() -> None:
    machine = Machine()
    machine.cost_s = 0.0001
    pace = machine.pace()
    for second in range(0, 10, 2):
        machine.now_s = second
        pace.take(machine.read)
    assert machine.readings == 5


def test_dear_reader_rests_and_repeats_itself_meanwhile() -> None:
    machine = Machine()
    machine.cost_s = 0.0011
    pace = machine.pace()
    told = []
    for second in range(13):
        machine.now_s = second
        told.append(next(iter(pace.take(machine.read))).value)
    assert told == [1] * 11 + [2] * 2


def test_interval_holds_when_reading_is_cheap() -> None:
    machine = Machine()
    pace = machine.pace(30.0)
    for machine.now_s in (0.0, 29.9, 30.0, 31.0):
        pace.take(machine.read)
    assert machine.readings == 2


def test_very_dear_reader_reads_once_a_minute() -> None:
    machine = Machine()
    machine.cost_s = 0.1  # 1,000 s in proportion
    pace = machine.pace()
    for machine.now_s in (0.0, 59.9, 60.0, 119.9, 120.0):
        pace.take(machine.read)
    assert machine.readings == 3
