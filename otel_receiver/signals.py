"""The four signals of OTLP, and what one record of each is called."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["RECORD_NAMES", "Signal"]


class Signal(StrEnum):
    """A signal that is stored; the value is its word in counters."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"
    PROFILES = "profiles"


# The Collector's words for what is counted: otelcol_receiver_accepted_spans and so on.
RECORD_NAMES: Final = {
    Signal.TRACES: "spans",
    Signal.METRICS: "metric_points",
    Signal.LOGS: "log_records",
    Signal.PROFILES: "profile_samples",
}
