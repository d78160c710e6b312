"""How near a rank's control group is to its memory limit, how often it hit it, and whether the group is frozen.

What counts: memory that the rank's group uses, page cache included, and the tightest limit on the way up; how often
that way hit `high` (its threads had to free memory), `max` (no more was given), ran out of it (`oom`) and killed
(`oom_kill`), since the rank was first seen; whether the group is frozen, or one above it. Version 1 knows `max` (its
failcnt) and `oom_kill`, and whether the group stands still without memory now. Other processes in these groups share
all of this. What a group had counted before the rank was in it does not count; nor does memory of the host (the sensor
`vmstat`), and a freeze that begins and ends between two looks.

Where: memory.{current,max,events.local}, cgroup.events of version 2; memory.{usage_in_bytes,limit_in_bytes,failcnt,
oom_control} and freezer.state of version 1. Oldest kernel: 5.2 for version 2; 4.13 for kills of version 1.
Cost: 90 us for one rank, 20 us for each other one of the same group.

Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.cgroups import CgroupReader, GroupLevel
from rootwalk.ebpf.host.growth import Growth
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.kernel_files import parse_pairs, read_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingCgroupMemoryEvent as Event

__all__ = ["CgroupMemoryReader"]

# Version 1 writes "no limit" as the largest number of whole pages; no machine has 4 EiB.
NO_LIMIT_BYTES = 1 << 62
FROZEN_STATES = {"FROZEN": 1, "FREEZING": 1, "THAWED": 0}


@dataclass(frozen=True, slots=True)
class _Memory:
    """What one group tells of its memory; None is not told."""

    usage_bytes: int | None
    limit_bytes: int | None
    is_under_oom: int | None
    events: dict[str, int] = field(default_factory=dict)


class CgroupMemoryReader(Reader):
    """Reads memory and freezer of ranks' control groups.

    Raises:
        UnavailableError: NO_CGROUP or NO_COUNTERS.
    """

    sensor = "cgroup_memory"
    tier = TIER_NONE

    def __init__(self, place: Place) -> None:
        self._cgroups = CgroupReader(place.root)
        backend = self._cgroups.backend_of("memory")
        if backend is None:
            raise missing_file(
                "memory of control groups", "no mounted memory controller", Reason.NO_CGROUP
            )
        self.backend = backend
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
        """Return what ranks' groups use and may use now, and events since each rank was first seen."""
        return self._pace.take(self._read)

    def _read(self) -> Iterator[Measurement]:
        seen: dict[str, _Memory] = {}  # ranks often share groups, and always the ones above them
        frozen: dict[str, int | None] = {}
        for slot in self._ranks:
            names = self._ranks.read(slot, "cgroup")
            levels = self._cgroups.levels_in(names, "memory") or []
            for level in levels:
                if level.folder not in seen:
                    seen[level.folder] = _read_memory(level)
            yield from self._measure(slot, [seen[level.folder] for level in levels])
            yield from self._events(slot, {level.folder: seen[level.folder] for level in levels})
            for level in (self._cgroups.levels_in(names, "freezer") or [])[:1]:
                if level.folder not in frozen:
                    frozen[level.folder] = _read_frozen(level)
                state = frozen[level.folder]
                if state is not None:
                    yield Measurement(semconv.METRIC_TRAINING_CGROUP_FROZEN, state, slot=slot)

    def _measure(self, slot: int, memory: list[_Memory]) -> Iterator[Measurement]:
        limits = [one.limit_bytes for one in memory if one.limit_bytes is not None]
        stands = [one.is_under_oom for one in memory if one.is_under_oom is not None]
        for metric, value in (
            (
                semconv.METRIC_TRAINING_CGROUP_MEMORY_USAGE,
                memory[0].usage_bytes if memory else None,
            ),
            (semconv.METRIC_TRAINING_CGROUP_MEMORY_LIMIT, min(limits, default=None)),
            (semconv.METRIC_TRAINING_CGROUP_MEMORY_UNDER_OOM, max(stands, default=None)),
        ):
            if value is not None:
                yield Measurement(metric, value, slot=slot)

    def _events(self, slot: int, memory: dict[str, _Memory]) -> Iterator[Measurement]:
        growth = self._growth_by_slot.setdefault(slot, Growth())
        counts = {folder: one.events for folder, one in memory.items()}
        for event, count in growth.take(counts).items():
            yield Measurement(
                semconv.METRIC_TRAINING_CGROUP_MEMORY_EVENTS,
                count,
                {semconv.TRAINING_CGROUP_MEMORY_EVENT: event},
                slot,
            )

    def close(self) -> None:
        """Let go of ranks."""
        self._ranks.close()


def _read_memory(level: GroupLevel) -> _Memory:
    folder = level.folder
    if level.is_unified:
        # Of this group alone: a plain `events` repeats what groups below it have counted.
        events = parse_pairs(read_text(f"{folder}/memory.events.local"))
        return _Memory(
            read_number(f"{folder}/memory.current"),
            read_number(f"{folder}/memory.max"),
            None,
            {event.value: events[event] for event in Event if event in events},
        )
    state = parse_pairs(read_text(f"{folder}/memory.oom_control"))
    hits = read_number(f"{folder}/memory.failcnt")
    events = {Event.MAX.value: hits} if hits is not None else {}
    if Event.OOM_KILL in state:
        events[Event.OOM_KILL.value] = state[Event.OOM_KILL]
    limit_bytes = read_number(f"{folder}/memory.limit_in_bytes")
    return _Memory(
        read_number(f"{folder}/memory.usage_in_bytes"),
        limit_bytes if limit_bytes is not None and limit_bytes < NO_LIMIT_BYTES else None,
        state.get("under_oom"),
        events,
    )


def _read_frozen(level: GroupLevel) -> int | None:
    """Return 1 for a group that is frozen, 0 for one that is not; None for the topmost, which never is."""
    if level.is_unified:
        return parse_pairs(read_text(f"{level.folder}/cgroup.events")).get("frozen")
    return FROZEN_STATES.get(read_text(f"{level.folder}/freezer.state").strip())
