"""The ranks that are watched: what the scheduler and the control groups tell goes to the right one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.discovery import (
    Population,
    RankProcess,
    find_descendants,
    is_process_alive,
    read_threads,
)
from rootwalk.ebpf.events import SchedEvent, ThreadExit, ThreadRecord
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.reader import CollectiveCall, Measurement, Spell
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.scheduler import SchedulerRecord
from rootwalk.ebpf.thread_totals import RoleTotals
from rootwalk.ebpf.throttling import RankThrottling
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.shared_ring import RingReader

__all__ = ["WatchedRank", "WatchedRanks"]

logger = logging.getLogger(__name__)

# Their `hw.id` is a GPU's.
GPU_METRICS = ("training.gpu.", "hw.gpu.")


@dataclass(slots=True)
class WatchedRank:
    """A rank that is watched.

    Attributes:
        slot: Its number in everything that the scheduler tells, from 1.
        pid: Its process.
        identity: Who it is.
        start_ticks: When its process started, clock ticks since boot.
        partition: Where its threads' time went; None without a scheduler sensor.
        throttling: What its control groups tell; None without that sensor.
        totals: Its threads' times by role.
        streams: Its rings.
        helpers: Its children that were found, or that the scheduler was told of.
    """

    slot: int
    pid: int
    identity: Identity
    start_ticks: int
    partition: RankPartition | None
    throttling: RankThrottling | None
    totals: RoleTotals = field(default_factory=RoleTotals)
    streams: list[RankStream] = field(default_factory=list)
    helpers: set[int] = field(default_factory=set)

    @property
    def ring(self) -> RingReader | None:
        """The ring that it writes to and this agent reads; None without one."""
        rings = (stream.ring for stream in reversed(self.streams))
        return next((ring for ring in rings if ring is not None), None)

    @property
    def is_gone(self) -> bool:
        """Whether one of its rings was seen without its process."""
        return any(stream.gone_mono_ns is not None for stream in self.streams)

    def context_of(self, mono_ns: int) -> tuple[bytes, bytes] | None:
        """Return trace and span id of the step that a moment falls in; None where it is not known."""
        contexts = (stream.context_of(mono_ns) for stream in self.streams)
        return next((context for context in contexts if context is not None), None)

    def phase_of(self, mono_ns: int) -> str | None:
        """Return the phase that a moment falls in; None where it is not known."""
        phases = (stream.phase_of(mono_ns) for stream in self.streams)
        return next((phase for phase in phases if phase is not None), None)

    def collective_of(self, mono_ns: int) -> str | None:
        """Return the operation of a collective that was under way at a moment; None where it is not known."""
        found = (stream.collective_of(mono_ns) for stream in self.streams)
        return next((operation for operation in found if operation is not None), None)

    def take(self, record: SchedulerRecord) -> None:
        """Take what the scheduler tells about one of its threads, or its children's."""
        if isinstance(record, ThreadExit):
            self.totals.add(record.tid, record)
            if self.partition is not None:
                self.partition.end_thread(record)
            for stream in self.streams:
                stream.end_thread(record.tid)
            return
        if self.partition is not None:
            self.partition.add(record)
        if isinstance(record, SchedEvent):
            for stream in self.streams:
                stream.take(record)


