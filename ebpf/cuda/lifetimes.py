"""Probes in the functions of NCCL that make and end communicators, and what they have told.

A communicator is made once and counted ever after, so these functions are watched even where a probe is dear, and only
while those of the operations are: when they are taken away, what is known of their processes is forgotten, since what
is called from then on is not counted.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rootwalk.ebpf.cuda.communicators import COMMUNICATOR_KEY, Communicators, Pairs
from rootwalk.ebpf.function_probes import FunctionProbes, Probes
from rootwalk.ebpf.libbpf import BpfMap, BpfObject
from rootwalk.ebpf.reader import Measurement
from rootwalk.ebpf.targets import read_losses
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["DROP_REASONS", "LifetimeProbes"]

_Pairs = list[tuple[bytes, bytes]]
PID = struct.Struct("<I")
logger = logging.getLogger(__name__)

# In the order of `enum communicator_counter`.
DROP_REASONS = ("bpf_communicators_full", "bpf_communicators_unreadable")


class LifetimeProbes:
    """The program of creations; it is loaded with the first library of NCCL.

    Args:
        calls: The loaded program of the operations, whose table of communicators it fills.
        targets: Which processes are watched.
    """

    def __init__(self, calls: FunctionProbes, targets: BpfMap) -> None:
        self._calls, self._targets = calls, targets
        self._present, self._unfinished = calls.maps["communicators"], calls.maps["unfinished"]
        self._program: FunctionProbes | None = None
        self._there: tuple[_Pairs, _Pairs] = [], []
        self.communicators = Communicators()

    def attach(self, path: Path, places: Sequence[tuple[int, int]]) -> Probes | None:
        """Attach to functions of a file, those of the operations in it being watched; None where that cannot be."""
        try:
            if self._program is None:
                self._program = FunctionProbes(
                    *("nccl", "on_create", "on_created", self._configure),
                    by_file=self._calls.by_file,
                    is_checked=True,
                )
            return self._program.attach(path, places)
        except UnavailableError as error:
            logger.warning("cannot number the operations of %s: %s", path, error)
            return None

    def _configure(self, opened: BpfObject) -> None:
        opened.share(self._targets)
        opened.share(self._present)
        opened.share(self._unfinished)

    def detach(self, probes: Probes) -> None:
        """Take probes away; `keep` is to be called once those of the operations are gone."""
        if self._program is not None:
            self._program.detach(probes)

    def keep(self, is_watched: Callable[[int], bool]) -> None:
        """Forget the communicators of processes that are not watched, by their pids."""
        for pair in self._present.items():
            if not is_watched(COMMUNICATOR_KEY.unpack(pair[0])[0]):
                self._present.delete(pair[0])
        for pair in self._unfinished.items():
            if not is_watched(PID.unpack(pair[0])[0]):
                self._unfinished.delete(pair[0])

    def take(self, is_alive: Callable[[int], bool]) -> None:
        """Learn what was made up to now, and what of it is there.

        Args:
            is_alive: Whether a process is, by its pid: a child of a rank's may have ended unseen.
        """
        self.keep(functools.cache(is_alive))
        # In this order: what was made is known of everything that is there.
        self._there = self._unfinished.items(), self._present.items()
        self.learn(self._there[1])

    def learn(self, present: Pairs = ()) -> None:
        """Learn what was made up to now, and where it lies."""
        if self._program is not None:
            self.communicators.take(self._program.maps["births"].items(take=True), present)

    def measure(self, now_s: float, slots: set[int]) -> Iterator[Measurement]:
        """Yield how far ranks were when it was taken; forget those that have ended.

        Args:
            now_s: Monotonic clock, s.
            slots: The ranks that are watched.
        """
        self.communicators.forget(lambda slot: slot not in slots)
        return self.communicators.measure(*self._there, now_s)

    def losses(self) -> Mapping[str, int]:
        """Return what the program could not keep since it was loaded."""
        if self._program is None:
            return dict.fromkeys(DROP_REASONS, 0)
        return read_losses(self._program.maps["counters"], DROP_REASONS)

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns."""
        return self._program.run_time_ns() if self._program is not None else {}

    def close(self) -> None:
        """Detach and unload; safe twice."""
        if self._program is not None:
            self._program.close()
