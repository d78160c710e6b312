"""One rank of the example with a stopwatch around every hook; tests/benchmarks/hook_costs.py starts it.

    torchrun timed_rank.py RESULT_FOLDER on|off COLD_STEPS few|many TRAINING_OPTIONS...

    shim   [began] hook [ended]                      a hook that is called and returns
    shim   [began] hook [left] PyTorch's own [back] hook [ended]    a hook around a call

A training step leaves little of Python in the caches, so the first call in a step is ten times as dear as the second:
what the stopwatch takes is measured at the same places. In odd steps it times the hook, in even steps nothing, before
the hook is called. The clock is the calling thread's CPU time: what another process takes meanwhile is not counted.
"""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import many_collectives

from rootwalk.instrumentation import torch_hooks
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.start import start
from rootwalk.instrumentation.work_ends import WorkEnds

clock = time.thread_time_ns


@dataclass
class Stopwatch:
    """Times of one hook, ns: of its own calls, and of nothing at the same places."""

    own_ns: list[int] = field(
        default_factory=list
    )  # appending is atomic: hooks run on PyTorch's threads too
    empty_ns: list[int] = field(default_factory=list)


stopwatches: dict[str, Stopwatch] = {}
updates = itertools.count(1)
update = 0


def time_call(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook with a stopwatch around it."""
    watch = stopwatches.setdefault(name, Stopwatch())

    @functools.wraps(hook)
    def shim(*args: Any, **kwargs: Any) -> Any:
        if update % 2 == 0:
            began = clock()
            watch.empty_ns.append(clock() - began)
            return hook(*args, **kwargs)
        began = clock()
        try:
            return hook(*args, **kwargs)
        finally:
            watch.own_ns.append(clock() - began)

    return shim


def time_wrapper(
    name: str,
    original: Callable[..., Any],
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Return a wrapped function with a stopwatch around what the wrapper adds to it."""
    watch = stopwatches.setdefault(name, Stopwatch())
    inside_ns: list[int] = []

    def timed(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def timed_inner(*args: Any, **kwargs: Any) -> Any:
            left = clock()
            try:
                return inner(*args, **kwargs)
            finally:
                inside_ns.append(clock() - left)

        return timed_inner

    wrapped, empty = wrap(timed(original)), timed(lambda: None)

    @functools.wraps(original)
    def shim(*args: Any, **kwargs: Any) -> Any:
        is_hook_timed = update % 2 == 1
        if not is_hook_timed:
            began = clock()
            empty()
            watch.empty_ns.append(clock() - began - inside_ns.pop())
        began = clock()
        try:
            return wrapped(*args, **kwargs)
        finally:
            spent_ns = clock() - began - inside_ns.pop()
            if is_hook_timed:
                watch.own_ns.append(spent_ns)

    return shim


def time_hooks(cold_steps: int) -> None:
    """Put the stopwatch around every hook, before any of them is installed."""
    wrap_phase, group_hooks = torch_hooks._wrap_phase, torch_hooks._group_hooks

    def timed_wrap_phase(
        runtime: Runtime, original: Callable[..., Any], phase: str
    ) -> Callable[..., Any]:
        return time_wrapper(phase, original, lambda inner: wrap_phase(runtime, inner, phase))

    def timed_group_hooks(
        runtime: Runtime,
        watcher: Communicator,
        ranks: tuple[int, ...],
        open_ends: set[int],
        ends: WorkEnds,
    ) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        before, after = group_hooks(runtime, watcher, ranks, open_ends, ends)
        return time_call("collective called", before), time_call("collective issued", after)

    torch_hooks._wrap_phase = timed_wrap_phase
    torch_hooks._group_hooks = timed_group_hooks
    torch_hooks._completed = time_call("collective completed", torch_hooks._completed)
    torch_hooks.PATCHES["torch.optim.optimizer"] = functools.partial(time_optimizer, cold_steps)
    GcWatch._on_collection = time_call(  # type: ignore[method-assign]
        "garbage collection", GcWatch._on_collection
    )


def time_optimizer(cold_steps: int, runtime: Runtime, module: ModuleType) -> None:
    """Install the optimiser's hooks with a stopwatch, and forget what the cold steps took."""

    def count(*_: Any) -> None:
        global update
        update = next(updates)
        if update == cold_steps:
            for watch in stopwatches.values():
                watch.own_ns.clear()
                watch.empty_ns.clear()

    class Registering(ModuleType):
        register_optimizer_step_pre_hook = staticmethod(
            lambda hook: module.register_optimizer_step_pre_hook(
                time_call("optimizer begins", hook)
            )
        )
        register_optimizer_step_post_hook = staticmethod(
            lambda hook: module.register_optimizer_step_post_hook(time_call("optimizer ends", hook))
        )

    torch_hooks.patch_optimizer(runtime, Registering("torch.optim.optimizer"))
    module.register_optimizer_step_post_hook(count)


def save(folder: Path) -> None:
    """Write this rank's times."""
    result = {name: asdict(watch) for name, watch in stopwatches.items()}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    """Train."""
    folder, collector, cold_steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if sys.argv[4] == "many":
        many_collectives.give_every_parameter_a_bucket()
    if collector == "off":
        gc.disable()
    time_hooks(cold_steps)
    start()
    atexit.register(save, folder)
    sys.argv = [str(many_collectives.EXAMPLE), *sys.argv[5:]]
    runpy.run_path(str(many_collectives.EXAMPLE), run_name="__main__")


if __name__ == "__main__":
    main()
