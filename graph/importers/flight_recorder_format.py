"""The format of Flight Recorder dumps, 2.x: bytes of a file to what one rank recorded. Opens nothing.

Every rank of PyTorch's NCCL backend, and of gloo, keeps its last calls in a ring. It writes them to a file of its own
when an operation times out, as a pickle or as JSON with the same fields. The file does not say whose it is: its name
ends with the rank. Reading takes some ten times the size of the file in memory.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of PyTorch 2.4 to 2.9 (format 2.2 to 2.10); dumps of
format 2.9 were read, and of 2.10 those of gloo (PyTorch 2.15, `torch._C._distributed_c10d._dump_fr_trace()`).
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rootwalk.graph.hangs.flight_records import SYNCHRONISING, Frontier, PendingCall, RankRecord
from rootwalk.graph.importers.plain_pickle import load_plain
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["MAX_DUMP_BYTES", "parse_dump", "rank_of_name"]

# A ring of 20,000 calls with their stacks is about half of it.
MAX_DUMP_BYTES: Final = 64 * 1024 * 1024
# Values of a JSON dump, as of a pickle.
_MAX_JSON_VALUES: Final = 8_000_000
_MAJOR: Final = "2"
# Frames of a stack that are kept: enough to tell two places apart.
_MAX_FRAMES: Final = 16
# Extents of a tensor; PyTorch has 64 at most.
_MAX_EXTENTS: Final = 64
_MAX_ELEMENTS: Final = 1 << 63
# Threads that issue calls at once may write them down in another order, but not by so much.
_MAX_TIME_BACK_NS: Final = 1_000_000_000
_UNNAMED: Final = ""
_TIMES: Final = (
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
)

_NAME: Final = re.compile(r"(\d{1,9})(?:\.(?:json|pickle|pkl|bin|trace))?$")
# NCCL's sends and receives name both ends by their place in the communicator: `nccl:send 0->3`, `nccl:recv 3<-0`.
_POINT_TO_POINT: Final = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")
# One operation under the names of several calls that do it.
_OPERATIONS: Final = {
    "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
}
# Where the members' numbers have to agree, and on which side; others may differ from member to member.
_EQUAL_INPUTS: Final = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather")
)
_EQUAL_OUTPUTS: Final = frozenset(("scatter",))


def rank_of_name(name: str) -> int:
    """Return the rank that the name of a dump ends with.

    >>> rank_of_name("nccl_trace_rank_12")
    12

    Raises:
        DecodeError: If it ends with no number.
    """
    found = _NAME.search(name)
    if found is None:
        raise DecodeError(
            f'cannot tell whose dump it is: saw the name "{name}"; needs one that ends with the rank'
        )
    return int(found.group(1))


def parse_dump(data: bytes, rank: int) -> RankRecord:
    """Return what one rank recorded.

    Args:
        data: The whole file.
        rank: Whose it is.

    Raises:
        DecodeError: If it is cut off, no dump, of another version, or of a rank that is not in its communicators.
    """
    dump = _Fields(_load(data), "dump")
    version = dump.text("version")
    if version.partition(".")[0] != _MAJOR:
        raise DecodeError(f'cannot read dump: saw format "{version}"; needs {_MAJOR}.x')
    entries = [_Fields(entry, f"entries[{i}]") for i, entry in enumerate(dump.items("entries"))]
    entries.sort(key=lambda entry: entry.integer("record_id"))
    frontiers = _frontiers(dump, entries)
    strange = [f.communicator for f in frontiers if rank not in f.members]
    if strange:
        raise DecodeError(
            f"cannot read dump of rank {rank}: saw communicator {strange[0]} without that rank;"
            " needs a file whose name ends with its own rank"
        )
    members = {f.communicator: f.members for f in frontiers}
    calls = [_call(entry, members) for entry in entries if _is_pending(entry)]
    return RankRecord(
        rank=rank,
        version=version,
        library=dump.text_or_none("nccl_version") or dump.text_or_none("comm_lib_version") or "",
        frontiers=frontiers,
        pending=tuple(call for call in calls if call is not None),
        last_frames=_frames(entries[-1]) if entries else (),
        seen_unix_ns=max((max(_times(entry)) for entry in entries), default=None),
        timeout_ns=max(filter(None, map(_timeout_ns, entries)), default=None),
        bad_times=_bad_times(entries),
    )


class _Fields:
    """A dictionary of a dump: a field that is missing or of another type is an error that says where."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise DecodeError(f"cannot read dump: saw {_kind(value)} at {place}; needs fields")
        self._value = value
        self._place = place

    def get(self, name: str) -> Any:
        return self._value.get(name)

    def text_or_none(self, name: str) -> str | None:
        value = self.get(name)
        return value if isinstance(value, str) else None

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def integer(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise self._wrong(name, value, "a whole number of 63 bits")
        return value

    def mapping(self, name: str) -> Mapping[Any, Any]:
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "fields")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if value is None:
            return []  # JSON leaves out an empty list of entries
        if not isinstance(value, list | tuple):
            raise self._wrong(name, value, "a list")
        return list(value)

    def _wrong(self, name: str, value: Any, needed: str) -> DecodeError:
        return DecodeError(
            f"cannot read dump: saw {_kind(value)} at {self._place}.{name}; needs {needed}"
        )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _load(data: bytes) -> Any:
    if data[:1] == b"\x80":
        return load_plain(data)
    if data.lstrip()[:1] != b"{":
        raise DecodeError(
            f"cannot read dump: saw {data[:8]!r} at byte 0; needs a pickle or a JSON object"
        )
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MAX_JSON_VALUES:
        raise DecodeError(
            f"cannot read dump: saw more than {_MAX_JSON_VALUES} values; needs a dump of one rank"
        )
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"cannot read dump: saw no UTF-8 at byte {error.start}; needs JSON"
        ) from error
    except json.JSONDecodeError as error:
        place = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        raise DecodeError(
            f"cannot read dump: saw no JSON at byte {place} ({error.msg.lower()}); needs a whole file"
        ) from error
    except (RecursionError, ValueError) as error:
        raise DecodeError(f"cannot read dump: saw {error}; needs a dump") from error


