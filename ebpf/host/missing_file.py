"""The refusal of a reader whose file this kernel does not have."""

from __future__ import annotations

from rootwalk.ebpf.availability import Reason
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["missing_file"]


def missing_file(question: str, seen: str, reason: Reason = Reason.NO_COUNTERS) -> UnavailableError:
    """Return the error of a reader that finds nothing to read.

    Args:
        question: What it would have read.
        seen: What it saw instead.
        reason: Why it cannot.
    """
    return UnavailableError(
        f"cannot read {question}: saw {seen}; needs the files of Linux's /proc and /sys",
        reason=reason,
        hint=reason.hint,
    )
