"""Stores of jobs of thousands of ranks, simulated as arrays and written in bulk.

Ranks are tensor-parallel in eights (a host each), in a pipeline of four stages, the rest data-parallel, with experts
among eight replicas. One step of a rank, for every micro-batch and layer::

    data_load | forward: receive, (compute, tensor all-reduce, experts' all-to-all) x layers, send |
    backward: the same from the last stage to the first | optimizer: reduce-scatter, norm over all, all-gather

The main thread is blocked in every communication but a send, until the last member has come. Computations vary as those
of healthy workers of a public trace do, each host's clock is off, and one rank is slowed by a fault in the last steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import rebuild_summaries
from support.large_rows import HOST_RANKS, NS, Floats, Integers, SpanRows, put

TENSOR, STAGES, EXPERTS = HOST_RANKS, 4, 8
# Micro-batches and layers of a stage that give about so many spans of a rank in a step.
SHAPES = {50: (2, 3), 500: (8, 8)}
# `BETWEEN_S` is what a thread does between two communications.
DATA_LOAD_S, COMPUTE_S, OPTIMIZER_S, BETWEEN_S = 0.02, 0.10, 0.03, 0.0005
TRANSFER_S, STALL_S = 0.0002, 0.001
# Standard deviation of the hosts' clocks.
SKEW_S = 0.05
# What a fault does to the rank's main thread, the column of its seconds, and the reason that must be named.
FAULTS = {
    "contention": ("runnable_foreign", "CPU_CONTENTION"),
    "collector": ("gc", "PY_GC"),
    "work": ("running", "WORK_IMBALANCE"),
}
TRACES = Path(__file__).resolve().parents[1] / "data" / "straggleranalysis"
_STATES = ("running", "blocked", "gc", "runnable_foreign")


@dataclass(frozen=True)
class LargeJob:
    """A job: `fault` of `FAULTS` (None is healthy) adds `seconds` to `culprit` in the last `window` steps."""

    ranks: int
    operations: int = 50
    fault: str | None = "contention"
    seconds: float = 0.25
    history: int = 28
    window: int = 16
    seed: int = 1

    @property
    def culprit(self) -> int:
        """The rank that is slowed: neither the first nor the last of anything."""
        return self.ranks // 3 + 2

    @property
    def replicas(self) -> int:
        return self.ranks // (TENSOR * STAGES)


def healthy_ratios() -> Floats:
    """Return durations over the median of the same worker's same computation, of a public trace without a slow worker.

    ST has 8 workers in 32 steps; its stages are uneven, which the medians take out.
    """
    table = parquet.read_table(TRACES / "trace-ST.parquet")
    columns = {name: np.asarray(table[name]) for name in ("rank", "stage", "optype", "duration")}
    is_computation = np.char.find(columns["optype"].astype(str), "compute") >= 0
    _, key = np.unique(
        np.stack([columns[n][is_computation].astype(str) for n in ("rank", "stage", "optype")]),
        axis=1,
        return_inverse=True,
    )
    duration = columns["duration"][is_computation].astype(np.float64)
    medians = np.array([np.median(duration[key == k]) for k in range(int(key.max()) + 1)])
    return np.asarray(duration / medians[key], dtype=np.float64)


class _Simulation:
    """The clocks of all ranks, (replicas, stages, tensor), and what passes on them."""

    def __init__(self, job: LargeJob) -> None:
        self.job = job
        self.random = np.random.default_rng(job.seed)
        self.ratios = healthy_ratios()
        shape = (job.replicas, STAGES, TENSOR)
        self.rank: Integers = np.arange(job.ranks).reshape(shape)
        self.now: Floats = np.zeros(shape)
        self.sequences: dict[str, int] = {}
        replica, stage, place = np.indices(shape)
        self.groups = {
            "tensor": np.char.add("t", (self.rank // TENSOR).astype(str)),
            "expert": np.char.add(
                "e", ((replica // EXPERTS * STAGES + stage) * TENSOR + place).astype(str)
            ),
            "data": np.char.add("d", (stage * TENSOR + place).astype(str)),
            "world": np.full(shape, "w"),
        }
        self.sums: dict[str, Floats] = {}
        self.spans = SpanRows()
        self.phase = ""

    def open_phase(self, phase: str) -> None:
        self.phase, self.begin = phase, self.now.copy()
        self.sums = {state: np.zeros(self.now.shape) for state in _STATES}

    def close_phase(self, index: int) -> dict[str, Floats]:
        """Write the phase of every rank; return its states."""
        states = self.sums
        self.spans.add(
            *(self.rank.reshape(-1), self.begin.reshape(-1), self.now.reshape(-1)),
            **_state_columns(states),
            name=self.phase,
            phase=self.phase,
            phase_index=index,
        )
        return states

    def compute(self, stage: Any, seconds: float) -> None:
        work = seconds * self.random.choice(self.ratios, self.now[:, stage].shape)
        self.sums["running"][:, stage] += work
        self.now[:, stage] += work

    def strike(self, seconds: float) -> None:
        """Let the fault cost its seconds now."""
        job = self.job
        state, _ = FAULTS[job.fault or ""]
        here = self.rank == job.culprit
        begin = self.now[here].copy()
        self.sums[state][here] += seconds
        self.now[here] += seconds
        if state == "runnable_foreign":
            self.stall(
                "runnable", self.rank[here], begin, self.now[here], aggressor_ns=seconds * NS
            )

    def stall(self, state: str, rank: Integers, begin: Floats, end: Floats, **more: Any) -> None:
        long = end - begin >= STALL_S
        if long.any():
            columns = {"name": f"stall.{state}", "state": state, "phase": self.phase}
            self.spans.add(rank[long], begin[long], end[long], **columns, **more)

    def meet(
        self, kind: str, operation: str, stage: Any, last_of: Callable[[Floats], Floats]
    ) -> None:
        """Let the ranks of a stage (or all) meet in their groups of a kind: nobody goes on before the last has come."""
        begin = self.now[:, stage].copy()
        end = np.broadcast_to(last_of(begin), begin.shape) + TRANSFER_S
        self.call(kind, operation, self.rank[:, stage], begin, end, self.groups[kind][:, stage])
        self.block(stage, begin, end)

    def block(self, stage: Any, begin: Floats, end: Floats) -> None:
        """Let the main threads wait from begin to end."""
        self.sums["blocked"][:, stage] += end - begin
        self.now[:, stage] = end
        ranks = self.rank[:, stage].reshape(-1)
        self.stall("blocked", ranks, begin.reshape(-1), np.asarray(end).reshape(-1))

    def call(
        self,
        kind: str,
        operation: str,
        rank: Integers,
        begin: Floats,
        end: Floats,
        group: Any,
        **more: Any,
    ) -> None:
        sizes = {
            "tensor": TENSOR,
            "expert": min(EXPERTS, self.job.replicas),
            "data": self.job.replicas,
            "world": self.job.ranks,
        }
        sequence = more.pop("sequence", None)
        if sequence is None:
            place = f"{kind}{rank.reshape(-1)[0] // TENSOR % STAGES if rank.ndim < 3 else ''}"
            sequence = self.sequences[place] = self.sequences.get(place, 0) + 1
        self.spans.add(
            *(rank.reshape(-1), begin.reshape(-1), np.asarray(end).reshape(-1)),
            name=f"collective.{operation}",
            operation=operation,
            phase=self.phase,
            communicator_id=np.asarray(group).reshape(-1),
            communicator_name=kind,
            communicator_size=sizes.get(kind, 2),
            sequence=sequence,
            is_point_to_point=int(kind == "pipeline"),
            bytes=1 << 20,
        )

    def send(self, source: int, target: int, batch: int, step: int) -> None:
        """Let a stage send, and the next one wait for it."""
        self.compute([source, target], BETWEEN_S)
        pair = min(source, target)
        group = np.char.add(
            f"p{pair}-",
            (self.rank[:, 0] // (STAGES * TENSOR) * TENSOR + self.rank[:, 0] % TENSOR).astype(str),
        )
        sequence = (step * 2 + int(source > target)) * self.job.operations + batch
        begin = self.now[:, source].copy()
        wanted = self.now[:, target].copy()
        end = np.maximum(begin, wanted) + TRANSFER_S
        self.call(
            "pipeline",
            "send",
            self.rank[:, source],
            begin,
            begin + TRANSFER_S,
            group,
            sequence=sequence,
        )
        self.call("pipeline", "recv", self.rank[:, target], wanted, end, group, sequence=sequence)
        self.block(target, wanted, end)

    def step(self, step: int) -> pa.Table:
        """Simulate a step of all ranks; return its spans."""
        self.pass_step(step)
        return self.spans.table(step, self.skew_s)

    def pass_step(self, step: int) -> None:
        """Simulate a step of all ranks."""
        batches, layers = SHAPES[self.job.operations]
        self.spans = SpanRows()
        began = self.now.copy()
        is_struck = self.job.fault is not None and step >= self.job.history
        whole: list[dict[str, Floats]] = []
        self.open_phase("data_load")
        self.compute(slice(None), DATA_LOAD_S)
        whole.append(self.close_phase(0))
        for index, phase in enumerate(("forward", "backward"), start=1):
            self.open_phase(phase)
            if phase == "forward" and is_struck:
                self.strike(self.job.seconds)
            self.pass_batches(phase, step, COMPUTE_S * index / (batches * layers))
            whole.append(self.close_phase(index))
        self.open_phase("optimizer")
        self.compute(slice(None), OPTIMIZER_S)
        self.finish()
        whole.append(self.close_phase(3))
        totals = {
            state: sum((one[state] for one in whole), np.zeros(began.shape)) for state in _STATES
        }
        self.spans.add(
            *(self.rank.reshape(-1), began.reshape(-1), self.now.reshape(-1)),
            name="training.rank_step",
            **_state_columns(totals),
        )

    @property
    def skew_s(self) -> Floats:
        """How far each host's clock is off."""
        random = np.random.default_rng([self.job.seed, 1])
        return random.normal(0.0, SKEW_S, self.job.ranks // TENSOR)

    def pass_batches(self, phase: str, step: int, seconds: float) -> None:
        """Let all micro-batches pass the stages, forward or backward."""
        batches, layers = SHAPES[self.job.operations]
        stages = range(STAGES) if phase == "forward" else range(STAGES - 1, -1, -1)
        for batch in range(batches):
            before: int | None = None
            for stage in stages:
                if before is not None:
                    self.send(before, stage, batch, step)
                for _ in range(layers):
                    self.compute(stage, seconds / 2)
                    self.meet(
                        "tensor", "all_reduce", stage, lambda t: t.max(axis=-1, keepdims=True)
                    )
                    self.compute(stage, seconds / 2)
                    if self.job.replicas > 1:
                        self.meet("expert", "all_to_all", stage, _last_of_experts)
                before = stage

    def finish(self) -> None:
        """Let the replicas join their gradients and parameters, and all ranks the norm."""
        if self.job.replicas > 1:
            for stage in range(STAGES):
                self.meet("data", "reduce_scatter", stage, lambda t: t.max(axis=0, keepdims=True))
        self.compute(slice(None), BETWEEN_S)
        self.meet("world", "all_reduce", slice(None), lambda t: t.max(keepdims=True))
        self.compute(slice(None), BETWEEN_S)
        if self.job.replicas > 1:
            for stage in range(STAGES):
                self.meet("data", "all_gather", stage, lambda t: t.max(axis=0, keepdims=True))


def _last_of_experts(times: Floats) -> Floats:
    """Return for each replica the last time of its group of `EXPERTS` replicas."""
    replicas = times.shape[0]
    starts = np.arange(0, replicas, EXPERTS)
    last = np.maximum.reduceat(times, starts, axis=0)
    return np.repeat(last, np.diff([*starts.tolist(), replicas]), axis=0)


def _state_columns(states: dict[str, Floats]) -> dict[str, Any]:
    ns = {name: (values * NS).reshape(-1) for name, values in states.items()}
    foreign = ns["runnable_foreign"]
    return {
        "running_ns": ns["running"] + ns["gc"],
        "runnable_ns": foreign,
        "runnable_foreign_ns": foreign,
        "runnable_own_ns": 0,
        "runnable_idle_ns": 0,
        "blocked_ns": ns["blocked"],
        "gc_ns": ns["gc"],
    }


def write_large_job(path: Path, job: LargeJob) -> int:
    """Create a store with a simulated job; return how many spans it has."""
    store.create_store(path)
    simulation = _Simulation(job)
    count = 0
    with store.writing(path) as connection:
        # Of the machine that other measurements share.
        connection.execute("SET memory_limit = '4GB'")
        for step in range(job.history + job.window):
            count += put(connection, simulation.step(step), job.ranks)
        rebuild_summaries(connection)
    return count


def longer_s(job: LargeJob) -> float:
    """Return how many seconds a step of the window is longer than the same step would be without the fault."""
    steps = job.history + job.window
    ends = []
    for simulated in (job, replace(job, fault=None)):
        simulation = _Simulation(simulated)
        begin = 0.0
        for step in range(steps):
            simulation.pass_step(step)
            simulation.spans = SpanRows()
            if step == job.history - 1:
                begin = float(simulation.now.max())
        ends.append(float(simulation.now.max()) - begin)
    return (ends[0] - ends[1]) / job.window
