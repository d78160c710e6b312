"""PyTorch profiles, made: whole training steps in Chrome's trace format, as small or as large as a test needs.

    main thread |--- data_load ---|- forward -|       backward       |- optimizer -|       synchronous at its end
    autograd                                  |-- backward --|
    device      |busy |   idle    |- kernels -|-- kernels ---|nccl~~~|-- kernels --|

All ranks' collectives end together, `TRANSFER_MS` after the last rank has come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.importers.formats import BrokenPart
from rootwalk.graph.importers.kineto import read
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

FORWARD_MS: Final = 20.0
BACKWARD_MS: Final = 40.0
TRANSFER_MS: Final = 5.0
OPTIMIZER_MS: Final = 10.0
BASE_NS: Final = 1_700_000_000_000_000_000
# When the first step begins on the profile's own clock.
START_MS: Final = 1000.0
ELEMENTS: Final = 1_000_000

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MadeProfile:
    """What a profile is of.

    Attributes:
        rank: Whose it is.
        loads_ms: By rank, how long each step's data loading takes.
        busy_ms: How long into the loading the device has work.
        operators_ratio: Part of the loading that is in operators.
        loader: Class of the data loader's iterator.
        steps: How many, from 10 on.
        operators: Operators in each forward, each with a kernel.
        has_device: Whether the device was profiled.
    """

    rank: int = 0
    loads_ms: tuple[float, ...] = (5.0,)
    busy_ms: float = 0.0
    operators_ratio: float = 0.5
    loader: str = "_SingleProcessDataLoaderIter"
    steps: int = 6
    operators: int = 4
    has_device: bool = True

    @property
    def step_ms(self) -> float:
        """Time of a step: that of the rank that loads longest."""
        return max(self.loads_ms) + FORWARD_MS + BACKWARD_MS + TRANSFER_MS + OPTIMIZER_MS


def event(
    category: str, name: str, start_ms: float, length_ms: float, tid: int = 100, **more: Any
) -> Event:
    """Return one event of a process 100; its start is from the beginning of the first step."""
    times = {"ts": round((START_MS + start_ms) * 1000, 3), "dur": round(length_ms * 1000, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": tid, **times, "args": more}


def events_of(*parts: MadeProfile) -> Iterator[Event]:
    """Yield the events of a profile; of several, one after the other."""
    number, start = 10, 0.0
    for made in parts:
        for _ in range(made.steps):
            yield from _step(made, number, start)
            number, start = number + 1, start + made.step_ms


def without_steps(*parts: MadeProfile) -> list[Event]:
    """Return the events of a profile whose loop does not call `prof.step()`."""
    return [e for e in events_of(*parts) if not e["name"].startswith("ProfilerStep")]


def _step(made: MadeProfile, number: int, start: float) -> Iterator[Event]:
    load = made.loads_ms[made.rank]
    name = f"enumerate(DataLoader)#{made.loader}.__next__"
    yield event("user_annotation", f"ProfilerStep#{number}", start, made.step_ms)
    yield event("user_annotation", name, start, load)
    yield event("cpu_op", "aten::stack", start, load * made.operators_ratio)
    forward, correlation = start + load, number * 1_000_000
    piece = FORWARD_MS / made.operators
    for index in range(made.operators):
        begin = forward + index * piece
        yield event("cpu_op", "aten::linear", begin, piece * 0.5)
        yield from _kernel(made, "gemm", begin, piece, correlation + index)
    backward = forward + FORWARD_MS
    grad = "autograd::engine::evaluate_function: AddmmBackward0"
    yield event("cpu_op", grad, backward, BACKWARD_MS * 0.5, tid=101)
    yield from _kernel(made, "gemm", backward, BACKWARD_MS, correlation + 100_000, tid=101)
    arrived = backward + BACKWARD_MS
    end = start + made.step_ms - OPTIMIZER_MS
    if len(made.loads_ms) > 1:
        group = _group(len(made.loads_ms))
        call = backward + BACKWARD_MS * 0.4
        yield event("cpu_op", "record_param_comms", call, 1.0, tid=101, **group)
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        yield from _kernel(
            made, kernel, arrived, end - arrived, correlation + 200_000, tid=101, call=call + 0.5
        )
    yield event("user_annotation", "Optimizer.step#SGD.step", end, OPTIMIZER_MS)
    yield event("cpu_op", "aten::_foreach_add_", end, OPTIMIZER_MS * 0.5)
    # What the step leaves to the device goes on while the next one loads its data.
    length = OPTIMIZER_MS + made.busy_ms
    yield from _kernel(made, "foreach", end, length, correlation + 300_000)


def _group(size: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": ELEMENTS,
        "dtype": "Float",
        "Group size": size,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": json.dumps(list(range(size))),
    }


def _kernel(
    made: MadeProfile,
    name: str,
    start: float,
    length: float,
    correlation: int,
    *,
    tid: int = 100,
    call: float | None = None,
) -> Iterator[Event]:
    if not made.has_device:
        return
    launch = start if call is None else call
    yield event("cuda_runtime", "cudaLaunchKernel", launch, 0.01, tid, correlation=correlation)
    where = {"device": 0, "stream": 7, "correlation": correlation}
    yield {**event("kernel", name, start, length, 7, **where), "pid": 0}


def document(made: MadeProfile, events: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return a profile as PyTorch exports it; `events` instead of its own."""
    world = len(made.loads_ms)
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": made.rank, "world_size": world},
        "traceEvents": list(events_of(made)) if events is None else list(events),
        "baseTimeNanoseconds": BASE_NS,
    }


def write_profile(path: Path, made: MadeProfile, events: Sequence[Any] | None = None) -> Path:
    """Write a profile and return its path."""
    path.write_text(json.dumps(document(made, events)), "utf-8")
    return path


def write_large(path: Path, made: MadeProfile) -> int:
    """Write a profile event by event; return its size in bytes."""
    with path.open("w", encoding="utf-8") as file:
        info = json.dumps({"rank": made.rank, "world_size": len(made.loads_ms)})
        file.write(f'{{"distributedInfo": {info}, "traceEvents": [\n')
        comma = ""
        for one in events_of(made):
            # As long as events are in real profiles: 450 bytes.
            one["args"]["Call stack"] = "torch/nn/modules/module.py(1511): _call_impl;" * 6
            file.write(comma + json.dumps(one))
            comma = ",\n"
        file.write(f'], "baseTimeNanoseconds": {BASE_NS}}}')
    return path.stat().st_size


def read_profile(
    path: Path, signal: Signal = Signal.TRACES
) -> tuple[list[ImportRequest], list[BrokenPart]]:
    """Return what an import of a profile yields of a signal, and what of the file was broken."""
    parts = list(read(path, None))
    requests = [part for part in parts if isinstance(part, ImportRequest)]
    requests = [request for request in requests if request.signal is signal]
    return requests, [part for part in parts if isinstance(part, BrokenPart)]