def _members(group: _Fields) -> tuple[int, ...]:
    """Return the ranks of a communicator, which are written as text: `[0, 1, 2]`."""
    return _listed_ranks(group.text("ranks"))


# The dumps of a job tell the same large communicators again and again.
@functools.lru_cache(maxsize=256)
def _listed_ranks(text: str) -> tuple[int, ...]:
    listed = text.strip("[] ")
    try:
        return tuple(int(rank) for rank in listed.split(",")) if listed else ()
    except ValueError as error:
        raise DecodeError(
            f'cannot read dump: saw the ranks "{listed[:40]}"; needs numbers'
        ) from error


def _is_pending(entry: _Fields) -> bool:
    return entry.text("state") != "completed" and not entry.get("retired")


def _times(entry: _Fields) -> list[int]:
    """Return when a call was issued, began and ended, as far as it is known."""
    known = [entry.get(name) for name in _TIMES[1:]]
    return [
        entry.integer(_TIMES[0]),
        *(time for time in known if isinstance(time, int) and 0 < time < 1 << 63),
    ]


def _timeout_ns(entry: _Fields) -> int | None:
    value = entry.get("timeout_ms")
    return value * 1_000_000 if isinstance(value, int) and 0 < value < 1 << 40 else None


def _bad_times(entries: list[_Fields]) -> int:
    """Return how many calls end before they begin, or were issued well before the call before them."""
    count, before = 0, 0
    for entry in entries:
        times = _times(entry)
        count += times != sorted(times) or times[0] < before - _MAX_TIME_BACK_NS
        before = times[0]
    return count


def _communicator(entry: _Fields) -> str:
    names = entry.items("process_group")
    if not names or not isinstance(names[0], str):
        raise DecodeError("cannot read dump: saw an entry without its communicator; needs its name")
    return names[0]


def _call(entry: _Fields, members: Mapping[str, tuple[int, ...]]) -> PendingCall | None:
    """Return an entry as a call; None for one that only brackets others."""
    communicator = _communicator(entry)
    operation = name = _operation(entry)
    peer = None
    sequence = entry.integer("collective_seq_id")
    if entry.get("is_p2p"):
        found = _POINT_TO_POINT.search(name)
        ranks = members.get(communicator, ())
        if found is None or int(found.group(3)) >= len(ranks):
            return None
        operation, peer = found.group(1), ranks[int(found.group(3))]
        sequence = entry.integer("p2p_seq_id")
    sizes, dtypes = "input_sizes", "input_dtypes"
    if operation in _EQUAL_OUTPUTS:
        sizes, dtypes = "output_sizes", "output_dtypes"
    is_equal = operation in _EQUAL_INPUTS or operation in _EQUAL_OUTPUTS
    return PendingCall(
        order=entry.integer("record_id"),
        communicator=communicator,
        sequence=sequence,
        operation=operation,
        peer=peer,
        elements=_elements(entry.items(sizes)) if is_equal else None,
        dtype=next((dtype for dtype in entry.items(dtypes) if isinstance(dtype, str)), ""),
        is_started=entry.text("state") == "started",
        created_unix_ns=entry.integer("time_created_ns"),
        frames=_frames(entry),
    )


