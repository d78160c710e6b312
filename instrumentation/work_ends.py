"""Ends of operations that tell nobody but who waits for them: gloo's reduce-scatter has a `Work` without a future.

    reduce_scatter_tensor(...)   |- issue -|------ wait ------|
                                                              ^ the end: its caller has it now

`Work.wait` is replaced when the first such operation is met, and only for those that are called with `async_op=False`,
whose wait follows at once. What is waited for later, or in C++, ends at no time that is told. Must not know torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

__all__ = ["WorkEnds"]

# One a thread; more of them were never waited for, as after an error between issue and wait.
MAX_AWAITED: Final = 64


class WorkEnds:
    """Tells when a wait for a work returns.

    Args:
        find_class: Returns PyTorch's `Work`.
    """

    def __init__(self, find_class: Callable[[], Any]) -> None:
        self._find_class = find_class
        # By id. Holding a work keeps PyTorch from wrapping it anew for its caller, and its id from being another's.
        self._awaited: dict[int, tuple[Any, Callable[[], None]]] = {}
        self._is_installed = False

    def follow(self, work: Any, tell: Callable[[], None]) -> None:
        """Call `tell` when the wait for a work has returned, or raised; it may not raise itself."""
        if not self._is_installed:
            self._install()
        if len(self._awaited) >= MAX_AWAITED:
            self._awaited.clear()
        self._awaited[id(work)] = (work, tell)

    def _install(self) -> None:
        work_class = self._find_class()
        awaited, original = self._awaited, work_class.wait

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            entry = awaited.pop(id(work), None)
            if entry is None:
                return original(work, *args, **kwargs)
            try:
                return original(work, *args, **kwargs)
            finally:
                entry[1]()

        work_class.wait = wait
        self._is_installed = True
