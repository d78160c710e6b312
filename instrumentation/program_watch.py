"""What a training program does beside its steps: compilations, evaluations, retries of the device's allocator.

    torch.compile    |-- trace --|-- backend --|        in the step whose call needed it
    evaluation       model.eval() |---------| model.train()
    allocator        num_alloc_retries, read at the end of each step

Each watch is told by a hook (`torch_hooks`), and writes through the rank's tracker. It must not know torch's modules,
and nothing of it makes a tracker: a process that only compiles, or only evaluates, is no rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from rootwalk.instrumentation.runtime import Runtime

__all__ = ["AllocatorWatch", "CompilationWatch", "EvaluationWatch"]

EVALUATION = "evaluation"


class CompilationWatch:
    """Writes each compilation; those within another one are a part of it.

    Args:
        runtime: The process's instrumentation.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._depth = 0
        self._start: int | None = None

    def begin(self) -> None:
        """A compilation begins."""
        self._depth += 1
        if self._depth == 1:
            self._start = None
            self._runtime.guard(self._begin)

    def end(self) -> None:
        """The compilation that began last has ended."""
        self._depth -= 1
        if self._depth == 0:
            self._runtime.guard(self._end)

    def _begin(self) -> None:
        tracker = self._runtime.tracker
        self._start = tracker.begin_compilation() if tracker is not None else None

    def _end(self) -> None:
        tracker = self._runtime.tracker
        if tracker is not None and self._start is not None:
            tracker.end_compilation(self._start, is_main=tracker.thread.is_current)


class AllocatorWatch:
    """Writes how often the allocator of device memory had to give its cache back, for steps in which it had.

    Args:
        runtime: The process's instrumentation.
        count: Returns how often so far; None where there is no device.
    """

    def __init__(self, runtime: Runtime, count: Callable[[], int | None]) -> None:
        self._runtime = runtime
        self._count = count
        self._last: int | None = None
        self._is_readable = True

    def look(self) -> None:
        """Note the end of a step."""
        if self._is_readable and self._runtime.is_active:
            self._runtime.guard(self._look)

    def _look(self) -> None:
        try:
            count = self._count()
        except (AttributeError, KeyError, RuntimeError, TypeError):
            # Another allocator than PyTorch's own: it is not asked again.
            self._is_readable = False
            return
        last, self._last = self._last, count
        tracker = self._runtime.tracker
        if tracker is not None and count is not None and last is not None and count > last:
            tracker.note_retries(count - last)


class EvaluationWatch:
    """Follows the model that is trained into evaluation and back.

    A model that was never trained, as a teacher is, may be switched to evaluation and stay there: only one that was
    in training when a step had ended begins an evaluation.

    Args:
        runtime: The process's instrumentation.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._model: weakref.ref[Any] | None = None

    def switched(self, model: Any, *, was_training: bool, is_training: bool) -> None:
        """A model was switched from training to evaluation, or back, with all that is in it."""
        if self._runtime.is_active and was_training != is_training:
            self._runtime.guard(lambda: self._switched(model, is_training))

    def _switched(self, model: Any, is_training: bool) -> None:
        tracker = self._runtime.tracker
        if tracker is None or not tracker.thread.is_current:
            return
        if is_training:
            if tracker.is_evaluating and self._model is not None and self._model() is model:
                self._runtime.end_phase()
            return
        is_trained = tracker.has_stepped and any(one.requires_grad for one in model.parameters())
        if is_trained and self._runtime.begin_phase(EVALUATION):
            self._model = weakref.ref(model)
