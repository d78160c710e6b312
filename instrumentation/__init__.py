"""Rootwalk: telemetry from inside the training processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rootwalk.instrumentation.loop_marks import phase, step

__all__ = ["phase", "step"]


def __getattr__(name: str) -> Any:
    """Return `step` or `phase` for training loops; imported when asked for, because everyone imports this package."""
    if name in __all__:
        from rootwalk.instrumentation import loop_marks

        return getattr(loop_marks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
