"""The source line of an instruction, out of the table that a code object carries; pure, and safe with any bytes.

    3.11 and later   co_linetable: entries of 1 to 8 instructions, line as a difference, columns skipped
    3.10             co_linetable: pairs of bytes, a length in bytes and a difference of lines; -128 for no line

Source: CPython Objects/locations.md (3.11 to 3.14), Objects/lnotab_notes.txt (3.10).
"""

from __future__ import annotations

__all__ = ["MAX_LINE", "find_line", "find_line_3_10"]

# No source file is longer; a table that comes to a larger number is no table.
MAX_LINE = 1 << 24
FIRST_ONE_LINE, LAST_ONE_LINE, NO_COLUMNS, LONG, NO_LINE = 10, 12, 13, 14, 15
NO_LINE_3_10 = -128
# Six bits a byte: more than 5 bytes are no line or column.
MAX_VARINT_BYTES = 6


def find_line(table: bytes, unit: int, first_line: int) -> int:
    """Return the line of an instruction, as 3.11 and later write it; 0 where it has none.

    Args:
        table: `co_linetable`.
        unit: The instruction's number, counted in units of 2 bytes.
        first_line: `co_firstlineno`.

    >>> find_line(bytes([0x80 | 13 << 3 | 1, 0b10, 0x80 | 13 << 3 | 0, 0b100]), 2, 7)
    10
    """
    line, at, begin, size = first_line, 0, 0, len(table)
    while at < size:
        head = table[at]
        if not head & 0x80:
            return 0  # an entry begins with this bit
        kind, length = head >> 3 & 15, (head & 7) + 1
        at += 1
        if FIRST_ONE_LINE <= kind <= LAST_ONE_LINE:
            line += kind - FIRST_ONE_LINE
        elif kind in (NO_COLUMNS, LONG):
            line += _signed(table, at)
        if begin <= unit < begin + length:
            return line if kind != NO_LINE and 0 < line < MAX_LINE else 0
        begin += length
        while at < size and not table[at] & 0x80:
            at += 1  # every other byte of an entry has this bit clear
    return 0


def find_line_3_10(table: bytes, offset: int, first_line: int) -> int:
    """Return the line of an instruction, as 3.10 writes it; 0 where it has none.

    Args:
        table: `co_linetable`.
        offset: Of the instruction, bytes.
        first_line: `co_firstlineno`.
    """
    line, begin = first_line, 0
    for at in range(0, len(table) - 1, 2):
        length, step = table[at], table[at + 1]
        step = step - 256 if step > 127 else step
        if step != NO_LINE_3_10:
            line += step
        if begin <= offset < begin + length:
            return line if step != NO_LINE_3_10 and 0 < line < MAX_LINE else 0
        begin += length
    return 0


def _signed(table: bytes, at: int) -> int:
    """Return a signed number of variable length; 0 where the table ends inside it."""
    value = 0
    for place, one in enumerate(table[at : at + MAX_VARINT_BYTES]):
        value |= (one & 63) << 6 * place
        if not one & 64:
            return -(value >> 1) if value & 1 else value >> 1
    return 0