def _operation(entry: _Fields) -> str:
    name = entry.text("profiling_name").rpartition(":")[2]
    return _OPERATIONS.get(name, name)


def _elements(shapes: list[Any]) -> int | None:
    try:
        count = sum(math.prod(int(extent) for extent in shape[:_MAX_EXTENTS]) for shape in shapes)
    except (TypeError, ValueError, OverflowError):
        return None
    return count if 0 <= count < _MAX_ELEMENTS else None


def _frames(entry: _Fields) -> tuple[str, ...]:
    """Return where a call came from, without the folders: they are the user's business."""
    frames = [_Fields(frame, "frames") for frame in entry.items("frames")[:_MAX_FRAMES]]
    return tuple(
        f"{frame.text_or_none('name')} ({_file(frame)}:{frame.integer('line')})" for frame in frames
    )


def _file(frame: _Fields) -> str:
    return (frame.text_or_none("filename") or "").rpartition("/")[2]


def _frontiers(dump: _Fields, entries: list[_Fields]) -> tuple[Frontier, ...]:
    """Return how far the rank has come in each communicator.

    Calls say it where there are any. Elsewhere `pg_status` does, by another number of the communicator: both count up
    in the order in which the process made its communicators, so they pair up in order if there are equally many and
    no call contradicts.
    """
    frontiers = {}
    for key, value in dump.mapping("pg_config").items():
        group = _Fields(value, f"pg_config.{key}")
        members = _members(group)
        if members:
            description = group.text_or_none("desc") or ""
            frontiers[str(key)] = Frontier(str(key), description, members, None, is_counted=False)
    _name_the_unnamed(frontiers, {_communicator(entry) for entry in entries})
    number: dict[str, int] = {}
    for entry in entries:
        name = _communicator(entry)
        number[name] = entry.integer("pg_id")
        known = frontiers.get(name)
        if known is None:
            raise DecodeError(
                f'cannot read dump: saw a call in communicator "{name}"; needs its ranks in pg_config'
            )
        frontiers[name] = replace(
            known,
            issued=max(known.issued or 0, entry.integer("collective_seq_id")),
            is_counted=True,
            has_messages=known.has_messages or bool(entry.get("p2p_seq_id")),
        )
    for name, issued in _status(dump, frontiers, number).items():
        if not frontiers[name].is_counted:
            frontiers[name] = replace(frontiers[name], issued=issued)
    ended = _ended(entries, frontiers)
    return tuple(replace(frontiers[name], ended=ended.get(name)) for name in sorted(frontiers))


def _name_the_unnamed(frontiers: dict[str, Frontier], called: set[str]) -> None:
    """Give the only communicator its name, where the dump does not: as those of gloo's processes (PyTorch 2.15).

    With calls in several, nobody knows whose ranks are told, and they stay untold.
    """
    if set(frontiers) == {_UNNAMED} and len(called) == 1:
        (name,) = called
        frontiers[name] = replace(frontiers.pop(_UNNAMED), communicator=name)


def _ended(entries: list[_Fields], frontiers: Mapping[str, Frontier]) -> dict[str, int]:
    """Return for each communicator a number of a collective that has ended, so that all members have issued it."""
    done = [entry for entry in entries if not _is_pending(entry)]
    ended: dict[str, int] = {}
    for entry in done:
        if not entry.get("is_p2p") and _operation(entry) in SYNCHRONISING:
            name = _communicator(entry)
            ended[name] = max(ended.get(name, 0), entry.integer("collective_seq_id"))
    if done:
        return ended
    # All that is not here has ended, of whatever kind it was.
    ended = {name: f.issued for name, f in frontiers.items() if f.is_counted and f.issued}
    for entry in entries:
        if not entry.get("is_p2p"):
            name = _communicator(entry)
            ended[name] = min(ended.get(name, 0), entry.integer("collective_seq_id") - 1)
    return ended


def _status(
    dump: _Fields, names: Mapping[str, Frontier], number: Mapping[str, int]
) -> dict[str, int]:
    """Return the last number that `pg_status` has for each communicator, nothing where they do not pair up."""
    status = dump.get("pg_status")
    if not isinstance(status, Mapping) or len(status) != len(names):
        return {}
    if not all(str(key).isdecimal() and str(key).isascii() for key in (*status, *names)):
        return {}
    pairs = list(zip(sorted(names, key=int), sorted(status, key=int), strict=True))
    if any(number.get(name, int(key)) != int(key) for name, key in pairs):
        return {}
    try:
        return {
            name: int(_Fields(status[key], "pg_status").get("last_enqueued_collective"))
            for name, key in pairs
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise DecodeError("cannot read dump: saw no number in pg_status; needs one") from error
