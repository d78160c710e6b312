"""Clocks of machines made by hand after the kernel's documentation: cpufreq, a processor that measures, neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.host.cpu_frequency import CpuFrequencyReader, parse_clocks, parse_last_cpu
from rootwalk.ebpf.reader import Place
from rootwalk.instrumentation.errors import UnavailableError
from support.fake_host import told, write_files

# 52 fields, of which the 39th is the CPU; the name was made difficult.
STAT = "100 (py ) R 1\n) S " + "7 " * 35 + "{cpu}" + " 0" * 13 + "\n"
CPU = "sys/devices/system/cpu/cpu{}/"
CPUINFO = """processor\t: 0
model name\t: made by hand
cpu MHz\t\t: 2600.000
flags\t\t: fpu tsc{flag}

processor\t: 1
cpu MHz\t\t: 1199.731
flags\t\t: fpu tsc{flag}
"""


def write_cpus(root: Path, count: int, siblings: int = 1, package_size: int = 4) -> None:
    """Number hardware threads as Intel does: the second threads of all cores after the first ones."""
    write_files(root, {"sys/devices/system/cpu/online": f"0-{count - 1}\n"})
    cores = count // siblings
    for cpu in range(count):
        same = ",".join(str(cpu % cores + cores * thread) for thread in range(siblings))
        folder = CPU.format(cpu) + "topology/"
        write_files(
            root,
            {
                folder + "thread_siblings_list": same + "\n",
                folder + "physical_package_id": cpu % cores // package_size,
            },
        )


def write_clock(root: Path, cpu: int, clock_khz: int | str) -> None:
    folder = CPU.format(cpu) + "cpufreq/"
    write_files(
        root, {folder + "scaling_cur_freq": clock_khz, folder + "cpuinfo_max_freq": 3_500_000}
    )


def write_rank(root: Path, pid: int, cpu: int) -> None:
    write_files(root, {f"proc/{pid}/task/{pid}/stat": STAT.format(cpu=cpu)})


def test_last_cpu() -> None:
    assert parse_last_cpu(STAT.format(cpu=213)) == 213
    assert parse_last_cpu("100 (x) S 1 2\n") is None
    assert parse_last_cpu("") is None


def test_clock_of_the_cpu_that_the_rank_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rootwalk.ebpf.host.pace.REST_RATIO", 0)
    write_cpus(tmp_path, 4)
    for cpu in range(4):
        write_clock(tmp_path, cpu, 800_000 + cpu)
    write_rank(tmp_path, 100, 2)
    reader = CpuFrequencyReader(Place(tmp_path))
    reader.watch(100, 1)
    assert told(reader) == {
        ("training.cpu.frequency", (), 1): 800_002_000,
        ("training.cpu.frequency.limit", (), 1): 3_500_000_000,
    }
    write_rank(tmp_path, 100, 3)
    assert told(reader)["training.cpu.frequency", (), 1] == 800_003_000
    # A driver that cannot tell now says so; the limit stays known.
    write_clock(tmp_path, 3, "<unknown>\n")
    assert set(told(reader)) == {("training.cpu.frequency.limit", (), 1)}
    (tmp_path / "proc/100/task/100/stat").unlink()
    assert told(reader) == {}
    reader.close()


def test_processor_that_measures_its_clock(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/cpuinfo": CPUINFO.format(flag=" aperfmperf")})
    write_rank(tmp_path, 100, 1)
    reader = CpuFrequencyReader(Place(tmp_path))
    reader.watch(100, 1)
    assert told(reader) == {("training.cpu.frequency", (), 1): pytest.approx(1_199_731_000)}
    reader.close()


def test_clock_of_the_boot_is_not_taken_for_one_that_was_measured(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/cpuinfo": CPUINFO.format(flag="")})
    assert parse_clocks(CPUINFO.format(flag="")) == {}
    with pytest.raises(UnavailableError) as caught:
        CpuFrequencyReader(Place(tmp_path))
    assert caught.value.reason == "NO_CPU_CLOCK"


def test_throttling_is_added_up_once_a_core_and_once_a_package(tmp_path: Path) -> None:
    # 16 hardware threads, 8 cores, 2 packages: both threads of a core repeat its counts, as do all of a package.
    write_cpus(tmp_path, 16, siblings=2)
    write_clock(tmp_path, 0, 800_000)
    for cpu in range(16):
        folder = CPU.format(cpu) + "thermal_throttle/"
        core, package = cpu % 8, cpu % 8 // 4
        write_files(
            tmp_path,
            {
                folder + "core_throttle_count": 1 if core in (3, 5) else 0,
                folder + "core_throttle_total_time_ms": 250 if core in (3, 5) else 0,
                folder + "package_throttle_count": 7 if package else 4,
            },
        )
    assert told(CpuFrequencyReader(Place(tmp_path))) == {
        ("training.host.cpu.throttles", ("core",), None): 2,
        ("training.host.cpu.throttled.time", ("core",), None): 0.5,
        ("training.host.cpu.throttles", ("package",), None): 11,
    }
