"""The kernel's own description of its types (BTF): where a structure has a field, and whether a hook exists.

For loaders that cannot relocate by themselves, as BCC. Reads /sys/kernel/btf/vmlinux: 5.5 MB, 0.1 s, nothing is kept
but what was asked for. Pure: bytes in, numbers out.

Source: Documentation/bpf/btf.rst; kinds 1 to 19 (ENUM64, Linux 6.0) have the sizes that `EXTRA_BYTES` says.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import NamedTuple

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["KernelTypes", "Member"]

MAGIC = 0xEB9F
HEADER = "HBBIIIII"
TYPE = "III"
TYPE_BYTES = 12
INT, POINTER, ARRAY, STRUCT, UNION, ENUM = 1, 2, 3, 4, 5, 6
TYPEDEF, VOLATILE, CONST, RESTRICT, PROTOTYPE, VARIABLE = 8, 9, 10, 11, 13, 14
SECTION, FLOAT, DECLARATION_TAG, TYPE_TAG, ENUM64 = 15, 16, 17, 18, 19
# What follows a type, by kind: bytes once, and bytes for each of its members.
EXTRA_BYTES = {INT: 4, ARRAY: 12, VARIABLE: 4, DECLARATION_TAG: 4}
MEMBER_BYTES = {STRUCT: 12, UNION: 12, ENUM: 8, PROTOTYPE: 8, SECTION: 12, ENUM64: 12}
ALIASES = frozenset({TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG})
SIZED = frozenset({INT, STRUCT, UNION, ENUM, FLOAT, ENUM64})
POINTER_BYTES = 8
# No type of a real kernel nests deeper; garbage may nest for ever.
MAX_DEPTH = 32


class Member(NamedTuple):
    """Where a structure has a field, bytes."""

    offset_bytes: int
    size_bytes: int


class KernelTypes:
    """An index over BTF.

    Args:
        data: The whole file.

    Raises:
        DecodeError: If it is not BTF, or of a form that is not known here.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._order = "<" if data[:2] == MAGIC.to_bytes(2, "little") else ">"
        self._type = struct.Struct(self._order + TYPE)
        try:
            magic, _, _, header_bytes, types_at, types_bytes, strings_at, strings_bytes = (
                struct.unpack_from(self._order + HEADER, data)
            )
            if magic != MAGIC:
                raise DecodeError("cannot read BTF: saw no magic number; needs 0xeb9f")
            first = header_bytes + strings_at
            self._strings = data[first : first + strings_bytes]
            self._places, self._roots = self._index(header_bytes + types_at, types_bytes)
        except struct.error as error:
            raise DecodeError(f"cannot read BTF: saw {error}; needs the whole file") from error

    @classmethod
    def read(cls, root: Path = Path("/")) -> KernelTypes:
        """Return the types of the running kernel.

        Raises:
            OSError: If the kernel does not publish them.
            DecodeError: If they cannot be understood.
        """
        return cls((root / "sys/kernel/btf/vmlinux").read_bytes())

    def has_hook(self, tracepoint: str) -> bool:
        """Return whether programs can be attached to a tracepoint."""
        return self._root(TYPEDEF, f"btf_trace_{tracepoint}") is not None

    def count_arguments(self, tracepoint: str) -> int | None:
        """Return how many arguments a tracepoint has; None where there is none of that name.

        Raises:
            DecodeError: If types refer to each other without end.
        """
        number = self._root(TYPEDEF, f"btf_trace_{tracepoint}")
        try:
            if number is None:
                return None
            _, _, prototype, _ = self._read(number)
            _, info, _, _ = self._read(prototype)
        except (struct.error, IndexError) as error:
            raise DecodeError(
                f'cannot read "{tracepoint}": saw {error}; needs whole BTF'
            ) from error
        return (info & 0xFFFF) - 1  # the first is the program's own

    def has_structure(self, name: str) -> bool:
        """Return whether the kernel has a structure of that name."""
        return self._root(STRUCT, name) is not None

    def member(self, structure: str, path: str) -> Member | None:
        """Return where a structure has a field.

        Args:
            structure: Its name, without `struct`.
            path: The field's name, dots between levels; anonymous members are looked into.

        Returns:
            None where there is no such structure or field, or where the field is some bits of a byte.

        Raises:
            DecodeError: If types refer to each other without end.
        """
        number = self._root(STRUCT, structure)
        try:
            return self._find(number, path.split("."), set()) if number else None
        except (struct.error, IndexError) as error:
            raise DecodeError(f'cannot find "{path}": saw {error}; needs whole BTF') from error

    def _index(self, at: int, length: int) -> tuple[array[int], dict[tuple[int, int], int]]:
        """Return where every type begins, and the numbers of structures and typedefs by the place of their name."""
        places = array("Q", [0])
        roots: dict[tuple[int, int], int] = {}
        end = at + length
        while at < end:
            name, info, _ = self._type.unpack_from(self._data, at)
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            if not INT <= kind <= ENUM64:
                raise DecodeError(f"cannot read BTF: saw a type of kind {kind}; needs 1 to 19")
            if kind in (STRUCT, TYPEDEF):
                roots.setdefault((kind, name), len(places))
            places.append(at)
            at += TYPE_BYTES + EXTRA_BYTES.get(kind, 0) + count * MEMBER_BYTES.get(kind, 0)
        return places, roots

    def _root(self, kind: int, name: str) -> int | None:
        """Return the number of a type; BTF has every name once."""
        place = self._strings.find(b"\0" + name.encode() + b"\0")
        return self._roots.get((kind, place + 1)) if place >= 0 else None

    def _name(self, at: int) -> str:
        end = self._strings.find(b"\0", at)
        return self._strings[at:end].decode("utf-8", "replace")

    def _read(self, number: int) -> tuple[int, int, int, int]:
        """Return a type behind its aliases: kind, its info and last word, and where its members begin."""
        for _ in range(MAX_DEPTH):
            at = self._places[number]
            _, info, word = self._type.unpack_from(self._data, at)
            kind = info >> 24 & 0x1F
            if kind not in ALIASES:
                return kind, info, word, at + TYPE_BYTES
            number = word
        raise DecodeError("cannot read BTF: saw aliases without end; needs a kernel's")

    def _find(self, number: int, path: list[str], seen: set[tuple[int, int]]) -> Member | None:
        """Return a field of a type; `seen` is where this search has been, with how much of the path was left."""
        kind, info, _, at = self._read(number)
        if kind not in (STRUCT, UNION) or (at, len(path)) in seen:
            return None
        seen.add((at, len(path)))
        has_bits = info >> 31
        for index in range(info & 0xFFFF):
            name, member, place = self._type.unpack_from(self._data, at + index * TYPE_BYTES)
            is_bit_field = has_bits and place >> 24
            offset_bytes = (place & 0xFFFFFF if has_bits else place) // 8
            found = None
            if name and self._name(name) == path[0] and not is_bit_field:
                if len(path) == 1:
                    return Member(offset_bytes, self._size_bytes(member, 0))
                found = self._find(member, path[1:], seen)
            elif not name:
                found = self._find(member, path, seen)
            if found is not None:
                return Member(offset_bytes + found.offset_bytes, found.size_bytes)
        return None

    def _size_bytes(self, number: int, depth: int) -> int:
        kind, _, word, at = self._read(number)
        if kind in SIZED:
            return word
        size_bytes = POINTER_BYTES
        if kind == ARRAY and depth < MAX_DEPTH:
            element, _, count = self._type.unpack_from(self._data, at)
            size_bytes = int(count) * self._size_bytes(element, depth + 1)
        return size_bytes
