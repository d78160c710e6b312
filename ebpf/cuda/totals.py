"""The sums of the program of CUDA calls as measurements; mirrors `programs/cuda.h`, which says what counts.

Pure. A call that has not returned gives its time so far; a sum never falls, although the two are not read at once.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rootwalk.ebpf.cuda.communicators import IS_NUMBERED, Communicators
from rootwalk.ebpf.cuda.functions import DATA_TYPES, DIRECTIONS, KINDS, LAYERS, NCCL_OPERATIONS
from rootwalk.ebpf.reader import Measurement, Value
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingCudaCallKind as Kind

__all__ = ["CALL_KEY", "CALL_TOTAL", "RUNNING", "RUNNING_KEY", "CallTotals", "RunningCall"]

# struct call_key, call_total, running_key, running_call
CALL_KEY = struct.Struct("<IBBBxQ")
CALL_TOTAL = struct.Struct("<QQQQ")
RUNNING_KEY = struct.Struct("<II")
RUNNING = struct.Struct("<QQQQ16sQQI4x")

Pairs = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that has not returned.

    Attributes:
        key: Whose and what it is, as the map of totals has it.
        start_ns: When it began.
        tid: Its thread.
        pid: Its process.
    """

    key: bytes
    start_ns: int
    tid: int
    pid: int


def decode_running(pairs: Pairs) -> Iterator[tuple[bytes, RunningCall]]:
    """Yield the calls that have not returned, each with its key in their map."""
    for key, value in pairs:
        start_ns, _, _, _, call_key, _, _, pid = RUNNING.unpack(value)
        yield key, RunningCall(call_key, start_ns, RUNNING_KEY.unpack(key)[0], pid)


class CallTotals:
    """Remembers the highest time that was told of each sum.

    Args:
        communicators: Knows what numbers of communicators stand for.
    """

    def __init__(self, communicators: Communicators) -> None:
        self._communicators = communicators
        self._told_ns: dict[bytes, int] = {}

    def measure(
        self, totals: Pairs, running: Iterable[RunningCall], now_ns: int
    ) -> Iterator[Measurement]:
        """Yield what is known.

        Args:
            totals: The map of totals, read before the other.
            running: Calls that have not returned.
            now_ns: CLOCK_MONOTONIC.
        """
        sums = {key: CALL_TOTAL.unpack(value) for key, value in totals}
        more_ns: defaultdict[bytes, int] = defaultdict(int)
        for call in running:
            more_ns[call.key] += max(now_ns - call.start_ns, 0)
        for key in sums.keys() | more_ns.keys():
            count, time_ns, size, failed = sums.get(key, (0, 0, 0, 0))
            time_ns = max(time_ns + more_ns[key], self._told_ns.get(key, 0))
            self._told_ns[key] = time_ns
            whose = self._name(communicator_of(key))
            if whose is not None:
                yield from _measure(key, whose, count, time_ns / 1e9, size, failed)

    def _name(self, communicator: int) -> Mapping[str, Value] | None:
        """Return what tells a communicator from others, nothing for none; None for one that has ended long ago."""
        if not communicator & IS_NUMBERED:
            address = f"{communicator:#x}"
            return {semconv.TRAINING_NCCL_COMMUNICATOR: address} if communicator else {}
        member = self._communicators.find(communicator)
        return member.attributes if member is not None else None

    def is_over(self, key: bytes) -> bool:
        """Return whether a sum is that of a communicator that has ended long ago."""
        return self._name(communicator_of(key)) is None

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Forget ranks that have ended, by their slots, and communicators that have."""
        over = [key for key in self._told_ns if is_gone(slot_of(key)) or self.is_over(key)]
        for key in over:
            del self._told_ns[key]


def slot_of(key: bytes) -> int:
    """Return the rank of a sum."""
    return int(CALL_KEY.unpack(key)[0])


def communicator_of(key: bytes) -> int:
    """Return the communicator of a sum: its number and `IS_NUMBERED`, its address, 0 for none."""
    return int(CALL_KEY.unpack(key)[4])


def _measure(
    key: bytes, whose: Mapping[str, Value], count: int, time_s: float, size: int, failed: int
) -> Iterator[Measurement]:
    slot, kind, layer, detail, _ = CALL_KEY.unpack(key)
    if kind >= len(KINDS):
        yield from _measure_nccl(
            slot,
            NCCL_OPERATIONS[kind - len(KINDS)],
            detail,
            whose,
            count,
            time_s,
            size,
            failed,
        )
        return
    where: dict[str, Value] = {semconv.TRAINING_CUDA_LAYER: LAYERS[layer].value}
    attributes = {**where, semconv.TRAINING_CUDA_CALL_KIND: KINDS[kind].value}
    if KINDS[kind] is Kind.COPY:
        # What a caller says may be anything.
        direction = DIRECTIONS[detail] if detail < len(DIRECTIONS) else DIRECTIONS[-1]
        where[semconv.TRAINING_CUDA_COPY_DIRECTION] = direction.value
        attributes.update(where)
        yield Measurement(semconv.METRIC_TRAINING_CUDA_COPY_IO, size, where, slot)
    if KINDS[kind] in (Kind.ALLOCATE, Kind.HOST_ALLOCATE):
        yield Measurement(semconv.METRIC_TRAINING_CUDA_ALLOCATED_SIZE, size, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_CUDA_CALLS, count, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_CUDA_CALL_TIME, time_s, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_CUDA_CALL_FAILURES, failed, attributes, slot)


def _measure_nccl(
    slot: int,
    operation: str,
    data_type: int,
    whose: Mapping[str, Value],
    count: int,
    time_s: float,
    elements: int,
    failed: int,
) -> Iterator[Measurement]:
    attributes: dict[str, Value] = {semconv.TRAINING_NCCL_OPERATION: operation, **whose}
    if not operation.startswith("group_"):
        known = DATA_TYPES[data_type] if data_type < len(DATA_TYPES) else None
        attributes[semconv.COLLECTIVE_DATA_TYPE] = known.name if known else f"type {data_type}"
        if known is not None:
            size_bytes = elements * known.size_bytes
            yield Measurement(semconv.METRIC_TRAINING_NCCL_IO, size_bytes, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_NCCL_CALLS, count, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_NCCL_CALL_TIME, time_s, attributes, slot)
    yield Measurement(semconv.METRIC_TRAINING_NCCL_CALL_FAILURES, failed, attributes, slot)
