"""What an ELF file tells of itself: build id, segments, functions. Files of others: every number in them is checked.

Of a function only its address, size and the place of its name are kept, 16 bytes; names are read from the file when
they are asked for. 600,000 functions are 10 MB, 30 MB while they are sorted; of more, none is known.

Source: System V ABI, chapters 4 and 5; ELF-64, little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["MAX_FUNCTION_BYTES", "ElfFile", "Functions", "Section", "read_name"]

HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SEGMENT = struct.Struct("<IIQQQQQQ")
NOTE = struct.Struct("<III")
MAGIC = b"\x7fELF\x02\x01"
LOADED, NOTES = 1, 4  # PT_LOAD, PT_NOTE
SYMBOLS, DYNAMIC_SYMBOLS = 2, 11  # SHT_SYMTAB, SHT_DYNSYM
BUILD_ID = 3  # NT_GNU_BUILD_ID
OBJECT, FUNCTION, INDIRECT = 1, 2, 10  # STT_OBJECT, STT_FUNC, STT_GNU_IFUNC
MAX_SEGMENTS, MAX_SECTIONS = 128, 4096
MAX_NOTE_BYTES = 64 * 1024
MAX_SYMBOLS = 600_000
MAX_TEXT_BYTES = 256 * 1024 * 1024
# A stripped table of 2 MB holds every symbol of a Python; more is another library with a like name.
MAX_SEARCHED_BYTES = 16 * 1024 * 1024
MAX_NAME_BYTES = 512
CHUNK = 16_384  # symbols
# A function without a size ends where the next begins, or here.
MAX_FUNCTION_BYTES = 1 << 24
SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("at", "<u8"),
        ("size", "<u8"),
    ]
)


class Section(NamedTuple):
    """A section header."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class Functions(NamedTuple):
    """The functions of a file, by address; shape (n,) each.

    Attributes:
        at: Address, in the file's own numbers.
        size: Bytes; 0 where it is not said.
        name: Where its name begins in `text`.
        text: Where names lie in the file.
    """

    at: NDArray[np.uint64]
    size: NDArray[np.uint32]
    name: NDArray[np.uint32]
    text: Section

    def find(self, address: int) -> int | None:
        """Return the number of the function at an address; None where none is."""
        place = int(np.searchsorted(self.at, np.uint64(address), side="right")) - 1
        if place < 0:
            return None
        size = int(self.size[place]) or MAX_FUNCTION_BYTES
        return place if address - int(self.at[place]) < size else None


