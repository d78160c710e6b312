"""Two disturbances at once: one of the disturbed rank, one of the other."""

from __future__ import annotations

from pathlib import Path

from gauntlet.case import Disturbance, Effect
from gauntlet.faults.training import TrainingBug
from rootwalk.graph.commands.demo_faults import Target


class Both:
    """Both from the same moment on.

    Args:
        first: Of the disturbed rank.
        second: Of the other rank, in a job of two; a bug there is told so itself (`who="other"`).
    """

    def __init__(self, first: Disturbance, second: Disturbance) -> None:
        self._first, self._second = first, second
        self._folder: Path | None = None
        self._other = -1

    def prepare(self, rank: int, folder: Path) -> None:
        """Prepare both."""
        self._folder, self._other = folder, 1 - rank
        self._first.prepare(rank, folder)
        is_bug = isinstance(self._second, TrainingBug)
        self._second.prepare(rank if is_bug else self._other, folder)

    def options(self) -> list[str]:
        """Return what the training code is told; at most one of them is in it."""
        return [*self._first.options(), *self._second.options()]

    def start(self, target: Target) -> None:
        """Begin both."""
        from gauntlet.job import find_target

        assert self._folder is not None
        other = find_target(self._folder / "steps", self._other)
        self._first.start(target)
        self._second.start(other)

    def effect(self) -> Effect:
        """Return how often the lesser of both did what it had to do at least."""
        effects = (self._first.effect(), self._second.effect())
        words = " and ".join(f"{effect.amount:.1f} {effect.unit}" for effect in effects)
        ratio = min(effect.amount / max(effect.least, 1e-9) for effect in effects)
        return Effect(ratio, f"times the least of {words}", 1.0)

    def stop(self) -> None:
        """End both."""
        self._second.stop()
        self._first.stop()
