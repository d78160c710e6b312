"""The reader of stacks, opened on request only: follows the ranks' processes, and holds samples until they are sent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from rootwalk.ebpf.availability import TIER_CAPABILITIES
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.ebpf.stacks.program import StackProgram
from rootwalk.ebpf.stacks.reader import StackSample, StackSource

__all__ = ["StackReader"]

logger = logging.getLogger(__name__)

# 99 samples a second of 64 threads for 5 s; some 150 bytes each. The oldest make room.
MAX_HELD = 32_768
# A rate that the budget does not allow is halved so often at most.
MAX_HALVINGS = 6


class StackReader(Reader):
    """The loaded program, and what it told.

    Args:
        place: Where to look.
        hz: Samples a second and CPU, 1 to 99.
        left_out: Slots of ranks of which none are taken.

    Raises:
        UnavailableError: With a `Reason` when it cannot be loaded here.
    """

    sensor = "stacks"
    tier = TIER_CAPABILITIES
    backend = "core"

    def __init__(self, place: Place, hz: int, left_out: frozenset[int] = frozenset()) -> None:
        self.hz = hz
        self._program = StackProgram(hz, place.need_targets().map, left_out=left_out)
        self._source = StackSource(self._program)
        self._held: deque[StackSample] = deque(maxlen=MAX_HELD)
        self._dropped = 0
        self._told_reasons: set[str] = set()
        self._is_open = True

    def watch(self, pid: int, slot: int) -> None:
        """Look for a process's interpreter; say once for each reason why Python stacks are not read."""
        refused = self._source.watch(pid)
        if refused is not None and refused.reason not in self._told_reasons:
            self._told_reasons.add(refused.reason)
            logger.warning("profiles have no Python functions of process %d: %s", pid, refused)

    def forget(self, pid: int) -> None:
        """Let go of a process; safe when it is not known."""
        self._source.forget(pid)

    def look(self) -> None:
        """Take what the program has."""
        samples = self._source.take()
        self._dropped += max(len(self._held) + len(samples) - MAX_HELD, 0)
        self._held.extend(samples)

    def take(self) -> list[StackSample]:
        """Return what is held, and hold it no longer."""
        samples = list(self._held)
        self._held.clear()
        return samples

    @property
    def is_filling(self) -> bool:
        """Whether half of what can be held is."""
        return len(self._held) >= MAX_HELD // 2

    def lower(self, rung: int) -> None:
        """Take fewer samples: half as many for each step of detail that was given up for the budget."""
        if self._is_open:
            self._program.set_rate(max(self.hz >> min(rung, MAX_HALVINGS), 1))

    def choose(self, hz: int, left_out: frozenset[int]) -> None:
        """Take so many samples a second and CPU, before anything is given up for the budget; none of some slots."""
        self.hz = hz
        if self._is_open:
            self._program.leave_out(left_out)

    @property
    def rate_hz(self) -> int:
        """How many samples a second and CPU are taken now."""
        return self._program.hz

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        return {**self._source.losses(), "stacks_held_full": self._dropped}

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._program.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        if self._is_open:
            self._is_open = False
            logger.info("stacks: without a name %s", self._source.unknowns())
            self._source.close()
            self._program.close()
