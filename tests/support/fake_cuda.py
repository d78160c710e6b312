"""A stand-in for what is used of `torch.cuda`: one stream of a device that works as far as the test lets it."""

from __future__ import annotations


class FakeEvent:
    """A place in the fake device's stream."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._place = -1

    def record(self) -> None:
        """Stand behind all that was enqueued."""
        self._cuda.check()
        self._cuda.records += 1
        self._place = len(self._cuda.work)

    def query(self) -> bool:
        """Return whether the device has come here."""
        self._cuda.check()
        self._cuda.queries += 1
        return self._cuda.done >= self._place

    def elapsed_time(self, end: FakeEvent) -> float:
        """Return milliseconds from here to there, as `torch.cuda.Event` does."""
        assert self.query(), "asked before it was passed"
        assert end.query(), "asked before it was passed"
        return sum(self._cuda.work[self._place : end._place])


class FakeCuda:
    """The module.

    Attributes:
        work: Milliseconds of each thing that was enqueued.
        done: How many of them the device has done.
        events: How many events were made.
    """

    def __init__(self) -> None:
        self.work: list[float] = []
        self.done = 0
        self.events = self.records = self.queries = 0
        self.is_capturing = self.has_failed = False
        self.is_ready = True

    def check(self) -> None:
        """Refuse what a capture would refuse, and everything once the device has failed."""
        if self.is_capturing:
            raise AssertionError("asked during a capture")
        if self.has_failed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802  (torch's name)
        """Return a new event."""
        assert enable_timing
        self.check()
        self.events += 1
        return FakeEvent(self)

    def is_initialized(self) -> bool:
        """Return whether the program has used the device."""
        return self.is_ready

    def is_current_stream_capturing(self) -> bool:
        """Return whether a graph is captured."""
        return self.is_capturing

    def enqueue(self, milliseconds: float) -> None:
        """Give the device work."""
        self.work.append(milliseconds)

    def catch_up(self) -> None:
        """Let the device do all of it."""
        self.done = len(self.work)
