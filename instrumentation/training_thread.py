"""Decides which thread of a rank trains: only its phases belong to the rank's steps. Standard library only.

The first thread that runs a phase is taken for it, until another one runs the model's passes or an optimiser first: it
may only have loaded data before. From then on the phases of other threads (a checkpoint that is written in the
background, input that is loaded ahead) do not count. A loop that goes on in another thread, as when each training of a
process has its own, is noticed by two updates without a phase of the old thread between them.
"""

from __future__ import annotations

import threading

__all__ = ["TrainingThread"]

TRAINING_PHASES = frozenset({"forward", "backward", "optimizer"})
# One update of another thread may be anything; two in a row are a loop.
MIN_UPDATES = 2


class TrainingThread:
    """The thread whose phases count.

    Attributes:
        ident: Its identifier, as `threading.get_ident` returns it; 0 before the first phase.
    """

    def __init__(self) -> None:
        self.ident = 0
        self._has_trained = False
        self._other = 0
        self._updates = 0

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the one that trains."""
        return threading.get_ident() == self.ident

    def claim(self, phase: str) -> bool:
        """Return whether a phase that the calling thread begins counts; the calling thread trains then."""
        thread = threading.get_ident()
        is_training = phase in TRAINING_PHASES
        if thread == self.ident:
            self._updates = 0
            self._has_trained = self._has_trained or is_training
            return True
        is_first = not self.ident or (is_training and not self._has_trained)
        if not is_first and not self._has_moved(thread, phase):
            return False
        self.ident, self._has_trained, self._updates = thread, is_training, 0
        return True

    def _has_moved(self, thread: int, phase: str) -> bool:
        """Return whether the loop goes on in this thread."""
        if thread != self._other:
            self._other, self._updates = thread, 0
        if phase == "optimizer":
            self._updates += 1
        return self._updates >= MIN_UPDATES
