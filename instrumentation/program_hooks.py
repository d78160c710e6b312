"""Hooks into PyTorch for what a program does beside its steps; `torch_hooks` says when each is placed."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rootwalk.instrumentation.program_watch import CompilationWatch, EvaluationWatch
from rootwalk.instrumentation.runtime import Runtime

__all__ = ["count_allocator_retries", "is_compiling", "patch_compiler", "patch_modules"]


def is_compiling() -> bool:
    """Return whether a compiler is tracing this call: it must see the original function only."""
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_compiling())


def count_allocator_retries() -> int | None:
    """Return how often PyTorch's allocator of device memory had to give its cache back; None without a GPU in use."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    return int(cuda.memory_stats_as_nested_dict()["num_alloc_retries"])


def patch_compiler(runtime: Runtime, module: ModuleType) -> None:
    """Follow compilations. Callbacks that are registered are gone after `torch._dynamo.reset`, so this is not one."""
    handler = module.callback_handler
    original = handler.install_callbacks
    watch = CompilationWatch(runtime)

    @functools.wraps(original)
    @contextlib.contextmanager
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        watch.begin()
        try:
            with original(*args, **kwargs):
                yield
        finally:
            watch.end()

    handler.install_callbacks = install_callbacks


def patch_modules(runtime: Runtime, module: ModuleType) -> None:
    """Follow models that are switched to evaluation and back."""
    watch = EvaluationWatch(runtime)
    original = module.Module.train
    if getattr(original, "_rootwalk", False):
        return
    switching: list[Any] = []

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if switching or is_compiling():  # what is inside a model is switched with it
            return original(self, mode)
        was_training = self.training
        switching.append(None)
        try:
            # Before the switch to evaluation, and after the one back.
            if mode is False:
                watch.switched(self, was_training=was_training, is_training=False)
            return original(self, mode)
        finally:
            switching.clear()
            if mode is True:
                watch.switched(self, was_training=was_training, is_training=True)

    train._rootwalk = True  # type: ignore[attr-defined]
    module.Module.train = train
