"""Stacks that a finding starts: of the rank that is named and one peer, for a time, from the agents on this host.

    finding opens, names rank 3 ──▶ agents: who watches rank 3 of the job? ──▶ ranks 3 and 2, 49 Hz, for 30 s

With them the verdict can say in which function the rank spends what its peer does not. They count towards the agent's
budget like all that it does: an agent that costs too much takes fewer, whoever asked. Another host's agents cannot be
asked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rootwalk.graph.live.track import Change, Notice

__all__ = ["STACKS_FOR_S", "FindingStacks"]

# Steps of seconds have several in it; the sampler's own start takes one or two.
STACKS_FOR_S: Final = 30.0
# Of a job, one finding after the other: then somebody has to look.
MAX_TIMES: Final = 5

Ask = Callable[[dict[str, Any]], list[dict[str, Any]]]


def _ask_agents(request: dict[str, Any]) -> list[dict[str, Any]]:
    from rootwalk.ebpf.control import ask_agents

    return ask_agents(request)


class FindingStacks:
    """Asks for stacks when a finding names a rank.

    Args:
        hz: Samples a second and CPU; 0 to ask for none.
        ask: Asks the agents on this host.
        now_s: A clock for intervals.
    """

    def __init__(
        self, hz: int, ask: Ask = _ask_agents, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._hz = hz
        self._ask = ask
        self._now_s = now_s
        self._times: Counter[str] = Counter()
        self._until_s: dict[tuple[str, int], float] = {}

    def take(self, notice: Notice) -> str | None:
        """Ask for stacks if a finding has come that names a rank; return what to tell people, None for nothing."""
        finding = notice.finding
        rank = finding.rank
        if not self._hz or rank is None or notice.change is Change.CLOSED:
            return None
        job, now_s = finding.job, self._now_s()
        if self._times[job] >= MAX_TIMES or self._until_s.get((job, rank), 0.0) > now_s:
            return None
        self._times[job] += 1
        self._until_s[job, rank] = now_s + STACKS_FOR_S
        watched = _watched(self._ask({}), job)
        if rank not in watched:
            return f"cannot take stacks of rank {rank}: saw no agent on this host that watches it; needs one"
        if watched[rank]["profile_hz"]:
            return None  # they are taken already
        chosen = [rank, *_peer(rank, watched)]
        request = {
            "job": job,
            "level": watched[rank]["level"],
            "ranks": chosen,
            "for_s": STACKS_FOR_S,
            "profile_hz": self._hz,
        }
        taken = _watched(self._ask(request), job)
        if not taken.get(rank, {}).get("profile_hz"):
            return f"cannot take stacks of rank {rank}: saw no answer of its agent; needs one"
        peers = f" and its peer {chosen[1]}" if chosen[1:] else ""
        return f"taking stacks of rank {rank}{peers} for {STACKS_FOR_S:g} s, up to {self._hz} a second and CPU"


def _watched(answers: list[dict[str, Any]], job: str) -> dict[int, dict[str, Any]]:
    """Return what the agents tell of a job's ranks, by rank."""
    ranks = (one for answer in answers if "error" not in answer for one in answer["ranks"])
    return {one["rank"]: one for one in ranks if one["job"] == job}


def _peer(rank: int, watched: dict[int, dict[str, Any]]) -> list[int]:
    """Return the rank next to it that is watched too, as a list of one or none."""
    others = sorted((abs(other - rank), other) for other in watched if other != rank)
    return [other for _, other in others[:1]]
