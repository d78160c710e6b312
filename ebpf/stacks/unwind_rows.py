"""Unwinding rows of a file, from its `.eh_frame`: of the function at an address, or of all, by address.

    .eh_frame_hdr ──▶ entry (FDE) of an address ──▶ its program, run ──▶ rows

Nothing is kept but some CIEs and the rules that were met: an entry is looked for, read and run each time it is
asked for. A file without an index that can be used is read from end to end once, and its entries' places are kept.
Files are of others: what is damaged is told as rows of no support and counted.

Measured with libtorch_cpu.so of PyTorch 2.15 on x86-64 (346,000 functions, 2.7 million rows, 1,400 different rules):
a function takes 40 µs, all of them 8 s of CPU, either 1 MB; without its index 1.4 s and 14 MB more.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

from rootwalk.ebpf.stacks.call_frames import AARCH64, X86_64, Common, Programs
from rootwalk.ebpf.stacks.dwarf_numbers import ADDRESS_MASK, OMITTED, read_pointer, read_unsigned
from rootwalk.ebpf.stacks.elf_files import LOADED, ElfFile
from rootwalk.ebpf.stacks.unwind_rules import NO_TABLE, UNFOLLOWED, Row, Rule
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["FunctionRows", "UnwindTable"]

MACHINES = {62: X86_64, 183: AARCH64}  # EM_X86_64, EM_AARCH64
INDEX_SEGMENT = 0x6474E550  # PT_GNU_EH_FRAME
NO_CONTENT = 8  # SHT_NOBITS
INDEX_ENTRY = struct.Struct("<ii")
INDEX_ENCODING = 0x3B  # DW_EH_PE_datarel | DW_EH_PE_sdata4
LENGTH = struct.Struct("<II")
EXTENDED = 0xFFFFFFF0
# Most entries are shorter.
READ_BYTES = 256
# The longest of libtorch_cpu.so has 12,000.
MAX_ENTRY_BYTES = 128 * 1024
MAX_SECTION_BYTES = 256 * 1024 * 1024
CHUNK = 4096  # entries of the index
REMEMBERED_COMMONS = 4096
# Each entry is read once, and a CIE once more for each: what reads more lies in itself.
MOST_TIMES_READ = 3
# Entries of a file without an index, which linkers write into nearly all: 36 bytes each and 8 in the list. All are read
# at once, half a second for so many, in which an agent does nothing else.
MAX_FOUND = 60_000
MAX_SCANNED = 120_000
PLACE_BITS = 32
END_OF_MEMORY = 1 << 64


class FunctionRows(NamedTuple):
    """The rows from one address to another: of a function, or the one row of a gap between functions.

    Attributes:
        start: First address; that of the first row.
        end: First address behind it.
        rows: At least one.
    """

    start: int
    end: int
    rows: list[Row]


class _Index(Protocol):
    """Where entries are, by the address of their function's first byte."""

    count: int

    def entry(self, place: int) -> tuple[int, int]: ...

    def find(self, pc: int) -> int: ...

    def entries(self) -> Iterator[tuple[int, int]]: ...


