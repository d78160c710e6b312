"""What a process holds of the kernel's BPF: programs and maps by id, and how full its hash maps are."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# enum bpf_map_type: HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH. Arrays are always full.
HASHES = (1, 5, 9, 10)
# struct bpf_map_info: type, id, key size, value size, entries at most, flags, name.
INFO_WORDS, NAME_AT, NAME_BYTES, INFO_BYTES = 6, 24, 16, 128


@dataclass(frozen=True, slots=True)
class HeldBpf:
    """Ids of the programs and maps that a process has open."""

    programs: frozenset[int]
    maps: frozenset[int]


def list_held(pid: int) -> HeldBpf:
    """Return what a process holds; a program counts through its links too."""
    found: dict[str, set[int]] = {"prog_id": set(), "map_id": set()}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            for line in path.read_text().splitlines():
                key, _, value = line.partition(":")
                if key in found:
                    found[key].add(int(value))
    return HeldBpf(frozenset(found["prog_id"]), frozenset(found["map_id"]))


def list_alive(held: HeldBpf) -> HeldBpf:
    """Return what of it the kernel still has, whoever holds it."""
    library = _library()
    return HeldBpf(
        frozenset(one for one in held.programs if _is_there(library.bpf_prog_get_fd_by_id, one)),
        frozenset(one for one in held.maps if _is_there(library.bpf_map_get_fd_by_id, one)),
    )


def count_entries(maps: Iterable[int]) -> Mapping[str, int]:
    """Return the entries of hash maps by name, those of one name together."""
    library, counts = _library(), Counter[str]()
    for number in maps:
        descriptor = library.bpf_map_get_fd_by_id(ctypes.c_uint32(number))
        if descriptor < 0:
            continue  # gone meanwhile
        try:
            counts.update(_count(library, descriptor))
        finally:
            os.close(descriptor)
    return counts


def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libbpf.so.1", use_errno=True)


def _is_there(open_by_id: Callable[..., int], number: int) -> bool:
    descriptor = open_by_id(ctypes.c_uint32(number))
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


def _count(library: ctypes.CDLL, descriptor: int) -> dict[str, int]:
    info = ctypes.create_string_buffer(INFO_BYTES)
    length = ctypes.c_uint32(INFO_BYTES)
    if library.bpf_obj_get_info_by_fd(descriptor, info, ctypes.byref(length)):
        return {}
    kind, _, key_bytes, _, most, _ = (ctypes.c_uint32 * INFO_WORDS).from_buffer(info)
    if kind not in HASHES:
        return {}
    name = info.raw[NAME_AT : NAME_AT + NAME_BYTES].split(b"\0")[0].decode()
    before, after = None, ctypes.create_string_buffer(key_bytes)
    count = 0
    # A key that is removed meanwhile begins the walk anew: never more than the map can hold.
    while count < most and library.bpf_map_get_next_key(descriptor, before, after) == 0:
        before = ctypes.create_string_buffer(after.raw, key_bytes)
        count += 1
    return {name: count}
