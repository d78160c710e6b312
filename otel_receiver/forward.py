"""The tee: every accepted request is sent on to other receivers, at least once, without a second queue.

The journal is the queue. A target's thread reads what is durable, joins neighbouring requests of one signal (protobuf
messages of one type may be put end to end; profiles have a dictionary each and go alone), and moves its cursor when
they are answered. Segments go when the store and every target have passed them. A target that is away, slow or silent
costs its own thread's sleep and disk up to the limit, and nothing else.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.forward_client import Answer, ForwardClient, Verdict
from rootwalk.otel_receiver.forward_cursor import save_cursor
from rootwalk.otel_receiver.forward_queue import ForwardQueue, QueueSizes
from rootwalk.otel_receiver.forward_target import ForwardTarget
from rootwalk.otel_receiver.group_commit import JournalPosition
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal

__all__ = ["ForwardSnapshot", "Forwarder", "RetryPolicy"]

logger = logging.getLogger(__name__)

# Small requests that arrive within this are sent on together.
LINGER_S: Final = 0.2
# What a clean stop may spend on what is not sent yet; the rest stays in the journal.
STOP_TIMEOUT_S: Final = 10.0
# A server that asks for more is taken to mean this.
MAX_RETRY_AFTER_S: Final = 3600.0
_JOINED_SIGNALS: Final = frozenset({"traces", "metrics", "logs"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait before the same request is sent again.

    Attributes:
        first_s: After the first failure; doubled after each further one. Default 5.
        max_s: Never longer than this, unless the other end asks for it; default 300.
    """

    first_s: float = 5.0
    max_s: float = 300.0

    def wait_s(self, failures: int, retry_after_s: float | None) -> float:
        """Return the time to wait after so many failures in a row, s; half of it is left to chance."""
        chance = random.uniform(0.5, 1.0)  # noqa: S311  (spreads senders, no secret)
        if retry_after_s is not None:
            return min(retry_after_s, MAX_RETRY_AFTER_S) * (1.5 - 0.5 * chance)
        return float(min(self.first_s * 2.0 ** min(failures - 1, 30), self.max_s)) * chance


@dataclass(frozen=True, slots=True)
class ForwardSnapshot:
    """What became of the requests for one target since the start.

    Attributes:
        url: The target.
        sent: Requests that it accepted, by signal.
        rejected: Spans, points and log records that it took out of those, by signal.
        refused: Requests that it refused for good, by (signal, reason); they are not sent again.
        failed: Attempts that are repeated, by reason.
        sizes: The queue.
        limit_bytes: The most that may wait in it.
    """

    url: str
    sent: dict[str, int]
    rejected: dict[str, int]
    refused: dict[tuple[str, str], int]
    failed: dict[str, int]
    sizes: QueueSizes
    limit_bytes: int


