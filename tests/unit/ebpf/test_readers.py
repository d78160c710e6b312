"""A reader that fails at work is left out, the others go on, and its sensor is missing from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from rootwalk.ebpf.availability import Reason, Status, available
from rootwalk.ebpf.reader import Measurement, Reader
from rootwalk.ebpf.readers import Readers

ONE = Measurement("system.cpu.time", 7)


class Sound(Reader):
    sensor, tier, backend = "sound", 0, "proc"

    def measurements(self) -> Iterable[Measurement]:
        return [ONE]


class Broken(Reader):
    """Fails at everything, also at its end."""

    sensor, tier, backend = "broken", 0, "proc"
    closed = 0

    def _fail(self) -> None:
        raise RuntimeError("planted")

    def look(self) -> None:
        self._fail()

    def watch(self, pid: int, slot: int) -> None:
        self._fail()

    def measurements(self) -> Iterable[Measurement]:
        self._fail()
        yield ONE

    def close(self) -> None:
        self.closed += 1
        raise OSError("planted")


@pytest.mark.parametrize(
    "turn",
    [Readers.look, Readers.measurements, lambda readers: readers.watch(4711, 1)],
    ids=["look", "measurements", "watch"],
)
def test_reader_that_fails_at_work(turn: Callable[[Readers], object]) -> None:
    broken = Broken()
    readers = Readers(others=[broken, Sound()])
    sensors = [available(name, 0, "proc") for name in ("sched", "broken", "sound")]
    assert readers.states(sensors) == sensors
    for _ in range(2):
        turn(readers)
    assert broken.closed == 1
    assert readers.measurements() == [ONE]
    found = {sensor.sensor: (sensor.status, sensor.reason) for sensor in readers.states(sensors)}
    assert found.pop("broken") == (Status.UNAVAILABLE, Reason.READER_FAILED)
    assert set(found.values()) == {(Status.AVAILABLE, None)}
    readers.close()
