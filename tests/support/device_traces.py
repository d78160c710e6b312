"""Profiles of steps of known seconds: what the host launches, what the device runs in which stream, who waits for what.

Times are milliseconds from the begin of the first step; `support.profiles` makes the events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from support.profiles import ELEMENTS, Event, event

__all__ = ["MAIN", "DeviceTrace", "TrainedJob", "job_events"]

MAIN, AUTOGRAD = 100, 101
COMPUTE, COMMUNICATION = 7, 20
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CALL_MS = 0.01


@dataclass(slots=True)
class DeviceTrace:
    """Events that are added one by one; every launch has a correlation of its own."""

    events: list[Event] = field(default_factory=list)
    correlation: int = 0

    def step(self, number: int, start: float, end: float) -> None:
        self.events.append(event("user_annotation", f"ProfilerStep#{number}", start, end - start))

    def load(self, start: float, end: float) -> None:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.events.append(event("user_annotation", name, start, end - start))

    def operator(self, name: str, start: float, end: float, tid: int = MAIN, **more: Any) -> None:
        self.events.append(event("cpu_op", name, start, end - start, tid, **more))

    def launch(
        self,
        name: str,
        call: float,
        start: float,
        end: float,
        *,
        stream: int = COMPUTE,
        tid: int = MAIN,
        call_ms: float = CALL_MS,
        is_told: bool = True,
    ) -> int:
        """Add an operation of the device and the call that launched it; return its correlation."""
        self.correlation += 1
        correlation = self.correlation
        what, category = "cudaLaunchKernel", "kernel"
        if name.startswith("Mem"):
            what, category = "cudaMemcpyAsync", "gpu_memcpy"
        if is_told:
            call_event = event("cuda_runtime", what, call, call_ms, tid, correlation=correlation)
            self.events.append(call_event)
        where = {"device": 0, "stream": stream, "correlation": correlation}
        one = event(category, name, start, end - start, stream, **where)
        self.events.append({**one, "pid": 0})
        return correlation

    def synchronize(
        self,
        start: float,
        end: float,
        *,
        name: str = "cudaStreamSynchronize",
        tid: int = MAIN,
        **told: Any,
    ) -> None:
        """Add a call that waits; `told` is what CUPTI says of it."""
        self.correlation += 1
        call = event("cuda_runtime", name, start, end - start, tid, correlation=self.correlation)
        self.events.append(call)
        if told:
            self._tell(start, told)

    def stream_waits(self, call: float, stream: int, awaited: int, recorded: float) -> None:
        """Add an event that one stream records and another waits for."""
        self.correlation += 1
        record = self.correlation
        self.events.append(
            event("cuda_runtime", "cudaEventRecord", recorded, 0.001, correlation=record)
        )
        self.correlation += 1
        told = {"wait_on_stream": awaited, "wait_on_cuda_event_record_corr_id": record}
        self._tell(call, {"kind": "Stream Wait Event", "stream": stream, **told})

    def _tell(self, start: float, told: dict[str, Any]) -> None:
        name = told.pop("kind")
        what = {"device": 0, "correlation": self.correlation, **told}
        self.events.append({**event("cuda_sync", name, start, 0.001, -1, **what), "pid": 0})


@dataclass(frozen=True, slots=True)
class TrainedJob:
    """A data-parallel job that waits for its device at the end of each step.

        main       |load|L L L L|                          |L|   synchronize    |
        stream 7        |-- gemm --|-- gemm --| ...         |- foreach -|
        stream 20                              |-- nccl ----|
        all ranks' collectives end together, `transfer_ms` after the last of them has begun

    Attributes:
        gemms_ms: By rank, how long each of the four products takes.
        pauses_ms: By rank, how long the host does something else before it launches the last product.
        load_ms: How long each step's data loading takes.
        loads_ms: By rank, where they differ.
        steps: How many, from 10 on.
        transfer_ms: How long the collective takes once all have come.
        update_ms: How long the update takes.
        slow_from: The first step from which the ranks differ; before it all are as rank 0 is.
    """

    gemms_ms: tuple[float, ...] = (5.0, 5.0)
    pauses_ms: tuple[float, ...] = ()
    load_ms: float = 2.0
    steps: int = 6
    transfer_ms: float = 3.0
    update_ms: float = 4.0
    slow_from: int = 0


def job_events(job: TrainedJob, rank: int) -> list[Event]:
    """Return the events of one rank."""
    trace, start = DeviceTrace(), 0.0
    for number in range(10, 10 + job.steps):
        ends = [_computed(job, one, number) for one in range(len(job.gemms_ms))]
        start = _add_step(trace, job, rank, number, start, max(ends))
    return trace.events


def _parts(job: TrainedJob, rank: int, number: int) -> tuple[float, float]:
    """Return how long a product takes and how long the host pauses."""
    who = rank if number >= job.slow_from else 0
    return job.gemms_ms[who], job.pauses_ms[who] if job.pauses_ms else 0.0


def _computed(job: TrainedJob, rank: int, number: int) -> float:
    """Return when the last product of a step ends, from the step's begin."""
    gemm, pause = _parts(job, rank, number)
    before = job.load_ms + 3 * gemm
    return max(before, job.load_ms + 0.3 + pause if pause else before) + gemm


def _add_step(
    trace: DeviceTrace, job: TrainedJob, rank: int, number: int, start: float, last: float
) -> float:
    gemm, pause = _parts(job, rank, number)
    host = start + job.load_ms
    trace.load(start, host)
    for index in range(3):
        call = host + 0.1 * index
        trace.operator("aten::linear", call, call + 0.05)
        # The first reaches an idle stream as it is called.
        trace.launch("gemm_128x64", call, host + index * gemm, host + (index + 1) * gemm)
    trace.operator("aten::nonzero", host + 0.3, host + 0.3 + max(pause, 0.05))
    begin = max(host + 3 * gemm, host + 0.3 + pause if pause else 0.0)
    call = host + 0.3 + max(pause - CALL_MS, 0.0)
    trace.operator("aten::matmul", call, call + 0.05)
    trace.launch("gemm_128x64", call, begin, begin + gemm)
    arrived, end = begin + gemm, start + last + job.transfer_ms
    group: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": ELEMENTS,
        "dtype": "Float",
        "Group size": len(job.gemms_ms),
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": json.dumps(list(range(len(job.gemms_ms)))),
    }
    asked = call + 0.1
    if len(job.gemms_ms) > 1:
        trace.stream_waits(asked - 0.02, COMMUNICATION, COMPUTE, asked - 0.03)
        trace.operator("record_param_comms", asked, asked + 0.05, **group)
        trace.launch(NCCL, asked + 0.02, arrived, end, stream=COMMUNICATION)
        trace.stream_waits(asked + 0.12, COMPUTE, COMMUNICATION, asked + 0.1)
    else:
        end = arrived
    trace.operator("aten::_foreach_add_", asked + 0.2, asked + 0.3)
    trace.launch("foreach", asked + 0.21, end, end + job.update_ms)
    done = end + job.update_ms
    trace.synchronize(asked + 0.4, done)
    trace.step(number, start, done)
    return done
