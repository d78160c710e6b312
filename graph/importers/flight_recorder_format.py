"""The format of Flight Recorder dumps, 2.x: bytes of a file to what one rank recorded. Opens nothing.

Every rank of PyTorch's NCCL backend, and of gloo, keeps its last calls in a ring. It writes them to a file of its own
when an operation times out, as a pickle or as JSON with the same fields. The file does not say whose it is: its name
ends with the rank. Reading takes some ten times the size of the file in memory.

Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of PyTorch 2.4 to 2.9 (format 2.2 to 2.10); dumps of
format 2.9 were read, and of 2.10 those of gloo (PyTorch 2.15, `torch._C._distributed_c10d._dump_fr_trace()`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rootwalk.graph.hangs.differences import is_library_file
from rootwalk.graph.hangs.flight_records import (
    MAX_OVER,
    SYNCHRONISING,
    Frontier,
    PendingCall,
    RankRecord,
)
from rootwalk.graph.importers.flight_recorder_fields import Fields, load_dump
from rootwalk.graph.importers.flight_recorder_old import is_old, to_current
from rootwalk.graph.importers.flight_recorder_times import TimedCall, timed_call
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["MAX_DUMP_BYTES", "parse_dump", "parse_timed_dump"]

# A ring of 20,000 calls with their stacks is about half of it.
MAX_DUMP_BYTES: Final = 64 * 1024 * 1024
_MAJORS: Final = ("1", "2")
# Frames of a stack that are kept: enough to tell two places apart.
_MAX_FRAMES: Final = 16
# Extents of a tensor; PyTorch has 64 at most.
_MAX_EXTENTS: Final = 64
_MAX_ELEMENTS: Final = 1 << 63
# Threads that issue calls at once may write them down in another order, but not by so much.
_MAX_TIME_BACK_NS: Final = 1_000_000_000
_UNNAMED: Final = ""
# Name and description that PyTorch gives the communicator of all ranks, which every process makes first.
_DEFAULT: Final = ("0", "default_pg")
# More than any job has: a damaged number is no job.
_MAX_RANKS: Final = 1 << 20
_TIMES: Final = (
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
)

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


def parse_dump(data: bytes, rank: int) -> RankRecord:
    """Return what one rank recorded: the first of what `parse_timed_dump` returns."""
    return parse_timed_dump(data, rank)[0]


def parse_timed_dump(data: bytes, rank: int) -> tuple[RankRecord, tuple[TimedCall, ...]]:
    """Return what one rank recorded, and its calls of which the device's time is known, in order.

    Args:
        data: The whole file.
        rank: Whose it is.

    Raises:
        DecodeError: If it is cut off, no dump, of another version, or of a rank that is not in its communicators.
    """
    loaded = load_dump(data)
    dump = Fields(to_current(loaded, rank) if is_old(loaded) else loaded, "dump")
    version = dump.text("version")
    if version.partition(".")[0] not in _MAJORS:
        raise DecodeError(f'cannot read dump: saw format "{version}"; needs 1.x or 2.x')
    entries = [Fields(entry, f"entries[{i}]") for i, entry in enumerate(dump.items("entries"))]
    entries.sort(key=lambda entry: entry.integer("record_id"))
    frontiers = _frontiers(dump, entries, rank)
    strange = [f.communicator for f in frontiers if rank not in f.members]
    if strange:
        raise DecodeError(
            f"cannot read dump of rank {rank}: saw communicator {strange[0]} without that rank;"
            " needs a file whose name ends with its own rank"
        )
    members = {f.communicator: f.members for f in frontiers if f.is_whole}
    calls = [_call(entry, members) for entry in entries if _is_pending(entry)]
    # Whom a call waited for is not known where the members are not.
    timed = [
        timed_call(entry, _call(entry, members))
        for entry in entries
        if _is_timed(entry) and _communicator(entry) in members
    ]
    record = RankRecord(
        rank=rank,
        version=version,
        library=dump.text_or_none("nccl_version") or dump.text_or_none("comm_lib_version") or "",
        frontiers=frontiers,
        pending=tuple(call for call in calls if call is not None),
        last_frames=_frames(entries[-1]) if entries else (),
        seen_unix_ns=max((max(_times(entry)) for entry in entries), default=None),
        timeout_ns=max(filter(None, map(_timeout_ns, entries)), default=None),
        bad_times=_bad_times(entries),
        over=_over(entries, members),
        last_place=_user_place(entries[-1]) if entries else "",
    )
    return record, tuple(call for call in timed if call is not None)


def _members(group: Fields) -> tuple[int, ...]:
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


def _is_pending(entry: Fields) -> bool:
    return entry.text("state") != "completed" and not entry.get("retired")


def _is_timed(entry: Fields) -> bool:
    return entry.text("state") == "completed" and entry.get("duration_ms") is not None


def _is_over(entry: Fields) -> bool:
    """Return whether a call is over, and nobody says whether it has ended or failed."""
    return entry.text("state") != "completed" and bool(entry.get("retired"))


def _over(entries: list[Fields], members: Mapping[str, tuple[int, ...]]) -> tuple[PendingCall, ...]:
    """Return the last collectives of each communicator of which that holds, in order."""
    found: dict[str, list[Fields]] = {}
    for entry in entries:
        if _is_over(entry) and not entry.get("is_p2p"):
            found.setdefault(_communicator(entry), []).append(entry)
    calls = [_call(entry, members) for own in found.values() for entry in own[-MAX_OVER:]]
    kept = (replace(call, frames=(), place="") for call in calls if call is not None)
    return tuple(sorted(kept, key=lambda call: call.order))


def _times(entry: Fields) -> list[int]:
    """Return when a call was issued, began and ended, as far as it is known."""
    known = [entry.get(name) for name in _TIMES[1:]]
    return [
        entry.integer(_TIMES[0]),
        *(time for time in known if isinstance(time, int) and 0 < time < 1 << 63),
    ]


def _timeout_ns(entry: Fields) -> int | None:
    value = entry.get("timeout_ms")
    return value * 1_000_000 if isinstance(value, int) and 0 < value < 1 << 40 else None


def _bad_times(entries: list[Fields]) -> int:
    """Return how many calls end before they begin, or were issued well before the call before them."""
    count, before = 0, 0
    for entry in entries:
        times = _times(entry)
        count += times != sorted(times) or times[0] < before - _MAX_TIME_BACK_NS
        before = times[0]
    return count


def _communicator(entry: Fields) -> str:
    names = entry.items("process_group")
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL gloo's calls have none: nobody could tell which are the same elsewhere.
    if not names or not isinstance(names[0], str) or not names[0]:
        raise DecodeError("cannot read dump: saw an entry without its communicator; needs its name")
    return names[0]


def _call(entry: Fields, members: Mapping[str, tuple[int, ...]]) -> PendingCall | None:
    """Return an entry as a call; None for one that only brackets others."""
    communicator = _communicator(entry)
    operation = name = _operation(entry)
    peer = None
    sequence = entry.integer("collective_seq_id")
    if entry.get("is_p2p"):
        found = _POINT_TO_POINT.search(name)
        ranks = members.get(communicator)
        if ranks is None:  # left out, its rank would seem to wait for nobody
            raise DecodeError(
                f'cannot read dump: saw a message in communicator "{communicator}"; needs its ranks in pg_config'
            )
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
        place=_user_place(entry),
    )


def _operation(entry: Fields) -> str:
    name = entry.text("profiling_name").rpartition(":")[2]
    return _OPERATIONS.get(name, name)


def _elements(shapes: list[Any]) -> int | None:
    try:
        count = sum(math.prod(int(extent) for extent in shape[:_MAX_EXTENTS]) for shape in shapes)
    except (TypeError, ValueError, OverflowError):
        return None
    return count if 0 <= count < _MAX_ELEMENTS else None


def _frames(entry: Fields) -> tuple[str, ...]:
    """Return where a call came from, without the folders: they are the user's business."""
    frames = [Fields(frame, "frames") for frame in entry.items("frames")[:_MAX_FRAMES]]
    return tuple(
        f"{frame.text_or_none('name')} ({_file(frame)}:{frame.integer('line')})" for frame in frames
    )


