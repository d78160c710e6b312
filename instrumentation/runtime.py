"""The instrumentation of one process: whether it is on, who it is, and the guard around everything it does.

A process becomes a rank when it first does what ranks do (joins a process group, runs a backward pass, ...): launchers
and helpers that merely import torch never make a ring. A child that a rank forks is none: it goes silent, until it
joins a process group of its own. Standard library only, until a process without a host agent has to send by itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.identity import is_rank, read_identity
from rootwalk.instrumentation.predecessor import take_over
from rootwalk.instrumentation.program_end import (
    describe_exception,
    find_exception,
    has_inherited_rank,
)
from rootwalk.instrumentation.pyroscope_sampler import PyroscopeSampler, start_sampler
from rootwalk.instrumentation.shared_ring import RingWriter, Stage
from rootwalk.instrumentation.tracker import StepTracker

if TYPE_CHECKING:
    from rootwalk.instrumentation.self_export import SelfExporter

__all__ = ["Runtime", "is_disabled", "is_false"]

logger = logging.getLogger(__name__)

TRUE_VALUES: Final = frozenset({"1", "true", "yes", "on"})
FALSE_VALUES: Final = frozenset({"0", "false", "no", "off"})


def is_disabled() -> bool:
    """Return whether the user has switched the instrumentation off."""
    names = ("ROOTWALK_DISABLED", "OTEL_SDK_DISABLED")
    return any(os.environ.get(name, "").strip().lower() in TRUE_VALUES for name in names)


def is_false(name: str) -> bool:
    """Return whether the user has switched something off by an environment variable."""
    return os.environ.get(name, "").strip().lower() in FALSE_VALUES


def own_level() -> int:
    """Return the detail that the environment asks for: 0 for steps and phases only."""
    return 0 if os.environ.get("ROOTWALK_LEVEL") == "0" else 1


class Runtime:
    """What the hooks of one process share. Every public method is safe to call from a hook: none raises."""

    def __init__(self) -> None:
        self.is_active = True
        self.failure: str | None = None
        self._tracker: StepTracker | None = None
        self._rank: int | None = None
        self._world_size: int | None = None
        self._exporter: SelfExporter | None = None
        self._sampler: PyroscopeSampler | None = None
        self._watch = GcWatch()
        self._is_forked = False
        self._level = own_level()
        self._stage: Stage | None = None
        self._followers: list[Callable[[int], None]] = []
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
            self.switch_off()
            self.failure = repr(error)
            logger.warning("rootwalk instrumentation is off in this process: %r", error)

    def switch_off(self) -> None:
        """Do nothing from now on."""
        self.is_active = False
        self._watch.remove()

    def learn_identity(self, rank: int, world_size: int) -> None:
        """Note what the default process group says: it knows better than the environment.

        A rank that had to guess before it joined the group begins again under its own number; a forked child that
        joins one is a rank after all.
        """
        self._rank, self._world_size = rank, world_size
        if self._is_forked:
            self._is_forked, self.is_active = False, True
        tracker = self._tracker
        if tracker is not None and (
            tracker.ring.identity.rank,
            tracker.ring.identity.world_size,
        ) != (rank, world_size):
            self._begin_again(tracker)

    def _begin_again(self, tracker: StepTracker) -> None:
        """Give up what was told under another number, unless somebody has read it already."""
        tracker.close()
        exporter, self._tracker, self._exporter = self._exporter, None, None
        sampler, self._sampler = self._sampler, None
        if exporter is not None:
            exporter.abandon()
        if sampler is not None:  # it has the other number's labels
            sampler.stop()
        if tracker.ring.reader_age_ns() is None:
            tracker.ring.path.unlink(missing_ok=True)

    def ensure_tracker(self) -> StepTracker | None:
        """Return the rank's tracker, made at the first call; None when off."""
        if self._tracker is None and self.is_active:
            self.guard(self._start)
        return self._tracker if self.is_active else None

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that a rank forked and that has joined no process group."""
        return self._is_forked

    @property
    def tracker(self) -> StepTracker | None:
        """The rank's tracker; None when off, and in a process that is no rank yet."""
        return self._tracker if self.is_active else None

    def _start(self) -> None:
        endpoint = os.environ.get("ROOTWALK_ENDPOINT") or os.environ.get(
            "OTEL_EXPORTER_OTLP_ENDPOINT", ""
        )
        identity = read_identity(os.environ, rank=self._rank, world_size=self._world_size)
        before = take_over(identity, is_sending=bool(endpoint))
        # Made here: in a child that was forked on the way, another thread may be the main one.
        self._watch.remove()
        self._watch = GcWatch()
        self._watch.install()
        self._tracker = StepTracker(RingWriter(before.identity), watch=self._watch)
        if (
            self._stage is Stage.RENDEZVOUS
        ):  # it begins again under the number that the group gave it
            self._tracker.begin_rendezvous()
        self._stop_at_exit()
        if endpoint:
            from rootwalk.instrumentation.self_export import SelfExporter

            self._exporter = SelfExporter(self._tracker.ring, endpoint, before.unsent)
            self._exporter.start()
        if self._sampler is None:
            self._sampler = start_sampler(before.identity)

    def begin_rendezvous(self, rank: int | None, world_size: int | None) -> None:
        """Note that this process waits for the other ranks, to make a process group.

        Args:
            rank: Global rank that the call names; None where it does not.
            world_size: Number of ranks that the call names; None where it does not.
        """
        self._stage = Stage.RENDEZVOUS
        self.guard(lambda: self._begin_rendezvous(rank, world_size))

    def _begin_rendezvous(self, rank: int | None, world_size: int | None) -> None:
        if rank is not None and world_size is not None:
            self.learn_identity(rank, world_size)
        elif not is_rank(os.environ):
            return  # which rank it is will be known when the group is there
        tracker = self.ensure_tracker()
        if tracker is not None:
            tracker.begin_rendezvous()

    def end_rendezvous(self, *, is_made: bool) -> None:
        """Note that the wait is over, and whether there is a process group now."""
        self._stage = None
        tracker = self._tracker
        if tracker is not None:
            self.guard(lambda: tracker.end_rendezvous(is_made=is_made))

    def note_exception(self, exception: BaseException) -> None:
        """Note the exception by which the program ends: its type and place."""
        self.guard(lambda: self._note_exception(exception))

    def _note_exception(self, exception: BaseException) -> None:
        if self._tracker is None and (
            not self.is_active or not is_rank(os.environ) or has_inherited_rank(os.environ)
        ):
            return
        tracker = self.ensure_tracker()
        if tracker is not None:
            tracker.ring.set_exception(tracker.now(), *describe_exception(exception))

    def _stop_at_exit(self) -> None:
        """Close the ring when the process ends, also where `multiprocessing` ends it without exit handlers."""
        atexit.register(self._stop)
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self._stop, exitpriority=0)

    def _stop(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is None:
            return
        atexit.unregister(self._stop)
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        exception = find_exception()
        if exception is not None:
            self.guard(
                lambda: tracker.ring.set_exception(tracker.now(), *describe_exception(exception))
            )
        self.guard(tracker.close)
        self.switch_off()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            self.guard(exporter.stop)
        elif tracker.ring.reader_age_ns() is None and not os.environ.get("ROOTWALK_KEEP_RING"):
            # Nobody was ever here to read it, and nobody is told where to send it.
            self.guard(tracker.ring.path.unlink)

    def _forget(self) -> None:
        """Go silent in a child that a rank forked: the ring is the parent's. A launcher's child may become a rank."""
        if self._tracker is None:
            return
        self._is_forked = self.is_active
        self.switch_off()
        self._tracker = self._exporter = self._sampler = None
        atexit.unregister(self._stop)

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
            is_counted = tracker.begin_phase(phase)
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
            self.fail(error)
            return False
        if is_counted and self._sampler is not None:
            self._sampler.begin_phase(phase, tracker.step)
        return is_counted

    def end_phase(self) -> None:
        """End the phase that `begin_phase` began."""
        tracker = self._tracker
        if self.is_active and tracker is not None:
            try:
                tracker.end_phase()
            except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
                self.fail(error)
            if self._sampler is not None:
                self._sampler.end_phase()

    def follow_level(self, follower: Callable[[int], None]) -> None:
        """Tell the level now, and whenever the host agent asks for another one: between steps, never in a hook."""
        self._followers.append(follower)
        self.guard(lambda: follower(self._level))

    def _look_at_level(self, asked: int | None) -> None:
        level = own_level() if asked is None else asked
        if level != self._level:
            self._level = level
            for follower in self._followers:
                follower(level)

    def end_optimizer(self) -> None:
        """End an optimiser update."""
        tracker = self._tracker
        if self.is_active and tracker is not None:
            try:
                tracker.end_optimizer()
                self._look_at_level(tracker.ring.asked_level)
            except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
                self.fail(error)
            if self._sampler is not None:
                self._sampler.end_phase()
