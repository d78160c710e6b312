"""Hooks into PyTorch, module by module, as each is imported. No module of torch is imported from here.

| signal | hook | CPU time in training |
|---|---|---|
| step, optimizer | `register_optimizer_step_pre_hook`, `_post_hook` (global) | 80 us a step |
| forward | `DistributedDataParallel.forward`, else derived from its neighbours | 60 us a step |
| backward | `torch.autograd.backward`, through which `Tensor.backward` goes | 100 us a step |
| data_load | `_BaseDataLoaderIter.__next__` | 50 us a batch |
| checkpoint | `torch.save` | as data_load |
| evaluation | `torch.nn.Module.train`, which `eval` calls | at a switch only |
| compilations | `torch._dynamo.callback_handler.install_callbacks` | at a compilation only |
| retries of the allocator | `torch.cuda.memory_stats_as_nested_dict`, where a GPU is used | not measured: needs a GPU |
| times of phases on a GPU | `torch.cuda.Event`, where the program has initialised CUDA | not measured: needs a GPU |
| speed of its CPU | with the step: a little work, at most every 50 ms | 0.1 % of the time at most |
| collectives, also DDP's | `ProcessGroup.register_pre_hook`, `register_post_hook` (PyTorch 2.15) | 150 us each |
| rendezvous | `init_process_group` | once |
| ends without a future | `Work.wait`, where a collective of the host has none (gloo's reduce-scatter) | not measured |

That is with the caches as a step of training leaves them (`make bench-instrumentation`): called in a loop, a hook takes
2 to 7 us.

An exception in a hook would reach the training loop, so every hook is guarded: the first error switches the
instrumentation off for this process and is counted, and training goes on.
"""

from __future__ import annotations

import atexit
import functools
import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from rootwalk.instrumentation import ids
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.cpu_probe import CpuProbe
from rootwalk.instrumentation.device_hooks import DeviceWatch, time_group
from rootwalk.instrumentation.program_hooks import (
    count_allocator_retries,
    is_compiling,
    patch_compiler,
    patch_modules,
)
from rootwalk.instrumentation.program_watch import AllocatorWatch
from rootwalk.instrumentation.rendezvous_hook import patch_rendezvous
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.step_profiler import StepProfiler
from rootwalk.instrumentation.work_ends import WorkEnds

__all__ = ["PATCHES", "install_into_loaded_modules"]

HOOK_ID = 0x526F6F74  # ours among a process group's hooks; a second hook with the same id would replace it silently

OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce",
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather_into_tensor",
    "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_into_tensor",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter_tensor",
}
# A collective that never completes, as after a crash, may not keep a rank for longer.
END_TIMEOUT_S = 0.3
END_POLL_S = 0.002
POINT_TO_POINT = frozenset({"SEND", "RECV"})
# Not collectives: PyTorch does not number them.
UNNUMBERED = frozenset({"NEW_WINDOW", "SPLIT", "UNKNOWN"})


def _wrap_phase(runtime: Runtime, original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Return the function with a phase around it."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not runtime.begin_phase(phase):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            runtime.end_phase()

    return wrapper


def _patch_attribute(runtime: Runtime, owner: Any, name: str, phase: str) -> None:
    original = getattr(owner, name)
    if not getattr(original, "_rootwalk", False):
        wrapper = _wrap_phase(runtime, original, phase)
        wrapper._rootwalk = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)


def patch_optimizer(runtime: Runtime, module: ModuleType) -> None:
    """Follow every optimiser's updates."""
    allocator = AllocatorWatch(runtime, count_allocator_retries)
    device = DeviceWatch(runtime)
    profiler = StepProfiler(runtime)
    probe = CpuProbe(runtime)

    def before(optimizer: Any = None, *_: Any) -> None:
        if not is_compiling():
            runtime.begin_phase("optimizer", _optimizer_key(optimizer))

    def after(optimizer: Any = None, *_: Any) -> None:
        if not is_compiling():
            runtime.end_optimizer(_optimizer_key(optimizer))
            allocator.look()
            device.look()
            profiler.look()
            probe.look()

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _optimizer_key(optimizer: Any) -> int:
    """Return what tells optimisers apart: the first of its parameters, so that one made anew is the same."""
    try:
        return id(optimizer.param_groups[0]["params"][0])
    except (AttributeError, IndexError, KeyError, TypeError):
        return id(optimizer)


