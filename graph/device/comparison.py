"""What stands on a rank's path longer than on its peers', or than before: the part of a step that the device tells.

A mean over the steps that were profiled, held against the rank's own healthy steps and against the other ranks' same
steps: the larger of the two is what is usual, so that nothing is called longer that somebody else takes too. Pure.

Source:
    Method C5: of few peers the least.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Final

from rootwalk.graph.device.reading import DevicePath, OperationKey
from rootwalk.instrumentation.semconv import TrainingDevicePathKind as Kind

__all__ = ["MIN_STEPS", "Compared", "Standing", "compare_kind", "find_standing"]

# Profiles have few steps: three are the usual schedule.
MIN_STEPS: Final = 3
# With fewer peers the least of them is the reference: a median of two halves the effect (method C9).
MIN_MEDIAN_PEERS: Final = 4


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds a step, of peers and of healthy steps; None where nobody has a profile of them."""

    value_s: float
    peers_s: float | None
    history_s: float | None

    @property
    def excess_s(self) -> float | None:
        """How far it lies above what is usual; None where nobody knows that."""
        known = [each for each in (self.peers_s, self.history_s) if each is not None]
        return self.value_s - max(known) if known else None


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands on a path: an operation, and everything of its kind."""

    kind: Kind
    name: str
    operation: Compared
    whole: Compared
    steps: int


@dataclass(frozen=True, slots=True)
class _Steps:
    """Paths by whose they are."""

    own: list[DevicePath]
    before: list[DevicePath]
    peers: list[list[DevicePath]]


def find_standing(
    paths: Sequence[DevicePath], rank: int, window: Collection[int], history: Collection[int]
) -> Standing | None:
    """Return what stands on a rank's path longer than usual, the most of it; None where nothing does.

    Args:
        paths: Those of all ranks.
        rank: Whose.
        window: Numbers of the steps in question.
        history: Numbers of the healthy steps.
    """
    steps = _sort(paths, rank, window, history)
    if len(steps.own) < MIN_STEPS:
        return None
    best: tuple[float, OperationKey, Compared] | None = None
    for key in sorted({key for path in steps.own for key in path.operations} | _QUEUE):
        found = _compare(steps, partial(_seconds, key))
        excess_s = found.excess_s
        if excess_s is not None and excess_s > 0.0 and (best is None or excess_s > best[0]):
            best = excess_s, key, found
    if best is None:
        return None
    _, (kind, name), found = best
    whole = _compare(steps, lambda path: path.seconds[kind])
    return Standing(kind, name, found, whole, len(steps.own))


def compare_kind(
    paths: Sequence[DevicePath],
    rank: int,
    window: Collection[int],
    history: Collection[int],
    kind: Kind,
) -> Compared | None:
    """Return how long a rank's path is of one kind; None without profiles of enough steps."""
    steps = _sort(paths, rank, window, history)
    if len(steps.own) < MIN_STEPS:
        return None
    return _compare(steps, lambda path: path.seconds[kind])


# What no operation fills.
_QUEUE: Final = {(Kind.QUEUED, "")}


def _seconds(key: OperationKey, path: DevicePath) -> float:
    """Return the seconds of an operation; of one that is not told, the most that it may have taken."""
    if key in _QUEUE:
        return path.seconds[Kind.QUEUED]
    told = path.operations.get(key)
    return min(path.untold_s, path.seconds[key[0]]) if told is None else told


def _sort(
    paths: Sequence[DevicePath], rank: int, window: Collection[int], history: Collection[int]
) -> _Steps:
    now, quiet = set(window), set(history)
    by_rank: dict[int, list[DevicePath]] = {}
    for path in paths:
        if path.step in now:
            by_rank.setdefault(path.rank, []).append(path)
    own = by_rank.pop(rank, [])
    before = [path for path in paths if path.rank == rank and path.step in quiet]
    return _Steps(own, before, [found for _, found in sorted(by_rank.items())])


def _compare(steps: _Steps, seconds: Callable[[DevicePath], float]) -> Compared:
    others = [fmean(map(seconds, found)) for found in steps.peers if len(found) >= MIN_STEPS]
    peers_s = None
    if others:
        peers_s = min(others) if len(others) < MIN_MEDIAN_PEERS else median(others)
    history_s = None
    if len(steps.before) >= MIN_STEPS:
        history_s = median(map(seconds, steps.before))
    return Compared(fmean(map(seconds, steps.own)), peers_s, history_s)
