"""A rank's calls of CUDA beside a simulated job, as the agent's kernel probes count them. Generated: no GPU was there.

steps   200 of 120 ms | 200 of 180 ms        rank 1 costs 60 ms a step, from 24 s on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.counter_cases import FAULT_S, ONSET_S
from support.counters import Told
from support.jobs import HEALTHY_STEP_S

# Where the sums stood when the agent began to look.
WARM_UP = 100.0


@dataclass(frozen=True)
class Calls:
    """Calls of one kind, a step: how many and for how long, before the onset and after it, and their bytes."""

    number: tuple[float, float]
    seconds: tuple[float, float]
    size: tuple[float, float] = (0.0, 0.0)


# By kind and direction, as nobody has them for an attribute of its own.
Rank = Mapping[str, Calls]
INPUT, LOSS = "copy/host_to_device", "copy/device_to_host"
SYNC, ALLOCATE, FREE = "stream_sync", "allocate", "free"
GRAPH = "graph_launch"
BATCH = 1_000_000.0
USUAL: Rank = {
    INPUT: Calls((2, 2), (0.0002, 0.0002), (BATCH, BATCH)),
    LOSS: Calls((1, 1), (0.0002, 0.0002), (4, 4)),
    SYNC: Calls((2, 2), (0.030, 0.030)),
    GRAPH: Calls((4, 4), (0.0004, 0.0004)),
    ALLOCATE: Calls((0, 0), (0, 0)),
    FREE: Calls((0, 0), (0, 0)),
}
# As many waits as ever, and longer ones: for a slow device, or for a peer whose collective comes late.
WAITS: Rank = {**USUAL, SYNC: Calls((2, 2), (0.030, 0.030 + FAULT_S))}
# From a shorter time and from a longer one, by as much.
SHORT_WAITS: Rank = {**USUAL, SYNC: Calls((2, 2), (0.005, 0.005 + FAULT_S))}
LONG_WAITS: Rank = {**USUAL, SYNC: Calls((2, 2), (0.090, 0.090 + FAULT_S))}
SYNCHRONISES: Rank = {**USUAL, SYNC: Calls((2, 20), (0.030, 0.030 + FAULT_S))}
READS: Rank = {**USUAL, LOSS: Calls((1, 9), (0.0002, FAULT_S), (4, 36))}
THRASHES: Rank = {
    **USUAL,
    ALLOCATE: Calls((0, 3), (0, FAULT_S / 3)),
    FREE: Calls((0, 3), (0, FAULT_S / 2)),
}


def a_step(before: float, after: float) -> Callable[[float], float]:
    """A sum that grows by so much in each step before the onset, and by so much after it."""
    return lambda now: (
        WARM_UP
        + before * (min(now, ONSET_S) + 70.0) / HEALTHY_STEP_S
        + after * max(now - ONSET_S, 0.0) / (HEALTHY_STEP_S + FAULT_S)
    )


def calls_of(rank: int, host: int, calls: Rank, layer: str = "runtime") -> tuple[Told, ...]:
    """Return what the agent tells of a rank's calls."""
    told = []
    for name, one in calls.items():
        kind, _, direction = name.partition("/")
        where = {"training.cuda.layer": layer}
        if direction:
            where["training.cuda.copy.direction"] = direction
            told.append(Told("training.cuda.copy.io", a_step(*one.size), host, rank, where))
        where = {**where, "training.cuda.call.kind": kind}
        told.append(Told("training.cuda.calls", a_step(*one.number), host, rank, where))
        told.append(Told("training.cuda.call.time", a_step(*one.seconds), host, rank, where))
    return tuple(told)
