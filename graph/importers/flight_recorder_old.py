"""Dumps of PyTorch 2.2 and 2.3 with the fields of format 2.x; what they do not say is left unknown.

2.2 writes the list of calls alone; 2.3 has it in fields with a version of 1.x. Both count collectives and messages of a
group together (`seq_id`), 2.2 has times in microseconds, and neither lists the ranks of a group nor, in 2.2, its name.

- Groups are numbered by each process for itself: number 0 is the group of all ranks in every process, any other one may
  be another group elsewhere. Calls in a group without a name count for their own rank alone.
- Where a rank has sent or received in a group, its numbers of collectives are not those of the others: likewise.

Source: torch/csrc/distributed/c10d/TraceUtils.h of PyTorch 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["is_old", "to_current"]

# What a list of calls alone is called: it says no version.
UNVERSIONED: Final = "1.0"
_DEFAULT: Final = ("0", "default_pg")
# As `watchdog_records` calls an operation whose other ranks are not known.
_UNNAMED_PEERS: Final = "point_to_point"
_MESSAGES: Final = ("send", "recv", "coalesced")


def is_old(dump: Any) -> bool:
    """Return whether a dump is of a format before 2."""
    if isinstance(dump, list | tuple):
        return True
    version = dump.get("version") if isinstance(dump, Mapping) else None
    return isinstance(version, str) and version.partition(".")[0] == "1"


def to_current(dump: Any, rank: int) -> dict[str, Any]:
    """Return a dump of an old format with the fields of the current one.

    Args:
        dump: What the file holds.
        rank: Whose it is.

    Raises:
        DecodeError: If it is no list of calls.
    """
    fields: dict[str, Any] = {} if isinstance(dump, list | tuple) else dict(dump)
    listed = dump if isinstance(dump, list | tuple) else fields.get("entries", [])
    if not isinstance(listed, list | tuple) or not all(isinstance(e, Mapping) for e in listed):
        raise DecodeError(
            "cannot read dump: saw no list of calls; needs a dump of a Flight Recorder"
        )
    if not listed and not fields:
        raise DecodeError("cannot read dump: saw no call in it; needs a dump of a Flight Recorder")
    with_messages = {_group(entry)[0] for entry in listed if _is_message(entry)}
    entries = [
        _entry(entry, place, rank, is_own=_is_unshared(entry) or _group(entry)[0] in with_messages)
        for place, entry in enumerate(listed)
    ]
    fields.setdefault("version", UNVERSIONED)
    fields["entries"] = entries
    # Groups whose ranks are not listed: only this rank is known to be in them (`membership`).
    if not isinstance(fields.get("pg_config"), Mapping):
        fields["pg_config"] = {"": {"ranks": f"[{rank}]"}}
    return fields


def _group(entry: Mapping[Any, Any]) -> tuple[str, str]:
    """Return name and description of the group of a call; its number where it has no name."""
    told = entry.get("process_group")
    if isinstance(told, list | tuple) and told and isinstance(told[0], str):
        return told[0], str(told[1]) if len(told) > 1 else ""
    name = told if isinstance(told, str) and told else str(entry.get("pg_id"))
    return _DEFAULT if name == _DEFAULT[0] else (name, "")


def _is_unshared(entry: Mapping[Any, Any]) -> bool:
    """Return whether the number of a group is all that is known of it, and is not that of all ranks."""
    return not entry.get("process_group") and entry.get("pg_id") != 0


def _is_message(entry: Mapping[Any, Any]) -> bool:
    name = str(entry.get("profiling_name")).rpartition(":")[2]
    return bool(entry.get("is_p2p")) or name.startswith(_MESSAGES)


def _entry(entry: Mapping[Any, Any], place: int, rank: int, *, is_own: bool) -> dict[str, Any]:
    made = dict(entry)
    made.setdefault("record_id", place)
    name, description = _group(entry)
    if is_own:
        name, description = f"{name} of rank {rank}", description or name
    made["process_group"] = [name, description]
    if "collective_seq_id" not in made:
        made["collective_seq_id"] = entry.get("seq_id")
        # A message among them is no message of the current format: whom it is for is not known by rank.
        made["is_p2p"], made["p2p_seq_id"] = False, 0
        if _is_message(entry):
            made["profiling_name"] = f"nccl:{_UNNAMED_PEERS}"
    microseconds = entry.get("time_created_us")
    if "time_created_ns" not in made and type(microseconds) is int:
        made["time_created_ns"] = microseconds * 1000
    return made
