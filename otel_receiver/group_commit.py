"""One fsync for all requests that wait: the thread that appends to the journal.

Requests that arrive while an fsync runs are written together by the next one, so many small senders cost no more
fsyncs than one big sender. A failed write (disk full) fails the requests of that write and nothing else; the next one
begins a new segment, because after a failed fsync nobody knows what the old file holds.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.journal import SegmentWriter

__all__ = ["GroupCommit", "JournalPosition"]

logger = logging.getLogger(__name__)

# One write and fsync takes at most this much; bounds the copy that joins the records.
MAX_COMMIT_BYTES: Final = 8 * 1024 * 1024
# A segment is a file that can be removed when it is stored: small enough not to keep much twice on disk.
MAX_SEGMENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class JournalPosition:
    """A place in the journal: everything before `end_bytes` of `segment`, and all smaller segments."""

    segment: int
    end_bytes: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    data: bytes
    records: int
    on_done: Callable[[OSError | None], None]


class GroupCommit:
    """Appends records durably; `start`, then `submit` from any thread, then `stop`.

    Args:
        directory: The journal, whose lock the caller holds.
        first_segment: Number of the first segment to write; larger than any that was.
        on_durable: Called after each fsync with the new end of the journal and the number of spans and points added.
    """

    def __init__(
        self,
        directory: Path,
        first_segment: int,
        on_durable: Callable[[JournalPosition, int], None],
    ) -> None:
        self._directory = directory
        self._next_segment = first_segment
        self._on_durable = on_durable
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rootwalk-journal", daemon=True)
        self._writer: SegmentWriter | None = None
        self.failures = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, data: bytes, records: int, on_done: Callable[[OSError | None], None]) -> None:
        """Append one encoded record.

        Args:
            data: From `encode_record`.
            records: Spans or points in it.
            on_done: Called in the journal's thread when the record is durable, or with the reason why it is not.
        """
        self._queue.put(_Waiting(data, records, on_done))

    def stop(self) -> None:
        """Commit what was submitted and end the thread; safe without start and twice."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _run(self) -> None:
        is_open = True
        while is_open:
            group: list[_Waiting] = []
            item = self._queue.get()
            size_bytes = 0
            while item is not None:
                group.append(item)
                size_bytes += len(item.data)
                if size_bytes >= MAX_COMMIT_BYTES:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            is_open = item is not None
            if group:
                self._commit(group)

    def _commit(self, group: list[_Waiting]) -> None:
        failure: OSError | None = None
        try:
            writer = self._writer_with_room()
            writer.append([waiting.data for waiting in group])
            self._on_durable(
                JournalPosition(writer.segment, writer.end_bytes),
                sum(waiting.records for waiting in group),
            )
        except OSError as error:
            failure = error
            self.failures += 1
            if self.failures == 1:
                logger.warning(
                    "the journal cannot be written (%s); senders are told to retry", error
                )
            if self._writer is not None:
                self._writer.give_up()
                self._writer = None
        for waiting in group:
            waiting.on_done(failure)

    def _writer_with_room(self) -> SegmentWriter:
        if self._writer is not None and self._writer.end_bytes >= MAX_SEGMENT_BYTES:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            segment = self._next_segment
            self._next_segment += 1
            self._writer = SegmentWriter(self._directory, segment)
        return self._writer
