"""How much an agent tells: what it was started with and asked for since, within what it may cost.

    rootwalk level ──▶ control socket ──▶ levels ──┐
    cost, step time ──▶ budget ──▶ rung ───────────┴▶ kernel programs, stalls, the ranks' own hooks, rounds

The kernel's programs tell all ranks of a host alike: the highest level of them; what a rank did not ask for is left out
here. A rank's own hooks follow through a word in its ring, at the end of its step.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rootwalk.ebpf.bpf_calls import enable_statistics
from rootwalk.ebpf.budget import MIN_STEP_S, Budget
from rootwalk.ebpf.control import ControlSocket
from rootwalk.ebpf.levels import HIGHEST_LEVEL, MAX_PROFILE_HZ, Levels
from rootwalk.ebpf.program_time import ProgramTime
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.watched import WatchedRank
from rootwalk.instrumentation.shared_ring import MAX_TRACE_STEPS

__all__ = ["Detail"]

logger = logging.getLogger(__name__)

# Where nobody wants more than sums, nobody waits for them: half of what an agent costs then is rounds.
SUMS_ROUND_S = 2.0
# Below the highest level so many waits for a CPU, and so many other stalls, are told of a rank's step and role of
# thread, the longest: at 4 ms each, half a second of a thread that never runs. A step of minutes in which all ranks
# stand behind others is a trace that pages still open; sums are whole at any level.
MAX_STALLS_PER_STEP = 128


class Detail:
    """Owns the levels, the budget and the socket.

    Args:
        level: What the agent was started with.
        budget_ratio: What it may cost over the time of the steps that it watches; None for no limit.
        readers: What is turned up and down.
        folder: Where the socket is; None for this user's folder of rings.
        profile_hz: How often it takes stacks, as it was started.
    """

    def __init__(
        self,
        level: int,
        budget_ratio: float | None,
        readers: Readers,
        folder: Path | None = None,
        profile_hz: int = 0,
    ) -> None:
        self._levels = Levels(level, profile_hz)
        self._budget = Budget(budget_ratio)
        self._readers = readers
        self._control = ControlSocket(folder)
        self._program_time = ProgramTime(readers.run_time_ns, enable_statistics)
        self._kernel_level: int | None = None
        self._steps: dict[int, int] = {}
        self._step_s = 0.0
        self._rank_steps = 0
        self._looked_s = time.monotonic()
        self.program_ns: Mapping[str, int] = {}
        self._cost: Mapping[str, Any] = {}

    @property
    def round_s(self) -> float:
        """How often rings are read and spans sent, s."""
        least_s = SUMS_ROUND_S if self._kernel_level == 0 else 0.0
        return max(self._budget.limits.round_s, least_s)

    @property
    def rung(self) -> int:
        """How many steps of detail were given up for the budget."""
        return self._budget.rung

    @property
    def cost_ratio(self) -> float | None:
        """What the agent cost in the last 10 s over the time of the steps; None where no step was watched."""
        return self._budget.cost_ratio

    def level_of(self, rank: int) -> int:
        """Return the level in force for a rank."""
        return min(self._levels.of_rank(rank, time.monotonic()), self._budget.limits.max_level)

    def profile_hz_of(self, rank: int) -> int:
        """Return how often stacks of a rank are to be taken, samples a second and CPU; 0 for never."""
        return self._levels.profile_hz_of(rank, time.monotonic())

    def serve(self, ranks: Iterable[WatchedRank]) -> None:
        """Answer who has asked for another level."""
        self._control.serve(lambda request: self._answer(request, list(ranks)))

    def apply(self, ranks: Iterable[WatchedRank]) -> None:
        """Turn everything to the levels that are in force now."""
        now_s, ranks = time.monotonic(), list(ranks)
        limits = self._budget.limits
        kernel_level = min(self._levels.level, limits.max_level)
        levels = []
        for rank in ranks:
            levels.append(self.level_of(rank.identity.rank))
            request = self._levels.asked(rank.identity.rank, now_s)
            asked = None if request is None else request.level
            if limits.max_rank_level < HIGHEST_LEVEL:
                asked = limits.max_rank_level
            for stream in rank.streams:
                stream.level = levels[-1]
                most = None if levels[-1] == HIGHEST_LEVEL else MAX_STALLS_PER_STEP
                stream.limit_stalls(limits.stalls_per_step or most)
                stream.ask_rank(asked)
        kernel_level = max(levels, default=kernel_level)
        if kernel_level != self._kernel_level:
            self._readers.set_level(kernel_level)
            self._kernel_level = kernel_level
        scheduler = self._readers.scheduler
        if scheduler is None:
            return
        for rank in ranks:
            if rank.partition is not None:
                rank.partition.tells_others = kernel_level > 0
                rank.partition.tell_waits(scheduler.told_wait_ns, time.monotonic_ns())

    def look(self, ranks: Iterable[WatchedRank]) -> None:
        """Measure what watching costs, and keep within the budget; every two seconds."""
        now_s = time.monotonic()
        self._add_steps(ranks, now_s - self._looked_s)
        self._looked_s = now_s
        self.program_ns = dict(self._program_time.look(now_s))
        programs_s = sum(self.program_ns.values()) / 1e9
        cost_s = time.process_time() + programs_s
        before = self._budget.rung
        if self._budget.look(now_s, cost_s, self._step_s, programs_s):
            logger.info(
                "watching cost %.2f %% of the steps' time: %s detail, now %s",
                (self.cost_ratio or 0.0) * 100.0,
                "less" if self._budget.rung > before else "more",
                self._budget.limits.text,
            )

    def note_cost(self, cost: Mapping[str, Any]) -> None:
        """Take what the agent has cost since its start, for who asks."""
        self._cost = {**cost, "rank_steps": self._rank_steps}

    def close(self) -> None:
        """Stop listening and measuring; safe twice."""
        self._control.close()
        self._program_time.close()

    def _add_steps(self, ranks: Iterable[WatchedRank], elapsed_s: float) -> None:
        """Add the time of the steps since the last look, of every rank that trains."""
        steps = {rank.slot: sum(stream.steps for stream in rank.streams) for rank in ranks}
        for slot, count in steps.items():
            if count:
                new = max(count - self._steps.get(slot, 0), 0)
                self._step_s += max(new * MIN_STEP_S, elapsed_s)
                self._rank_steps += new
        self._steps = steps

    def _answer(self, request: dict[str, Any], ranks: list[WatchedRank]) -> dict[str, Any]:
        """Take a request of `rootwalk level`; without a level, or about a job of another agent, only tell.

        Raises:
            ValueError: If it is not one.
        """
        level, wanted, for_s = (request.get(name) for name in ("level", "ranks", "for_s"))
        job = request.get("job")
        traced: list[WatchedRank] = []
        trace_steps: int | None = None
        is_ours = job is None or any(rank.identity.job == job for rank in ranks)
        if level is not None and is_ours:
            if level not in range(HIGHEST_LEVEL + 1):
                raise ValueError(f"level {level!r}")
            if wanted is not None:
                wanted = frozenset(int(rank) for rank in wanted)
            if for_s is not None and not 0.0 < float(for_s) < float("inf"):
                raise ValueError(f"for_s {for_s!r}")
            profile_hz, trace_steps = _read_profile_hz(request), _read_trace_steps(request)
            self._levels.ask(level, wanted, for_s, time.monotonic(), profile_hz)
            self.apply(ranks)
            if trace_steps is not None and wanted is not None:
                traced = [rank for rank in ranks if rank.identity.rank in wanted]
            whose = "all ranks" if wanted is None else f"ranks {sorted(wanted)}"
            until = "" if for_s is None else f" for {for_s:g} s"
            logger.info("level %d for %s%s, as asked", level, whose, until)
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "budget_ratio": self._budget.ratio,
            "cost": self._cost,
            "limits": self._budget.limits.text if self._budget.rung else None,
            "ranks": [self._tell(rank) for rank in ranks],
            **_ask_traces(traced, trace_steps),
        }

    def _tell(self, rank: WatchedRank) -> dict[str, Any]:
        now_s = time.monotonic()
        request = self._levels.asked(rank.identity.rank, now_s)
        left_s = None
        if request is not None and request.until_s is not None:
            left_s = round(request.until_s - now_s, 3)
        who = rank.identity
        return {
            "job": who.job,
            "rank": who.rank,
            "level": self.level_of(who.rank),
            "asked": self._levels.of_rank(who.rank, now_s),
            "for_s": left_s,
            "profile_hz": self._levels.profile_hz_of(who.rank, now_s),
        }


def _ask_traces(ranks: list[WatchedRank], steps: int | None) -> dict[str, Any]:
    """Ask ranks to trace their next steps; return which can be asked, for the answer."""
    if steps is None:
        return {}
    asked = {
        rank.identity.rank
        for rank in ranks
        for stream in rank.streams
        if stream.is_alive and stream.ask_trace(steps)
    }
    return {"traced": sorted(asked)}


def _read_trace_steps(request: Mapping[str, Any]) -> int | None:
    """Return how many steps are to be traced; None where nothing is said of it.

    Raises:
        ValueError: If it is no such number, or the ranks are not named.
    """
    steps = request.get("trace_steps")
    if steps is None:
        return None
    is_chosen = request.get("level") == HIGHEST_LEVEL and request.get("ranks") is not None
    if type(steps) is not int or not 0 < steps <= MAX_TRACE_STEPS or not is_chosen:
        raise ValueError(f"trace_steps {steps!r}")
    return steps


def _read_profile_hz(request: Mapping[str, Any]) -> int | None:
    """Return how often stacks are asked for; None where nothing is said of it.

    Raises:
        ValueError: If it is no such rate.
    """
    hz = request.get("profile_hz")
    if hz is None:
        return None
    if type(hz) is not int or not 0 <= hz <= MAX_PROFILE_HZ:
        raise ValueError(f"profile_hz {hz!r}")
    return hz