class _FileIndex:
    """The index that the file has, left where it is."""

    def __init__(self, elf: ElfFile, at: int, address: int, count: int) -> None:
        self._elf, self._at, self._address = elf, at, address
        self.count = count

    def entry(self, place: int) -> tuple[int, int]:
        data = self._elf.read(self._at + place * INDEX_ENTRY.size, INDEX_ENTRY.size)
        start, where = INDEX_ENTRY.unpack(data)
        return self._address + start & ADDRESS_MASK, self._address + where

    def find(self, pc: int) -> int:
        """Return the place of the last entry that begins at or below an address; -1 for none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= pc:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def entries(self) -> Iterator[tuple[int, int]]:
        for first in range(0, self.count, CHUNK):
            size = min(CHUNK, self.count - first) * INDEX_ENTRY.size
            data = self._elf.read(self._at + first * INDEX_ENTRY.size, size)
            for start, where in INDEX_ENTRY.iter_unpack(data):
                yield self._address + start & ADDRESS_MASK, self._address + where


class _OwnIndex:
    """An index made by reading all entries. One number each: address, then place in the section."""

    def __init__(self, found: list[int], section: int) -> None:
        found.sort()
        self._found, self._section = found, section
        self.count = len(found)

    def entry(self, place: int) -> tuple[int, int]:
        one = self._found[place]
        return one >> PLACE_BITS, self._section + (one & (1 << PLACE_BITS) - 1)

    def find(self, pc: int) -> int:
        return bisect_right(self._found, (pc + 1 << PLACE_BITS) - 1) - 1

    def entries(self) -> Iterator[tuple[int, int]]:
        return map(self.entry, range(self.count))


class _Entry(NamedTuple):
    start: int
    end: int
    common: Common
    program: bytes
    program_address: int


class UnwindTable:
    """The rows of an ELF file that is open.

    Args:
        file: The file; whoever opened it closes it, after the last call here.

    Attributes:
        damaged: Functions whose entry could not be read, as often as they were asked for.

    Raises:
        DecodeError: If it is no such file, of another architecture, or has no such table.
        OSError: If it cannot be read; so from all calls.
    """

    def __init__(self, file: BinaryIO) -> None:
        elf = self._elf = ElfFile(file)
        registers = MACHINES.get(elf.machine)
        if registers is None:
            raise DecodeError(f"cannot read the file: saw machine {elf.machine}; needs 62 or 183")
        self.damaged = 0
        self._read_bytes = 0
        self._programs = Programs(registers)
        self._commons: dict[int, Common] = {}
        self._loaded = [(s[3], s[3] + s[5], s[2]) for s in elf.segments if s[0] == LOADED]
        section = elf.find_section(b".eh_frame")
        if section is not None and section.type != NO_CONTENT and section.size:
            self._loaded.insert(
                0, (section.address, section.address + section.size, section.offset)
            )
            self._section = section.address, section.address + section.size
        else:
            self._section = self._find_section()
        if self._section[1] - self._section[0] > MAX_SECTION_BYTES:
            raise DecodeError(
                f"cannot read the file: saw .eh_frame of more than {MAX_SECTION_BYTES}"
            )
        self._index: _Index = self._read_index() or _OwnIndex(self._scan(), self._section[0])

    def find(self, pc: int) -> FunctionRows:
        """Return the rows of the function at an address, or of the gap there."""
        place = self._index.find(pc)
        next_start = END_OF_MEMORY
        if place + 1 < self._index.count:
            next_start = max(self._index.entry(place + 1)[0], pc + 1)
        if place < 0:
            return FunctionRows(0, next_start, [Row(0, NO_TABLE)])
        start, where = self._index.entry(place)
        end, rules = self._run(start, where, next_start)
        if pc >= end:
            return FunctionRows(end, next_start, [Row(end, NO_TABLE)])
        return FunctionRows(start, end, [Row(start + at, rule) for at, rule in rules])

    def rows(self) -> Iterator[Row]:
        """Yield all rows, by address; equal neighbours are one. Behind functions with none next to them lies a gap.

        Raises:
            DecodeError: If entries lie in each other, so that reading would take long, or the file was cut meanwhile.
        """
        last_byte = self._last_byte()
        told: Rule | None = None
        last_end = 0
        for start, where, next_start in self._by_address():
            if start > last_end and told is not None and told is not NO_TABLE:
                told = NO_TABLE
                yield Row(last_end, told)
            last_end, rules = self._run(start, where, next_start)
            self._check_end(last_byte)
            for at, rule in rules if last_end > start else ():
                if rule is not told:
                    told = rule
                    yield Row(start + at, rule)
        if told is not None and told is not NO_TABLE and last_end < END_OF_MEMORY:
            yield Row(last_end, NO_TABLE)

    def _by_address(self) -> Iterator[tuple[int, int, int]]:
        """Yield the entries, each with the address of the next; those out of order are left out."""
        last: tuple[int, int] | None = None
        for entry in self._index.entries():
            if last is not None:
                if entry[0] <= last[0]:
                    self.damaged += 1
                    continue
                yield *last, entry[0]
            last = entry
        if last is not None:
            yield *last, END_OF_MEMORY

    def _last_byte(self) -> int:
        return self._read_bytes + MOST_TIMES_READ * (self._section[1] - self._section[0])

    def _check_end(self, last_byte: int) -> None:
        if self._read_bytes > last_byte:
            raise DecodeError("cannot read .eh_frame: saw entries that lie in each other")

    def _run(self, start: int, where: int, next_start: int) -> tuple[int, list[tuple[int, Rule]]]:
        """Return where a function ends and its rules."""
        try:
            entry = self._read_entry(where, self._read_record(where))
            if entry is not None and entry.start == start and entry.end <= END_OF_MEMORY:
                end = min(entry.end, next_start)
                return end, self._programs.run(
                    entry.program, entry.common, end - start, start, entry.program_address
                )
        except DecodeError:
            pass
        self.damaged += 1
        return next_start, [(0, UNFOLLOWED)]

    def _read_entry(self, address: int, data: bytes) -> _Entry | None:
        """Return an FDE from what it holds; None for what is a CIE, or the section's end."""
        if len(data) <= LENGTH.size:
            return None
        distance = LENGTH.unpack_from(data)[1]
        if not distance:
            return None
        common = self._common(address + 4 - distance)
        try:
            start, at = read_pointer(data, LENGTH.size, common.encoding, address)
            size, at = read_pointer(data, at, common.encoding & 0x0F, 0)
            if common.is_augmented:
                skipped, at = read_unsigned(data, at)
                at += skipped
        except (IndexError, struct.error):
            raise DecodeError("cannot read an FDE: saw its end too early") from None
        return _Entry(start, start + size, common, data[at:], address + at)

    def _common(self, address: int) -> Common:
        known = self._commons.get(address)
        if known is None:
            data = self._read_record(address)
            if len(data) <= LENGTH.size or LENGTH.unpack_from(data)[1]:
                raise DecodeError("cannot read a CIE: saw something else")
            known = self._programs.read_common(data[LENGTH.size :])
            if len(self._commons) >= REMEMBERED_COMMONS:
                self._commons.clear()
            self._commons[address] = known
        return known

    def _read_record(self, address: int) -> bytes:
        """Return an entry of the section with its length; only the length of the one that ends the section."""
        at, left = self._place(address)
        data = self._elf.read(at, min(READ_BYTES, left))
        if len(data) < 4:
            raise DecodeError("cannot read .eh_frame: saw its end too early")
        size = int.from_bytes(data[:4], "little") + 4
        if size > EXTENDED or size > left or size > MAX_ENTRY_BYTES:
            raise DecodeError(f"cannot read .eh_frame: saw an entry of {size} bytes")
        self._read_bytes += size
        return data[:size] if size <= len(data) else self._elf.read(at, size)

    def _place(self, address: int) -> tuple[int, int]:
        """Return where in the file an address is, and how many bytes are loaded from there."""
        for begin, end, offset in self._loaded:
            if begin <= address < end:
                return offset + address - begin, end - address
        raise DecodeError(f"cannot read .eh_frame: saw nothing loaded at {address:#x}")

    def _find_section(self) -> tuple[int, int]:
        """Return from where to where the section may lie in a file without names of sections."""
        header = self._read_header()
        if header is None:
            raise DecodeError("cannot read the file: saw no .eh_frame")
        return header[0], header[0] + self._place(header[0])[1]

    def _read_header(self) -> tuple[int, int, bytes, int] | None:
        """Return what .eh_frame_hdr says: address of .eh_frame; its own; its beginning; place behind that address."""
        for segment in self._elf.segments:
            if segment[0] == INDEX_SEGMENT and segment[5] >= 8:
                data = self._elf.read(segment[2], min(segment[5], 64))
                if data[0] != 1 or data[1] == OMITTED:
                    return None
                try:
                    address, at = read_pointer(data, 4, data[1], segment[3], segment[3])
                except struct.error:
                    return None
                return address, segment[3], data, at
        return None

    def _read_index(self) -> _FileIndex | None:
        """Return the file's own index; None where it has none that can be used."""
        header = self._read_header()
        if header is None or header[2][3] != INDEX_ENCODING or header[2][2] == OMITTED:
            return None
        _, address, data, at = header
        segment = next(s for s in self._elf.segments if s[0] == INDEX_SEGMENT and s[3] == address)
        try:
            count, at = read_pointer(data, at, data[2], address, address)
        except struct.error:
            return None
        if not 0 < count <= (segment[5] - at) // INDEX_ENTRY.size:
            return None
        return _FileIndex(self._elf, segment[2] + at, address, count)

    def _scan(self) -> list[int]:
        """Return where functions begin, and behind that number where their entries do, of all entries."""
        address, end = self._section
        found: list[int] = []
        last_byte = self._last_byte()
        for _ in range(MAX_SCANNED):
            if address + LENGTH.size > end:
                return found
            data = self._read_record(address)
            if len(data) == 4:
                return found
            self._check_end(last_byte)
            try:
                entry = self._read_entry(address, data)
            except DecodeError:
                self.damaged += 1
            else:
                if entry is not None and entry.start < entry.end <= END_OF_MEMORY:
                    found.append(entry.start << PLACE_BITS | address - self._section[0])
            address += len(data)
            if len(found) > MAX_FOUND:
                break
        raise DecodeError(
            f"cannot read .eh_frame: saw more than {MAX_FOUND} functions, and no index"
        )