def patch_data_loader(runtime: Runtime, module: ModuleType) -> None:
    """Follow the main thread's wait for the next batch."""
    _patch_attribute(runtime, module._BaseDataLoaderIter, "__next__", "data_load")


def patch_autograd(runtime: Runtime, module: ModuleType) -> None:
    """Follow backward passes."""
    _patch_attribute(runtime, module, "backward", "backward")


def patch_parallel(runtime: Runtime, module: ModuleType) -> None:
    """Follow the forward pass of `DistributedDataParallel`."""
    _patch_attribute(runtime, module.DistributedDataParallel, "forward", "forward")


def patch_serialization(runtime: Runtime, module: ModuleType) -> None:
    """Follow `torch.save`, before `torch` takes it into its own namespace."""
    _patch_attribute(runtime, module, "save", "checkpoint")


def patch_process_groups(runtime: Runtime, module: ModuleType) -> None:
    """Follow the wait for a process group, and every one that is made."""
    patch_rendezvous(runtime, module)
    original = module._new_process_group_helper
    ends = WorkEnds(lambda: module.Work)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        runtime.guard(lambda: _watch_group(runtime, ends, made, args, kwargs))
        return made

    setattr(module, "_new_process_group_helper", wrapper)  # noqa: B010  (a name that the stubs lack)


def _watch_group(
    runtime: Runtime, ends: WorkEnds, made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    group = made[0] if isinstance(made, tuple) else made
    if not hasattr(group, "rank"):
        return  # not a member
    names = ("group_size", "group_rank", "global_ranks_in_group", "backend")
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    ranks = tuple(call["global_ranks_in_group"]) or tuple(range(group.size()))
    if not call["global_ranks_in_group"]:
        runtime.learn_identity(group.rank(), group.size())
    tracker = runtime.ensure_tracker()
    if tracker is None or not hasattr(group, "register_pre_hook"):
        return  # switched off, or a PyTorch older than 2.15
    backend = str(call["backend"])
    title = call.get("group_desc") or str(group.group_name)
    communicator = ids.communicator_id(str(group.group_name), ranks)
    name = str(group.group_name)
    description = f"{communicator}|{len(ranks)}|{backend}|{title}"
    watcher = Communicator(tracker, description, name, ranks)
    time_group(tracker, group, backend)
    open_ends: set[int] = set()
    before, after = _group_hooks(runtime, watcher, ranks, open_ends, ends)
    group.register_pre_hook(HOOK_ID, before)
    group.register_post_hook(HOOK_ID, after)
    runtime.follow_level(PauseSwitch(watcher, weakref.ref(group)).set_level)
    atexit.register(_take_hooks_back, weakref.ref(group))
    atexit.register(_await_ends, open_ends)


def _take_hooks_back(reference: Callable[[], Any]) -> None:
    """Unregister the hooks of a group that is not destroyed when the interpreter ends, as after an exception.

    PyTorch destroys such a group after the interpreter, and letting go of a Python function then is a segmentation
    fault: the rank would report that instead of its own exit code.
    """
    group = reference()
    if group is not None:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)


def _await_ends(open_ends: set[int]) -> None:
    """Let the backend's threads come to the end of what they run of ours, before the interpreter ends.

    The main thread may be told of the last collective before `_completed` is. A thread that asks a dying interpreter
    for its lock is ended in the middle of C++, and with it the rank: "terminate called without an active exception".
    """
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while open_ends and time.monotonic() < deadline_s:
        time.sleep(END_POLL_S)
    time.sleep(END_POLL_S)  # for the way back from the last one


class PauseSwitch:
    """Lets one group's collectives go unseen at level 0, and numbers them rightly when they are seen again.

    All members must give one collective one number. PyTorch goes on counting while we do not, so its number is taken
    afterwards; where it differs from ours before the pause, as after coalesced operations, there is none.

    Args:
        watcher: The group as we follow it.
        group: Returns PyTorch's process group, None when it is gone.
    """

    def __init__(self, watcher: Communicator, group: Callable[[], Any]) -> None:
        self._watcher = watcher
        self._group = group

    def set_level(self, level: int) -> None:
        """Pause at level 0, else go on."""
        watcher, issued = self._watcher, self._count_issued()
        if level == 0 and watcher.collectives == (issued or 0):
            watcher.pause()
        elif level > 0 and watcher.is_quiet and issued is not None:
            watcher.resume(issued)

    def _count_issued(self) -> int | None:
        """Return how many collectives PyTorch has counted; None when it does not tell."""
        group = self._group()
        try:
            return None if group is None else int(group._get_sequence_number_for_group())
        except (AttributeError, RuntimeError):
            return None


