"""A ring and a tracker on a clock that the test moves."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.shared_ring import Record, RingReader, RingWriter
from rootwalk.instrumentation.tracker import StepTracker


def identity(rank: int = 0, world_size: int = 2) -> Identity:
    """Return a rank of job j1 on host h1."""
    return Identity("j1", 0, rank, rank, world_size, 1000 + rank, "id-h1", "h1", "rootwalk")


@dataclass
class FakeClock:
    """Monotonic time in ns that only the test moves."""

    now_ns: int = 1_000

    def __call__(self) -> int:
        return self.now_ns


class Rank:
    """A tracker writing into a real ring in a folder, read back by a real reader."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.clock = FakeClock()
        self.writer = RingWriter(identity(rank), folder)
        self.cpu_clock = FakeClock()
        self.watch = GcWatch(self.clock, self.cpu_clock)
        self.tracker = StepTracker(self.writer, self.clock, self.watch)
        self.reader = RingReader(self.writer.path)

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        """Run one phase."""
        self.clock.now_ns = start_ns
        counts = self.tracker.begin_phase(name)
        self.clock.now_ns = end_ns
        if counts and name == "optimizer":
            self.tracker.end_optimizer()
        elif counts:
            self.tracker.end_phase()

    def collect(self, start_ns: int, end_ns: int, cpu_ns: int | None = None) -> None:
        """Let the interpreter's callbacks see one collection; it took all of that time on a CPU unless told."""
        (callback,) = [one for one in gc.callbacks if getattr(one, "__self__", None) is self.watch]
        self.clock.now_ns = start_ns
        callback("start", {"generation": 2, "collected": 0, "uncollectable": 0})
        self.clock.now_ns = end_ns
        self.cpu_clock.now_ns += end_ns - start_ns if cpu_ns is None else cpu_ns
        callback("stop", {"generation": 2, "collected": 5, "uncollectable": 0})

    def records(self) -> list[Record]:
        """Return everything written so far."""
        return self.reader.read(100_000)

    def close(self) -> None:
        """Release the reader and the interpreter's callback."""
        self.watch.remove()
        self.reader.close()
