"""How often profiles are sent, and with how much detail, so that they take no more than their part of the wire.

    too much ──▶ twice as long together (one table for more samples) ──▶ half as many samples
    little   ──▶ the same back, step by step

Pure: the caller brings sizes and times.
"""

from __future__ import annotations

__all__ = ["RANK_BYTES_PER_S", "SEND_INTERVAL_S", "WirePace"]

# 60 s of four ranks in less than 1 MB, with room for what cannot be foreseen.
RANK_BYTES_PER_S = 3_500
SEND_INTERVAL_S = 5.0
# A verdict on what happens now waits no longer for its stacks; and the steps of so long ago are still known.
MAX_INTERVAL_S = 20.0
MAX_HALVINGS = 6
# Twice as much must fit before detail comes back, and a little more, or it would go at once.
LITTLE = 0.4


class WirePace:
    """Follows the size of what was sent.

    Args:
        rank_bytes_per_s: What the profiles of a rank may take.
    """

    def __init__(self, rank_bytes_per_s: float = RANK_BYTES_PER_S) -> None:
        self._rank_bytes_per_s = rank_bytes_per_s
        self.interval_s = SEND_INTERVAL_S
        self.halvings = 0

    def note(self, sent_bytes: int, elapsed_s: float, ranks: int) -> None:
        """Take the size of one request.

        Args:
            sent_bytes: As it went over the wire, compressed.
            elapsed_s: The time that it tells of.
            ranks: Whose.
        """
        allowed = self._rank_bytes_per_s * max(ranks, 1) * max(elapsed_s, 1.0)
        if sent_bytes > allowed:
            if self.interval_s < MAX_INTERVAL_S:
                self.interval_s = min(self.interval_s * 2.0, MAX_INTERVAL_S)
            else:
                self.halvings = min(self.halvings + 1, MAX_HALVINGS)
        elif sent_bytes < LITTLE * allowed:
            if self.halvings:
                self.halvings -= 1
            else:
                self.interval_s = max(self.interval_s / 2.0, SEND_INTERVAL_S)