def _user_place(entry: Fields) -> str:
    """Return the innermost frame of the program itself, as `_frames` writes it; empty without one."""
    for number, frame in enumerate(entry.items("frames")[:_MAX_FRAMES]):
        file = Fields(frame, "frames").text_or_none("filename") or "<"
        if not is_library_file(file):
            return _frames(entry)[number]
    return ""


def _file(frame: Fields) -> str:
    return (frame.text_or_none("filename") or "").rpartition("/")[2]


def _frontiers(dump: Fields, entries: list[Fields], rank: int) -> tuple[Frontier, ...]:
    """Return how far the rank has come in each communicator.

    Calls say it where there are any. Elsewhere `pg_status` does, by another number of the communicator: both count up
    in the order in which the process made its communicators, so they pair up in order if there are equally many and
    no call contradicts.
    """
    frontiers = {}
    for key, value in dump.mapping("pg_config").items():
        group = Fields(value, f"pg_config.{key}")
        members = _members(group)
        if members:
            description = group.text_or_none("desc") or ""
            frontiers[str(key)] = Frontier(str(key), description, members, None, is_counted=False)
    unnamed = frontiers.pop(_UNNAMED, None)
    if unnamed is not None:
        frontiers = _untold(entries, rank, unnamed.members) | frontiers
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
    is_whole = all(frontier.is_whole for frontier in frontiers.values())
    for name, issued in (_status(dump, frontiers, number) if is_whole else {}).items():
        if not frontiers[name].is_counted:
            frontiers[name] = replace(frontiers[name], issued=issued)
    ended = _ended(entries, frontiers)
    return tuple(replace(frontiers[name], ended=ended.get(name)) for name in sorted(frontiers))


