"""Perfetto's format: a timeline as a protobuf trace, written without generated classes.

PyPI's `perfetto` has such classes; they need protobuf 6.31 or newer, which jobs that bring protobuf 5 do not have, and
2 MB for the dozen messages that a timeline needs.

    clock | names | tracks | begin and end of slices, by time

Names are in the file once, as numbers. Each end of a slice, and each instant, is a packet of its own. Of equal times
readers take the packets in the order of the file: what is outer comes first, and an arrow ends after it began.

Source: google/perfetto 59.1, protos/perfetto/trace: trace_packet, track_event/track_descriptor, track_event,
debug_annotation, interned_data, clock_snapshot; the numbers of fields below are theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rootwalk.graph.exporters.timeline import Argument, Lane, Process, Slice
from rootwalk.graph.exporters.wire import double, fixed64, message, number, text, varint

__all__ = ["MAX_TEXT", "PerfettoFile"]

# Characters of a name or a value that are kept.
MAX_TEXT: Final = 200
_SEQUENCE: Final = number(10, 1)
_REALTIME, _BOOTTIME = 1, 6
_CLEARED, _NEEDED = 1, 2
_BEGIN, _END, _INSTANT = 1, 2, 3
_EXPLICIT_ORDER: Final = 3
_I64: Final = 1 << 63
# What a packet, or an entry of a table of names, takes beside what is in it, at most.
_PACKET_BYTES: Final = 24
# The end of a slice, at most.
_END_BYTES: Final = 32


class PerfettoFile:
    """A trace under construction.

    Args:
        max_bytes: How large it may become; slices that come after that are left out.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._tracks: list[bytes] = []
        self._events: list[tuple[int, bool, bytes]] = []
        self._next_track = 1
        self._first_ns: int | None = None
        self.slices = 0
        self.left_out = 0

    def add(self, process: Process, lanes: Sequence[Lane]) -> None:
        """Add a process and its lanes, in their order. Its number in the file is its rank plus 2, the job's is 1."""
        uuid = self._new_track()
        pid = 1 if process.rank is None else process.rank + 2
        name = process.name[:MAX_TEXT]
        body = number(1, uuid) + number(11, _EXPLICIT_ORDER)
        self._add_track(body + message(3, number(1, pid) + text(6, name)))
        for place, lane in enumerate(lanes):
            own = self._new_track()
            name = lane.track.name[:MAX_TEXT]
            self._add_track(number(1, own) + text(2, name) + number(5, uuid) + number(12, place))
            self._add_slices(own, lane.slices)

    def render(self) -> bytes:
        """Return the file."""
        parts = [_packet(self._clocks() + number(13, _CLEARED) + message(12, self._interned()))]
        parts += [_packet(message(60, track)) for track in self._tracks]
        events = sorted(self._events, key=lambda event: event[:2])
        return b"".join([*parts, *(event for _, _, event in events)])

    def _new_track(self) -> int:
        self._next_track += 1
        return self._next_track

    def _add_track(self, body: bytes) -> None:
        self._tracks.append(body)
        self._room -= len(body) + _PACKET_BYTES

    def _number(self, table: dict[str, int], name: str) -> int:
        name = name[:MAX_TEXT]
        found = table.get(name)
        if found is None:
            found = table[name] = len(table) + 1
            self._room -= len(name.encode(errors="replace")) + _PACKET_BYTES
        return found

    def _clocks(self) -> bytes:
        """Say that the trace's clock is Unix time."""
        now = self._first_ns or 0
        clocks = [number(1, clock) + number(2, now) for clock in (_REALTIME, _BOOTTIME)]
        body = b"".join(message(1, clock) for clock in clocks) + number(2, _BOOTTIME)
        return number(8, now) + message(6, body)

    def _interned(self) -> bytes:
        tables = ((1, self._categories), (2, self._names), (3, self._keys))
        return b"".join(
            message(field, number(1, iid) + text(2, name))
            for field, table in tables
            for name, iid in table.items()
        )

    def _add_slices(self, track: int, slices: Iterable[Slice]) -> None:
        ends: list[int] = []
        for item in slices:
            # An instant at the very end of a slice is in it.
            while ends and (
                ends[-1] < item.start_ns or (ends[-1] == item.start_ns and item.end_ns is not None)
            ):
                self._end(track, ends.pop())
            end_ns = min([item.stop_ns, *ends])
            if self._room <= 0:
                self.left_out += 1
                continue
            begin = self._begin(track, item)
            room = self._room - len(begin) - (0 if item.end_ns is None else _END_BYTES)
            if room < 0:
                self.left_out += 1
                continue
            if self._first_ns is None or item.start_ns < self._first_ns:
                self._first_ns = item.start_ns
            self._room = room
            self._events.append((item.start_ns, item.arrow_to is not None, begin))
            self.slices += 1
            if item.end_ns is not None:
                ends.append(end_ns)
        while ends:
            self._end(track, ends.pop())

    def _begin(self, track: int, item: Slice) -> bytes:
        kind = _INSTANT if item.end_ns is None else _BEGIN
        body = (
            number(9, kind) + number(11, track) + number(10, self._number(self._names, item.name))
        )
        body += number(3, self._number(self._categories, item.category))
        body += b"".join(fixed64(47, arrow) for arrow in item.arrows_from)
        if item.arrow_to is not None:
            body += fixed64(48, item.arrow_to)
        body += b"".join(message(4, self._argument(*pair)) for pair in item.arguments)
        return _packet(_time(item.start_ns) + number(13, _NEEDED) + message(11, body))

    def _end(self, track: int, time_ns: int) -> None:
        event = _packet(_time(time_ns) + message(11, number(9, _END) + number(11, track)))
        self._events.append((time_ns, False, event))

    def _argument(self, key: str, value: Argument) -> bytes:
        name = number(1, self._number(self._keys, key))
        if isinstance(value, str):
            return name + message(6, value[:MAX_TEXT].encode(errors="replace"))
        if isinstance(value, bool):
            return name + varint(2 << 3) + varint(value)
        if isinstance(value, int) and -_I64 <= value < _I64:
            return name + varint(4 << 3) + varint(value)
        return name + double(5, float(value))


def _time(unix_ns: int) -> bytes:
    return varint(8 << 3) + varint(max(unix_ns, 0))


def _packet(content: bytes) -> bytes:
    return message(1, content + _SEQUENCE)
