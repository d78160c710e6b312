"""Where the time of the host's CPUs went: stolen by a hypervisor, waiting for disks, in interrupts, at work or idle.

What counts: time of all CPUs together since boot, in the kernel's clock ticks (10 ms); `user` and `nice` contain what
guests of this host used. `interrupt` and `softirq` are only met by chance, at ticks, on kernels that do not account for
interrupts exactly (CONFIG_IRQ_TIME_ACCOUNTING); one that is 0 since boot is not counted at all, and left out. Which
thread they took the time from is the question of another sensor. `iowait` is idle time while a task that ran there last
waits for a device: no thread loses it.
What does not count: single CPUs. A file with hundreds of CPUs is not taken apart for them.

Where: the first line of /proc/stat. Oldest kernel: any.
Cost: 15 us a reading with 2 CPUs; the kernel writes the whole file for it, so it grows with CPUs and interrupts (not
measured), and the rate follows the cost: at most 1/10,000 of a CPU.

Source: Documentation/filesystems/proc.rst, section 1.7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from rootwalk.ebpf.availability import TIER_NONE
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.kernel_files import parse_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv

__all__ = ["CpuTimeReader", "parse_modes"]

# In the file's order, in the words of the core convention; it has none for the kernel's deferred interrupt work.
MODES = ("user", "nice", "system", "idle", "iowait", "interrupt", "softirq", "steal")
# No machine is without interrupts: 0 means that nobody counts.
NEVER_ZERO = frozenset({"interrupt", "softirq"})
# The first line is at most 11 numbers of 20 digits.
FIRST_LINE_BYTES = 256


def parse_modes(text: str) -> dict[str, int]:
    """Return the time in each mode that /proc/stat tells for all CPUs together, clock ticks; empty without it."""
    name, *words = text.partition("\n")[0].split() or [""]
    if name != "cpu":
        return {}
    ticks = [parse_number(word) for word in words]
    pairs = zip(MODES, ticks, strict=False)  # older kernels tell fewer, newer ones more
    return {
        mode: number
        for mode, number in pairs
        if number is not None and (number or mode not in NEVER_ZERO)
    }


class CpuTimeReader(Reader):
    """Reads /proc/stat.

    Raises:
        UnavailableError: NO_COUNTERS.
    """

    sensor = "cpu"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._path = f"{place.root}/proc/stat"
        if not parse_modes(self._text()):
            raise missing_file("CPU times", f'no line "cpu" in "{self._path}"')
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._pace = Pace()

    def measurements(self) -> Iterable[Measurement]:
        """Return the time in each mode since boot, s."""
        return self._pace.take(self._read)

    def _read(self) -> Iterator[Measurement]:
        for mode, ticks in parse_modes(self._text()).items():
            yield Measurement(
                semconv.METRIC_SYSTEM_CPU_TIME,
                ticks / self._ticks_per_s,
                {semconv.CPU_MODE: mode},
            )

    def _text(self) -> str:
        return read_text(self._path, most_bytes=FIRST_LINE_BYTES)
