"""A rank that is stopped and goes on, by signals or by a freezer."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gauntlet.case import Effect
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import UnavailableError

FREEZER = Path("/sys/fs/cgroup/freezer")
PATIENCE_S = 5.0


class DutyCycle:
    """Holds a process up again and again.

    Args:
        hold_s: For so long.
        every_s: So often.
        least_s: Time held that there has to be, s.
    """

    def __init__(self, hold_s: float = 0.15, every_s: float = 0.6, least_s: float = 1.0) -> None:
        self._hold_s, self._every_s, self._least_s = hold_s, every_s, least_s
        self._held_s = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._target: Target | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Nothing is needed."""

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def _hands(self, target: Target) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return what holds the process, and what lets it go."""
        return (
            lambda: os.kill(target.pid, signal.SIGSTOP),
            lambda: os.kill(target.pid, signal.SIGCONT),
        )

    def start(self, target: Target) -> None:
        """Begin."""
        self._target = target
        self.resume()

    def resume(self) -> None:
        """Hold it up, in a thread."""
        assert self._target is not None
        hold, release = self._hands(self._target)
        self._over.clear()

        def work() -> None:
            while not self._over.is_set():
                try:
                    hold()
                    began_s = time.monotonic()
                    time.sleep(self._hold_s)
                    self._held_s += time.monotonic() - began_s
                except OSError:  # the job is over
                    return
                finally:
                    with contextlib.suppress(OSError):
                        release()
                self._over.wait(self._every_s - self._hold_s)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def effect(self) -> Effect:
        """Return for how long the process was held."""
        return Effect(self._held_s, "s held", self._least_s)

    def pause(self) -> None:
        """Let go."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stop(self) -> None:
        """Let go for good."""
        self.pause()


class Freezer(DutyCycle):
    """The same by a control group's freezer of version 1."""

    def __init__(self) -> None:
        super().__init__()
        self._group = FREEZER / f"rootwalk-gauntlet-{os.getpid()}"

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the group."""
        try:
            self._group.mkdir()
        except OSError as error:
            raise UnavailableError(
                f'cannot make the group "{self._group}": {error.strerror}', reason="NO_CGROUP"
            ) from error

    def _hands(self, target: Target) -> tuple[Callable[[], object], Callable[[], object]]:
        (self._group / "cgroup.procs").write_text(str(target.pid))
        state = self._group / "freezer.state"
        return lambda: state.write_text("FROZEN"), lambda: state.write_text("THAWED")

    def stop(self) -> None:
        """Thaw, and remove the group."""
        super().stop()
        if not self._group.exists():
            return
        with contextlib.suppress(OSError):
            (self._group / "freezer.state").write_text("THAWED")
        for pid in (self._group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (FREEZER / "cgroup.procs").write_text(pid)
        deadline_s = time.monotonic() + PATIENCE_S
        while self._group.exists():
            try:
                self._group.rmdir()
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
