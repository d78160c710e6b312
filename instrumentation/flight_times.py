"""Durations that NCCL's process groups measure, out of the process's own Flight Recorder ring.

A dump is one line of JSON of the whole ring, some 20 us of CPU time an entry, under the interpreter lock, and none of
it can be left out. So it is asked for seldom (`timed_collectives`), and only its end is parsed. Source and format:
torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp of PyTorch 2.15 (2.10).

Where the ring is: the legacy NCCL process group has its own (`_dump_nccl_trace_json`); every other backend than gloo
records, through a hook of PyTorch's, into one under its name (`_dump_fr_trace_json`), and `nccl` is made by `nccl2`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

__all__ = ["Timed", "dump_functions", "is_timing", "read_times", "ring_entries"]

# Of PyTorch 2.15: names under which a ring of NCCL operations may be.
RINGS: Final = ("nccl2", "nccl", "nccl-lazy")
# As PyTorch reads its own switches.
TRUE_VALUES: Final = frozenset({"1", "y", "yes", "t", "true"})
DEFAULT_ENTRIES: Final = 2000
_ENTRY: Final = b'{"collective_seq_id":'
_MAX_DURATION_MS: Final = 1e9


class Timed(NamedTuple):
    """One collective of the ring that has ended: when the host issued it, and its time on the device, ns."""

    created_unix_ns: int
    device_ns: int


def is_timing(environment: Mapping[str, str]) -> bool:
    """Return whether NCCL's process groups are told to time their operations."""
    for name in ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"):
        value = environment.get(name)
        if value:
            return value.strip().lower() in TRUE_VALUES
    return False


def ring_entries(environment: Mapping[str, str]) -> int:
    """Return how many entries a ring of this process holds; 0 where the user has switched it off."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        value = environment.get(name)
        if value:
            return int(value) if value.isdigit() else 0
    return DEFAULT_ENTRIES


def dump_functions(module: ModuleType) -> list[Callable[[], bytes]]:
    """Return what dumps the rings in which NCCL operations may be.

    Args:
        module: `torch._C._distributed_c10d`.
    """
    found: list[Callable[[], bytes]] = []
    legacy = getattr(module, "_dump_nccl_trace_json", None)
    if legacy is not None:
        found.append(lambda: legacy(True, False))
    general = getattr(module, "_dump_fr_trace_json", None)
    if general is not None:
        found.extend(_of_backend(general, name) for name in RINGS)
    return found


def _of_backend(dump: Callable[..., bytes], name: str) -> Callable[[], bytes]:
    return lambda: dump(True, False, name)


def read_times(dump: bytes | str, since_unix_ns: int) -> dict[tuple[str, int], Timed]:
    """Return the collectives of a dump that were issued since a moment and have ended, by group and number.

    Of several under one number, as of a batch, the last that has a time has that of all.
    """
    found: dict[tuple[str, int], Timed] = {}
    for entry in _latest(dump.encode() if isinstance(dump, str) else dump):
        created = entry.get("time_created_ns")
        if not isinstance(created, int) or created < since_unix_ns:
            break
        names, number = entry.get("process_group"), entry.get("collective_seq_id")
        duration_ms = entry.get("duration_ms")
        if entry.get("is_p2p") or entry.get("state") != "completed":
            continue
        if not (isinstance(names, list) and names and isinstance(number, int)):
            continue
        if isinstance(duration_ms, bool) or not isinstance(duration_ms, int | float):
            continue
        if math.isfinite(duration_ms) and 0.0 < duration_ms < _MAX_DURATION_MS:
            key = (str(names[0]), number)
            found.setdefault(key, Timed(created, round(duration_ms * 1e6)))
    return found


def _latest(dump: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a dump, the last first: each parsed by itself, so that nobody waits long for the lock."""
    end = len(dump)
    decoder = json.JSONDecoder()
    is_first = True
    while (start := dump.rfind(_ENTRY, 0, end)) >= 0:
        try:
            entry, _ = decoder.raw_decode(dump[start:end].decode())
        except (UnicodeDecodeError, ValueError):
            if is_first:
                yield from _all_entries(dump)
            return
        yield entry
        end, is_first = start, False
    if is_first:
        yield from _all_entries(dump)


def _all_entries(dump: bytes) -> Iterator[dict[str, Any]]:
    """Yield the entries of a dump that is not written as PyTorch 2.15 does."""
    value = json.loads(dump)
    entries = value.get("entries") if isinstance(value, dict) else None
    yield from (one for one in reversed(entries or []) if isinstance(one, dict))
