"""Decides which updates of optimisers end a step. Pure.

    one optimiser      A | A | A |            every update ends a step
    in turn (GAN)      A | B A | B A |        the first one's updates do: as many steps as the loop has turns
    several critics    C C C G  ->  C | C | C | G C |      likewise
    one after another  A | A | B B | B |      B takes over with its second update without one of A's between

An update may run others inside (a wrapper's optimiser, a closure of L-BFGS): it is one update, and ends with the
outermost. Optimisers are known by a key; what an update is, the caller decides.
"""

from __future__ import annotations

__all__ = ["UpdateCycle"]

# Updates of so many different optimisers without the one that ends steps: it is gone, and another one must.
MAX_OTHERS = 64


class UpdateCycle:
    """Follows the updates of all optimisers of one training thread.

    Attributes:
        is_open: Whether an update goes on.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._outermost = 0
        self._inner: set[int] = set()
        self._closing: int | None = None
        self._others: set[int] = set()

    def begin(self, key: int) -> bool:
        """Note that an update begins; return whether it is the outermost.

        An update that raised never ends: it is over when its optimiser begins another, or when an optimiser inside of
        it begins its second.
        """
        if self.is_open and key != self._outermost and key not in self._inner:
            return False
        self.is_open, self._outermost = True, key
        self._inner.clear()
        return True

    def end(self, key: int) -> bool:
        """Note that an update has ended; return whether it was the outermost."""
        if self.is_open and key != self._outermost:
            self._inner.add(key)
            return False
        self.is_open = False
        self._inner.clear()
        return True

    def abandon(self) -> None:
        """Forget the update that goes on: another thread trains now."""
        self.is_open = False
        self._inner.clear()

    def closes_step(self, key: int) -> bool:
        """Return whether a finished outermost update ends the step, and remember it."""
        if self._closing is None or key in self._others or len(self._others) >= MAX_OTHERS:
            self._closing = key
        if key != self._closing:
            self._others.add(key)
            return False
        self._others.clear()
        return True
