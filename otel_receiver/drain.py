"""The thread that moves the journal into the store.

It sleeps until something is durable, waits a little for more, decodes without touching the file and opens it only for
the insert, so that readers find it closed most of the time. While the store cannot be written the journal grows and
nothing is lost.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import remove_segments
from rootwalk.otel_receiver.store import load_journal_batch, save_journal_batch

__all__ = ["JournalDrain"]

logger = logging.getLogger(__name__)

# After a store that could not be written; a reader rarely holds it for longer.
RETRY_S: Final = 1.0
# A stop that finds the store locked keeps trying for so long, then leaves the journal to the next reader.
STOP_TIMEOUT_S: Final = 30.0


class JournalDrain:
    """Moves durable records into the store; `start`, `extend` from the journal's thread, `stop`.

    Args:
        store: The store's file.
        directory: Its journal, whose lock the caller holds.
        counters: Where stored records are counted.
        flush_interval_s: Longest time from durable to readable, apart from the commit itself.
        flush_records: Spans and points after which the interval is cut short.
    """

    def __init__(
        self,
        store: Path,
        directory: Path,
        counters: IngestCounters,
        *,
        flush_interval_s: float,
        flush_records: int,
    ) -> None:
        self._store = store
        self._directory = directory
        self._counters = counters
        self._flush_interval_s = flush_interval_s
        self._flush_records = flush_records
        self._changed = threading.Condition()
        self._end = JournalPosition(0, 0)
        self._position = JournalPosition(0, 0)
        self._waiting_records = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="rootwalk-store", daemon=True)
        self._has_failed = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def extend(self, end: JournalPosition, records: int) -> None:
        """Say that the journal is durable up to `end`, with so many more spans and points."""
        with self._changed:
            self._end = end
            self._waiting_records += records
            self._changed.notify()

    def is_done(self) -> bool:
        """Say whether everything that is durable is stored."""
        with self._changed:
            return self._position == self._end

    def stop(self) -> None:
        """Store what is durable and end the thread; safe without start and twice."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._position < self._end)
                self._changed.wait_for(
                    lambda: self._is_stopping or self._waiting_records >= self._flush_records,
                    timeout=self._flush_interval_s,
                )
                end, is_stopping = self._end, self._is_stopping
                records, self._waiting_records = self._waiting_records, 0
            is_stored = self._flush(end, records, STOP_TIMEOUT_S if is_stopping else RETRY_S)
            if is_stopping:
                return
            if not is_stored:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopping, timeout=RETRY_S)

    def _flush(self, end: JournalPosition, records: int, timeout_s: float) -> bool:
        duplicates = 0
        try:
            while self._position < end:
                position = (self._position.segment, self._position.end_bytes)
                batch = load_journal_batch(self._directory, position, (end.segment, end.end_bytes))
                if not batch:
                    logger.error("the journal %s ends before its last record", self._directory)
                    self._position = end
                    break
                duplicates += save_journal_batch(self._store, batch, timeout_s=timeout_s)
                self._position = JournalPosition(batch[-1].segment, batch[-1].end_bytes)
                remove_segments(self._directory, before=self._position.segment)
        except (StoreError, OSError) as error:
            if not self._has_failed:
                logger.warning("%s; the journal keeps what was acknowledged", error)
            return self._keep(records)
        except Exception:
            # The outermost frame of the thread: were it to end, nothing would be stored any more.
            if not self._has_failed:
                logger.exception("cannot store the journal; it keeps what was acknowledged")
            return self._keep(records)
        self._has_failed = False
        self._counters.count_stored(records - duplicates, duplicates)
        return True

    def _keep(self, records: int) -> bool:
        self._has_failed = True
        with self._changed:
            self._waiting_records += records
        return False
