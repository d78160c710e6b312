"""What waits in the journal for one target: a position, sizes of segments, and a limit.

    segments   |  41  |  42   |  43 ...
                   ^      ^         ^
                settled  taken     end       taken - settled: the window that is being sent

The thread that makes records durable extends it, the target's thread takes windows from it; neither waits for the
other for longer than some assignments. Over the limit, whole segments are given up, the oldest first, without a look
into them, so that a target that never answers costs the writer nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.forward_cursor import list_cursors, read_url_and_position
from rootwalk.otel_receiver.group_commit import MAX_SEGMENT_BYTES, JournalPosition
from rootwalk.otel_receiver.journal import (
    SEGMENT_HEADER_BYTES,
    JournalRecord,
    encoded_bytes,
    list_segments,
    read_records,
    segment_path,
)

__all__ = ["ForwardQueue", "QueueSizes", "find_waiting_urls"]

# One request to the target; four times below the 4 MiB that gRPC servers take by default.
MAX_WINDOW_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueueSizes:
    """Journal bytes by what became of them; they add up to what was ever queued.

    Attributes:
        waiting_bytes: Still to be sent, the window in progress among them.
        settled_bytes: Sent, or refused for good by the target.
        dropped_bytes: Given up because the queue was full, or found unreadable.
    """

    waiting_bytes: int
    settled_bytes: int
    dropped_bytes: int


class ForwardQueue:
    """The part of a journal that one target has not had.

    Args:
        directory: The journal.
        position: Up to where the target needs nothing more.
        limit_bytes: Above this the oldest segments are given up.
        reserve_bytes: Part of it that is kept for the segment that is being written.
    """

    def __init__(
        self,
        directory: Path,
        position: JournalPosition,
        limit_bytes: int,
        *,
        reserve_bytes: int = MAX_SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        self._changed = threading.Condition()
        self._settled = self._taken = position
        self._in_flight_bytes = 0
        self._settled_bytes = 0
        self._dropped_bytes = 0
        self.limit_bytes = limit_bytes
        self._reserve_bytes = reserve_bytes
        self._is_closed = False
        self._end_bytes = {
            segment: segment_path(directory, segment).stat().st_size
            for segment in list_segments(directory)
            if segment >= position.segment
        }

    def extend(self, end: JournalPosition) -> bool:
        """Say that the journal is durable up to `end`; return whether segments were given up for it."""
        with self._changed:
            is_new = end.segment not in self._end_bytes
            self._end_bytes[end.segment] = end.end_bytes
            self._changed.notify()
            return is_new and self._give_up_oldest(end.segment)

    def await_records(self) -> bool:
        """Wait until something is to be sent or the queue is closed; return whether something is."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._untaken_bytes() > 0)
            return self._untaken_bytes() > 0

    def await_close(self, timeout_s: float) -> bool:
        """Wait for `close`, at most so long; return whether it was called."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def take(self) -> list[JournalRecord]:
        """Return the next records, about `MAX_WINDOW_BYTES` of them, which are then in progress until `settle`.

        Returns:
            Nothing when what came next cannot be read or was given up meanwhile; there may be more all the same.
        """
        with self._changed:
            start, end_bytes = self._taken, dict(self._end_bytes)
        records, end = _read_window(self._directory, start, end_bytes)
        with self._changed:
            if self._taken != start:
                return []
            self._in_flight_bytes = sum(encoded_bytes(record) for record in records)
            self._dropped_bytes += self._pass(end) - self._in_flight_bytes
            if not records:
                self._settled = self._taken
        return records

    def settle(self) -> None:
        """Say that the target needs nothing more of what was taken."""
        with self._changed:
            self._settled_bytes += self._in_flight_bytes
            self._in_flight_bytes = 0
            self._settled = self._taken

    def finish(self) -> None:
        """Say that no segment grows any more: one that is settled to its end is not needed."""
        with self._changed:
            if self._in_flight_bytes == 0 == self._untaken_bytes() and self._end_bytes:
                self._pass(JournalPosition(max(self._end_bytes) + 1, 0))
                self._settled = self._taken

    @property
    def settled(self) -> JournalPosition:
        """Up to where the target needs nothing more."""
        with self._changed:
            return self._settled

    def sizes(self) -> QueueSizes:
        """Return what became of the bytes so far."""
        with self._changed:
            waiting_bytes = self._untaken_bytes() + self._in_flight_bytes
            return QueueSizes(waiting_bytes, self._settled_bytes, self._dropped_bytes)

    def _untaken_bytes(self) -> int:
        return sum(
            end_bytes - self._first_byte(segment)
            for segment, end_bytes in self._end_bytes.items()
            if end_bytes > self._first_byte(segment)
        )

    def _first_byte(self, segment: int) -> int:
        is_begun = segment == self._taken.segment
        return max(self._taken.end_bytes if is_begun else 0, SEGMENT_HEADER_BYTES)

    def _pass(self, end: JournalPosition) -> int:
        """Move on to `end`; return the bytes between."""
        before_bytes = self._untaken_bytes()
        self._taken = end
        self._end_bytes = {
            segment: size for segment, size in self._end_bytes.items() if segment >= end.segment
        }
        return before_bytes - self._untaken_bytes()

    def _give_up_oldest(self, newest: int) -> bool:
        is_over = False
        while self._untaken_bytes() > self.limit_bytes - self._reserve_bytes:
            later = [segment for segment in self._end_bytes if segment > self._taken.segment]
            following = min(later, default=newest)
            if self._taken.segment >= following:
                break
            self._dropped_bytes += self._pass(JournalPosition(following, 0))
            self._settled = self._taken
            is_over = True
        return is_over


def find_waiting_urls(directory: Path) -> list[str]:
    """Return the targets for which something is left in a journal that nobody holds; none without a journal."""
    newest = max(list_segments(directory), default=-1)
    return sorted(
        url
        for url, (segment, _) in map(read_url_and_position, list_cursors(directory))
        if segment <= newest
    )


def _read_window(
    directory: Path, start: JournalPosition, end_bytes_by_segment: dict[int, int]
) -> tuple[list[JournalRecord], JournalPosition]:
    """Return the records from `start`, and up to where that is everything."""
    records: list[JournalRecord] = []
    size_bytes = 0
    end = start
    for segment in sorted(end_bytes_by_segment):
        if segment < start.segment:
            continue
        first_byte = start.end_bytes if segment == start.segment else 0
        end = JournalPosition(segment, end_bytes_by_segment[segment])
        try:
            for record in read_records(directory, segment, first_byte, end.end_bytes):
                if records and size_bytes + len(record.body) > MAX_WINDOW_BYTES:
                    return records, JournalPosition(records[-1].segment, records[-1].end_bytes)
                records.append(record)
                size_bytes += len(record.body)
        except FileNotFoundError:
            continue  # given up meanwhile, or removed by hand
    return records, end
