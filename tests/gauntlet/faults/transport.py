"""NCCL that a stand-in plays: how long transfers take, and over what it says that it sends. No network is disturbed."""

from __future__ import annotations

import time
from pathlib import Path

from gauntlet.case import Effect
from gauntlet.stand_in_device import play
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import UnavailableError
from support.cuda_standin import build_standins, has_compiler

__all__ = ["Transport"]

RANKS = 4
# What the reduction of a step takes while nothing is wrong.
COLLECTIVE_S = 0.012
# The stand-ins look for another scenario every 0.02 s.
SEEN_S = 0.1


class Transport:
    """From the start on all ranks make their communicators anew, as jobs do that lost a member and go on.

    Args:
        sockets: Whether NCCL finds no InfiniBand then, and says that it sends over TCP.
        transfers: How many times longer transfers take then.
        log: Whether NCCL writes its debug files.
        host_passes: Forward passes more that the disturbed rank runs on the host in each step.
    """

    def __init__(
        self,
        *,
        sockets: bool = True,
        transfers: float = 1.0,
        log: bool = True,
        host_passes: int = 0,
    ) -> None:
        self._sockets, self._transfers = sockets, transfers
        self._log, self._host_passes = log, host_passes
        self._folder = Path()

    def prepare(self, rank: int, folder: Path) -> None:
        """Write what is played while nothing is wrong.

        Raises:
            UnavailableError: Without a C compiler.
        """
        if not has_compiler():
            text = "cannot play NCCL: saw no C compiler; needs cc"
            raise UnavailableError(text, reason="NO_COMPILER")
        self._folder = folder
        (folder / "bug").mkdir(exist_ok=True)
        (folder / "bug.on").touch()
        self._play(COLLECTIVE_S, sockets=False)

    def environment(self) -> dict[str, str]:
        """Return what a user sets who wants NCCL's debug files."""
        if not self._log:
            return {}
        return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{self._folder}/nccl.%h.%p"}

    def options(self) -> list[str]:
        """Return what every rank does with NCCL."""
        ranks = ",".join(str(rank) for rank in range(RANKS))
        options = ["--bug", "send_over_nccl", "--bug-ranks", ranks]
        options += ["--bug-file", str(self._folder / "bug.on")]
        options += ["--bug-log", str(self._folder / "bug")]
        settings = {
            "libraries": build_standins(),
            "scenario": self._folder / "nccl-played",
            "again": self._folder / "again",
            "host": self._folder / "host",
            "times": self._host_passes,
        }
        return [*options, *(f"--bug-with={key}={value}" for key, value in settings.items())]

    def start(self, target: Target) -> None:
        """Let all make their communicators anew."""
        if self._host_passes:
            (self._folder / f"host.{target.rank}").touch()
        self._play(self._transfers * COLLECTIVE_S, sockets=self._sockets)
        time.sleep(SEEN_S)
        (self._folder / "again").touch()

    def effect(self) -> Effect:
        """Return how many ranks have made theirs anew, by their own word."""
        made = sum(1 for log in (self._folder / "bug").glob("*.jsonl") if log.stat().st_size)
        return Effect(float(made), "ranks with another communicator", float(RANKS))

    def stop(self) -> None:
        """Nothing is left: all of it is in the ranks."""

    def _play(self, collective_s: float, *, sockets: bool) -> None:
        told = (f"0 collective {collective_s}", f"0 sockets {float(sockets)}")
        for rank in range(RANKS):
            play(self._folder / f"nccl-played.{rank}", *told)
