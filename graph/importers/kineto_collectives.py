"""Collectives of a profile: the host's calls, with the kernels that they launched.

    call    record_param_comms |--|            what, how much, in which group
    launch                       x correlation
    kernel                            |------| to its end

A profile that does not tell the arguments has the kernels alone: their group is then nobody else's.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rootwalk.graph.importers.kineto_profile import Call, Kernel, Profile, Thread
from rootwalk.instrumentation import ids

__all__ = ["Collective", "find_collectives"]

_NAME: Final = "Collective name"
# By what a name begins with, without underscores and in lower case; the first that fits, in PyTorch's spelling.
_OPERATIONS: Final = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("reducescatter", "reduce_scatter"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
    ("sendrecv", "send_recv"),
    ("send", "send"),
    ("recv", "recv"),
)
POINT_TO_POINT: Final = frozenset(("send", "recv"))
# Of PyTorch's names of types.
_BYTES: Final = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "Float8_e4m3fn": 1,
    "Float8_e5m2": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2fnuz": 1,
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One rank's part of a collective; None where the profile does not say.

    Attributes:
        operation: In PyTorch's spelling.
        start_ns: When it was called, else when its kernel began.
        end_ns: When its kernel ended, else when the call returned.
        is_end_known: False without a kernel.
        communicator_id: Equal on all members where the group is known.
        communicator_name: What the group is called.
        communicator_size: Members.
        size_bytes: What this rank contributes.
        data_type: As PyTorch names it.
        device_ns: How long its kernels took.
    """

    operation: str
    start_ns: int
    end_ns: int
    is_end_known: bool
    communicator_id: str
    communicator_name: str
    communicator_size: int | None
    size_bytes: int | None
    data_type: str | None
    device_ns: int | None


def find_collectives(
    profile: Profile, rank: int, configuration: dict[str, tuple[int, ...]]
) -> list[Collective]:
    """Return the collectives in the order of their starts.

    Args:
        profile: All of its events.
        rank: Whose it is.
        configuration: Members of the process groups that the profile lists, by name.
    """
    calls = _CallsByTime(profile.calls)
    launch_of = _launches(profile)
    kernels: dict[int, tuple[int, int]] = {}
    found: list[Collective] = []
    for kernel in profile.collective_kernels:
        launch = launch_of.get(kernel.correlation) if kernel.correlation is not None else None
        index = calls.at(*launch) if launch is not None else None
        if index is not None:
            start_ns, end_ns = kernels.get(index, (kernel.start_ns, kernel.end_ns))
            kernels[index] = (min(start_ns, kernel.start_ns), max(end_ns, kernel.end_ns))
        else:
            found.append(_of_kernel(kernel, rank, configuration))
    for index, call in enumerate(profile.calls):
        operation = _operation(call.arguments[_NAME])
        if operation is not None:
            device = kernels.get(index)
            bounds = (call.start_ns, call.end_ns if device is None else device[1])
            found.append(_described(operation, bounds, call.arguments, configuration, device))
    return sorted(found, key=lambda one: (one.start_ns, one.communicator_id, one.operation))


class _CallsByTime:
    """Finds the innermost call of a thread at a moment."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._by_thread: dict[Thread, list[int]] = defaultdict(list)
        for index in sorted(range(len(calls)), key=lambda i: calls[i].start_ns):
            self._by_thread[calls[index].thread].append(index)

    def at(self, thread: Thread, time_ns: int) -> int | None:
        own = self._by_thread.get(thread, [])
        position = bisect.bisect_right(own, time_ns, key=lambda index: self._calls[index].start_ns)
        for index in reversed(own[max(position - 4, 0) : position]):
            if time_ns <= self._calls[index].end_ns:
                return index
        return None


def _launches(profile: Profile) -> dict[int, tuple[Thread, int]]:
    """Return where and when the kernels of collectives were launched, by correlation."""
    wanted = {kernel.correlation for kernel in profile.collective_kernels}
    result: dict[int, tuple[Thread, int]] = {}
    for thread, pairs in profile.launches.items():
        for position in range(0, len(pairs), 2):
            if pairs[position] in wanted:
                result[pairs[position]] = (thread, pairs[position + 1])
    return result


def _of_kernel(kernel: Kernel, rank: int, configuration: dict[str, tuple[int, ...]]) -> Collective:
    bounds = (kernel.start_ns, kernel.end_ns)
    operation = (
        _operation(kernel.arguments.get(_NAME, kernel.operation)) or kernel.operation.lower()
    )
    if _NAME in kernel.arguments:
        return _described(operation, bounds, kernel.arguments, configuration, bounds)
    name = f"stream {kernel.stream} of rank {rank}"
    nobody_says = (None, None, None)
    return Collective(
        *(operation, *bounds, True, ids.communicator_id(name, ()), name, *nobody_says),
        device_ns=bounds[1] - bounds[0],
    )


def _described(
    operation: str,
    bounds: tuple[int, int],
    arguments: dict[str, Any],
    configuration: dict[str, tuple[int, ...]],
    device: tuple[int, int] | None,
) -> Collective:
    group = str(arguments.get("Process Group Name", "unknown"))
    told = arguments.get("Group size")
    size = told if type(told) is int and 0 < told < 1 << 31 else None
    members = _members(arguments, group, configuration, size)
    key = group if members else f"{group}|{arguments.get('Process Group Ranks')}|{size}"
    elements = arguments.get("In msg nelems")
    data_type = arguments.get("dtype")
    width = _BYTES.get(data_type) if isinstance(data_type, str) else None
    is_counted = type(elements) is int and 0 <= elements < 1 << 48 and width is not None
    description = arguments.get("Process Group Description")
    return Collective(
        operation=operation,
        start_ns=bounds[0],
        end_ns=max(bounds),
        is_end_known=device is not None,
        communicator_id=ids.communicator_id(key, members),
        communicator_name=str(description) if description else group,
        communicator_size=size or len(members) or None,
        size_bytes=int(elements) * int(width) if is_counted and elements and width else None,
        data_type=data_type if isinstance(data_type, str) and data_type else None,
        device_ns=None if device is None else device[1] - device[0],
    )


def _members(
    arguments: dict[str, Any],
    group: str,
    configuration: dict[str, tuple[int, ...]],
    size: int | None,
) -> tuple[int, ...]:
    """Return the members of a group, none where the profile does not name them all."""
    listed = arguments.get("Process Group Ranks")
    if isinstance(listed, str) and "..." not in listed:
        try:
            listed = json.loads(listed)
        except ValueError:
            listed = None
    ranks = integers(listed)
    if ranks and (size is None or len(ranks) == size):
        return ranks
    if len(configuration.get(group, ())) == size:
        return configuration[group]
    first, stride = arguments.get("Global rank start"), arguments.get("Global rank stride")
    if size and size < 1 << 20 and type(first) is int and type(stride) is int and stride > 0:
        return tuple(range(first, first + size * stride, stride))
    return ()


def integers(value: Any) -> tuple[int, ...]:
    """Return a list of integers, nothing where it is anything else."""
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    return ()


def _operation(name: Any) -> str | None:
    """Return a collective's name in PyTorch's spelling; None for what moves nothing, such as a wait."""
    plain = str(name).lower().replace("_", "").removeprefix("nccl:")
    return next((told for begin, told in _OPERATIONS if plain.startswith(begin)), None)


def groups(listed: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and members of the process groups of `distributedInfo.pg_config`."""
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, dict) and (ranks := integers(item.get("ranks"))):
            yield str(item.get("pg_name")), ranks
