"""The signals that the receiver stores, and what it says about those that it does not."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["REFUSED_SIGNALS", "Signal"]


class Signal(StrEnum):
    """A signal that is stored; the value is its word in counters."""

    TRACES = "traces"
    METRICS = "metrics"


# Signals of OTLP that this version refuses.
REFUSED_SIGNALS: Final = ("logs", "profiles")