class ElfFile:
    """An ELF file that is open.

    Args:
        file: The file; whoever opened it closes it, after the last call here.

    Attributes:
        machine: Number of the architecture, EM_*.

    Raises:
        DecodeError: If it is no such file, or claims what cannot be.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._fd = file.fileno()
        self._size = os.fstat(self._fd).st_size
        head = self.read(0, HEADER.size)
        if head[: len(MAGIC)] != MAGIC:
            raise DecodeError("cannot read the file: saw no 64-bit ELF header; needs one")
        fields = HEADER.unpack(head)
        self.machine = fields[1]
        segments_at, sections_at = fields[4], fields[5]
        segment_bytes, segment_count, section_bytes, section_count, self._names_at = fields[8:13]
        self.segments = self._table(
            SEGMENT, segments_at, segment_bytes, segment_count, MAX_SEGMENTS
        )
        found = self._table(SECTION, sections_at, section_bytes, section_count, MAX_SECTIONS)
        self.sections = [Section(*one) for one in found]

    def build_id(self) -> str | None:
        """Return the GNU build id, hexadecimal; None where it has none."""
        for segment in self.segments:
            if segment[0] == NOTES and segment[5] <= MAX_NOTE_BYTES:
                found = _find_build_id(self.read(segment[2], segment[5]))
                if found is not None:
                    return found
        return None

    def first_address(self) -> int:
        """Return the address of the byte 0 of the file: what the file lies above when it is loaded anywhere."""
        return min((s[3] - s[2] for s in self.segments if s[0] == LOADED), default=0)

    def address_of(self, offset: int) -> int | None:
        """Return the address, in the file's own numbers, of a place in it; None where none is loaded from there."""
        for segment in self.segments:
            if segment[0] == LOADED and segment[2] <= offset < segment[2] + segment[5]:
                return int(offset - segment[2] + segment[3])
        return None

    def offset_of(self, address: int) -> int | None:
        """Return the place in the file of an address in its own numbers; None where none is loaded there."""
        for segment in self.segments:
            if segment[0] == LOADED and segment[3] <= address < segment[3] + segment[5]:
                return int(address - segment[3] + segment[2])
        return None

    def find_section(self, name: bytes) -> Section | None:
        """Return the section of a name."""
        if self._names_at >= len(self.sections):
            return None
        names = self.sections[self._names_at]
        for section in self.sections:
            if section.name < names.size and self._name(names.offset + section.name) == name:
                return section
        return None

    def find_symbols(self, wanted: frozenset[bytes]) -> dict[bytes, int]:
        """Return the addresses of data symbols and functions by name, of those that it has."""
        found: dict[bytes, int] = {}
        for table in self._symbol_tables():
            text = self._text_of(table)
            if text.size > MAX_SEARCHED_BYTES:
                continue
            blob = self.read(text.offset, text.size)
            places = {_place(blob, name): name for name in wanted - found.keys()}
            places.pop(-1, None)
            for symbols in self._chunks(table):
                chosen = symbols[np.isin(symbols["name"], list(places)) & (symbols["section"] != 0)]
                found.update({places[int(one["name"])]: int(one["at"]) for one in chosen})
            if found.keys() == wanted:
                break
        return found

    def find_exports(self, wanted: Iterable[bytes]) -> dict[bytes, set[int]]:
        """Return where functions of these names begin that others may call; versions of one have a place each.

        Only the table for the dynamic linker is read, which is small in large libraries too.
        """
        found: dict[bytes, set[int]] = {}
        names = set(wanted)
        for table in self._symbol_tables():
            text = self._text_of(table)
            if table.type != DYNAMIC_SYMBOLS or text.size > MAX_SEARCHED_BYTES:
                continue
            blob = self.read(text.offset, text.size)
            places = {at: name for name in names for at in _places(blob, name)}
            for symbols in self._chunks(table):
                is_function = symbols["info"] & 15 == FUNCTION
                is_here = is_function & (symbols["section"] != 0)
                for one in symbols[is_here & np.isin(symbols["name"], list(places))]:
                    found.setdefault(places[int(one["name"])], set()).add(int(one["at"]))
        return found

    def functions(self) -> Functions | None:
        """Return what functions it has; None where none is known."""
        for table in self._symbol_tables():
            text = self._text_of(table)
            parts = []
            for symbols in self._chunks(table):
                kind = symbols["info"] & 15
                is_function = (kind == FUNCTION) | (kind == INDIRECT)
                is_named = (symbols["section"] != 0) & (symbols["name"] < text.size)
                # By column: a copy of whole entries takes longer than all the rest.
                chosen = np.flatnonzero(is_function & is_named)
                size = np.minimum(symbols["size"][chosen], MAX_FUNCTION_BYTES).astype(np.uint32)
                at = symbols["at"][chosen].astype(np.uint64)
                parts.append((at, size, symbols["name"][chosen]))
            if sum(len(part[0]) for part in parts):
                at, size, name = (np.concatenate(column) for column in zip(*parts, strict=True))
                order = _order_of(at)
                return Functions(at[order], size[order], name[order], text)
        return None

    def _symbol_tables(self) -> list[Section]:
        """Return the tables that are worth reading, one of a kind at most, the one with more names first."""
        tables = {
            section.type: section
            for section in self.sections
            if section.type in (SYMBOLS, DYNAMIC_SYMBOLS)
            and section.entry_size == SYMBOL.itemsize
            and section.size <= MAX_SYMBOLS * SYMBOL.itemsize
            and section.offset + section.size <= self._size
            and section.link < len(self.sections)
            and self._text_of(section).size <= MAX_TEXT_BYTES
        }
        return [tables[kind] for kind in sorted(tables)]

    def _text_of(self, table: Section) -> Section:
        return self.sections[table.link]

    def _chunks(self, table: Section) -> Iterator[NDArray[np.void]]:
        """Yield a table in parts; each is valid until the next one, which takes its memory."""
        step = CHUNK * SYMBOL.itemsize
        whole = table.size // SYMBOL.itemsize * SYMBOL.itemsize
        buffer = bytearray(min(step, whole))
        for at in range(0, whole, step):
            part = memoryview(buffer)[: min(step, whole - at)]
            self._check(table.offset + at, len(part))
            self._count(
                os.preadv(self._fd, [part], table.offset + at), table.offset + at, len(part)
            )
            yield np.frombuffer(part, SYMBOL)

    def _table(
        self, form: struct.Struct, at: int, entry_bytes: int, count: int, most: int
    ) -> list[tuple[int, ...]]:
        if not count:
            return []
        if entry_bytes != form.size or count > most:
            raise DecodeError(
                f"cannot read the file: saw {count} headers of {entry_bytes} bytes; "
                f"needs up to {most} of {form.size}"
            )
        return list(form.iter_unpack(self.read(at, count * form.size)))

    def read(self, at: int, size: int) -> bytes:
        """Return a part of the file.

        Raises:
            DecodeError: If it has no such part.
        """
        self._check(at, size)
        data = os.pread(self._fd, size, at)
        self._count(len(data), at, size)
        return data

    def _check(self, at: int, size: int) -> None:
        if at > self._size or size > self._size - at:
            raise DecodeError(f"cannot read the file: saw {size} bytes at {at} of {self._size}")

    @staticmethod
    def _count(saw: int, at: int, size: int) -> None:
        if saw != size:
            raise DecodeError(f"cannot read the file: saw {saw} bytes of {size} at {at}")

    def _name(self, at: int) -> bytes:
        if at >= self._size:
            return b""
        return _read_text(self._fd, at)


