"""What members call differently at one operation, and where in the program they call it; pure.

    ranks 3, 12     all_reduce of 262144 Float at train_step (train.py:211)
    14 ranks        all_reduce of 1025 Float at train_step (train.py:211)

A stack begins inside PyTorch; the place that its user knows is the innermost frame outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rootwalk.graph.hangs.flight_records import PendingCall, RankRecord
from rootwalk.graph.hangs.operations import Operation
from rootwalk.graph.model import CallGroup

__all__ = ["call_groups", "is_library_file", "user_frame"]

# Groups that are shown: the smallest say who differs, the largest what is usual.
MAX_GROUPS: Final = 8
# Folders of PyTorch and of what calls collectives for a program.
_LIBRARY: Final = re.compile(
    r"[/\\]torch[/\\]|[/\\](?:torch_npu|deepspeed|accelerate|lightning|lightning_fabric|pytorch_lightning)[/\\]"
    r"|^<"
)
# Files of PyTorch that stacks of collectives begin with, where a record has names without folders.
_FILES: Final = frozenset(
    (
        *("distributed_c10d.py", "c10d_logger.py", "_functional_collectives.py", "_ops.py"),
        *("_contextlib.py", "decorators.py", "eval_frame.py", "graph.py", "autograd.py"),
        *("_tensor.py", "_fsdp_collectives.py", "_fsdp_param_group.py", "_runtime_utils.py"),
        *("_flat_param.py", "_compile.py", "fully_sharded_data_parallel.py", "_comm_utils.py"),
        *("threading.py", "runpy.py", "importlib"),
    )
)
# Operation, elements, type and place of a call.
_Shown = tuple[str | None, int | None, str | None, str | None]
_FILE: Final = re.compile(r"\(([^():]*):\d+\)$")


def is_library_file(path: str) -> bool:
    """Return whether a file, with its folder, is PyTorch's or of a framework that calls collectives.

    >>> is_library_file("/env/site-packages/torch/distributed/distributed_c10d.py")
    True
    """
    return bool(_LIBRARY.search(path))


def user_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame outside PyTorch, the innermost of all if there is none; empty without frames.

    Args:
        frames: `function (file:line)`, innermost first, without folders.
    """
    for frame in frames:
        match = _FILE.search(frame)
        if match is not None and match[1].rpartition("/")[2] not in _FILES:
            return frame
    return frames[0] if frames else ""


def call_groups(operation: Operation, records: Sequence[RankRecord]) -> tuple[CallGroup, ...]:
    """Return the ranks of an operation by what they call there and where, the smallest groups first.

    Ranks that have not called it are by where they called last.

    Args:
        operation: The one that shows a hang best.
        records: One a rank.
    """
    last = {record.rank: record for record in records}
    found: dict[_Shown, list[int]] = {}
    for rank in sorted({*operation.calls, *operation.absent}):
        call = operation.calls.get(rank)
        if call is not None:
            shown: _Shown = (
                call.operation,
                call.elements,
                call.dtype or None,
                _place(call) or None,
            )
        else:
            record = last.get(rank)
            place = (record.last_place or user_frame(record.last_frames)) if record else ""
            if not place:
                continue
            shown = (None, None, None, place)
        found.setdefault(shown, []).append(rank)
    ordered = sorted(found, key=lambda key: (len(found[key]), found[key]))[:MAX_GROUPS]
    return tuple(CallGroup(tuple(found[key]), *key) for key in ordered)


def _place(call: PendingCall) -> str:
    return call.place or user_frame(call.frames)
