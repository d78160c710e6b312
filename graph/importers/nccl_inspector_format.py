"""The format of NCCL Inspector, v4: one line of a log to what it says of one operation. Opens nothing.

NCCL's inspector plugin writes a JSON object a line for each collective, send or receive that a communicator of the
process has completed. A line names the member by its place in the communicator, never by its rank in the job. It has
the duration on the device; when the operation was called and when it ended, only with NCCL_INSPECTOR_DUMP_VERBOSE=1.
NCCL counts the calls of each function of a communicator from 0, each function for itself.

Source:
    NVIDIA/nccl 2.30.7 at commit 5067397c, plugins/profiler/inspector: README.md, inspector_json.cc, json.cc,
    inspector.cc, inspector_plugin.cc; src/plugin/profiler.cc for how calls are counted. The first release with it,
    2.28.3, writes the same format under the same version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rootwalk.instrumentation.errors import DecodeError

__all__ = [
    "MAX_LINE_BYTES",
    "InspectorRecord",
    "Member",
    "is_foreign",
    "parse_line",
    "parse_member",
]

# A line with the events of all 64 channels has 20 KB.
MAX_LINE_BYTES: Final = 1024 * 1024
_VERSION: Final = re.compile(r"v4\.\d{1,9}")
_COMMUNICATOR: Final = re.compile(r"0x([0-9a-f]{1,16})")
# NCCL's names, as PyTorch spells them.
_OPERATIONS: Final = {
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "AllReduce": "all_reduce",
    "All2All": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "ReduceScatter": "reduce_scatter",
    "Send": "send",
    "Recv": "recv",
    "SendRecv": "send_recv",
}
# Timed by the device, or by the host when the device's counters moved; the third source counts from the host's call.
_DEVICE_SOURCES: Final = ("kernel_gpu", "kernel_cpu", None)
_UNKNOWN: Final = "unknown"
_MAX_TEXT: Final = 256
_MAX_COUNT: Final = 1 << 62
# Below this every whole number is exact in a float.
_EXACT_BELOW: Final = 1 << 53
# An unsigned difference of two times that is below zero comes out above this.
_NEGATIVE_FROM: Final = 1 << 63
_MAX_TIME_US: Final = _MAX_COUNT // 1000
# What every record of an operation has.
_OWN: Final = re.compile(rb'"(?:coll_perf|p2p_perf|inspector_output_format_version)"')
_HEADER: Final = re.compile(rb'"header"\s*:\s*(\{[^{}]*\})')
_PROCESS: Final = re.compile(rb'"hostname"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"pid"\s*:\s*(\d{1,9})\b')


@dataclass(frozen=True, slots=True)
class Member:
    """Who recorded a line: a process, as a member of one communicator.

    Attributes:
        host: Name of its host.
        pid: Its process.
        communicator: NCCL's hash of the communicator, hexadecimal; the same at all members.
        place: Its place in the communicator, from 0.
        size: How many members that has.
    """

    host: str
    pid: int
    communicator: str
    place: int
    size: int


@dataclass(frozen=True, slots=True)
class InspectorRecord:
    """One operation of one member.

    Attributes:
        member: Whose.
        name: What the job calls the communicator; its hash where it has no name.
        operation: Such as `all_reduce`, `send`, in PyTorch's spelling.
        function: NCCL's name for it: the calls of each are counted apart.
        is_message: Whether it is a send or a receive.
        sequence: The number that all members give the same collective, from 1; of messages the member's own count.
        peer: Place of the other end of a message; None for a collective.
        size_bytes: What the member gives, or takes.
        device_s: Seconds on the device, waiting included; None where only the host timed it.
        called_unix_ns: When the host called it; None unless the log is verbose.
        ended_unix_ns: When it ended on the device; None unless the log is verbose.
        written_unix_ns: When the line was written: after the end, by up to the interval between two dumps.
    """

    member: Member
    name: str
    operation: str
    function: str
    is_message: bool
    sequence: int
    peer: int | None
    size_bytes: int
    device_s: float | None
    called_unix_ns: int | None
    ended_unix_ns: int | None
    written_unix_ns: int


def parse_member(line: bytes) -> Member | None:
    """Return who recorded a line, at a fraction of what `parse_line` takes; None if the line does not say."""
    header, process = _HEADER.search(line), _PROCESS.search(line)
    if header is None or process is None:
        return None
    try:
        fields = _Fields(json.loads(header.group(1)), "header")
        return _member(
            fields, _text(json.loads(process.group(1)), "hostname"), int(process.group(2))
        )
    except (DecodeError, ValueError):
        return None


def is_foreign(line: bytes) -> bool:
    """Return whether a line is no record of an operation: text of another program, or an object of another kind."""
    if _OWN.search(line):
        return False
    if not line.lstrip().startswith(b"{"):
        return True
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def parse_line(line: bytes) -> InspectorRecord:
    """Return the operation that a line tells.

    Raises:
        DecodeError: If it is cut off, no line of this format, of another version, or contradicts itself.
    """
    fields = _Fields(_load(line), "line")
    header, metadata = fields.part("header"), fields.part("metadata")
    version = metadata.text("inspector_output_format_version")
    if _VERSION.fullmatch(version) is None:
        raise DecodeError(f'cannot read line: saw format "{version}"; needs v4.x')
    member = _member(header, metadata.text("hostname"), metadata.integer("pid"))
    kind = "coll" if fields.has("coll_perf") else "p2p"
    perf = fields.part(f"{kind}_perf")
    function = perf.text(kind)
    operation = _OPERATIONS.get(function)
    if operation is None:
        raise DecodeError(f'cannot read line: saw operation "{function}"; needs one of NCCL\'s')
    is_message = kind == "p2p"
    duration_us = perf.duration(f"{kind}_exec_time_us")
    source = perf.text_or_none(f"{kind}_timing_source")
    called, ended = _times(perf, kind)
    name = header.text_or_none("comm_name")
    return InspectorRecord(
        member=member,
        name=member.communicator if name in (None, "", _UNKNOWN) else str(name),
        operation=operation,
        function=function,
        is_message=is_message,
        # Messages count from 1 already.
        sequence=perf.integer(f"{kind}_sn") + (0 if is_message else 1),
        peer=_peer(perf, member) if is_message else None,
        size_bytes=perf.integer(f"{kind}_msg_size_bytes"),
        device_s=duration_us / 1e6 if duration_us and source in _DEVICE_SOURCES else None,
        called_unix_ns=called,
        ended_unix_ns=ended,
        written_unix_ns=metadata.time_ns("dump_timestamp_us"),
    )


def _member(header: _Fields, host: str, pid: int) -> Member:
    communicator = _COMMUNICATOR.fullmatch(header.text("id"))
    if communicator is None:
        raise DecodeError(
            "cannot read line: saw no hash at header.id; needs 0x and hexadecimal digits"
        )
    place, size = header.integer("rank"), header.integer("n_ranks")
    if place >= size:
        raise DecodeError(f"cannot read line: saw rank {place} of {size}; needs one below {size}")
    return Member(host, pid, communicator.group(1), place, size)


def _peer(perf: _Fields, member: Member) -> int:
    peer = perf.integer("p2p_peer")
    if peer >= member.size:
        raise DecodeError(f"cannot read line: saw peer {peer} of {member.size}; needs one below it")
    return peer


def _times(perf: _Fields, kind: str) -> tuple[int | None, int | None]:
    """Return when the host called and the device ended an operation, where the line has both."""
    if not perf.has("event_trace_ts"):
        return None, None
    trace = perf.part("event_trace_ts")
    called = trace.time_ns(f"{kind}_start_ts")
    channels = [_Fields(item, "kernel_events") for item in trace.items("kernel_events")]
    ended = max((channel.time_ns("kernel_stop_ts") for channel in channels), default=0)
    if not called or not ended:
        return None, None
    if ended < called:
        raise DecodeError(
            f"cannot read line: saw an end {(called - ended) / 1e9:.6f} s before the call; needs times in order"
        )
    return called, ended


class _Fields:
    """An object of a line: a field that is missing or of another type is an error that says where."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise self._error(place, value, "an object")
        self._value = value
        self._place = place

    def has(self, name: str) -> bool:
        return name in self._value

    def part(self, name: str) -> _Fields:
        return _Fields(self._value.get(name), name)

    def items(self, name: str) -> list[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise self._error(f"{self._place}.{name}", value, "a list")
        return value

    def text_or_none(self, name: str) -> str | None:
        return self.text(name) if self._value.get(name) is not None else None

    def text(self, name: str) -> str:
        return _text(self._value.get(name), f"{self._place}.{name}")

    def integer(self, name: str) -> int:
        value = _whole(self._value.get(name))
        if type(value) is not int or not 0 <= value < _MAX_COUNT:
            raise self._error(f"{self._place}.{name}", value, "a whole number from 0")
        return value

    def duration(self, name: str) -> float:
        value = self._value.get(name)
        # What passes JSON on writes whole numbers with a point, and means of several with decimals.
        if type(value) is float and math.isfinite(value) and 0.0 <= value < _MAX_COUNT:
            return value
        value = _whole(value)
        if type(value) is int and (value < 0 or value >= _NEGATIVE_FROM):
            value = value - (1 << 64) if value > 0 else value
            raise DecodeError(
                f"cannot read line: saw {value} us at {self._place}.{name}; needs a duration from 0"
            )
        return self.integer(name)

    def time_ns(self, name: str) -> int:
        value = self._value.get(name)
        if type(value) is float and math.isfinite(value) and 0.0 <= value <= _MAX_TIME_US:
            return round(value * 1000)
        value = self.integer(name)
        if value > _MAX_TIME_US:
            raise DecodeError(
                f"cannot read line: saw {value} at {self._place}.{name}; needs Unix us"
            )
        return value * 1000

    @staticmethod
    def _error(place: str, value: Any, needed: str) -> DecodeError:
        kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
        if type(value) is int:
            kind = str(value) if abs(value) <= 1 << 64 else "a number of more than 64 bits"
        return DecodeError(f"cannot read line: saw {kind} at {place}; needs {needed}")


def _whole(value: Any) -> Any:
    """Return a number that is whole but written with a point as an integer, anything else as it is."""
    is_whole = type(value) is float and value.is_integer() and abs(value) < _EXACT_BELOW
    return int(value) if is_whole else value


def _text(value: Any, place: str) -> str:
    # A text with half a character in it cannot be stored.
    is_text = isinstance(value, str) and len(value) <= _MAX_TEXT
    if not is_text or any("\ud800" <= letter <= "\udfff" for letter in value):
        kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
        raise DecodeError(
            f"cannot read line: saw {kind} at {place}; needs text of {_MAX_TEXT} characters at most"
        )
    return str(value)


def _load(line: bytes) -> Any:
    if len(line) > MAX_LINE_BYTES:
        raise DecodeError(
            f"cannot read line: saw more than {MAX_LINE_BYTES} bytes; needs one operation"
        )
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"cannot read line: saw no UTF-8 at its byte {error.start}; needs JSON"
        ) from error
    except json.JSONDecodeError as error:
        raise DecodeError(
            f"cannot read line: saw no JSON at its character {error.pos} ({error.msg.lower()}); needs a whole line"
        ) from error
    except (RecursionError, ValueError) as error:
        raise DecodeError(f"cannot read line: saw {error}; needs JSON") from error