def read_name(file: BinaryIO, text: Section, at: int) -> str:
    """Return a symbol's name by its place in its table's text; empty where it cannot be read."""
    return _read_text(file.fileno(), text.offset + at).decode("utf-8", "replace")


def _read_text(descriptor: int, at: int) -> bytes:
    return os.pread(descriptor, MAX_NAME_BYTES, at).split(b"\0", 1)[0]


def _order_of(at: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the order of addresses, equal ones as they come: as a stable sort does, in a quarter of its time."""
    bits = len(at).bit_length()
    if int(at.max(initial=0)) >> (64 - bits):
        return np.argsort(at, kind="stable")
    keys = (at << np.uint64(bits)) | np.arange(len(at), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64((1 << bits) - 1)).astype(np.intp)


def _place(blob: bytes, name: bytes) -> int:
    at = blob.find(b"\0" + name + b"\0")
    return at + 1 if at >= 0 else -1


def _places(blob: bytes, name: bytes) -> list[int]:
    """Return every place where a name ends a string: a linker lets names share their ends."""
    places, at = [], blob.find(name + b"\0")
    while at >= 0:
        places.append(at)
        at = blob.find(name + b"\0", at + 1)
    return places


def _find_build_id(data: bytes) -> str | None:
    at = 0
    while at + NOTE.size <= len(data):
        name_bytes, text_bytes, kind = NOTE.unpack_from(data, at)
        text_at = at + NOTE.size + (name_bytes + 3 & ~3)
        name = data[at + NOTE.size : at + NOTE.size + name_bytes]
        if kind == BUILD_ID and name == b"GNU\0" and 4 <= text_bytes <= 64:
            text = data[text_at : text_at + text_bytes]
            return text.hex() if len(text) == text_bytes else None
        at = text_at + (text_bytes + 3 & ~3)
    return None
