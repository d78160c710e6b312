"""Sends a rank's own ring when no host agent does.

A daemon thread looks once a second. While a reader was here in the last three seconds it does nothing; else it takes
the ring's lock, turns the records into spans and posts them. Should an agent come (back), the lock passes to it and it
goes on at the cursor.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.shared_ring import RingReader, RingWriter

if TYPE_CHECKING:
    from rootwalk.instrumentation.export import SpanSender
    from rootwalk.instrumentation.step_spans import SpanBuilder

__all__ = ["SelfExporter"]

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
# An agent reads four times a second; three seconds without it is not a hiccup.
READER_TIMEOUT_NS = 3_000_000_000
# What a process that ends waits at most for its last records to be acknowledged.
LAST_SEND_S = 5.0
SCOPE = "rootwalk.instrumentation"


class SelfExporter:
    """Owns the thread that stands in for an absent agent.

    Args:
        ring: The process's own ring.
        endpoint: OTLP/HTTP base URL.
    """

    def __init__(self, ring: RingWriter, endpoint: str) -> None:
        self._ring = ring
        self._endpoint = endpoint
        self._started_ns = time.monotonic_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rootwalk-export", daemon=True)
        self._reader: RingReader | None = None
        self._builder: SpanBuilder | None = None
        self._sender: SpanSender | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left when no agent will, and remove the ring then."""
        self._stopping.set()
        deadline = time.monotonic() + LAST_SEND_S
        self._thread.join(timeout=LAST_SEND_S)
        if self._thread.is_alive() or (
            self._ring.reader_age_ns() is not None and not self._is_needed()
        ):
            return
        while time.monotonic() < deadline:
            if self._drain() and self._reader is not None and not self._reader.read(1):
                self._reader.unlink()
                return
            time.sleep(0.1)

    def _is_needed(self) -> bool:
        age_ns = self._ring.reader_age_ns()
        if age_ns is None:
            age_ns = time.monotonic_ns() - self._started_ns  # an agent may be about to find us
        return age_ns > READER_TIMEOUT_NS

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            if self._is_needed():
                try:
                    self._drain()
                except Exception as error:  # noqa: BLE001  (outermost frame of a thread in the training process)
                    logger.warning("rootwalk stops sending from this process: %r", error)
                    return

    def _drain(self) -> bool:
        """Send what is in the ring; return whether everything that was read is acknowledged."""
        from rootwalk.instrumentation.export import SpanSender, build_resource_spans
        from rootwalk.instrumentation.step_spans import SpanBuilder

        if self._reader is None:
            self._reader = RingReader(self._ring.path)
            self._builder = SpanBuilder(self._reader.identity, read_host_clock())
            self._sender = SpanSender(self._endpoint)
        reader, builder, sender = self._reader, self._builder, self._sender
        if builder is None or sender is None or not reader.try_lock():
            return False
        try:
            records = reader.read()
            if not records or sender.is_backing_off:
                return not records
            spans = builder.spans(records)
            resource = reader.identity.resource_attributes()
            if not sender.send([build_resource_spans(resource, {SCOPE: spans})]):
                return False
            reader.advance(len(records))
            return True
        finally:
            reader.unlock()
