"""One fsync for all requests that wait: the thread that appends to the journal.

Requests that arrive while an fsync runs are written together by the next one, so many small senders cost no more
fsyncs than one big sender. A failed write (disk full) fails the requests of that write and nothing else; the next one
begins a new segment, because after a failed fsync nobody knows what the old file holds.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.journal import NO_IDENTITY, JournalIdentity, SegmentWriter

__all__ = ["GroupCommit", "JournalPosition"]

logger = logging.getLogger(__name__)

# One write and fsync takes at most this much; bounds the copy that joins the records.
MAX_COMMIT_BYTES: Final = 8 * 1024 * 1024
# A segment is a file that can be removed when it is stored: small enough not to keep much twice on disk.
MAX_SEGMENT_BYTES: Final = 64 * 1024 * 1024
# A segment is copied in a second or two on a slow disk.
PUT_BACK_TIMEOUT_S: Final = 30.0


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
        identity: Which store and which journal the segments are of.
        renew: Called when the journal was removed or moved away: makes its folder and lock again, and says whether the
            lock is still ours.
    """

    def __init__(
        self,
        directory: Path,
        first_segment: int,
        on_durable: Callable[[JournalPosition, int], None],
        identity: JournalIdentity = NO_IDENTITY,
        renew: Callable[[], bool] = lambda: True,
    ) -> None:
        self._identity = identity
        self._renew = renew
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

    def keep_in_place(self) -> None:
        """Return when the journal's newest segment was looked at, and put back if it was gone; not in its thread."""
        if not self._thread.is_alive():
            return
        done = threading.Event()
        self._queue.put(_Waiting(b"", 0, lambda _failure: done.set()))
        done.wait(PUT_BACK_TIMEOUT_S)

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
            data = [waiting.data for waiting in group if waiting.data]
            if data:
                self._append(data, sum(waiting.records for waiting in group))
            elif self._writer is not None:
                self._keep_in_place(self._writer)
        except OSError as error:
            failure = error
            self.failures += 1
            if self.failures == 1:
                logger.warning(
                    "the journal cannot be written (%s); senders are told to retry", error
                )
            self._let_go()
        for waiting in group:
            waiting.on_done(failure)

    def _append(self, data: list[bytes], records: int) -> None:
        writer = self._writer_with_room()
        writer.append(data)
        self._keep_in_place(writer)
        self._on_durable(JournalPosition(writer.segment, writer.end_bytes), records)

    def _let_go(self) -> None:
        """Close the segment after a failure; the next commit begins another one."""
        if self._writer is not None:
            self._writer.give_up()
            self._writer = None

    def _claim(self) -> None:
        """Make the journal's folder and lock again where somebody removed them.

        Raises:
            OSError: If that cannot be done, or another receiver has them now.
        """
        try:
            is_ours = self._renew()
        except StoreError as error:
            raise OSError(errno.ENOENT, str(error)) from error
        if not is_ours:
            raise OSError(
                errno.ENOENT, "the journal was removed, and another receiver has its name"
            )

    def _keep_in_place(self, writer: SegmentWriter) -> None:
        """Put a segment back that was removed or moved away while it was written.

        Raises:
            OSError: If that cannot be done: who waits is not to be told that it is durable.
        """
        if writer.is_in_place():
            return
        self._claim()
        writer.put_back()
        logger.warning(
            'the journal "%s" was removed or moved while it was written: its newest segment is written again, '
            "what was in older ones and not stored is lost",
            self._directory,
        )

    def _writer_with_room(self) -> SegmentWriter:
        if self._writer is not None and self._writer.end_bytes >= MAX_SEGMENT_BYTES:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._claim()
            segment = self._next_segment
            self._next_segment += 1
            self._writer = SegmentWriter(self._directory, segment, self._identity)
        return self._writer