class Forwarder:
    """Sends one target's part of the journal; `start`, `extend` from the journal's thread, `stop`.

    Args:
        target: Where to.
        client: The connection to it, closed by `stop`.
        queue: What to send.
        cursor: File that says how far it got.
        on_segment: Called when a segment is not needed any more.
        policy: When to try again.
    """

    def __init__(
        self,
        target: ForwardTarget,
        client: ForwardClient,
        queue: ForwardQueue,
        cursor: Path,
        on_segment: Callable[[], None],
        policy: RetryPolicy,
    ) -> None:
        self._target = target
        self._client = client
        self._queue = queue
        self._cursor = cursor
        self._on_segment = on_segment
        self._policy = policy
        self._thread = threading.Thread(target=self._run, name="rootwalk-forward", daemon=True)
        self._lock = threading.Lock()
        self._saved = queue.settled
        self._may_save = True
        self._stop_s: float | None = None
        self._batches: list[list[JournalRecord]] = []
        self._failures = 0
        self._said: set[str] = set()
        self._sent: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[str] = Counter()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def extend(self, end: JournalPosition) -> None:
        """Say that the journal is durable up to `end`."""
        if self._queue.extend(end):
            self._save()  # the segments go when the store is next written
            self._say_once(
                "full",
                f"the queue for {self._target.url} is full: its oldest requests are not sent on",
            )

    def stop(self) -> None:
        """Send what can be sent at once and end the thread; safe without start and twice."""
        self._stop_s = self._stop_s or time.monotonic() + STOP_TIMEOUT_S
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        self._queue.finish()
        self._save()
        with self._lock:
            self._may_save = False
        self._client.close()
        waiting_bytes = self._queue.sizes().waiting_bytes
        if waiting_bytes:
            self._say_once(
                "left",
                f"{waiting_bytes} bytes for {self._target.url} are not sent yet; they wait in "
                f'"{self._cursor.parent}" for the next receiver of this store that forwards there',
            )

    def snapshot(self) -> ForwardSnapshot:
        """Return the counts as they are now."""
        sizes = self._queue.sizes()
        with self._lock:
            return ForwardSnapshot(
                self._target.url,
                dict(self._sent),
                dict(self._rejected),
                dict(self._refused),
                dict(self._failed),
                sizes,
                self._queue.limit_bytes,
            )

    def _run(self) -> None:
        while self._batches or self._queue.await_records():
            self._queue.await_close(LINGER_S)
            if self._is_late():
                return
            try:
                is_settled = self._send_window()
            except Exception:
                # The outermost frame of the thread: were it to end, nothing would be sent on any more.
                if "bug" not in self._said:
                    self._said.add("bug")
                    logger.exception("cannot forward to %s", self._target.url)
                is_settled = not self._queue.await_close(self._policy.max_s)
            if not is_settled:
                return

    def _send_window(self) -> bool:
        if not self._batches:
            self._batches = _join(self._queue.take())
        while self._batches:
            if not self._send_batch(self._batches[0]):
                return False
            del self._batches[0]
        self._queue.settle()
        if self._save():
            self._on_segment()
        return True

    def _send_batch(self, batch: list[JournalRecord]) -> bool:
        """Send requests of one signal as one; return whether all are done with."""
        signal = batch[0].signal
        while True:
            answer = self._client.export(signal, b"".join(record.body for record in batch))
            if answer.is_about_content and len(batch) > 1:
                return all(self._send_batch([record]) for record in batch)
            if answer.verdict is not Verdict.RETRY:
                self._count(signal, len(batch), answer)
                return True
            if not self._wait(answer):
                return False

    def _count(self, signal: Signal, requests: int, answer: Answer) -> None:
        if self._failures:
            logger.warning("%s can be forwarded to again", self._target.url)
        self._failures = 0
        with self._lock:
            if answer.verdict is Verdict.SENT:
                self._sent[signal] += requests
            else:
                self._refused[signal, answer.reason] += requests
            if answer.rejected:
                self._rejected[signal] += answer.rejected
        if answer.verdict is Verdict.REFUSED:
            said = answer.message or "without a reason"
            self._say_once(
                answer.reason,
                f"{self._target.url} refuses {signal} for good ({answer.reason}: {said}); "
                "such requests are counted and not sent again",
            )
        elif answer.rejected:
            self._say_once(
                "rejected",
                f"{self._target.url} took only part of some {signal} ({answer.message})",
            )

    def _wait(self, answer: Answer) -> bool:
        """Wait until the same may be sent again; return False when there is no time left for that."""
        self._failures += 1
        with self._lock:
            self._failed[answer.reason] += 1
        if self._failures == 1:
            logger.warning(
                "cannot forward to %s: %s; what is accepted waits in the journal",
                self._target.url,
                answer.message or answer.reason,
            )
        if self._stop_s is not None:
            return False
        self._queue.await_close(self._policy.wait_s(self._failures, answer.retry_after_s))
        return not self._is_late()

    def _is_late(self) -> bool:
        return self._stop_s is not None and time.monotonic() >= self._stop_s

    def _save(self) -> bool:
        """Write the cursor; return whether a segment is not needed any more."""
        with self._lock:
            settled, before = self._queue.settled, self._saved
            if not self._may_save or settled == before:
                return False
            try:
                save_cursor(self._cursor, self._target.url, (settled.segment, settled.end_bytes))
            except OSError as error:
                # A full disk: after a crash the same requests are sent twice, which is allowed.
                logger.debug("cannot save the cursor %s: %s", self._cursor, error)
                return False
            self._saved = settled
            return settled.segment > before.segment

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", text)


def _join(records: list[JournalRecord]) -> list[list[JournalRecord]]:
    """Return the records in lists that may be sent as one request each; the order is kept within a signal."""
    by_signal = sorted(records, key=lambda record: record.signal)
    batches: list[list[JournalRecord]] = []
    for signal, group in groupby(by_signal, key=lambda record: record.signal):
        if signal in _JOINED_SIGNALS:
            batches.append(list(group))
        else:
            batches.extend([record] for record in group)
    return batches
