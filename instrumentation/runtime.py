"""The instrumentation of one process: whether it is on, who it is, and the guard around everything it does.

A process becomes a rank when it first does what ranks do (joins a process group, runs a backward pass, ...): launchers
and helpers that merely import torch never make a ring. A child that a rank forks is none: it goes silent. Standard
library only, until a process without a host agent has to send by itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rootwalk.instrumentation.identity import is_rank, read_identity
from rootwalk.instrumentation.shared_ring import RingWriter
from rootwalk.instrumentation.tracker import StepTracker

if TYPE_CHECKING:
    from rootwalk.instrumentation.self_export import SelfExporter

__all__ = ["Runtime", "is_disabled"]

logger = logging.getLogger(__name__)

TRUE_VALUES: Final = frozenset({"1", "true", "yes", "on"})


def is_disabled() -> bool:
    """Return whether the user has switched the instrumentation off."""
    names = ("ROOTWALK_DISABLED", "OTEL_SDK_DISABLED")
    return any(os.environ.get(name, "").strip().lower() in TRUE_VALUES for name in names)


class Runtime:
    """What the hooks of one process share. Every public method is safe to call from a hook: none raises."""

    def __init__(self) -> None:
        self.is_active = True
        self.failure: str | None = None
        self._tracker: StepTracker | None = None
        self._rank: int | None = None
        self._world_size: int | None = None
        self._exporter: SelfExporter | None = None
        os.register_at_fork(after_in_child=self._forget)

    def guard(self, action: Callable[[], object]) -> None:
        """Run an action; an error switches the instrumentation off for this process instead of reaching the job."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  (outermost frame: training code must never see it)
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Switch off after an error, and say so once."""
        if self.is_active:
            self.is_active = False
            self.failure = repr(error)
            logger.warning("rootwalk instrumentation is off in this process: %r", error)

    def learn_identity(self, rank: int, world_size: int) -> None:
        """Note what the default process group says: it knows better than the environment."""
        self._rank, self._world_size = rank, world_size

    def ensure_tracker(self) -> StepTracker | None:
        """Return the rank's tracker, made at the first call; None when off."""
        if self._tracker is None and self.is_active:
            self.guard(self._start)
        return self._tracker if self.is_active else None

    def _start(self) -> None:
        identity = read_identity(os.environ, rank=self._rank, world_size=self._world_size)
        tracker = StepTracker(RingWriter(identity))
        self._tracker = tracker
        atexit.register(self._stop)
        endpoint = os.environ.get("ROOTWALK_ENDPOINT") or os.environ.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT", ""
        )
        if endpoint:
            from rootwalk.instrumentation.self_export import SelfExporter

            self._exporter = SelfExporter(tracker.ring, endpoint)
            self._exporter.start()

    def _stop(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        self.guard(tracker.close)
        if self._exporter is not None:
            self.guard(self._exporter.stop)
        elif tracker.ring.reader_age_ns() is None and not os.environ.get("ROOTWALK_KEEP_RING"):
            # Nobody was ever here to read it, and nobody is told where to send it.
            self.guard(tracker.ring.path.unlink)
        self.is_active = False

    def _forget(self) -> None:
        """Go silent in a child that a rank forked: the ring is the parent's. A launcher's child may become a rank."""
        if self._tracker is None and self.is_active:
            return
        self.is_active = False
        self._tracker = None

    def begin_phase(self, phase: str) -> bool:
        """Begin a phase; return whether `end_phase` must follow."""
        if not self.is_active:
            return False
        try:
            tracker = self._tracker
            if tracker is None:
                # Loading data is not yet what only ranks do, unless a launcher says that this is one.
                if phase == "data_load" and not is_rank(os.environ):
                    return False
                if threading.current_thread() is not threading.main_thread():
                    return False
                tracker = self.ensure_tracker()
                if tracker is None:
                    return False
            return tracker.begin_phase(phase)
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
            self.fail(error)
            return False

    def end_phase(self) -> None:
        """End the phase that `begin_phase` began."""
        tracker = self._tracker
        if self.is_active and tracker is not None:
            try:
                tracker.end_phase()
            except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
                self.fail(error)

    def end_optimizer(self) -> None:
        """End an optimiser update."""
        tracker = self._tracker
        if self.is_active and tracker is not None:
            try:
                tracker.end_optimizer()
            except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
                self.fail(error)
