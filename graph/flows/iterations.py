"""Iterations of a job that tells none: the shortest pattern of collectives that repeats; pure.

A rank's collectives in order are a text, one letter a kind. Training repeats a word of it, whose length is where the
text agrees best with itself. Where the order between communicators is not known (their records are written one
communicator after the other) each is a text of its own, and the one that repeats least often counts.

Source:
    Greyhound's period of communication calls by autocorrelation (method C1), for kinds of calls in place of times.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.flows.rows import Collectives

__all__ = ["count_iterations", "find_period", "find_rhythm"]

# So much of a text agrees with itself one period on (Greyhound).
MIN_AGREEMENT: Final = 0.95
# So many repetitions make a pattern.
MIN_REPEATS: Final = 3
# So many of the repetitions have every kind as often as most have.
MIN_ALIKE: Final = 0.8
# Collectives of one iteration at most, and of one text: more say no more about its period.
MAX_PERIOD: Final = 4096
MAX_TEXT: Final = 20_000
# Neighbours of a rhythm differ by so many times what those one rhythm apart do; it is heard so often.
MIN_RHYTHM_RATIO: Final = 3.0
MIN_RHYTHM_REPEATS: Final = 8
MAX_RHYTHM: Final = 512
# Ranks whose texts are read: ranks of a job do alike, and the middle of their answers counts.
MAX_TEXTS: Final = 9


def find_period(text: IntArray) -> int | None:
    """Return the length of the shortest word that a text repeats; None if it repeats none.

    Args:
        text: One number a letter.
    """
    text = text[:MAX_TEXT]
    for period in range(1, min(text.size // MIN_REPEATS, MAX_PERIOD) + 1):
        agreement = float((text[period:] == text[:-period]).mean())
        if agreement >= MIN_AGREEMENT and _is_alike(text, period):
            return period
    return None


def count_iterations(collectives: Collectives) -> int | None:
    """Return how many iterations some collectives are of; None if no pattern repeats."""
    ranks = np.unique(collectives.member_rank)
    if not ranks.size:
        return None
    picked = ranks[np.unique(np.linspace(0, ranks.size - 1, MAX_TEXTS).astype(np.int64))]
    found = [_count_of_rank(collectives, int(rank)) for rank in picked]
    counts = sorted(count for count in found if count is not None)
    # The middle one that is there; half of the ranks without a pattern are a job without one.
    return counts[len(counts) // 2] if 2 * len(counts) > len(found) else None


def find_rhythm(iteration_s: FloatArray) -> int:
    """Return how many times in a row repeat together: 1 unless every m-th is alike and neighbours are not.

    For jobs that do the same collective again and again, so that its kind says nothing of where an iteration ends.

    Args:
        iteration_s: Times between one collective and the next, seconds.
    """
    if iteration_s.size < 2 * MIN_RHYTHM_REPEATS:
        return 1
    next_s = float(np.abs(np.diff(iteration_s)).mean())
    for length in range(2, min(iteration_s.size // MIN_RHYTHM_REPEATS, MAX_RHYTHM) + 1):
        apart_s = float(np.abs(iteration_s[length:] - iteration_s[:-length]).mean())
        if apart_s * MIN_RHYTHM_RATIO <= next_s:
            return length
    return 1


def _count_of_rank(collectives: Collectives, rank: int) -> int | None:
    rows = np.flatnonzero(collectives.member_rank == rank)
    # In the order of its own clock: others' may differ by more than an iteration.
    own = collectives.member_of[rows[np.argsort(collectives.member_end_s[rows], kind="stable")]]
    communicator, volume = collectives.communicator[own], collectives.volume[own]
    letters = np.unique(np.stack([communicator, volume], axis=1), axis=0, return_inverse=True)[1]
    text = letters.reshape(-1).astype(np.int64)
    period = find_period(text)
    if period is not None:
        return int(text.size // period)
    counts = []
    for one in np.unique(communicator):
        part = text[communicator == one]
        period = find_period(part)
        if period is not None:
            counts.append(int(part.size // period))
    return min(counts, default=None)


def _is_alike(text: IntArray, period: int) -> bool:
    """Return whether the words of that length have the same letters, and all that the text has.

    Without it, one communicator's records after the other's would be a text that repeats a single letter.
    """
    count = text.size // period
    words = np.sort(text[: count * period].reshape(count, period), axis=1)
    kinds, often = np.unique(words, axis=0, return_counts=True)
    usual = kinds[int(often.argmax())]
    return float((words == usual).all(axis=1).mean()) >= MIN_ALIKE
