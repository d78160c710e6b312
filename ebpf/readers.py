"""What the agent reads beside the ranks' own records: one reader a question, each of which may be missing.

    targets    which processes belong to a rank           BPF, shared by all programs
    scheduler  where their threads' time goes             BPF, else /proc
    others     everything else that a host can tell       `Reader`, in the order of `KINDS`

A reader that fails is left out and said once; the others go on. Nothing here knows OTLP.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from rootwalk.ebpf.availability import Reason, Sensor, Status, available, unavailable
from rootwalk.ebpf.backends import choose_targets
from rootwalk.ebpf.block_io import BlockIoReader
from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.gpu.reader import NvmlReader
from rootwalk.ebpf.host import HOST_KINDS
from rootwalk.ebpf.interrupts import InterruptReader
from rootwalk.ebpf.kernel_log import KernelLogReader
from rootwalk.ebpf.lifecycle import LifecycleReader
from rootwalk.ebpf.memory import MemoryReader
from rootwalk.ebpf.nccl_log import NcclLogReader
from rootwalk.ebpf.paging import PagingReader
from rootwalk.ebpf.reader import (
    Cause,
    CollectiveCall,
    Measurement,
    Occurrence,
    Place,
    Reader,
    Spell,
)
from rootwalk.ebpf.scheduler import SchedulerReader, open_scheduler
from rootwalk.ebpf.targets import Targets
from rootwalk.ebpf.tcp import TcpReader
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.identity import Identity

__all__ = [
    "KINDS",
    "Cause",
    "Measurement",
    "Occurrence",
    "Place",
    "Reader",
    "Readers",
    "Spell",
    "open_targets",
    "probe_readers",
]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Made = TypeVar("Made", bound=Reader)


# Every reader beside the scheduler's, in the order in which `check` shows them.
KINDS: tuple[type[Reader], ...] = (
    InterruptReader,
    MemoryReader,
    PagingReader,
    BlockIoReader,
    *HOST_KINDS,
    TcpReader,
    LifecycleReader,
    KernelLogReader,
    NvmlReader,
    CudaReader,
    NcclLogReader,
)


def open_targets(without: Collection[str]) -> Targets | None:
    """Return the table that BPF programs share; None where there is no BPF, or where it is not wanted."""
    if "bpf" in without:
        return None
    try:
        return choose_targets()[0]
    except UnavailableError:
        return None  # `sensors` tells why


def probe_readers(
    place: Place, without: Collection[str] = (), kinds: Sequence[type[Reader]] | None = None
) -> list[Sensor]:
    """Return the state of every reader here, by opening and closing it.

    Args:
        place: Where to look.
        without: Names that the user switched off.
        kinds: The readers; None for all.
    """
    sensors = []
    for kind in KINDS if kinds is None else kinds:
        if kind.sensor in without:
            sensors.append(unavailable(kind.sensor, Reason.SWITCHED_OFF, kind.tier))
            continue
        try:
            reader = kind(place)  # type: ignore[call-arg]
            reader.close()
            sensors.append(_state(reader))
        except UnavailableError as error:
            reason = Reason[error.reason]
            sensors.append(unavailable(kind.sensor, reason, kind.tier, str(error)))
    return sensors


def _state(reader: Reader) -> Sensor:
    if reader.missing is not None:
        return unavailable(reader.sensor, reader.missing, reader.tier)
    if reader.degraded is None:
        return available(reader.sensor, reader.tier, reader.backend)
    return Sensor(reader.sensor, Status.DEGRADED, reader.degraded, reader.tier, reader.backend)


class Readers:
    """Owns every open reader of an agent.

    Args:
        targets: The table that BPF programs share; None where there is no BPF.
        scheduler: Tells thread times; None where nothing does.
        others: Everything else.
    """

    def __init__(
        self,
        targets: Targets | None = None,
        scheduler: SchedulerReader | None = None,
        others: Iterable[Reader] = (),
    ) -> None:
        self._targets = targets
        self.scheduler = scheduler
        self._others = list(others)
        self._failed: set[str] = set()
        self._unwatched = 0

    def states(self, sensors: Iterable[Sensor]) -> list[Sensor]:
        """Return sensors as they are now: readers may have been left out on the way, or found more or less to read."""
        open_ones = {reader.sensor: reader for reader in self._others}
        return [self._state_now(sensor, open_ones.get(sensor.sensor)) for sensor in sensors]

    def _state_now(self, sensor: Sensor, reader: Reader | None) -> Sensor:
        if sensor.sensor in self._failed and sensor.status is not Status.UNAVAILABLE:
            return unavailable(sensor.sensor, Reason.READER_FAILED, sensor.tier)
        if reader is None:
            return sensor
        now = _state(reader)
        return sensor if (now.status, now.reason) == (sensor.status, sensor.reason) else now

    def helper_cpu_s(self) -> float:
        """Return the CPU time of the processes that readers have of their own, s."""
        return sum(reader.helper_cpu_s() for reader in self._others)

    @classmethod
    def open(cls, without: Collection[str] = ()) -> Readers:
        """Open everything that can be had here.

        Args:
            without: Sensors that the user switched off, and `bpf` for all programs.
        """
        targets = open_targets(without)
        place = Place(targets=targets)
        others, failed = [], []
        for kind in KINDS:
            if kind.sensor in without:
                continue
            try:
                others.append(kind(place))  # type: ignore[call-arg]
            except UnavailableError:
                failed.append(kind.sensor)  # `sensors` tells why, unless it was there a moment ago
            except Exception:
                logger.exception('reader "%s" cannot start; left out', kind.sensor)
                failed.append(kind.sensor)
        readers = cls(targets, open_scheduler(targets, without), others)
        readers._failed.update(failed)
        return readers

    def open_more(self, make: Callable[[Place], Made]) -> Made:
        """Open one more reader, which is told nothing of what is watched already.

        Raises:
            UnavailableError: With a `Reason` when it cannot be had here.
        """
        reader = make(Place(targets=self._targets))
        self._others.append(reader)
        return reader

    def close_one(self, reader: Reader) -> None:
        """Close a reader and leave it out; safe when it was left out before."""
        if reader in self._others:
            self._others.remove(reader)
            with contextlib.suppress(OSError):
                reader.close()

    def set_level(self, level: int) -> None:
        """Turn up or down how much everything reads, 0 to 2."""
        if self.scheduler is not None:
            self.scheduler.set_level(level)
        self._each("turn", lambda reader: reader.set_level(level))

    def meet(self, slot: int, who: Identity) -> None:
        """Tell every reader which rank a slot is."""
        self._each("meet", lambda reader: reader.meet(slot, who))

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Follow a process of a rank with everything that follows processes."""
        if self._targets is not None:
            try:
                self._targets.watch(pid, slot, is_child=is_child)
            except OSError:  # 4,096 processes are watched: what belongs to no rank here is not seen
                self._unwatched += 1
        if self.scheduler is not None:
            self.scheduler.watch(pid, slot, is_child=is_child)
        self._each("watch", lambda reader: reader.watch(pid, slot))

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        if self._targets is not None:
            self._targets.forget(pid)
        if self.scheduler is not None:
            self.scheduler.forget(pid)
        self._each("forget", lambda reader: reader.forget(pid))

    def look(self) -> None:
        """Let every reader look."""
        self._each("look", lambda reader: reader.look())

    def measurements(self) -> list[Measurement]:
        """Return what every reader knows."""
        parts = self._each("measure", lambda reader: list(reader.measurements()))
        return [one for part in parts for one in part]

    def occurrences(self) -> list[Occurrence]:
        """Return what has happened since the last call, by time."""
        parts = self._each("tell", lambda reader: list(reader.occurrences()))
        return sorted((one for part in parts for one in part), key=lambda one: one.mono_ns)

    def spells(self) -> list[Spell]:
        """Return what ranks' first threads lost since the last call."""
        parts = self._each("read", lambda reader: list(reader.spells()))
        return [one for part in parts for one in part]

    def calls(self) -> list[CollectiveCall]:
        """Return what ranks have called of NCCL since the last call of this."""
        parts = self._each("read", lambda reader: list(reader.calls()))
        return [one for part in parts for one in part]

    def losses(self) -> dict[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        parts = self._each("count", lambda reader: reader.losses())
        if self.scheduler is not None:
            parts.append(self.scheduler.losses())
        counts: Counter[str] = Counter(bpf_processes_full=self._unwatched)
        for part in parts:
            counts.update(part)
        return dict(counts)

    def run_time_ns(self) -> dict[str, int]:
        """Return the CPU time spent in each kernel program, ns; nothing where the kernel keeps no statistics."""
        times: dict[str, int] = {}
        for part in (self._targets, self.scheduler, *self._others):
            if part is not None:
                times.update(part.run_time_ns())
        return times

    def close(self) -> None:
        """Release everything; safe twice."""
        for reader in self._others:
            with contextlib.suppress(OSError):
                reader.close()
        self._others = []
        if self.scheduler is not None:
            self.scheduler.close()
            self.scheduler = None
        if self._targets is not None:
            self._targets.close()
            self._targets = None

    def _each(self, what: str, turn: Callable[[Reader], Result]) -> list[Result]:
        """Give each reader its turn; one that fails is closed and left out."""
        results = []
        for reader in list(self._others):
            try:
                results.append(turn(reader))
            except Exception:
                logger.exception('reader "%s" cannot %s any more; left out', reader.sensor, what)
                self._others.remove(reader)
                self._failed.add(reader.sensor)
                with contextlib.suppress(OSError):
                    reader.close()
        return results
