"""Time of kernel programs from statistics that are on for a part of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rootwalk.ebpf.program_time import ON_S, PERIOD_S, ProgramTime


class Kernel:
    """Programs that take a known time a second while the statistics are on."""

    def __init__(self, ns_by_program: dict[str, int]) -> None:
        self.spent = dict.fromkeys(ns_by_program, 0)
        self._ns_by_program = ns_by_program
        self.descriptors: list[int] = []

    def switch_on(self) -> int:
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))
        return self.descriptors[-1]

    @property
    def is_on(self) -> bool:
        return bool(self.descriptors) and Path(f"/proc/self/fd/{self.descriptors[-1]}").exists()

    def run(self, seconds: float) -> None:
        for name, ns in self._ns_by_program.items():
            self.spent[name] += round(ns * seconds) if self.is_on else 0


def test_one_second_of_ten_stands_for_all_of_them() -> None:
    kernel = Kernel({"on_switch": 3_000_000, "on_exit": 7_000})
    measured = ProgramTime(lambda: kernel.spent, kernel.switch_on, is_always_on=False)
    total: Mapping[str, int] = {}
    on_s = 0.0
    for second in range(1002):
        total = measured.look(float(second))
        on_s += kernel.is_on
        kernel.run(1.0)
    assert on_s <= 1002 * ON_S / PERIOD_S + 1
    assert total["on_switch"] == 1001 * 3_000_000
    assert total["on_exit"] == 1001 * 7_000
    measured.close()
    assert not kernel.is_on
    measured.close()


def test_looks_that_come_late_are_scaled_by_what_was_on() -> None:
    kernel = Kernel({"on_switch": 1_000_000})
    measured = ProgramTime(lambda: kernel.spent, kernel.switch_on, is_always_on=False)
    total: Mapping[str, int] = {}
    for second in range(0, 1001, 4):
        total = measured.look(float(second))
        kernel.run(4.0)
    measured.close()
    assert total["on_switch"] == 1000 * 1_000_000  # on at 996, off at 1000


def test_statistics_that_are_on_anyway_are_read_as_they_are() -> None:
    kernel = Kernel({})
    measured = ProgramTime(lambda: {"on_switch": 41}, kernel.switch_on, is_always_on=True)
    assert measured.look(5.0) == {"on_switch": 41}
    assert kernel.descriptors == []


def test_a_kernel_that_refuses_tells_nothing() -> None:
    measured = ProgramTime(dict, lambda: None, is_always_on=False)
    assert [measured.look(float(second)) for second in range(30)] == [{}] * 30