def _untold(entries: list[Fields], rank: int, listed: tuple[int, ...]) -> dict[str, Frontier]:
    """Return the communicators of a dump that lists ranks and not of which, with the members that it proves.

    So are those of gloo's processes (PyTorch 2.15). They list the communicator that the process made last, called or
    not, and its places instead of its ranks: `[0, 1]` of ranks 2 and 3. It has no more places than the job has ranks,
    all of which are in the default communicator; of another one only this rank is known to be in it.
    """
    names = {_communicator(entry): entry.items("process_group")[1:] for entry in entries}
    descriptions = {name: next(map(str, others), "") for name, others in names.items()}
    name, description = _DEFAULT
    if descriptions.setdefault(name, description) != description:
        name = _UNNAMED
    last = max(rank, *listed)
    if last >= _MAX_RANKS:
        raise DecodeError(f"cannot read dump: saw rank {last}; needs ranks below {_MAX_RANKS}")
    everyone = tuple(range(last + 1))
    return {
        key: Frontier(
            *(key, text, everyone if key == name else (rank,), None),
            is_counted=False,
            is_whole=False,
        )
        for key, text in descriptions.items()
    }


def _ended(entries: list[Fields], frontiers: Mapping[str, Frontier]) -> dict[str, int]:
    """Return for each communicator a number of a collective that has ended, so that all members have issued it."""
    done = [entry for entry in entries if not _is_pending(entry)]
    ended: dict[str, int] = {}
    # Before a call that waits, all have ended: a failed one ends the program. Else the last ones may have failed.
    unsure: set[int] = set()
    if len(done) == len(entries):
        unsure = {call.order for call in _over(entries, {})}
    for entry in done:
        if entry.integer("record_id") in unsure:
            continue
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
    dump: Fields, names: Mapping[str, Frontier], number: Mapping[str, int]
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
            # -1: no call yet, which is 0 calls and no older dump than one that says so.
            name: max(int(Fields(status[key], "pg_status").get("last_enqueued_collective")), 0)
            for name, key in pairs
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise DecodeError("cannot read dump: saw no number in pg_status; needs one") from error
