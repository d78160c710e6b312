"""Ranks that came to the CPUs of another rank of their host: one cause, of the rank that came.

    before   rank 0 on CPU 0, rank 1 on CPU 1
    slow     rank 0 on CPU 0, rank 1 on CPU 0        each stands behind the other, and rank 1 has come

Where both stood before and stand now is told by their waits for a CPU. Nobody is said to have come where they had CPUs
in common before, where both have moved, or where nothing was seen of either before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rootwalk.graph.causes import MOVED, CauseKey
from rootwalk.graph.columns import JobData
from rootwalk.graph.contenders import IDLE_PID, RUNNABLE_STATE
from rootwalk.graph.reasons import Reason

__all__ = ["find_moves"]

# A rank is on some CPUs where it stood on them for this part of its waits: it came in the midst of a step, and what
# the scheduler does once is no place.
MIN_THERE = 0.9
# Loader workers may have CPUs of their own.
_WORKER = "loader_worker"


def find_moves(
    data: JobData,
    own: Mapping[int, set[int]],
    history: Collection[int],
    window: Collection[int],
) -> dict[tuple[int, int], CauseKey]:
    """Return by rank and process in its way what that is charged to, where one of the two has come to the other.

    Args:
        data: Telemetry on the aligned clock.
        own: Processes of each rank.
        history: Healthy steps.
        window: Steps in question.
    """
    before, now = _stood_s(data, set(history)), _stood_s(data, set(window))
    moves: dict[tuple[int, int], CauseKey] = {}
    for comer in data.ranks:
        for stayer in data.ranks:
            mover, other = comer.rank, stayer.rank
            if mover == other or comer.host_id != stayer.host_id or stayer.pid is None:
                continue
            home = before.get(other, {})
            is_new = mover in before and _part(before[mover], home) <= 1.0 - MIN_THERE
            is_there = all(_part(now.get(rank, {}), home) >= MIN_THERE for rank in (mover, other))
            if is_new and is_there:
                key = CauseKey(Reason.CPU_CONTENTION, mover, stayer.pid, MOVED)
                for rank, runner in ((mover, other), (other, mover)):
                    theirs = own.get(runner, set()) - own.get(rank, set()) - {IDLE_PID}
                    moves.update({(rank, pid): key for pid in theirs})
    return moves


def _stood_s(data: JobData, steps: set[int]) -> dict[int, dict[int, float]]:
    """Return by rank how long its own threads waited for each CPU."""
    found: dict[int, dict[int, float]] = {}
    for stall in data.stalls:
        is_own = stall.role != _WORKER and stall.state == RUNNABLE_STATE
        if is_own and stall.cpu is not None and stall.step in steps:
            cpus = found.setdefault(stall.rank, {})
            cpus[stall.cpu] = cpus.get(stall.cpu, 0.0) + stall.end_s - stall.start_s
    return found


def _part(stood_s: Mapping[int, float], cpus: Collection[int]) -> float:
    """Return the part of a rank's waits that was on some CPUs; 0 where it never waited."""
    total_s = sum(stood_s.values())
    there_s = sum(seconds for cpu, seconds in stood_s.items() if cpu in cpus)
    return there_s / total_s if total_s > 0.0 else 0.0
