"""Bugs in the training code, switched on by a file."""

from __future__ import annotations

import json
from pathlib import Path

from gauntlet.case import Effect
from rootwalk.graph.commands.demo_faults import Target


class TrainingBug:
    """A bug of `bugs.py`.

    Args:
        bug: Its name.
        who: `rank` (the disturbed one), `other` (not that one), `all`.
        least_s: Time by its own clock that there has to be, s.
        settings: Of the bug.
    """

    def __init__(
        self, bug: str, *, who: str = "rank", least_s: float = 0.5, **settings: str | int | float
    ) -> None:
        self._bug, self._who, self._least_s = bug, who, least_s
        self.settings = settings
        self._file: Path | None = None
        self._log: Path | None = None
        self._ranks = ""

    def prepare(self, rank: int, folder: Path) -> None:
        """Choose the file and the ranks."""
        self._file, self._log = folder / "bug.on", folder / "bug"
        self._log.mkdir(exist_ok=True)
        self._ranks = {"rank": str(rank), "other": str(1 - rank), "all": "0,1,2,3"}[self._who]

    def options(self) -> list[str]:
        """Return the bug, where it looks whether it is on, and where it writes its times."""
        options = ["--bug", self._bug, "--bug-ranks", self._ranks]
        options += ["--bug-file", str(self._file), "--bug-log", str(self._log)]
        for key, value in self.settings.items():
            options += ["--bug-with", f"{key}={value}"]
        return options

    def start(self, target: Target) -> None:
        """Switch it on."""
        self.resume()

    def resume(self) -> None:
        """Make the file."""
        assert self._file is not None
        self._file.touch()

    def pause(self) -> None:
        """Remove the file."""
        assert self._file is not None
        self._file.unlink(missing_ok=True)

    def effect(self) -> Effect:
        """Return for how long it did what it does, by its own clock."""
        seconds = self._seconds()
        return Effect(sum(seconds), f"s in the bug, {len(seconds)} times", self._least_s)

    def count(self) -> int:
        """Return how often it did that."""
        return len(self._seconds())

    def _seconds(self) -> list[float]:
        assert self._log is not None
        logs = self._log.glob("*.jsonl")
        lines = [line for log in logs for line in log.read_text("utf-8").splitlines()]
        return [float(json.loads(line)["seconds"]) for line in lines]

    def stop(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


class HotExpert(TrainingBug):
    """The router sends most tokens to the expert of the disturbed rank.

    Args:
        share: Of the tokens of every rank.
        least: Routings that have to have been changed.
    """

    def __init__(self, share: float = 0.97, least: int = 40) -> None:
        super().__init__("route", who="all", share=share)
        self._least = least

    def prepare(self, rank: int, folder: Path) -> None:
        """Choose the expert."""
        super().prepare(rank, folder)
        self.settings["hot"] = rank

    def effect(self) -> Effect:
        """Return how often it chose, over all ranks."""
        return Effect(self.count(), "batches routed", self._least)


class EvenExperts(TrainingBug):
    """The router's choice is overruled from the start on: every expert gets as many tokens, then as many others."""

    def __init__(self, least: int = 40) -> None:
        super().__init__("route", who="all")
        self._least = least

    def effect(self) -> Effect:
        """Return how often it chose, over all ranks."""
        return Effect(self.count(), "batches routed", self._least)
