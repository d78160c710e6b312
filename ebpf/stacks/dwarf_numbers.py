"""Numbers and addresses of DWARF: LEB128, and the encodings that `.eh_frame` has. Both of bounded length.

Source: DWARF 5, section 7.6; Linux Standard Base 5, section 10.5.
"""

from __future__ import annotations

import struct

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["OMITTED", "read_pointer", "read_signed", "read_unsigned", "skip_pointer"]

MAX_LEB128_BYTES = 10
HALF, WORD = struct.Struct("<H"), struct.Struct("<I")
ENCODINGS = {
    0: struct.Struct("<Q"),
    2: HALF,
    3: WORD,
    4: struct.Struct("<Q"),
    10: struct.Struct("<h"),
    11: struct.Struct("<i"),
    12: struct.Struct("<q"),
}
PC_RELATIVE, DATA_RELATIVE, ALIGNED = 0x10, 0x30, 0x50  # DW_EH_PE_*
OMITTED = 0xFF
ADDRESS_MASK = (1 << 64) - 1


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned LEB128 number and the place behind it."""
    value = 0
    for place in range(MAX_LEB128_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise DecodeError("cannot read a number: saw no end of it; needs one in ten bytes")


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed LEB128 number and the place behind it."""
    value, end = read_unsigned(data, at)
    sign = 1 << 7 * (end - at) - 1
    return (value ^ sign) - sign, end


def read_pointer(
    data: bytes, at: int, encoding: int, address: int, data_address: int | None = None
) -> tuple[int, int]:
    """Return an address and the place behind it.

    Args:
        data: Where it is.
        at: Place in that.
        encoding: DW_EH_PE_*.
        address: Of the data's first byte.
        data_address: What addresses relative to data are relative to; None where there are none.

    Raises:
        DecodeError: If it has an encoding that is not known here.
    """
    form, base = ENCODINGS.get(encoding & 0x0F), encoding & 0xF0
    if form is None or (base and base != PC_RELATIVE and base != DATA_RELATIVE):
        raise DecodeError(f"cannot read an address: saw encoding {encoding:#x}")
    value = form.unpack_from(data, at)[0]
    if base == PC_RELATIVE:
        value += address + at
    elif base == DATA_RELATIVE:
        if data_address is None:
            raise DecodeError(f"cannot read an address: saw encoding {encoding:#x}")
        value += data_address
    return value & ADDRESS_MASK, at + form.size


def skip_pointer(data: bytes, at: int) -> int:
    """Return the place behind an encoding and an address of it: the personality, which is not needed."""
    form = ENCODINGS.get(data[at] & 0x0F)
    if data[at] == OMITTED:
        return at + 1
    if form is None or data[at] & 0x70 == ALIGNED:
        raise DecodeError(f"cannot read a CIE: saw a personality of encoding {data[at]:#x}")
    return at + 1 + form.size
