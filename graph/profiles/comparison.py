"""What one rank spent in which stacks, and who it is held against: some peers in the same steps, itself before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rootwalk.graph.analysis import StepClock
from rootwalk.graph.columns import JobData
from rootwalk.graph.profiles.difference import StackTimes
from rootwalk.graph.profiles.frames import Frame, FrameNumbers
from rootwalk.graph.profiles.processes import attach_processes, is_by_process
from rootwalk.graph.profiles.reading import (
    MAX_PROFILE_NS,
    Part,
    TimeKind,
    has_profiles,
    profiled_ranks,
    read_times,
)

__all__ = ["KINDS_BY_REASON", "Comparison", "choose_peers", "compare"]

NS: Final = 1_000_000_000
# An odd number of peers has a median of its own; more would say the same.
MAX_PEERS: Final = 5
# Which time of a thread a cause is about, the more telling first.
KINDS_BY_REASON: Final[dict[str, tuple[TimeKind, ...]]] = {
    "PY_GC": (TimeKind.ON_CPU,),
    "PY_GIL": (TimeKind.ON_CPU, TimeKind.OFF_CPU),
    "WORK_IMBALANCE": (TimeKind.ON_CPU,),
    "DATALOADER_CPU": (TimeKind.ON_CPU,),
    "COMPILE": (TimeKind.ON_CPU,),
    "KERNEL_LOCK": (TimeKind.OFF_CPU, TimeKind.ON_CPU),
    "BLOCKING_LOG": (TimeKind.OFF_CPU,),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times in stacks of a rank and of others, by kind.

    Attributes:
        rank: Whose.
        peers: The ranks that it is held against.
        span_ns: When its steps began and ended, Unix ns of its host.
        own: Its times in the window.
        before: Its times in the history.
        of_peers: Theirs in the window; a kind that nobody sampled of a rank is left out.
        frames: By their numbers in the stacks.
        is_by_process: Whether the rank's profiles are those of its process, which know no rank.
    """

    rank: int
    peers: tuple[int, ...]
    span_ns: tuple[int, int]
    own: Mapping[TimeKind, StackTimes]
    before: Mapping[TimeKind, StackTimes]
    of_peers: Sequence[Mapping[TimeKind, StackTimes]]
    frames: Sequence[Frame]
    is_by_process: bool = False

    def others(self, kind: TimeKind) -> list[StackTimes]:
        """Return the peers' times of a kind."""
        return [times[kind] for times in self.of_peers if kind in times]


def compare(
    connection: Any,
    data: JobData,
    clock: StepClock,
    rank: int,
    positions: tuple[Sequence[int], Sequence[int]],
    ahead_s_by_host: Mapping[str, float],
) -> Comparison | None:
    """Return what a rank and others spent in stacks; None where no profile of the rank is in the store.

    Args:
        connection: An open store.
        data: The job; only its name, ranks and steps are used.
        clock: Its steps on the reference clock.
        rank: Who is to blame.
        positions: Of the steps of the window and of the history on the clock.
        ahead_s_by_host: How far each host's clock is ahead, by id.
    """
    window, history = positions
    if not window or not has_profiles(connection):
        return None
    traces = _steps_of_traces(data, rank)

    def part(of_rank: int, chosen: Sequence[int]) -> Part:
        row = data.host_of(of_rank)
        ahead_s = 0.0 if row is None else ahead_s_by_host.get(row.host_id, 0.0)
        return _part(data, clock, of_rank, list(chosen), ahead_s, traces)

    own = part(rank, window)
    span = (int(own.start_ns[0]), int(own.end_ns[-1]))
    past = part(rank, history)
    since_ns = int(past.start_ns[0]) if past.numbers else span[0]
    attach_processes(connection, data.job, data.ranks, (since_ns - MAX_PROFILE_NS, span[1]))
    ranks = profiled_ranks(connection, data.job, data.attempt, span)
    if rank not in ranks:
        return None
    known = {row.rank for row in data.ranks}
    peers = choose_peers([other for other in ranks if other in known], rank)
    parts = [own, past, *(part(peer, window) for peer in peers)]
    numbers = FrameNumbers()
    of_own, before, *of_peers = read_times(connection, data.job, data.attempt, parts, numbers)
    told = (of_own, before, of_peers, numbers.frames, is_by_process(connection, rank))
    return Comparison(rank, tuple(peers), span, *told)


def choose_peers(ranks: Sequence[int], rank: int) -> list[int]:
    """Return some other ranks at even distances.

    >>> choose_peers([0, 1, 2, 3], 1)
    [0, 2, 3]
    """
    others = [other for other in ranks if other != rank]
    if len(others) <= MAX_PEERS:
        return others
    places = np.linspace(0, len(others) - 1, MAX_PEERS).round().astype(int)
    return [others[int(place)] for place in places]


def _steps_of_traces(data: JobData, rank: int) -> dict[str, int]:
    """Return the step of each trace that one rank's steps tell; traces of several steps are left out."""
    steps: dict[str, int] = {}
    several: set[str] = set()
    for row in np.flatnonzero(data.steps.rank == rank):
        trace, step = data.steps.trace_id[row], int(data.steps.step[row])
        if trace is not None and steps.setdefault(trace, step) != step:
            several.add(trace)
    return {trace: step for trace, step in steps.items() if trace not in several}


def _part(
    data: JobData,
    clock: StepClock,
    rank: int,
    positions: list[int],
    ahead_s: float,
    traces: Mapping[str, int],
) -> Part:
    """Return steps of the job by the clock of a rank's host."""
    start_ns, end_ns = (
        data.origin_unix_ns + np.rint((times[positions] + ahead_s) * NS).astype(np.int64)
        for times in (clock.start_s, clock.end_s)
    )
    numbers = frozenset(clock.numbers[i] for i in positions)
    return Part(rank, numbers, start_ns, end_ns, traces)
