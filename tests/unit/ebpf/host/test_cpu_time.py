"""CPU times, from a recorded /proc/stat (Linux 6.18, 2 CPUs) and from other kernels' by hand."""

from __future__ import annotations

import os
from pathlib import Path

from rootwalk.ebpf.host.cpu_time import CpuTimeReader, parse_modes
from rootwalk.ebpf.reader import Place
from support.fake_host import told, write_files

RECORDED = """cpu  1370069 70463 170438 2541058 18023 0 6870 894 0 0
cpu0 549444 34244 64792 1431883 5014 0 2409 432 0 0
cpu1 820625 36219 105646 1109174 13009 0 4460 461 0 0
intr 15082146 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""


def test_recorded_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/stat": RECORDED})
    per_s = os.sysconf("SC_CLK_TCK")
    assert told(CpuTimeReader(Place(tmp_path))) == {
        ("system.cpu.time", (mode,), None): ticks / per_s
        for mode, ticks in {
            "user": 1370069,
            "nice": 70463,
            "system": 170438,
            "idle": 2541058,
            "iowait": 18023,
            "softirq": 6870,
            "steal": 894,
        }.items()
    }


def test_interrupts_that_nobody_counts_are_absent_and_no_steal_is_none_stolen() -> None:
    modes = parse_modes("cpu  1 1 1 1 1 0 0 0 0 0\n")
    assert "interrupt" not in modes
    assert "softirq" not in modes
    assert modes["steal"] == 0


def test_other_kernels() -> None:
    assert parse_modes("cpu  7 5 3 2\n") == {"user": 7, "nice": 5, "system": 3, "idle": 2}
    assert parse_modes("cpu  1 2 3 4 5 6 7 8 9 10 11 12\n")["steal"] == 8
    assert parse_modes("cpu0 1 2 3 4\n") == {}
    assert parse_modes("") == {}