class WatchedRanks:
    """Owns the watched ranks and what follows them.

    Args:
        readers: Everything that follows processes.
        cgroups: Finds control groups; None when they are not read.
        waits: Tells what blocked threads waited for.
    """

    def __init__(
        self, readers: Readers, cgroups: CgroupReader | None, waits: WaitDetails | None = None
    ) -> None:
        self._readers = readers
        self._scheduler = readers.scheduler
        self._cgroups = cgroups
        self._waits = waits or WaitDetails()
        self._by_pid: dict[int, WatchedRank] = {}
        self._by_slot: dict[int, WatchedRank] = {}
        self._next_slot = 1

    def __iter__(self) -> Iterator[WatchedRank]:
        return iter(list(self._by_pid.values()))

    def name_devices(self, measured: Iterable[Measurement]) -> None:
        """Let the steps of each rank tell its GPU, by its UUID, as far as NVML's reader knows one that it uses."""
        devices: dict[int, set[str]] = {}
        for one in measured:
            if one.metric.startswith(GPU_METRICS) and one.slot is not None:
                devices.setdefault(one.slot, set()).add(str(one.attributes[semconv.HW_ID]))
        for rank in self:
            used = devices.get(rank.slot, set())
            for stream in rank.streams:
                stream.device = next(iter(used)) if len(used) == 1 else None

    def find(self, pid: int) -> WatchedRank | None:
        """Return the rank of a process, if it is watched."""
        return self._by_pid.get(pid)

    def find_slot(self, slot: int) -> WatchedRank | None:
        """Return the rank with this slot, if it is still watched."""
        return self._by_slot.get(slot)

    def watch(self, process: RankProcess) -> WatchedRank:
        """Watch a rank and the children that it has; nothing changes when it is watched already."""
        pid = process.identity.pid
        known = self._by_pid.get(pid)
        if known is not None:
            return known
        for rank in self:
            rank.helpers.discard(pid)  # a rank that another rank has started is not its helper
        slot = self._next_slot
        self._next_slot += 1
        throttling = RankThrottling(pid, self._cgroups) if self._cgroups is not None else None
        self._readers.meet(slot, process.identity)
        self._readers.watch(pid, slot)
        partition = None
        if self._scheduler is not None:
            partition = RankPartition(
                self._scheduler.sensor,
                time.monotonic_ns(),
                throttling=throttling,
                kind_of=self._waits.kind,
                told_wait_ns=self._scheduler.told_wait_ns,
            )
        rank = WatchedRank(slot, pid, process.identity, process.start_ticks, partition, throttling)
        self._by_pid[pid] = self._by_slot[slot] = rank
        for child in find_descendants(pid):
            self._follow(rank, child)
        logger.info("rank %d of job %s is process %d", rank.identity.rank, rank.identity.job, pid)
        return rank

    def follow_helpers(self, population: Population) -> None:
        """Follow the children that were found, and forget those that are gone."""
        for pid, rank_pid in population.rank_by_helper.items():
            rank = self._by_pid.get(rank_pid)
            if rank is not None:
                self._follow(rank, pid)
        for rank in self:
            for pid in [pid for pid in rank.helpers if not is_process_alive(pid)]:
                rank.helpers.discard(pid)
                self._forget(pid)
            workers = rank.partition.workers if rank.partition is not None else None
            for tid in workers.adopted if workers is not None else []:
                if workers is not None and not Path(f"/proc/{tid}").exists():
                    workers.forget_adopted(tid, time.monotonic_ns())

    def end(self, rank: WatchedRank) -> None:
        """Stop watching a rank, whose spans are all built."""
        for pid in (rank.pid, *rank.helpers):
            self._forget(pid)
        del self._by_pid[rank.pid], self._by_slot[rank.slot]

    def look(self) -> None:
        """Look at control groups and children as they are now.

        To be called after rings are read and before scheduler events are: then what is known reaches to the last
        record of every ring.
        """
        for rank in self:
            if rank.throttling is not None:
                rank.throttling.look(time.monotonic_ns)
        now_ns = time.monotonic_ns()
        children = self._scheduler.children() if self._scheduler is not None else None
        if children is None:
            return
        records_by_slot: dict[int, dict[int, ThreadRecord]] = {}
        for tid, record in children.items():
            records_by_slot.setdefault(record.slot, {})[tid] = record
        for rank in self:
            if rank.partition is not None and rank.partition.workers is not None:
                rank.partition.workers.look(now_ns, records_by_slot.get(rank.slot, {}))

    def take(self, records: Sequence[SchedulerRecord]) -> None:
        """Take what the scheduler told."""
        for record in records:
            rank = self._by_slot.get(record.slot)
            if rank is not None:
                rank.take(record)

    def take_spells(self, spells: Iterable[Spell]) -> None:
        """Take what ranks' first threads lost while they seemed to run."""
        for spell in spells:
            rank = self._by_slot.get(spell.slot)
            if rank is not None and rank.partition is not None:
                rank.partition.add_spell(spell)

    def take_calls(self, calls: Iterable[CollectiveCall]) -> None:
        """Take what ranks have called of NCCL."""
        for call in calls:
            rank = self._by_slot.get(call.slot)
            for stream in rank.streams if rank is not None else ():
                stream.take_call(call)

    def take_totals(self, threads: Mapping[int, ThreadRecord]) -> None:
        """Take the totals of threads that are alive."""
        for tid, thread in threads.items():
            rank = self._by_slot.get(thread.slot)
            if rank is not None:
                rank.totals.add(tid, thread)

    def mark_unknown(self, start_ns: int, end_ns: int) -> None:
        """Say that events of an interval were lost."""
        for rank in self:
            if rank.partition is not None:
                rank.partition.mark_unknown(start_ns, end_ns)

    def _forget(self, pid: int) -> None:
        self._readers.forget(pid)
        self._waits.forget(pid)

    def _follow(self, rank: WatchedRank, pid: int) -> None:
        """Follow a child; one that the scheduler does not know from its beginning is adopted."""
        if pid in self._by_pid or pid in rank.helpers:
            return
        rank.helpers.add(pid)
        known = (self._scheduler.children() if self._scheduler is not None else None) or {}
        self._readers.watch(pid, rank.slot, is_child=True)
        if pid not in known and rank.partition is not None and rank.partition.workers is not None:
            states = read_threads(pid)
            rank.partition.workers.adopt(time.monotonic_ns(), states)
