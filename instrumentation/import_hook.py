"""Patches modules when the script imports them, so that torch is imported only when the script does."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from rootwalk.instrumentation.runtime import Runtime

__all__ = ["PatchFinder", "install"]


class PatchFinder(MetaPathFinder):
    """Finds the modules to patch as the other finders do, and runs the patch after the module's own code.

    Args:
        runtime: The process's instrumentation.
    """

    def __init__(self, runtime: Runtime) -> None:
        from rootwalk.instrumentation.torch_hooks import PATCHES

        self._runtime = runtime
        self._waiting = dict(PATCHES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module to patch, once; None for every other module."""
        patch = self._waiting.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            if self._waiting.pop(fullname, None) is None:
                return  # executed again, as importlib.reload does
            self._runtime.guard(functools.partial(patch, self._runtime, module))

        self._runtime.guard(lambda: setattr(loader, "exec_module", exec_module))
        return spec


def install(runtime: Runtime) -> None:
    """Watch the imports of this process."""
    sys.meta_path.insert(0, PatchFinder(runtime))
