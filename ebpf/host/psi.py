"""Time for which tasks waited for CPUs, block devices or memory: pressure stall information of the host and of ranks.

What counts: time in which at least one task (`some`), or all that are not idle (`full`), waited for the resource. The
host's `full` of the CPU is left out: the kernel does not define it and writes 0. A rank has what its own version 2
group tells, which other processes in that group share; what it counts from is when the rank was first seen, and what
it was in before it was moved does not count. Version 1 groups have no pressure, nor has the topmost one beyond the
host's: there a rank has none. What does not count: waiting for locks, for the network, for other ranks.

Where: /proc/pressure/{cpu,io,memory}, and cpu.pressure, io.pressure, memory.pressure of a version 2 group.
Oldest kernel: 4.20 with CONFIG_PSI, and psi=1 where the distribution switches it off; `full` of a group's CPU: 5.13.
Cost: 45 us a reading, and 20 us for each rank.

Source: Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.host.growth import Growth
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.kernel_files import parse_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingPressureExtent as Extent
from rootwalk.instrumentation.semconv import TrainingPressureResource as Resource

__all__ = ["PsiReader", "parse_pressure"]

USEC_PER_S = 1_000_000
EXTENTS = frozenset(extent.value for extent in Extent)


def parse_pressure(text: str) -> dict[Extent, int]:
    """Return the total stall times that a pressure file tells, us."""
    totals = {}
    for line in text.splitlines():
        extent, *fields = line.split() or [""]
        total = next((f.removeprefix("total=") for f in fields if f.startswith("total=")), "")
        total_us = parse_number(total)
        if total_us is not None and extent in EXTENTS:
            totals[Extent(extent)] = total_us
    return totals


class PsiReader(Reader):
    """Reads pressure stall information.

    Raises:
        UnavailableError: NO_PSI.
    """

    sensor = "psi"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._folder = f"{place.root}/proc/pressure"
        if not parse_pressure(read_text(f"{self._folder}/{Resource.CPU}")):
            raise UnavailableError(
                f'cannot read pressure: saw no totals in "{self._folder}"; needs psi=1',
                reason=Reason.NO_PSI,
                hint=Reason.NO_PSI.hint,
            )
        self._cgroups = CgroupReader(place.root)
        self._ranks = RankFolders(place.root)
        self._growth_by_slot: dict[int, Growth] = {}
        self._pace = Pace()

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's group."""
        self._ranks.watch(pid, slot)

    def forget(self, pid: int) -> None:
        """Stop following a rank."""
        for slot in self._ranks.forget(pid):
            self._growth_by_slot.pop(slot, None)

    def measurements(self) -> Iterable[Measurement]:
        """Return stall times of the host since boot, and of ranks since they were first seen."""
        return self._pace.take(self._read)

    def _read(self) -> Iterator[Measurement]:
        for resource in Resource:
            for extent, total_us in parse_pressure(read_text(f"{self._folder}/{resource}")).items():
                if (resource, extent) != (Resource.CPU, Extent.FULL):
                    yield _measurement(resource, extent, total_us, None)
        counts_by_group: dict[str, dict[str, int]] = {}
        for slot in self._ranks:
            levels = self._cgroups.levels_in(self._ranks.read(slot, "cgroup"), None)
            if levels is None or len(levels) < 2:
                continue
            group = levels[0].folder
            if group not in counts_by_group:
                counts_by_group[group] = _read_group(group)
            growth = self._growth_by_slot.setdefault(slot, Growth())
            for name, total_us in growth.take({group: counts_by_group[group]}).items():
                resource_name, _, extent_name = name.partition(" ")
                yield _measurement(Resource(resource_name), Extent(extent_name), total_us, slot)

    def close(self) -> None:
        """Let go of ranks."""
        self._ranks.close()


def _read_group(group: str) -> dict[str, int]:
    return {
        f"{resource} {extent}": total_us
        for resource in Resource
        for extent, total_us in parse_pressure(read_text(f"{group}/{resource}.pressure")).items()
    }


def _measurement(
    resource: Resource, extent: Extent, total_us: int, slot: int | None
) -> Measurement:
    attributes = {
        semconv.TRAINING_PRESSURE_RESOURCE: resource.value,
        semconv.TRAINING_PRESSURE_EXTENT: extent.value,
    }
    return Measurement(
        semconv.METRIC_TRAINING_PRESSURE_TIME, total_us / USEC_PER_S, attributes, slot
    )
