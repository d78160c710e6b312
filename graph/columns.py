"""Telemetry of one job as arrays, on one clock.

Owns the shape in which the store's views enter the analysis. Times are float seconds since `origin_unix_ns` on the
aligned clock, NaN where a value is unknown; every group of columns has one row per span. Knows nothing of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from rootwalk.graph.model import DataQuality
from rootwalk.instrumentation.semconv import TrainingThreadSensor

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# The sensors that see every switch of a thread, report every stall, and know who ran instead; /proc has sums only.
EXACT_SENSORS: frozenset[str] = frozenset(TrainingThreadSensor) - {TrainingThreadSensor.PROC}


class ThreadState(IntEnum):
    """Columns of every `states` array: where the main thread's time went. Together they are the whole of it.

    GC and LOADER come from producers that may be missing: NaN where they were, and then none of the time is theirs.
    From INTERPRETER on: what a blocked thread waited for, or lost while it ran, as far as the sensors tell.
    """

    # Without the time in which Python's garbage collector ran, and what was lost to interrupts and reclaim.
    RUNNING = 0
    FOREIGN = 1
    OWN = 2
    IDLE = 3
    # Runnable time that the sensor cannot split (or that its parts leave over).
    UNSPLIT = 4
    # Without LOADER and what follows it.
    BLOCKED = 5
    # The garbage collector ran on the main thread.
    GC = 6
    # Blocked in data_load while at least one of the rank's loader workers was running.
    LOADER = 7
    # Blocked in data_load while no loader worker ran and at least one waited for a file.
    LOADER_FILES = 8
    INTERPRETER = 9
    READ = 10
    WRITE = 11
    # Pipes and sockets that somebody else has to empty.
    OUTPUT = 12
    # Sockets on which somebody else has to answer.
    SERVICE = 13
    STOPPED = 14
    # Interrupts had its CPU while it counted as running.
    INTERRUPT = 15
    # It looked for free memory itself, running or blocked.
    RECLAIM = 16
    # It asked a character device, such as a GPU's driver, and was not answered.
    DEVICE = 17
    # A call that changes its memory map did not go on.
    MEMORY_MAP = 18


# What a thread waited for (`training.wait.kind`), as states; what is not listed stays BLOCKED.
STATE_OF_WAIT: Final[Mapping[str, ThreadState]] = {
    "interpreter_lock": ThreadState.INTERPRETER,
    "file_read": ThreadState.READ,
    "file_metadata": ThreadState.READ,
    "file_write": ThreadState.WRITE,
    "file_sync": ThreadState.WRITE,
    "pipe_write": ThreadState.OUTPUT,
    "socket_write": ThreadState.OUTPUT,
    "socket_read": ThreadState.SERVICE,
    "stop": ThreadState.STOPPED,
    "memory_reclaim_wait": ThreadState.RECLAIM,
    "device": ThreadState.DEVICE,
    "memory": ThreadState.MEMORY_MAP,
}
# What it lost while it counted as running, likewise.
STATE_OF_LOSS: Final[Mapping[str, ThreadState]] = {
    "interrupt": ThreadState.INTERRUPT,
    "memory_reclaim": ThreadState.RECLAIM,
}
# The states that come from them.
WAIT_STATES: Final = tuple(sorted({*STATE_OF_WAIT.values(), *STATE_OF_LOSS.values()}))


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: where it runs. None where the producer did not say."""

    rank: int
    host_id: str
    host_name: str | None
    pid: int | None


@dataclass(frozen=True, slots=True)
class StepRows:
    """One row per rank and complete step; `states` has shape (rows, states).

    What a blocked thread waited for is told of waits from `told_wait_s` on, and in BLOCKED of shorter ones; NaN where
    it is told of none.
    `loader_running_s` is CPU time of the rank's loader workers in the step, `throttled_s` how long its control group
    was throttled; NaN where nobody measured.
    """

    step: IntArray
    rank: IntArray
    start_s: FloatArray
    end_s: FloatArray
    states: FloatArray
    told_wait_s: FloatArray
    sensor: tuple[str | None, ...]
    trace_id: tuple[str | None, ...]
    span_id: tuple[str | None, ...]
    loader_running_s: FloatArray
    throttled_s: FloatArray


@dataclass(frozen=True, slots=True)
class PhaseRows:
    """One row per rank, step and phase; `states` and `told_wait_s` as in `StepRows`."""

    step: IntArray
    rank: IntArray
    phase: tuple[str, ...]
    start_s: FloatArray
    end_s: FloatArray
    states: FloatArray
    told_wait_s: FloatArray


@dataclass(frozen=True, slots=True)
class CollectiveRows:
    """One row per rank and collective, from its call to its completion.

    `group` is the same number on all members; `foreign_s`, `own_s` and `idle_s` are how long the rank's other threads
    waited for a CPU on which another process, the rank's own threads or children, or nothing ran (NaN unknown); where
    `is_end_known` is False the host saw only the call.
    """

    step: IntArray
    rank: IntArray
    group: IntArray
    communicator: IntArray
    sequence: IntArray
    size: IntArray
    start_s: FloatArray
    end_s: FloatArray
    foreign_s: FloatArray
    own_s: FloatArray
    idle_s: FloatArray
    operation: tuple[str, ...]
    communicator_name: tuple[str, ...]
    is_end_known: BoolArray


@dataclass(frozen=True, slots=True)
class Contender:
    """One process that ran in a thread's place, for that many seconds."""

    pid: int
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class OwnThread:
    """Of the threads of its own rank that ran in a thread's place, the one that ran longest, of so many."""

    thread_id: int
    name: str
    seconds: float
    threads: int


