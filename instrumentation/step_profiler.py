"""A few steps of this rank in PyTorch's own profiler, when an agent asks for them: `rootwalk level 2 --trace-steps`.

    asked        |        step 7       |        step 8       |        step 9 |
    update of 6 -^ profiler starts     ^ ProfilerStep#8 begins               ^ update of 9: profiler stops, file written

The trace is Chrome's, with the steps marked as `torch.profiler` marks them and numbered as Rootwalk numbers them, so
that `rootwalk import kineto` reads it. It is written by the thread that trains: a trace costs its rank time, and the
others wait. Where the program runs the profiler itself, nothing is traced; where it begins to while we trace, its call
fails, as PyTorch has one profiler a process. An error of ours costs the trace and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rootwalk.instrumentation.own_folder import make_own_folder
from rootwalk.instrumentation.ring_layout import MAX_TRACE_STEPS, TRACE_STEPS_BITS
from rootwalk.instrumentation.runtime import Runtime

__all__ = ["StepProfiler", "trace_directory"]

logger = logging.getLogger(__name__)

# Whatever was asked for: a trace of a minute has millions of events.
MAX_TRACE_S: Final = 60.0


def trace_directory() -> Path:
    """Return where traces of steps are written; ROOTWALK_TRACE_DIRECTORY overrides it."""
    override = os.environ.get("ROOTWALK_TRACE_DIRECTORY")
    if override:
        return Path(override)
    return Path(tempfile.gettempdir()) / f"rootwalk-traces-{os.getuid()}"


class StepProfiler:
    """Looks once a step whether an agent has asked for a trace, and makes it.

    Args:
        runtime: The process's instrumentation.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen = 0
        self._profiler: Any = None
        self._mark: Any = None
        self._first_step = self._last_step = 0
        self._left = 0
        self._deadline_s = 0.0
        self._pid = 0

    def look(self) -> None:
        """Note that an optimiser's update has ended."""
        tracker = self._runtime.tracker
        if tracker is None:
            if self._profiler is not None:
                self._drop()
            return
        try:
            if self._profiler is not None:
                if tracker.step != self._last_step:
                    self._next(tracker.step)
                return
            asked = tracker.ring.asked_trace
            if asked != self._seen:
                self._seen = asked
                steps = min(asked & (1 << TRACE_STEPS_BITS) - 1, MAX_TRACE_STEPS)
                if steps:
                    self._start(tracker.step, steps)
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: a trace is not worth a job)
            logger.warning("rootwalk traces no steps of this rank: %r", error)
            self._drop()

    def _start(self, step: int, steps: int) -> None:
        """Begin with the step after this one."""
        torch = sys.modules["torch"]
        if torch.autograd._profiler_enabled():
            logger.warning("rootwalk traces no steps of this rank: the program runs the profiler")
            return
        profiler = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(activities=activities)
        self._profiler.start()
        self._first_step, self._last_step, self._left = step + 1, step, steps
        self._deadline_s = time.monotonic() + MAX_TRACE_S
        self._pid = os.getpid()
        atexit.register(self._finish)
        self._open(step + 1)

    def _open(self, step: int) -> None:
        profiler = sys.modules["torch.profiler"]
        self._mark = profiler.record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()

    def _close(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _next(self, step: int) -> None:
        """End a step; begin the next one, or write the file."""
        self._close()
        self._last_step = step
        self._left -= 1
        if self._left <= 0 or time.monotonic() > self._deadline_s:
            self._finish()
        else:
            self._open(step + 1)

    def _finish(self) -> None:
        """Write what was traced."""
        atexit.unregister(self._finish)
        if os.getpid() != self._pid:
            return  # a child that was forked meanwhile
        self._close()
        profiler, self._profiler = self._profiler, None
        tracker = self._runtime.tracker
        if profiler is None:
            return
        profiler.stop()
        if tracker is None:
            return
        who = tracker.ring.identity
        folder = trace_directory()
        make_own_folder(folder, is_chosen="ROOTWALK_TRACE_DIRECTORY" in os.environ)
        name = f"rank{who.rank}-steps{self._first_step}-{who.pid}.pt.trace.json"
        # A new file with a name that nobody can foretell: else it could be a link to another file of this user.
        descriptor, draft = tempfile.mkstemp(prefix=f".{name}.", suffix=".new", dir=folder)
        os.close(descriptor)
        profiler.export_chrome_trace(draft)
        Path(draft).rename(folder / name)  # nobody reads half of one

    def _drop(self) -> None:
        """Let go of the profiler."""
        atexit.unregister(self._finish)
        profiler, self._profiler = self._profiler, None
        with contextlib.suppress(Exception):
            self._close()
        if profiler is not None:
            with contextlib.suppress(Exception):
                profiler.stop()
