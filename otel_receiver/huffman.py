"""The one Huffman code of HTTP/2's header blocks: text that was written with it, read; pure.

Source:
    RFC 7541: section 5.2 (padding with ones, at most seven), appendix B (the code).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["decode_huffman"]

# Symbols by the length of their codes in bits. Codes follow each other in this order, each length going on where the
# one before it ended: a canonical code, which its lengths determine. The last of 30 bits is the end of text.
_SYMBOLS_BY_BITS: Final[Mapping[int, bytes]] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: bytes.fromhex("808283a2b8c2e0e2"),
    21: bytes.fromhex("99a1a7acb0b1b3d1d8d9e3e5e6"),
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: bytes.fromhex("098e9091949fabced7e1eced"),
    25: bytes.fromhex("c7cfeaeb"),
    26: bytes.fromhex("c0c1c8c9cacdd2d5dadbeef0f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: b"\n\r\x16",
}
_MAX_BITS: Final = 30
_SHORT_BITS: Final = 8


def _assign_codes() -> dict[tuple[int, int], int]:
    codes = {}
    code = bits_before = 0
    for bits, symbols in _SYMBOLS_BY_BITS.items():
        code <<= bits - bits_before
        bits_before = bits
        for symbol in symbols:
            codes[bits, code] = symbol
            code += 1
    return codes


_SYMBOLS: Final = _assign_codes()
_LONG_BITS: Final = tuple(bits for bits in _SYMBOLS_BY_BITS if bits > _SHORT_BITS)
# (symbol, bits) of the code that eight bits begin with; None where it is longer.
_SHORT: Final = tuple(
    next(
        (
            (_SYMBOLS[bits, window >> (_SHORT_BITS - bits)], bits)
            for bits in range(5, _SHORT_BITS + 1)
            if (bits, window >> (_SHORT_BITS - bits)) in _SYMBOLS
        ),
        None,
    )
    for window in range(1 << _SHORT_BITS)
)


def decode_huffman(text: bytes) -> bytes:
    """Return the text that was written so.

    Raises:
        ValueError: If it is not written so.
    """
    out = bytearray()
    bits = count = 0  # what is read and not decoded yet
    for byte in text:
        bits = bits << 8 | byte
        count += 8
        while count >= _SHORT_BITS:
            found = _SHORT[bits >> (count - _SHORT_BITS)] or _find_long(bits, count)
            if found is None:
                break
            out.append(found[0])
            count -= found[1]
            bits &= (1 << count) - 1
    while count:
        if count >= _SHORT_BITS:
            raise ValueError("saw Huffman text that ends in mid-symbol")
        missing = _SHORT_BITS - count
        found = _SHORT[bits << missing | (1 << missing) - 1]
        if found is None or found[1] > count:
            if bits != (1 << count) - 1:
                raise ValueError("saw Huffman text that is not padded with ones")
            break
        out.append(found[0])
        count -= found[1]
        bits &= (1 << count) - 1
    return bytes(out)


def _find_long(bits: int, count: int) -> tuple[int, int] | None:
    """Return the symbol whose long code comes first, and its bits; None where more bits are needed."""
    for length in _LONG_BITS:
        if length > count:
            return None
        symbol = _SYMBOLS.get((length, bits >> (count - length)))
        if symbol is not None:
            return symbol, length
    raise ValueError("saw the end of text within Huffman text")
