"""How often each rank calls CUDA's libraries and NCCL, and for how long; no change to its code.

What counts: calls of the functions in `functions`, by layer; `programs/cuda.bpf.c` says how. Ranks that have loaded the
driver's library are watched only: without it every call fails, and PyTorch's CUDA build loads the other libraries in
ranks that train on the CPU too. On a host with a driver NCCL is watched before: what a communicator is can be seen when
it is made only, just after the driver's library is loaded (`lifetimes`). What does not count: what cuBLAS, cuDNN and
NCCL call through the runtime that is linked into them (the driver's layer has it), and functions whose first
instruction would make a probe dear.

Where: /proc/<pid>/maps of each rank, after 1, 2, 4 … 64 s, on a host with a driver each second of the first minute
until NCCL is there; probes by the library file, for all processes that run it.
Privilege: BPF, and before Linux 6.6 CAP_SYS_ADMIN for probes in functions. Off at level 0;
launches and products of matrices at level 2 only.
Cost: `make bench-cuda`. On a GPU: `make test-gpu`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rootwalk.ebpf.availability import TIER_CAPABILITIES, Reason
from rootwalk.ebpf.cuda.communicators import Lifetime
from rootwalk.ebpf.cuda.functions import CALLED_THROUGH
from rootwalk.ebpf.cuda.libraries import (
    FileId,
    Function,
    FunctionFinder,
    MappedLibrary,
    find_libraries,
)
from rootwalk.ebpf.cuda.lifetimes import LifetimeProbes
from rootwalk.ebpf.cuda.operations import decode_operations, name_operations
from rootwalk.ebpf.cuda.totals import CallTotals, decode_running, slot_of
from rootwalk.ebpf.function_probes import FunctionProbes, Probes
from rootwalk.ebpf.reader import CollectiveCall, Measurement, Place, Reader
from rootwalk.ebpf.ring_buffer import RingBuffer
from rootwalk.ebpf.targets import KEY, read_losses
from rootwalk.instrumentation.errors import DecodeError, UnavailableError

__all__ = ["CudaReader"]

logger = logging.getLogger(__name__)

# In the order of `enum cuda_counter`.
DROP_REASONS = ("bpf_cuda_calls_full", "bpf_cuda_totals_full", "bpf_nccl_operations_full")
DRIVER, NCCL = "libcuda", "libnccl"
# Libraries come with the first use of a GPU, seconds after the start; later ones are rare.
FIRST_SCAN_S, LAST_SCAN_S = 1.0, 64.0
# So long NCCL is looked for each second: a job makes its communicators seconds after it has loaded it.
FIRST_SCANS = 60
TAKES_DEAR = "ROOTWALK_CUDA_SLOW"


@dataclass(slots=True)
class _Process:
    """A process that is followed.

    Attributes:
        slot: Its rank.
        next_scan_s: When its libraries are looked for.
        wait_s: How long after that once more.
        first_scans: How often they are still looked for each second.
    """

    slot: int
    next_scan_s: float
    wait_s: float = FIRST_SCAN_S
    first_scans: int = 0


@dataclass(slots=True)
class _File:
    """A library file that processes run.

    Attributes:
        functions: What is attached to, or is to be.
        libraries: Who runs it, and as what they see it.
        probes: What is attached; None for nothing.
        lifetimes: What is attached to functions that make and end communicators; None for nothing.
    """

    functions: list[Function]
    libraries: dict[int, MappedLibrary] = field(default_factory=dict)
    probes: Probes | None = None
    lifetimes: Probes | None = None

    @property
    def has_frequent(self) -> bool:
        """Whether more of its functions are watched at level 2."""
        return any(one.call.is_frequent for one in self.functions)


class CudaReader(Reader):
    """The loaded program, and its probes in the libraries of the ranks.

    Args:
        place: Where to look.
        needs_driver: Watch ranks that have loaded the driver's library only.
        takes_dear: Attach to functions whose probe costs much more than others'; None for what the environment says.

    Raises:
        UnavailableError: With a `Reason` when the program cannot be loaded here, or no function be attached to.
    """

    sensor = "cuda"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(
        self, place: Place, *, needs_driver: bool = True, takes_dear: bool | None = None
    ) -> None:
        targets = place.need_targets()
        self._root = place.root
        self._needs_driver = needs_driver
        asked = os.environ.get(TAKES_DEAR) == "1"
        self._takes_dear = asked if takes_dear is None else takes_dear
        self._has_driver = (place.root / "proc/driver/nvidia/version").exists()
        self._level = 1
        self._processes: dict[int, _Process] = {}
        self._files: dict[FileId, _File] = {}
        self._waiting: deque[_File] = deque()
        self._finder = FunctionFinder()
        self._program = FunctionProbes(
            "cuda", "on_call", "on_return", lambda opened: opened.share(targets.map)
        )
        self._lifetimes = LifetimeProbes(self._program, targets.map)
        self._sums = CallTotals(self._lifetimes.communicators)
        maps = self._program.maps
        self._totals, self._running = maps["totals"], maps["running"]
        self._ring = RingBuffer(maps["operations"])
        self._tells = next(one for name, one in maps.items() if name.endswith(".bss"))
        self._settle()

    def set_level(self, level: int) -> None:
        """Take the probes away at level 0; those of launches and products of matrices are there at level 2 only.

        Operations of NCCL are told one by one at level 2, too.
        """
        if level == self._level:
            return
        self._tells.write(KEY.pack(0), KEY.pack(int(level > 1)))
        is_all = 0 in (level, self._level)
        self._level = level
        changed = [one for one in self._files.values() if is_all or one.has_frequent]
        self._waiting = deque(one for one in self._waiting if one not in changed)
        self._detach(*changed)
        if level > 0:
            self._waiting.extend(one for one in changed if one.functions)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a process: its libraries are looked for from now on."""
        known = self._processes.get(pid)
        if known is None:
            first_scans = FIRST_SCANS if self._has_driver else 0
            self._processes[pid] = _Process(slot, time.monotonic(), first_scans=first_scans)
        else:
            known.slot = slot

    def forget(self, pid: int) -> None:
        """Let go of a process, and of the libraries that only it ran."""
        self._processes.pop(pid, None)
        for file in self._files.values():
            file.libraries.pop(pid, None)
        unused = {who: file for who, file in self._files.items() if not file.libraries}
        if unused:
            self._files = {who: one for who, one in self._files.items() if who not in unused}
            self._waiting = deque(one for one in self._waiting if one.libraries)
            self._detach(*unused.values())
        self._lifetimes.keep(lambda other: other != pid)

    def look(self) -> None:
        """Look for the libraries of a process that is due, and attach to the functions of one."""
        now_s = time.monotonic()
        if self._level > 0:
            self._scan_next(now_s)
            if self._waiting:
                self._attach(self._waiting.popleft())
        self._settle()

    def measurements(self) -> Iterable[Measurement]:
        """Return what was called since the start; time with that of calls that have not returned."""
        slots = {process.slot for process in self._processes.values()}
        sums, calls = self._totals.items(), self._running.items()
        # Last: then every number in the others is known.
        self._lifetimes.take(lambda pid: (self._root / f"proc/{pid}").exists())
        totals = []
        for key, value in sums:
            if slot_of(key) in slots and not self._sums.is_over(key):
                totals.append((key, value))
            else:
                self._totals.delete(key)
        running = []
        for key, call in decode_running(calls):
            if (self._root / f"proc/{call.pid}/task/{call.tid}").exists():
                running.append(call)
            else:
                self._running.delete(key)
        self._sums.forget(lambda slot: slot not in slots)
        running = [call for call in running if slot_of(call.key) in slots]
        measured = list(self._sums.measure(totals, running, time.monotonic_ns()))
        measured += self._lifetimes.measure(time.monotonic(), slots)
        return measured

    def calls(self) -> Iterable[CollectiveCall]:
        """Return the operations of NCCL that were called since the last call of this, at level 2."""
        operations = self._ring.read(decode_operations)
        if not operations:
            return ()
        self._lifetimes.learn()  # after the operations: then their communicators are known
        return list(name_operations(operations, self._lifetimes.communicators))

    def losses(self) -> Mapping[str, int]:
        """Return what the programs could not keep since they were loaded."""
        own = read_losses(self._program.maps["counters"], DROP_REASONS)
        return {**own, **self._lifetimes.losses()}

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return {**self._program.run_time_ns(), **self._lifetimes.run_time_ns()}

    def close(self) -> None:
        """Detach and unload; safe twice."""
        self._waiting.clear()
        self._ring.close()
        self._lifetimes.close()
        self._program.close()

    @property
    def is_settled(self) -> bool:
        """Whether every function of the libraries that were found is attached to."""
        return not self._waiting

    def _scan_next(self, now_s: float) -> None:
        due = [(one.next_scan_s, pid) for pid, one in self._processes.items()]
        at_s, pid = min(due, default=(now_s + 1, 0))
        if at_s > now_s:
            return
        process = self._processes[pid]
        process.next_scan_s = now_s + process.wait_s
        libraries = find_libraries(pid, self._root)
        families = {one.family for one in libraries}
        process.first_scans = max(process.first_scans - 1, 0) if NCCL not in families else 0
        if not process.first_scans:
            process.wait_s = min(process.wait_s * 2, LAST_SCAN_S)
        is_ready = not self._needs_driver or DRIVER in families
        for library in libraries:
            if is_ready or (self._has_driver and library.family == NCCL):
                self._find(library)

    def _find(self, library: MappedLibrary) -> None:
        """Learn the functions of a library, once for all processes that run the file."""
        try:
            with library.open(self._root) as file:
                status = os.fstat(file.fileno())
                who = FileId(status.st_dev, status.st_ino)
                if who not in self._files:
                    found = self._choose(library, self._read(library, file))
                    self._files[who] = _File(found)
                    if found:
                        self._waiting.append(self._files[who])
                self._files[who].libraries[library.pid] = library
        except OSError as error:
            logger.debug("cannot watch %s: %s", library.path, error)

    def _read(self, library: MappedLibrary, file: BinaryIO) -> list[Function]:
        try:
            return self._finder.find(library.family, file)
        except DecodeError as error:
            logger.warning("cannot watch %s: %s", library.path, error)
            return []

    def _choose(self, library: MappedLibrary, found: list[Function]) -> list[Function]:
        dear = [
            one
            for one in found
            if one.is_dear and not self._takes_dear and not isinstance(one.call, Lifetime)
        ]
        chosen = [one for one in found if one not in dear]
        logger.info("%s: %d functions are watched", library.path, len(chosen))
        if dear:
            names = ", ".join(one.name for one in dear)
            logger.info("%s: left out, as a probe is dear there: %s", library.path, names)
            seen = {one.name for one in chosen}
            if any(CALLED_THROUGH.get(one.name) not in seen for one in dear):
                self.degraded = Reason.SLOW_FUNCTIONS
        return chosen

    def _attach(self, file: _File) -> None:
        """Attach to the functions of a library, through any process that runs the file."""
        for library in list(file.libraries.values()):
            try:
                opened = library.open(self._root)
            except OSError:  # the process has ended
                continue
            with opened:
                path = Path(f"/proc/self/fd/{opened.fileno()}")
                calls, lifetimes = self._places(file)
                if not calls:
                    return
                try:
                    file.probes = self._program.attach(path, calls)
                except UnavailableError as error:
                    logger.warning("cannot watch %s: %s", library.path, error)
                    return
                if lifetimes:  # when every operation is counted
                    file.lifetimes = self._lifetimes.attach(path, lifetimes)
            return

    def _places(self, file: _File) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return where probes go and what they are told: in calls, and in what makes and ends communicators."""
        calls, lifetimes = [], []
        for one in file.functions:
            if isinstance(one.call, Lifetime):
                lifetimes.append((one.offset, one.call.cookie))
            elif self._level > 1 or not one.call.is_frequent:
                calls.append((one.offset, one.call.cookie))
        return calls, lifetimes

    def _detach(self, *files: _File) -> None:
        is_counted = False
        for file in files:
            if file.lifetimes is not None:
                self._lifetimes.detach(file.lifetimes)
                file.lifetimes, is_counted = None, True
            if file.probes is not None:
                self._program.detach(file.probes)
                file.probes = None
        if is_counted:
            others = [one for one in self._files.values() if one.lifetimes is not None]
            self._lifetimes.keep(lambda pid: any(pid in one.libraries for one in others))

    def _settle(self) -> None:
        """Say what is in the way now."""
        self.missing = None
        families = {one.family for file in self._files.values() for one in file.libraries.values()}
        if families - {NCCL} or (families and not self._needs_driver):
            if not any(file.functions for file in self._files.values()):
                self.missing = Reason.NO_CUDA_FUNCTIONS
        elif not self._has_driver:
            self.missing = Reason.NO_DRIVER
        elif self._processes:
            self.missing = Reason.NO_CUDA
