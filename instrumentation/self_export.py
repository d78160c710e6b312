"""Sends a rank's own ring when no host agent does, and its Flight Recorder when it makes no progress.

A daemon thread looks once a second. While a reader was here in the last three seconds it does nothing; else it takes
the ring's lock, turns the records into spans and posts them. Should an agent come (back), the lock passes to it and it
goes on at the cursor. What an earlier program of the process left (`predecessor`) is sent first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rootwalk.instrumentation.shared_ring import Record, RingReader, RingWriter
from rootwalk.instrumentation.stillness import READER_TIMEOUT_NS, Stillness

if TYPE_CHECKING:
    from rootwalk.instrumentation.export import OtlpSender, SpanSender
    from rootwalk.instrumentation.step_spans import SpanBuilder

__all__ = ["SelfExporter"]

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
# What a process that ends waits at most for its last records to be acknowledged.
LAST_SEND_S = 5.0
SCOPE = "rootwalk.instrumentation"


class SelfExporter:
    """Owns the thread that stands in for an absent agent.

    Args:
        ring: The process's own ring.
        endpoint: OTLP/HTTP base URL.
        unsent: Rings of earlier programs of this process; each is removed when it is sent.
    """

    def __init__(self, ring: RingWriter, endpoint: str, unsent: Sequence[Path] = ()) -> None:
        self._ring = ring
        self._paths = [*unsent, ring.path]
        self._endpoint = endpoint
        self._started_ns = time.monotonic_ns()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rootwalk-export", daemon=True)
        self._rings: list[tuple[RingReader, SpanBuilder]] = []
        self._sender: SpanSender | None = None
        self._event_sender: OtlpSender | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def abandon(self) -> None:
        """Send nothing more; the ring is the caller's."""
        self._stopping.set()

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
            if self._drain() and not any(reader.read(1) for reader, _ in self._rings):
                self._ring.path.unlink(missing_ok=True)
                return
            time.sleep(0.1)

    def _is_needed(self) -> bool:
        age_ns = self._ring.reader_age_ns()
        if age_ns is None:
            age_ns = time.monotonic_ns() - self._started_ns  # an agent may be about to find us
        return age_ns > READER_TIMEOUT_NS

    def _run(self) -> None:
        still = Stillness(self._ring, self._endpoint)
        while not self._stopping.wait(INTERVAL_S):
            try:
                still.look()
                if self._is_needed():
                    self._drain()
            except Exception as error:  # noqa: BLE001  (outermost frame of a thread in the training process)
                logger.warning("rootwalk stops sending from this process: %r", error)
                return

    def _drain(self) -> bool:
        """Send what is in the rings; return whether everything that was read is acknowledged."""
        from rootwalk.instrumentation.export import OtlpSender, SpanSender
        from rootwalk.instrumentation.step_spans import SpanBuilder

        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):  # an agent has sent and removed it
                reader = RingReader(path)
                self._rings.append((reader, SpanBuilder(reader.identity, reader.clock)))
        self._paths = []
        sender = self._sender = self._sender or SpanSender(self._endpoint)
        events = self._event_sender = self._event_sender or OtlpSender(self._endpoint, "logs")
        are_sent = [_drain_ring(sender, events, *ring) for ring in self._rings]
        return all(are_sent)


def _drain_ring(
    sender: SpanSender, events: OtlpSender, reader: RingReader, builder: SpanBuilder
) -> bool:
    if not reader.try_lock():
        return False
    try:
        records = reader.read()
        if records:
            if not _send(sender, reader, builder, records):
                return False
            reader.advance(len(records))
        if not _send_exception(events, reader):
            return False
        if reader.is_superseded and reader.path.exists() and not reader.read(1):
            if not _send(sender, reader, builder, reader.final_records()):
                return False
            reader.unlink()
        return True
    finally:
        reader.unlock()


def _send_exception(sender: OtlpSender, reader: RingReader) -> bool:
    """Send the exception that ends the program, where there is one; return whether nothing of it is left."""
    exception = reader.exception()
    if exception is None or exception.is_sent:
        return True
    if sender.is_backing_off:
        return False
    from rootwalk.instrumentation import semconv
    from rootwalk.instrumentation.log_events import (
        LogEvent,
        Severity,
        build_log_request,
        build_resource_logs,
    )

    event = LogEvent(
        semconv.EVENT_TRAINING_PROCESS_EXCEPTION,
        reader.clock.unix_ns(exception.mono_ns),
        reader.clock.unix_ns(time.monotonic_ns()),
        Severity.WARN,
        exception.text,
        exception.attributes(reader.identity.pid),
    )
    logs = build_resource_logs(reader.identity.resource_attributes(), SCOPE, [event])
    if not sender.post(build_log_request([logs]).SerializeToString(), 1):
        return False
    reader.mark_exception_sent()
    return True


def _send(
    sender: SpanSender, reader: RingReader, builder: SpanBuilder, records: list[Record]
) -> bool:
    from rootwalk.instrumentation.export import build_resource_spans

    if sender.is_backing_off:
        return False
    resource = reader.identity.resource_attributes()
    return sender.send([build_resource_spans(resource, {SCOPE: builder.spans(records)})])
