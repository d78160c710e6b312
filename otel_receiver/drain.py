"""The thread that moves the journal into the store.

It sleeps until something is durable, waits a little for more, decodes without touching the file and opens it only for
the insert, so that readers find it closed most of the time. While the store cannot be written the journal grows and
nothing is lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.compaction import apply_retention
from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import (
    NO_IDENTITY,
    JournalIdentity,
    JournalRecord,
    count_waiting_bytes,
    remove_segments,
)
from rootwalk.otel_receiver.journal_batches import (
    MAX_BATCH_BYTES,
    MAX_COMPILED_BATCH_BYTES,
    load_journal_batch,
)
from rootwalk.otel_receiver.memory_gate import MemoryGate
from rootwalk.otel_receiver.retention import Retention
from rootwalk.otel_receiver.retention_clock import RetentionClock
from rootwalk.otel_receiver.store import save_journal_batch
from rootwalk.otel_receiver.store_errors import DatabaseMemoryError

__all__ = ["JournalDrain"]

logger = logging.getLogger(__name__)

# A reader on a busy machine may hold the store for seconds.
LOCK_TIMEOUT_S: Final = 10.0
# After a store that could not be written.
RETRY_S: Final = 1.0
# A full disk stays full for longer, and every try decodes the journal on cores that may be a training job's.
MAX_RETRY_S: Final = 30.0
# A stop that finds the store locked keeps trying for so long, then leaves the journal to the next reader.
STOP_TIMEOUT_S: Final = 30.0
# While somebody waits for what is new: as often as a receiver that has its machine for itself.
HURRIED_INTERVAL_S: Final = 2.0
# How often it is looked whether something is too old: of what is kept for days, a minute more is nothing.
RETENTION_INTERVAL_S: Final = 60.0


class JournalDrain:
    """Moves durable records into the store; `start`, `extend` from the journal's thread, `stop`.

    Args:
        store: The store's file.
        directory: Its journal, whose lock the caller holds.
        counters: Where spans that came again are counted.
        flush_interval_s: Longest time from durable to readable, apart from the commit itself.
        flush_records: Spans and points after which the interval is cut short.
        gate: Says how much is stored at once, and when there is memory for it; None for no limit.
        retention: What to delete, between two batches.
        retention_interval_s: How often to look for it.
        identity: Which store the journal is for, and the journal's id.
    """

    def __init__(
        self,
        store: Path,
        directory: Path,
        counters: IngestCounters,
        *,
        flush_interval_s: float,
        flush_records: int,
        gate: MemoryGate | None = None,
        retention: Retention | None = None,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        identity: JournalIdentity = NO_IDENTITY,
    ) -> None:
        self._identity = identity
        self._put_back: Callable[[], None] = lambda: None
        self._store = store
        self._directory = directory
        self._counters = counters
        self._flush_interval_s = flush_interval_s
        self._flush_records = flush_records
        self._gate = gate
        self._divisor = 1
        self._changed = threading.Condition()
        self._end = JournalPosition(0, 0)
        self._position = JournalPosition(0, 0)
        self._waiting_records = 0
        self._hurried_until_s = 0.0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="rootwalk-store", daemon=True)
        self._has_failed = False
        self._retry_s = RETRY_S
        self._retention = retention or Retention()
        self._retention_clock = RetentionClock(self._retention.age_s or 0.0)
        self._retention_interval_s = retention_interval_s
        self._next_retention_s = time.monotonic() + retention_interval_s

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def resume(self, position: JournalPosition, end: JournalPosition) -> None:
        """Say, before `start`, what is stored already and up to where the journal is to be stored."""
        self._position, self._end = position, end

    def on_missing(self, put_back: Callable[[], None]) -> None:
        """Say, before `start`, what puts back a segment that somebody removed; called in the drain's thread."""
        self._put_back = put_back

    def extend(self, end: JournalPosition, records: int) -> None:
        """Say that the journal is durable up to `end`, with so many more spans and points."""
        with self._changed:
            self._end = end
            self._waiting_records += records
            self._changed.notify()

    def hurry(self, seconds: float) -> None:
        """Store what is durable every `HURRIED_INTERVAL_S` for so long, where that is sooner than usual; any thread."""
        with self._changed:
            self._hurried_until_s = time.monotonic() + seconds
            self._changed.notify()

    @property
    def stored_segment(self) -> int:
        """The segment of the last record that is stored; smaller ones are not needed for the store any more."""
        return self._position.segment

    def is_done(self) -> bool:
        """Say whether everything that is durable is stored."""
        with self._changed:
            return self._position == self._end

    def waiting_bytes(self) -> int:
        """Return how much of the journal is durable and not stored yet."""
        with self._changed:
            position, end = self._position, self._end
        try:
            return count_waiting_bytes(
                self._directory,
                (position.segment, position.end_bytes),
                (end.segment, end.end_bytes),
            )
        except FileNotFoundError:
            # A segment was stored and removed meanwhile; the next reading has the new position.
            return end.end_bytes

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
                self._changed.wait_for(
                    lambda: self._is_stopping or self._position < self._end,
                    timeout=self._until_retention_s(),
                )
            if not self._is_stopping:
                self._retain_when_due()
            with self._changed:
                if not self._is_stopping and self._position == self._end:
                    continue
                self._await_batch()
                is_stopping = self._is_stopping
            is_stored = self._flush(STOP_TIMEOUT_S if is_stopping else LOCK_TIMEOUT_S)
            if is_stopping:
                return
            if not is_stored:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopping, timeout=self._retry_s)
                self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _await_batch(self) -> None:
        """Wait, with the lock, until the interval is over or enough has come."""
        began_s = time.monotonic()
        while not self._is_stopping and self._waiting_records < self._flush_records:
            now_s = time.monotonic()
            interval_s = self._flush_interval_s
            if now_s < self._hurried_until_s:
                interval_s = min(interval_s, HURRIED_INTERVAL_S)
            left_s = began_s + interval_s - now_s
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _until_retention_s(self) -> float | None:
        """Return the time to the next look for what is too old; None when everything is kept."""
        if not self._retention.is_bounded():
            return None
        return max(self._next_retention_s - time.monotonic(), 0.0)

    def _retain_when_due(self) -> None:
        if self._until_retention_s() != 0.0:
            return
        try:
            deleted = apply_retention(
                self._store,
                self._trusted_retention(),
                time.time_ns(),
                self._retention_clock.may_delete_most,
            )
            if deleted is None:
                self._say_held()
            else:
                self._retention_clock.release_most()
            if deleted:
                logger.info("deleted %d records that are not to be kept any more", deleted)
        except (StoreError, OSError) as error:
            logger.warning("%s; it is tried again in %g s", error, self._retention_interval_s)
        except Exception:
            # The outermost frame of the thread, as in `_flush`.
            logger.exception("cannot delete what is not to be kept any more")
        self._next_retention_s = time.monotonic() + self._retention_interval_s

    def _trusted_retention(self) -> Retention:
        """Return what to keep, without regard to age while ages are not known: after a jump of the clock."""
        if self._retention.age_s is None:
            return self._retention
        jump_s = self._retention_clock.find_jump()
        if jump_s:
            logger.warning(
                "the clock jumped by %+.0f s: nothing is deleted by its age for the next %g s",
                jump_s,
                self._retention.age_s,
            )
        if self._retention_clock.may_delete:
            return self._retention
        return replace(self._retention, age_s=None)

    def _say_held(self) -> None:
        if self._retention_clock.hold_most():
            logger.warning(
                "more than half of all records are older than %g s: they are kept for a day at most, in case that "
                "the clock is wrong",
                self._retention.age_s,
            )

    def _flush(self, timeout_s: float) -> bool:
        """Store all that is durable, what comes meanwhile included; return whether it could be stored."""
        try:
            while (end := self._take_end()) > self._position:
                self._flush_batch(end, timeout_s)
                # Senders may keep it here for hours.
                self._retain_when_due()
        except (StoreError, OSError) as error:
            if not self._has_failed:
                logger.warning("%s; the journal keeps what was acknowledged", error)
            self._has_failed = True
            return False
        except Exception:
            # The outermost frame of the thread: were it to end, nothing would be stored any more.
            if not self._has_failed:
                logger.exception("cannot store the journal; it keeps what was acknowledged")
            self._has_failed = True
            return False
        self._divisor = 1
        if self._has_failed:
            self._has_failed = False
            self._retry_s = RETRY_S
            logger.warning("the store %s can be written again", self._store)
        return True

    def _take_end(self) -> JournalPosition:
        """Return the end of what is durable; whatever waits up to there is not waited for any more."""
        with self._changed:
            self._waiting_records = 0
            return self._end

    def _flush_batch(self, end: JournalPosition, timeout_s: float) -> None:
        batch = self._load_batch(end)
        if not batch:
            self._put_back()
            batch = self._load_batch(end)
        if not batch:
            logger.error(
                'what was acknowledged between (%d, %d) and (%d, %d) of the journal "%s" (segment, byte) cannot be '
                "read any more and is lost",
                *(self._position.segment, self._position.end_bytes, end.segment, end.end_bytes),
                self._directory,
            )
            self._position = end
            return
        stored = JournalPosition(batch[-1].segment, batch[-1].end_bytes)
        duplicates = self._save_batch(batch, timeout_s)
        if duplicates is None:
            return
        self._counters.count_duplicates(duplicates)
        self._position = stored
        remove_segments(self._directory, before=stored.segment)

    def _load_batch(self, end: JournalPosition) -> list[JournalRecord]:
        sizes = (MAX_BATCH_BYTES, MAX_COMPILED_BATCH_BYTES)
        if self._gate is not None:
            sizes = (self._gate.plan.batch_bytes, self._gate.plan.compiled_batch_bytes)
        position = (self._position.segment, self._position.end_bytes)
        plain_bytes, compiled_bytes = (size // self._divisor for size in sizes)
        return load_journal_batch(
            self._directory, position, (end.segment, end.end_bytes), plain_bytes, compiled_bytes
        )

    def _save_batch(self, batch: list[JournalRecord], timeout_s: float) -> int | None:
        """Store a batch and return the duplicates in it; None when the next try has to be with half of it."""
        is_divisible = len(batch) > 1
        memory_bytes = None if self._gate is None else self._gate.plan.database_bytes
        # A request that cannot be stored alone must be stored some day, whatever it takes.
        if not is_divisible and self._divisor > 1:
            memory_bytes = None
        try:
            with contextlib.nullcontext() if self._gate is None else self._gate.storing():
                duplicates = save_journal_batch(
                    self._store,
                    batch,
                    identity=self._identity,
                    timeout_s=timeout_s,
                    memory_bytes=memory_bytes,
                )
        except DatabaseMemoryError:
            if not is_divisible and memory_bytes is None:
                raise
            self._divisor *= 2
            return None
        return duplicates
