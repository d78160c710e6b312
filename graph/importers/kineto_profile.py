"""What is kept of a profile's events: a few integers each, so that a profile of any size is read in one pass.

    user_annotation, Operator      ProfilerStep#N, enumerate(DataLoader)#..., Optimizer.step#...: steps and phases
    cpu_op, Operator               when operators ran, by thread; backward's ones apart; record_param_comms
    *_runtime, *_driver, Runtime   launches: which kernel came from where
    kernel, gpu_memcpy, gpu_memset, Kernel, Memcpy, Memset       when the device was busy, by stream
    cuda_sync                      which stream or event a call waits for, where the profiler was asked for that

Times are nanoseconds on the profile's own clock. Categories are those of old (capitalised) and new profiles.

Source:
    pytorch/kineto, libkineto/src/output_json.cpp; torch/csrc/profiler/util.h for the arguments of collectives.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, auto
from typing import Any, Final

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.semconv import TrainingPhase

__all__ = ["Call", "DeviceKind", "Kernel", "Mark", "Names", "Profile", "StepMark", "Thread"]
__all__ += ["Wait"]

# A process and a thread as the profile names them: numbers or text.
Thread = tuple[str, str]

MAX_NS: Final = 1 << 61
# Different names of operators and kernels that are kept of a profile, and characters of each.
MAX_NAMES: Final = 50_000
MAX_NAME: Final = 300
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,15})")
# Annotations that PyTorch makes itself, and those that HTA's examples use.
_PHASES: Final = (
    (re.compile(r"enumerate\(Data(Loader|Pipe)\)#"), TrainingPhase.DATA_LOAD),
    (
        re.compile(r"(## forward ##|(DistributedDataParallel|FullyShardedDataParallel)\.forward)"),
        TrainingPhase.FORWARD,
    ),
    (re.compile(r"## backward ##"), TrainingPhase.BACKWARD),
    (re.compile(r"(## optimizer ##|Optimizer\.step#)"), TrainingPhase.OPTIMIZER),
)
# Other annotations that old profiles have among the operators.
_NO_OPERATOR: Final = ("Optimizer.", "enumerate(", "ProfilerStep#")
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function|\w*Backward\d*$")
# The loader of a process that loads its own data, in its main thread.
_OWN_LOADER: Final = "_SingleProcess"
_COLLECTIVE: Final = "record_param_comms"
_COLLECTIVE_NAME: Final = "Collective name"
# Calls of the runtime in which the host waits until the device is done: CUDA's, HIP's and XPU's.
_SYNCHRONIZING: Final = re.compile(r"(\w*Synchronize(_\w+)?|(cuda|hip)Memcpy)$")
_COLLECTIVE_KERNEL: Final = re.compile(r"(?:nccl|rccl)\w*?Kernel_([A-Za-z]+)")


class _Kind(Enum):
    ANNOTATION = auto()
    OPERATOR = auto()
    RUNTIME = auto()
    DEVICE = auto()
    WAIT = auto()


_KINDS: Final = {
    "user_annotation": _Kind.ANNOTATION,
    "cpu_op": _Kind.OPERATOR,
    "Operator": _Kind.OPERATOR,
    "cuda_runtime": _Kind.RUNTIME,
    "cuda_driver": _Kind.RUNTIME,
    "hip_runtime": _Kind.RUNTIME,
    "hip_driver": _Kind.RUNTIME,
    "xpu_runtime": _Kind.RUNTIME,
    "xpu_driver": _Kind.RUNTIME,
    "privateuse1_runtime": _Kind.RUNTIME,
    "Runtime": _Kind.RUNTIME,
    "kernel": _Kind.DEVICE,
    "Kernel": _Kind.DEVICE,
    "gpu_memcpy": _Kind.DEVICE,
    "Memcpy": _Kind.DEVICE,
    "gpu_memset": _Kind.DEVICE,
    "Memset": _Kind.DEVICE,
    "cuda_sync": _Kind.WAIT,
}


class DeviceKind(IntEnum):
    """What an operation of the device is."""

    COMPUTATION = 0
    COLLECTIVE = 1
    COPY = 2


class Wait(IntEnum):
    """What a stream or a call waits for, as CUPTI tells it: an event of a stream, a stream, everything."""

    STREAM_FOR_EVENT = 0
    FOR_EVENT = 1
    FOR_STREAM = 2
    FOR_ALL = 3


_WAITS: Final = {
    "Stream Wait Event": Wait.STREAM_FOR_EVENT,
    "Event Sync": Wait.FOR_EVENT,
    "Stream Sync": Wait.FOR_STREAM,
    "Context Sync": Wait.FOR_ALL,
}


@dataclass(frozen=True, slots=True)
class StepMark:
    """One `ProfilerStep#N`."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """An annotation that stands for a phase; `is_own_loader` where the main thread prepares its input itself."""

    phase: TrainingPhase
    start_ns: int
    end_ns: int
    is_own_loader: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as the host called it, with the arguments that the profile tells."""

    thread: Thread
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a collective; `correlation` is None where nothing tells which call launched it."""

    operation: str
    stream: str
    start_ns: int
    end_ns: int
    correlation: int | None
    arguments: dict[str, Any]


class Names:
    """Numbers of names; those beyond a limit share one."""

    def __init__(self) -> None:
        self.names: list[str] = ["other names"]
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        number = self._numbers.get(name)
        if number is None:
            if len(self.names) > MAX_NAMES:
                return 0
            number = self._numbers[name] = len(self.names)
            self.names.append(name[:MAX_NAME])
        return number


def _pairs() -> defaultdict[Thread, array[int]]:
    return defaultdict(lambda: array("q"))


@dataclass(slots=True)
class Profile:
    """Events as they were added.

    `operators`, `synchronizing`, `backward`, `device`, `kernels` and `communication` hold (start, end) one after the
    other, `computation` what of `device` is no collective's; `launches` (correlation, start), by thread; `launched`
    the correlations of what the device did. `operator_names` are the numbers in `names` of `operators`; `asked` is
    (correlation, start) of every call of the runtime that tells one, `returned` (correlation, end) of those, `ran`
    (name, start, end, correlation or -1) of what the device did, `lanes` the number of the stream times three and
    DeviceKind of the same. `synchronized_by` are the correlations of `synchronizing`, -1 where none is told. `waits` is
    (Wait, stream that waits, stream that is waited for, correlation of the event's record, own correlation, start), -1
    for what is not told. `broken_device` counts the device's events that could not be read: its times have holes then.
    """

    steps: dict[Thread, list[StepMark]] = field(default_factory=lambda: defaultdict(list))
    marks: dict[Thread, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    operators: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    launches: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    backward: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("q"))
    kernels: array[int] = field(default_factory=lambda: array("q"))
    communication: array[int] = field(default_factory=lambda: array("q"))
    computation: array[int] = field(default_factory=lambda: array("q"))
    synchronizing: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    launched: array[int] = field(default_factory=lambda: array("q"))
    names: Names = field(default_factory=Names)
    operator_names: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    asked: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    returned: array[int] = field(default_factory=lambda: array("q"))
    ran: array[int] = field(default_factory=lambda: array("q"))
    lanes: array[int] = field(default_factory=lambda: array("q"))
    streams: dict[tuple[str, str], int] = field(default_factory=dict)
    synchronized_by: defaultdict[Thread, array[int]] = field(default_factory=_pairs)
    waits: array[int] = field(default_factory=lambda: array("q"))
    backward_threads: set[Thread] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    collective_kernels: list[Kernel] = field(default_factory=list)
    broken_device: int = 0

    def add(self, event: dict[str, Any]) -> None:
        """Keep what is needed of one event.

        Raises:
            DecodeError: If it is one that is needed, and has no name or no times.
        """
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        kind = _KINDS.get(category) if isinstance(category, str) else None
        if kind is None:
            return
        try:
            name, start_ns, end_ns = _read_times(event)
        except DecodeError:
            self.broken_device += kind is _Kind.DEVICE
            raise
        given = event.get("args")
        arguments: dict[str, Any] = given if isinstance(given, dict) else {}
        if kind is _Kind.DEVICE:
            self._add_device(event, name, (start_ns, end_ns), arguments)
            return
        if kind is _Kind.WAIT:
            self._add_wait(name, start_ns, arguments)
            return
        thread = (str(event.get("pid")), str(event.get("tid")))
        if kind is _Kind.RUNTIME:
            correlation = _integer(arguments.get("correlation"))
            if correlation is not None:
                self.asked[thread].extend((correlation, start_ns))
                self.returned.extend((correlation, end_ns))
                if "aunch" in name:
                    self.launches[thread].extend((correlation, start_ns))
            if _SYNCHRONIZING.match(name):
                self.synchronizing[thread].extend((start_ns, end_ns))
                self.synchronized_by[thread].append(-1 if correlation is None else correlation)
            return
        if not self._add_mark(name, thread, start_ns, end_ns) and kind is _Kind.OPERATOR:
            self._add_operator(name, thread, (start_ns, end_ns), arguments)

    def _add_mark(self, name: str, thread: Thread, start_ns: int, end_ns: int) -> bool:
        """Keep an annotation that stands for a step or a phase; return whether it is any annotation."""
        if match := _STEP.match(name):
            self.steps[thread].append(StepMark(int(match[1]), start_ns, end_ns))
            return True
        for pattern, phase in _PHASES:
            if pattern.match(name):
                self.marks[thread].append(Mark(phase, start_ns, end_ns, _OWN_LOADER in name))
                return True
        return name.startswith(_NO_OPERATOR)

    def _add_operator(
        self, name: str, thread: Thread, bounds: tuple[int, int], arguments: dict[str, Any]
    ) -> None:
        self.operators[thread].extend(bounds)
        self.operator_names[thread].append(self.names.number(name))
        if _BACKWARD.match(name):
            self.backward.extend(bounds)
            self.backward_threads.add(thread)
        elif name == _COLLECTIVE and _COLLECTIVE_NAME in arguments:
            self.calls.append(Call(thread, *bounds, arguments))

    def _add_device(
        self,
        event: dict[str, Any],
        name: str,
        bounds: tuple[int, int],
        arguments: dict[str, Any],
    ) -> None:
        self.device.extend(bounds)
        correlation = _integer(arguments.get("correlation"))
        if correlation is not None:
            self.launched.append(correlation)
        asked_by = -1 if correlation is None else correlation
        self.ran.extend((self.names.number(name), *bounds, asked_by))
        is_kernel = event["cat"] in ("kernel", "Kernel")
        match = _COLLECTIVE_KERNEL.search(name) if is_kernel else None
        (self.communication if match else self.computation).extend(bounds)
        stream = str(arguments.get("stream", event.get("tid")))
        operation = DeviceKind.COMPUTATION if is_kernel else DeviceKind.COPY
        if match:
            operation = DeviceKind.COLLECTIVE
        device = str(arguments.get("device", event.get("pid")))
        self.lanes.append(self._number_of_stream(device, stream) * len(DeviceKind) + operation)
        if is_kernel:
            self.kernels.extend(bounds)
            if match:
                told = {key: value for key, value in arguments.items() if key in _TOLD}
                self.collective_kernels.append(Kernel(match[1], stream, *bounds, correlation, told))

    def _add_wait(self, name: str, start_ns: int, arguments: dict[str, Any]) -> None:
        """Keep what a call waits for; of a name that nobody knows, nothing."""
        kind = _WAITS.get(name)
        if kind is None:
            return
        device = str(arguments.get("device"))
        numbers = []
        for key in ("stream", "wait_on_stream"):
            told = _integer(arguments.get(key))
            is_told = told is not None and told >= 0
            numbers.append(self._number_of_stream(device, str(told)) if is_told else -1)
        for key in ("wait_on_cuda_event_record_corr_id", "correlation"):
            told = _integer(arguments.get(key))
            numbers.append(-1 if told is None else told)
        self.waits.extend((kind, *numbers, start_ns))

    def _number_of_stream(self, device: str, stream: str) -> int:
        return self.streams.setdefault((device, stream), len(self.streams))


# Of a kernel's arguments, those of the collective.
_TOLD: Final = frozenset(
    (
        _COLLECTIVE_NAME,
        "In msg nelems",
        "dtype",
        "Group size",
        "Process Group Name",
        "Process Group Description",
        "Process Group Ranks",
        "Global rank start",
        "Global rank stride",
    )
)


def _integer(value: Any) -> int | None:
    is_small = type(value) is int and abs(value) < MAX_NS
    return value if is_small else None


def _read_times(event: dict[str, Any]) -> tuple[str, int, int]:
    """Return the name, the start and the end of an event, ns."""
    name = event.get("name")
    if not isinstance(name, str):
        raise DecodeError(f"cannot read the event: saw name {_shown(name)}; needs text")
    start_ns = _nanoseconds(name, "ts", event.get("ts"))
    duration_ns = _nanoseconds(name, "dur", event.get("dur"))
    if duration_ns < 0:
        raise DecodeError(
            f'cannot read the event "{name[:60]}": saw dur {event["dur"]} us; needs 0 or more'
        )
    return name, start_ns, start_ns + duration_ns


def _nanoseconds(name: str, key: str, value: Any) -> int:
    """Return microseconds, a whole number or a decimal one, as nanoseconds."""
    if type(value) is int:
        time_ns = value * 1000
    elif isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 19:
        time_ns = int(value * 1000)
    else:
        raise DecodeError(
            f'cannot read the event "{name[:60]}": saw {key} {_shown(value)}; needs microseconds as a number'
        )
    if abs(time_ns) >= MAX_NS:
        raise DecodeError(
            f'cannot read the event "{name[:60]}": saw {key} {_shown(value)} us; needs a time of this age'
        )
    return time_ns


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:40]