@dataclass(frozen=True, slots=True)
class WaitRow:
    """What a blocked thread waited for, and who ended it; None where a part is not known."""

    kind: str
    peer: str | None
    port: int | None
    file_system: str | None
    device: str | None
    waker_pid: int | None
    waker_thread_id: int | None
    waker_name: str | None


@dataclass(frozen=True, slots=True)
class StallRow:
    """One interval of at least 1 ms in which a thread of a rank did not run."""

    step: int
    rank: int
    thread_id: int | None
    role: str
    state: str
    start_s: float
    end_s: float
    cpu: int | None
    aggressor_kind: str | None
    aggressor_pid: int | None
    aggressor_cgroup: str | None
    contenders: tuple[Contender, ...]
    phase: str | None = None
    wait: WaitRow | None = None
    own_thread: OwnThread | None = None


@dataclass(frozen=True, slots=True)
class ProbeRows:
    """What a fixed piece of work took a rank's main thread at the end of a step, seconds of CPU time; one row each."""

    step: IntArray
    rank: IntArray
    probe_s: FloatArray


NO_PROBES: Final = ProbeRows(
    np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
)


@dataclass(frozen=True, slots=True)
class InputWait:
    """One data loading of one rank, its `ordinal` in the step counted from 0.

    In a profile, of `length_s` the device did nothing for `idle_s`, and the main thread was in operators for
    `operator_s`. In a live job (`is_live`) the main thread was blocked for `idle_s`.
    """

    rank: int
    step: int
    ordinal: int
    length_s: float
    idle_s: float
    operator_s: float
    is_own_loader: bool
    is_live: bool = False


@dataclass(frozen=True, slots=True)
class SensorRow:
    """Latest state of one sensor on one host."""

    host_name: str
    sensor: str
    status: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class JobData:
    """Everything that one diagnosis reads."""

    job: str
    attempt: int
    world_size: int | None
    origin_unix_ns: int
    ranks: tuple[RankRow, ...]
    steps: StepRows
    phases: PhaseRows
    collectives: CollectiveRows
    stalls: tuple[StallRow, ...]
    sensors: tuple[SensorRow, ...]
    quality: tuple[DataQuality, ...] = ()
    # CPUs that the control group of a rank may use at a time; ranks without a limit, or nobody looked, are missing.
    cpu_limit_by_rank: dict[int, float] = field(default_factory=dict)
    # Ranks that more than one process reported, with how many.
    processes_by_doubled_rank: dict[int, int] = field(default_factory=dict)
    # What a profile tells of data loading; of a live job, where it is held against its peers.
    inputs: tuple[InputWait, ...] = ()
    probes: ProbeRows = NO_PROBES

    def host_of(self, rank: int) -> RankRow | None:
        """Return the row of one rank, or None if nobody reported it."""
        return next((row for row in self.ranks if row.rank == rank), None)

    def readers(self, rank: int | None) -> frozenset[str]:
        """Return the sensors that were there on a rank's host; None: on any host."""
        row = None if rank is None else self.host_of(rank)
        host = "unknown" if row is None else (row.host_name or row.host_id)
        there = (one for one in self.sensors if one.status == "available")
        return frozenset(one.sensor for one in there if rank is None or one.host_name == host)


def steps_of_ranks(steps: StepRows, ranks: Sequence[int] | IntArray) -> StepRows:
    """Return the rows of some ranks, in their order."""
    rows = np.flatnonzero(np.isin(steps.rank, np.asarray(ranks)))
    numbers = rows.tolist()
    return StepRows(
        step=steps.step[rows],
        rank=steps.rank[rows],
        start_s=steps.start_s[rows],
        end_s=steps.end_s[rows],
        states=steps.states[rows],
        told_wait_s=steps.told_wait_s[rows],
        sensor=tuple(steps.sensor[row] for row in numbers),
        trace_id=tuple(steps.trace_id[row] for row in numbers),
        span_id=tuple(steps.span_id[row] for row in numbers),
        loader_running_s=steps.loader_running_s[rows],
        throttled_s=steps.throttled_s[rows],
    )


def shift_clocks(data: JobData, offset_s_by_rank: dict[int, float]) -> JobData:
    """Return the same telemetry with each rank's clock offset taken off its times.

    Args:
        data: Telemetry on the hosts' own clocks.
        offset_s_by_rank: Host clock minus reference clock, in seconds; ranks that are missing have 0.
    """
    if not any(offset_s_by_rank.values()):
        return data

    def moved(rank: IntArray, time_s: FloatArray) -> FloatArray:
        offsets = np.array([offset_s_by_rank.get(int(r), 0.0) for r in rank], dtype=np.float64)
        return time_s - offsets

    s, p, c = data.steps, data.phases, data.collectives
    return replace(
        data,
        steps=replace(s, start_s=moved(s.rank, s.start_s), end_s=moved(s.rank, s.end_s)),
        phases=replace(p, start_s=moved(p.rank, p.start_s), end_s=moved(p.rank, p.end_s)),
        collectives=replace(c, start_s=moved(c.rank, c.start_s), end_s=moved(c.rank, c.end_s)),
        stalls=tuple(
            replace(
                stall,
                start_s=stall.start_s - offset_s_by_rank.get(stall.rank, 0.0),
                end_s=stall.end_s - offset_s_by_rank.get(stall.rank, 0.0),
            )
            for stall in data.stalls
        ),
    )
