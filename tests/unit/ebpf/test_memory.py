"""Reclaims as the kernel writes them, from bytes made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.memory import KEY, SPELL, TOTAL, MemoryReader, decode_spells
from rootwalk.ebpf.reader import Cause, Place, Spell
from rootwalk.ebpf.readers import probe_readers

BUSY = 1 << 31


def record(*values: int, flags: int = 0) -> bytes:
    return struct.pack("<II", SPELL.size | flags, 0) + SPELL.pack(*values, 0)


def test_layouts_are_those_of_the_header() -> None:
    # The static assertions of memory.h.
    assert (KEY.size, TOTAL.size, SPELL.size) == (8, 16, 32)


def test_spells() -> None:
    data = record(100, 900, 300, 3) + record(1000, 1500, 500, 4)
    spells, used = decode_spells(data)
    assert spells == [
        Spell(100, 900, 300, Cause.RECLAIM, 3),
        Spell(1000, 1500, 500, Cause.RECLAIM, 4),
    ]
    assert used == len(data)


def test_spell_that_is_being_written_waits() -> None:
    first = record(100, 900, 300, 3)
    spells, used = decode_spells(first + record(1, 2, 1, 4, flags=BUSY))
    assert [spell.slot for spell in spells] == [3]
    assert used == len(first)


def test_without_bpf_it_says_so(tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[MemoryReader])
    assert (sensor.sensor, sensor.status, sensor.reason) == (
        "memory",
        Status.UNAVAILABLE,
        Reason.NO_BPF,
    )
