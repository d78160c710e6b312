"""A bound on how many devices a reader tells of, so that a strange machine cannot flood the receiver."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LimitedNames"]


class LimitedNames:
    """The first so many names of devices, in the order of the alphabet; what is left out is counted.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.left_out = 0

    def take(self, names: Iterable[str]) -> list[str]:
        """Return those that are told of."""
        found = sorted(names)
        self.left_out = max(self.left_out, len(found) - self._most)
        return found[: self._most]

    def losses(self) -> dict[str, int]:
        """Return the most devices that were left out at once, by `rootwalk.drop.reason`."""
        return {"device_limit": self.left_out} if self.left_out else {}
