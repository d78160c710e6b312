"""What PyTorch is asked for the times of a CUDA device; `torch_hooks` says when. No module of torch is imported here.

Nothing is asked before the program itself has initialised CUDA: a job on CPUs pays one look a step.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.device_marks import PhaseMarks
from rootwalk.instrumentation.flight_times import dump_functions, is_timing, ring_entries
from rootwalk.instrumentation.runtime import Runtime, is_false
from rootwalk.instrumentation.timed_collectives import TimedCollectives
from rootwalk.instrumentation.tracker import StepTracker

__all__ = ["DeviceWatch", "time_group"]


def is_capturing() -> bool:
    """Return whether this thread captures a CUDA graph, in which nobody may ask the device; also when it cannot say."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        return bool(cuda.is_current_stream_capturing())
    except RuntimeError:  # the device has failed
        return True


def time_group(tracker: StepTracker, group: Any, backend: str) -> None:
    """Let a process group time its collectives on the device, if it has NCCL and the job is told to time them.

    Args:
        tracker: The rank's.
        group: PyTorch's process group.
        backend: As the job names it, such as `nccl` or `cpu:gloo,cuda:nccl`.
    """
    if is_false("ROOTWALK_DEVICE_TIMES") or not (is_timing(os.environ) and _has_nccl(backend)):
        return
    try:
        # The legacy process group reads the environment; `nccl2` has to be told.
        group._enable_collectives_timing()
    except (AttributeError, RuntimeError):
        return
    module = sys.modules.get("torch._C._distributed_c10d")
    if tracker.timed is None and module is not None:
        dumps = dump_functions(module)
        offset_ns = read_host_clock().offset_ns
        entries = ring_entries(os.environ)
        tracker.timed = TimedCollectives(dumps, entries, offset_ns, is_capturing, tracker.now)


def _has_nccl(backend: str) -> bool:
    """Return whether a group has NCCL; one for which the job names nothing has it where there is a GPU."""
    if backend != "undefined":
        return "nccl" in backend
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_available())


class DeviceWatch:
    """Looks once a step: whether CUDA is in use by now, what the device has passed, what its collectives took.

    Args:
        runtime: The process's instrumentation.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._is_off = is_false("ROOTWALK_DEVICE_TIMES")

    def look(self) -> None:
        """Note the end of a step."""
        if not self._is_off and self._runtime.is_active:
            self._runtime.guard(self._look)

    def _look(self) -> None:
        tracker = self._runtime.tracker
        if tracker is None:
            return
        if tracker.marks is not None:
            tracker.marks.settle()
        else:
            cuda = sys.modules.get("torch.cuda")
            if cuda is not None and cuda.is_initialized():
                tracker.watch_device(PhaseMarks(cuda, tracker.now))
        if tracker.timed is not None:
            tracker.timed.end_step(tracker.step)
