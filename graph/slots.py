"""Numbers for operations that are the same work in different steps.

Owns the identity that makes a history of an operation possible; knows nothing of times.
"""

from __future__ import annotations


class SlotKeys:
    """Numbers for what makes two operations of different steps comparable.

    A region is (rank, phase or gap, ordinal); a slot is a region and the number of collectives that its
    rank had issued in it before. The same object numbers the history and the window.
    """

    def __init__(self) -> None:
        self.regions: dict[tuple[int, str, int], int] = {}
        self.slots: dict[tuple[int, int, bool], int] = {}

    def region(self, rank: int, name: str, ordinal: int) -> int:
        """Return the number of a region, new ones in order of first sight."""
        return self.regions.setdefault((rank, name, ordinal), len(self.regions))

    def slot(self, region: int, position: int, is_collective: bool) -> int:
        """Return the number of a slot, new ones in order of first sight."""
        return self.slots.setdefault((region, position, is_collective), len(self.slots))
