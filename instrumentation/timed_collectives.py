"""Collectives of NCCL with the device's own durations, for one step in many.

    step 31     32 (measured)        33           34
    |--------|--[#7]--[#8]--------|----------|----------|
                 kept back                   ^ the ring is read once, and both are written

Reading the ring takes the training thread some 20 us an entry of it, so a step is measured when its number divides by
a power of two that keeps this below `MAX_COST_RATIO` of the time. Ranks of a job take the same time for a step and have
rings of the same size, so they measure the same steps, or at least every other rank's next but one. The collectives of
a measured step are kept back until a later step has ended, and written as all others are, with their duration where the
ring has it. Must not know torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rootwalk.instrumentation.flight_times import Timed, read_times

__all__ = ["TimedCollectives"]

ENTRY_COST_S: Final = 22e-6
MAX_COST_RATIO: Final = 0.003
# A ring that takes longer is not read at all.
MAX_READ_S: Final = 0.1
MAX_HELD: Final = 4096
MAX_PERIOD: Final = 1 << 20
# PyTorch's watchdog looks for ended operations every 100 ms.
WATCHDOG_NS: Final = 300_000_000
MAX_HELD_NS: Final = 4_000_000_000
# A recorder's hook and ours are called one after the other.
CLOCK_SLACK_NS: Final = 50_000_000
# Steps that say how long one takes.
PACE: Final = 0.25


class _Held(NamedTuple):
    """A collective that is not written yet: when it was called and issued, and what writes it."""

    key: tuple[str, int]
    bounds_mono_ns: tuple[int, int]
    write: Callable[..., object]


class TimedCollectives:
    """Keeps the collectives of measured steps back until their durations can be read.

    Args:
        dumps: Each returns a dump of a ring.
        entries: Entries of a ring.
        to_unix_ns: What makes a time of the monotonic clock Unix time, ns.
        is_capturing: Whether the training thread captures a CUDA graph, in which nothing may ask the device.
        now: The monotonic clock, ns.
    """

    def __init__(
        self,
        dumps: list[Callable[[], bytes]],
        entries: int,
        to_unix_ns: int,
        is_capturing: Callable[[], bool],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._dumps = dumps
        self._to_unix_ns = to_unix_ns
        self._is_capturing = is_capturing
        self._now = now
        self._held: list[_Held] = []
        self._held_step = -1
        self._cost_s = entries * ENTRY_COST_S
        self._is_on = bool(dumps) and entries > 0 and self._cost_s <= MAX_READ_S
        self._step_s = 0.0
        self._last_end_ns = 0
        self._last_step = -1
        self._period = 0
        self.reads = 0
        self.read_s = 0.0

    def holds(self, step: int) -> bool:
        """Return whether the collectives of a step are to be kept back: not while another step's still are."""
        period, held = self._period, self._held
        if period == 0 or step % period or len(held) >= MAX_HELD:
            return False
        return not held or step == self._held_step

    def hold(
        self,
        step: int,
        key: tuple[str, int],
        bounds_mono_ns: tuple[int, int],
        write: Callable[..., object],
    ) -> None:
        """Keep a collective back.

        Args:
            step: Number of its step, which `holds`.
            key: PyTorch's name of its group, and its number there.
            bounds_mono_ns: When it was called, and when it was issued.
            write: Writes it; takes `device_ns`, None where not known.
        """
        self._held_step = step
        self._held.append(_Held(key, bounds_mono_ns, write))

    def end_step(self, step: int) -> None:
        """Note that a step has ended: read the ring if something is old enough, and set the pace.

        Args:
            step: Its number; that of several optimisers' updates is one.
        """
        if step == self._last_step:
            return
        self._last_step = step
        now = self._now()
        if self._last_end_ns:
            step_s = (now - self._last_end_ns) / 1e9
            self._step_s += (step_s - self._step_s) * (PACE if self._step_s else 1.0)
            self._set_period()
        self._last_end_ns = now
        held = self._held
        if not held or step == self._held_step:
            return
        age_ns = now - held[-1].bounds_mono_ns[1]
        if age_ns > MAX_HELD_NS:
            self.flush()
        elif age_ns > WATCHDOG_NS and not self._is_capturing():
            self._write(self._read())

    def flush(self) -> None:
        """Write all that is kept back, without durations."""
        self._write({})

    def _set_period(self) -> None:
        if not self._is_on or self._step_s <= 0.0:
            self._period = 0
            return
        wanted = self._cost_s / (MAX_COST_RATIO * self._step_s)
        period = 1
        while period < wanted and period < MAX_PERIOD:
            period *= 2
        # What was measured is read in a later step: two at least.
        self._period = max(period, 2)

    def _read(self) -> dict[tuple[str, int], Timed]:
        began = time.perf_counter()
        since = self._held[0].bounds_mono_ns[0] + self._to_unix_ns - CLOCK_SLACK_NS
        found: dict[tuple[str, int], Timed] = {}
        for dump in list(self._dumps):
            try:
                times = read_times(dump(), since)
            except (RuntimeError, TypeError, ValueError):
                self._dumps.remove(dump)  # a ring that this PyTorch, or this job, does not have
                continue
            found.update(times)
        self.reads += 1
        self.read_s = time.perf_counter() - began
        if self.read_s > MAX_READ_S or not self._dumps:
            self._is_on, self._period = False, 0
        return found

    def _write(self, found: dict[tuple[str, int], Timed]) -> None:
        held, self._held = self._held, []
        for one in held:
            timed = found.get(one.key)
            low, high = (bound + self._to_unix_ns for bound in one.bounds_mono_ns)
            # Another collective under this number, as when the recorder counts otherwise, is not this one.
            is_same = timed is not None and (
                low - CLOCK_SLACK_NS <= timed.created_unix_ns <= high + CLOCK_SLACK_NS
            )
            one.write(device_ns=timed.device_ns if timed is not None and is_same else None)
