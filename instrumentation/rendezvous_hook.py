"""Hook around `torch.distributed.init_process_group`, in which a rank waits for all others before its first step."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from rootwalk.instrumentation.runtime import Runtime

__all__ = ["patch_rendezvous"]

NAME = "init_process_group"
WORLD_SIZE_POSITION, RANK_POSITION = 3, 4  # of its positional arguments


def patch_rendezvous(runtime: Runtime, module: ModuleType) -> None:
    """Follow the wait for the other ranks.

    Args:
        runtime: The process's instrumentation.
        module: `torch.distributed.distributed_c10d`.
    """
    original = getattr(module, NAME, None)
    if original is None or getattr(original, "_rootwalk", False):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not runtime.is_active and not runtime.is_forked:
            return original(*args, **kwargs)
        rank = _told(args, kwargs, RANK_POSITION, "rank")
        world_size = _told(args, kwargs, WORLD_SIZE_POSITION, "world_size")
        runtime.begin_rendezvous(rank, world_size)
        is_made = False
        try:
            result = original(*args, **kwargs)
            is_made = True
            return result
        finally:
            runtime.end_rendezvous(is_made=is_made)

    wrapper._rootwalk = True  # type: ignore[attr-defined]
    setattr(module, NAME, wrapper)
    package = sys.modules.get(
        "torch.distributed"
    )  # which has taken the name over already when it is loaded
    if package is not None and getattr(package, NAME, None) is original:
        setattr(package, NAME, wrapper)


def _told(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> int | None:
    """Return an argument; None where it is left to the environment."""
    value = args[position] if len(args) > position else kwargs.get(name)
    return value if isinstance(value, int) and value >= 0 else None
