"""Notices inside a rank that it makes no progress, and sends what its Flight Recorder holds, once each time.

    ring moves ──▶ longest gap so far        ring stands still for 10 s and three such gaps ──▶ recorder ──▶ log event

The agent sees the same from outside; the recorder can be read from inside only. The rank's exporter thread looks once a
second at words of the rank's own ring, so a rank that trains pays nothing for it. The dump goes to the agent as a file:
what sends it needs libraries, and loading them would look like work of the rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rootwalk.instrumentation.flight_dump import FlightDump
from rootwalk.instrumentation.flight_file import write_flight
from rootwalk.instrumentation.shared_ring import RingWriter

if TYPE_CHECKING:
    from rootwalk.instrumentation.export import OtlpSender

__all__ = ["Stillness"]

# A rank stands still that has not moved for so long, s, and for so many of its longest gap between two movements: what
# the analysis calls stuck, so that the recorder is there when it is judged. Priors, fitted on nothing.
MIN_STILL_S: Final = 10.0
USUAL_GAPS: Final = 3.0
# An agent reads four times a second; three seconds without it is not a hiccup.
READER_TIMEOUT_NS: Final = 3_000_000_000
SCOPE: Final = "rootwalk.instrumentation"


class Stillness:
    """Watches one rank; `look` is called about once a second.

    Args:
        ring: The rank's own ring.
        endpoint: OTLP/HTTP base URL for the dump.
        now: Monotonic clock, s.
    """

    def __init__(
        self, ring: RingWriter, endpoint: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ring = ring
        self._endpoint = endpoint
        self._now = now
        self._movement = ring.movement()
        self._moved_s = now()
        self._has_moved = False
        self._longest_s = 0.0
        self._has_asked = False
        self._dump = FlightDump(self._deliver)
        self._sender: OtlpSender | None = None

    def look(self) -> bool:
        """Ask for the recorder where the rank has come to stand still; return whether it was asked for."""
        now_s, movement = self._now(), self._ring.movement()
        if movement != self._movement:
            if self._has_moved:
                self._longest_s = max(self._longest_s, now_s - self._moved_s)
            self._movement, self._moved_s = movement, now_s
            self._has_moved, self._has_asked = True, False
            return False
        if self._has_asked or now_s - self._moved_s < max(
            MIN_STILL_S, USUAL_GAPS * self._longest_s
        ):
            return False
        self._has_asked = True
        return self._dump.ask()

    def _deliver(self, text: str) -> None:
        """Hand a dump to the agent where there is one, else send it; the next time without progress has another."""
        age_ns = self._ring.reader_age_ns()
        if age_ns is not None and age_ns < READER_TIMEOUT_NS:
            write_flight(self._ring.path, text)
        else:
            self._send(text)

    def _send(self, text: str) -> None:
        from rootwalk.instrumentation import semconv
        from rootwalk.instrumentation.export import OtlpSender
        from rootwalk.instrumentation.log_events import (
            LogEvent,
            Severity,
            build_log_request,
            build_resource_logs,
        )

        identity, taken_ns = self._ring.identity, time.time_ns()
        event = LogEvent(
            semconv.EVENT_TRAINING_FLIGHT_RECORDER_DUMP,
            taken_ns,
            taken_ns,
            Severity.INFO,
            text,
            {semconv.PROCESS_PID: identity.pid},
        )
        logs = build_resource_logs(identity.resource_attributes(), SCOPE, [event])
        self._sender = self._sender or OtlpSender(self._endpoint, "logs")
        self._sender.post(build_log_request([logs]).SerializeToString(), 1)