class _Kind(NamedTuple):
    """What is the same for every call of one operation."""

    operation: str
    is_p2p: bool


def _learn_kind(name: str) -> _Kind | None:
    """Return what an operation is; None for one that PyTorch does not number."""
    if name in UNNUMBERED:
        return None
    return _Kind(OPERATIONS.get(name) or name.lower(), name in POINT_TO_POINT)


def _group_hooks(
    runtime: Runtime,
    watcher: Communicator,
    ranks: tuple[int, ...],
    open_ends: set[int],
    ends: WorkEnds,
) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """Return the guarded hooks of one process group: at the call, and when the work was issued.

    `open_ends` is kept: the operations whose end is still to be told by a thread of the backend's.
    """
    on_host: set[int] = set()
    kinds: dict[Any, _Kind | None] = {}
    member_count = len(ranks)

    def before(call: Any) -> None:
        if watcher.is_quiet or not runtime.is_active:
            return
        try:
            name = call.name
            try:
                kind = kinds[name]  # of every call but an operation's first
            except KeyError:
                kind = kinds[name] = _learn_kind(name.name)
            if kind is None:
                return
            operation_id = call.op_id
            tensors = call.input_tensors or call.output_tensors
            if len(tensors) == 1:
                (tensor,) = tensors
                size_bytes, is_on_host = tensor.nbytes, tensor.is_cpu
            else:
                size_bytes = sum(tensor.nbytes for tensor in tensors)
                is_on_host = _is_on_host(tensors)
            root = call.root
            watcher.begin(
                operation_id,
                kind.operation,
                size_bytes,
                is_p2p=kind.is_p2p,
                root=ranks[root] if 0 <= root < member_count else None,
            )
            if is_on_host and not kind.is_p2p:
                on_host.add(operation_id)
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
            runtime.fail(error)

    def after(call: Any) -> None:
        if (watcher.is_quiet and not on_host) or not runtime.is_active:
            return
        try:
            operation_id, work = call.op_id, call.work
            if operation_id not in on_host or work is None:
                on_host.discard(operation_id)
                watcher.end(operation_id, is_known=False)
                return
            on_host.discard(operation_id)
            told = functools.partial(_completed, runtime, watcher, operation_id, open_ends)
            future = _future_of(work)
            if future is not None:
                open_ends.add(operation_id)
                future.add_done_callback(told)
            elif not call.async_op:
                ends.follow(work, told)
            else:
                watcher.end(operation_id, is_known=False)
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
            runtime.fail(error)

    return before, after


def _is_on_host(tensors: Any) -> bool:
    """Return whether an operation's future completes when it has, not when it was enqueued on a device.

    The tensors decide and not the group's backend: one group may serve the host with gloo and GPUs with NCCL. A
    barrier has none; it is on the host where there is no GPU.
    """
    if tensors:
        return all(tensor.is_cpu for tensor in tensors)
    return not sys.modules["torch"].cuda.is_available()


def _future_of(work: Any) -> Any:
    """Return the work's future; None where the backend has none."""
    try:
        return work.get_future()
    except RuntimeError:  # "Work::getFuture not implemented"
        return None


def _completed(
    runtime: Runtime,
    watcher: Communicator,
    operation_id: int,
    open_ends: set[int],
    _future: Any = None,
) -> None:
    try:
        if runtime.is_active:
            watcher.end(operation_id, is_known=True)
    except Exception as error:  # noqa: BLE001  (on the backend's thread nobody could catch it)
        runtime.fail(error)
    finally:
        open_ends.discard(operation_id)


PATCHES: dict[str, Callable[[Runtime, ModuleType], None]] = {
    "torch._dynamo.callback": patch_compiler,
    "torch.autograd": patch_autograd,
    "torch.distributed.distributed_c10d": patch_process_groups,
    "torch.nn.modules.module": patch_modules,
    "torch.nn.parallel.distributed": patch_parallel,
    "torch.optim.optimizer": patch_optimizer,
    "torch.serialization": patch_serialization,
    "torch.utils.data.dataloader": patch_data_loader,
}


def install_into_loaded_modules(runtime: Runtime) -> None:
    """Patch what is imported already, for `opentelemetry-instrument` and the one-line API."""
    for name, patch in PATCHES.items():
        module = sys.modules.get(name)
        if module is not None:
            runtime.guard(functools.partial(patch, runtime, module))
