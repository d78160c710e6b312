"""How fast the CPUs run on which ranks are: the clock of each rank's CPU, its limit, and thermal throttling.

What counts: the clock, now, of the CPU on which the rank's first thread is or was last, once a look; the highest that
this CPU can have; how often cores and packages were throttled for their temperature since boot, and for how long
where the kernel tells it (5.7). What does not count: clocks of other CPUs. Idle ones rest at low clocks and would only
hide the one that matters. Times between looks: a clock that falls for milliseconds is met by chance.

Where: cpufreq/scaling_cur_freq and cpuinfo_max_freq of the CPU, else "cpu MHz" of /proc/cpuinfo where the processor
counts its cycles for it (flag aperfmperf); without that flag, as in most virtual machines, that number is what it was
at boot and tells nothing: the sensor is then missing. thermal_throttle: Intel's processors only.
Oldest kernel: 4.13 (until then scaling_cur_freq could be what was asked for, not what was).
Cost: 10 to 20 us for each rank with cpufreq; throttling 0.7 ms every 30 s for 256 CPUs (a copy of such a machine's
files, in memory). /proc/cpuinfo with hundreds of CPUs: not measured; the rate follows the cost, at most 1/10,000 of a
CPU.

Source: Documentation/admin-guide/pm/cpufreq.rst, Documentation/admin-guide/thermal/intel_powerclamp.rst,
arch/x86/kernel/cpu/aperfmperf.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.host.cpu_topology import CpuTopology
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.kernel_files import parse_number, read_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingCpuPart as Part

__all__ = ["CpuFrequencyReader", "parse_clocks", "parse_last_cpu"]

KHZ, MHZ = 1_000, 1_000_000
MSEC_PER_S = 1_000
# Of /proc/<pid>/stat after the name: the CPU that the thread is on, or was last (proc_pid_stat(5), field 39).
LAST_CPU_FIELD = 36
# Throttling is known to be rare: three files a core are looked at this often.
THROTTLE_INTERVAL_S = 30.0
# The flags of the first processor are within the first lines.
CPUINFO_HEAD_BYTES = 8_192


def parse_last_cpu(stat: str) -> int | None:
    """Return the CPU on which a thread was last, by its `stat` file; None when that is not one."""
    fields = stat.rpartition(")")[2].split()
    return parse_number(fields[LAST_CPU_FIELD]) if len(fields) > LAST_CPU_FIELD else None


def parse_clocks(cpuinfo: str) -> dict[int, float]:
    """Return each CPU's clock that /proc/cpuinfo tells, Hz; empty where it tells none that moves."""
    if " aperfmperf" not in cpuinfo:
        return {}
    clocks: dict[int, float] = {}
    cpu = None
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.startswith("processor"):
            cpu = parse_number(value)
        elif name.startswith("cpu MHz") and cpu is not None:
            mhz = value.strip()
            if mhz.replace(".", "", 1).isdecimal():
                clocks[cpu] = float(mhz) * MHZ
    return clocks


class CpuFrequencyReader(Reader):
    """Reads clocks and thermal throttling.

    Raises:
        UnavailableError: NO_CPU_CLOCK.
    """

    sensor = "cpu_frequency"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._folder = Path(place.root, "sys/devices/system/cpu")
        self._cpuinfo = f"{place.root}/proc/cpuinfo"
        self._has_cpufreq = any(self._folder.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        head = read_text(self._cpuinfo, most_bytes=CPUINFO_HEAD_BYTES)
        if not self._has_cpufreq and not parse_clocks(head):
            raise missing_file(
                "CPU clocks", "neither cpufreq nor a clock that is measured", Reason.NO_CPU_CLOCK
            )
        self._topology = CpuTopology.read(place.root)
        self._ranks = RankFolders(place.root)
        self._pace = Pace()
        self._throttle_pace = Pace(THROTTLE_INTERVAL_S)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's first thread."""
        self._ranks.watch(pid, slot)

    def forget(self, pid: int) -> None:
        """Stop following a rank."""
        self._ranks.forget(pid)

    def measurements(self) -> Iterable[Measurement]:
        """Return clocks as they are now, and throttling since boot."""
        return [
            *self._pace.take(self._read_clocks),
            *self._throttle_pace.take(self._read_throttles),
        ]

    def _read_clocks(self) -> Iterator[Measurement]:
        cpu_by_slot = {
            slot: cpu
            for slot in self._ranks
            # The file of the process itself would add up all of its threads.
            if (cpu := parse_last_cpu(self._ranks.read(slot, f"task/{self._ranks.pid(slot)}/stat")))
            is not None
        }
        measured = {}
        if cpu_by_slot and not self._has_cpufreq:
            measured = parse_clocks(read_text(self._cpuinfo))
        for slot, cpu in cpu_by_slot.items():
            clock_hz, limit_hz = self._read_cpu(cpu, measured)
            if clock_hz is not None:
                yield Measurement(semconv.METRIC_TRAINING_CPU_FREQUENCY, clock_hz, slot=slot)
            if limit_hz is not None:
                yield Measurement(semconv.METRIC_TRAINING_CPU_FREQUENCY_LIMIT, limit_hz, slot=slot)

    def _read_cpu(
        self, cpu: int, measured: Mapping[int, float]
    ) -> tuple[float | None, float | None]:
        folder = f"{self._folder}/cpu{cpu}/cpufreq"
        clock_khz = read_number(f"{folder}/scaling_cur_freq")
        limit_khz = read_number(f"{folder}/cpuinfo_max_freq")
        clock_hz = clock_khz * KHZ if clock_khz is not None else measured.get(cpu)
        return clock_hz, limit_khz * KHZ if limit_khz is not None else None

    def _read_throttles(self) -> Iterator[Measurement]:
        """Add up cores, each by its lowest CPU, and packages, each by any."""
        cores = sorted(set(self._topology.core_by_cpu.values()))
        first_by_package: dict[int, int] = {}
        for cpu in sorted(self._topology.package_by_cpu):
            first_by_package.setdefault(self._topology.package_by_cpu[cpu], cpu)
        for part, cpus in ((Part.CORE, cores), (Part.PACKAGE, sorted(first_by_package.values()))):
            attributes = {semconv.TRAINING_CPU_PART: part.value}
            for name, metric, unit in (
                ("count", semconv.METRIC_TRAINING_HOST_CPU_THROTTLES, 1),
                ("total_time_ms", semconv.METRIC_TRAINING_HOST_CPU_THROTTLED_TIME, MSEC_PER_S),
            ):
                total = self._add_up(f"{part}_throttle_{name}", cpus)
                if total is not None:
                    yield Measurement(metric, total / unit, attributes)

    def _add_up(self, name: str, cpus: Iterable[int]) -> int | None:
        found = [read_number(f"{self._folder}/cpu{cpu}/thermal_throttle/{name}") for cpu in cpus]
        known = [number for number in found if number is not None]
        return sum(known) if known else None

    def close(self) -> None:
        """Let go of ranks."""
        self._ranks.close()
