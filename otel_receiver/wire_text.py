"""Compiled: JSON text of strings and numbers, byte for byte what `json` and `repr` of Python write.

Doubles are written with the fewest digits that read back as the same number (Schubfach, Raffaello Giulietti, "The
Schubfach way to render doubles", 2021): two 64-bit products a number and no table but the powers of ten.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from rootwalk.otel_receiver.wire_words import WORD_BYTES, load_word, multiply_high, store_word

__all__ = ["write_double", "write_int", "write_string"]

_MIN_POWER: Final = -292
_MAX_POWER: Final = 324


def _floor_log2_pow10(power: int) -> int:
    return (power * 1741647) >> 19


def _powers_of_ten() -> Any:
    """Return 10**k for every k as 128 bits with the highest set, rounded up, as pairs of 64 (high, low)."""
    rows = []
    for power in range(_MIN_POWER, _MAX_POWER + 1):
        shift = 127 - _floor_log2_pow10(power)
        numerator = 10 ** max(power, 0) << max(shift, 0)
        denominator = 10 ** max(-power, 0) << max(-shift, 0)
        scaled = -(-numerator // denominator)
        rows.append((scaled >> 64, scaled & (2**64 - 1)))
    return np.array(rows, dtype=np.uint64)


_POWERS: Final = _powers_of_ten()
_0: Final = np.uint64(0)
_1: Final = np.uint64(1)
_2: Final = np.uint64(2)
_4: Final = np.uint64(4)
_10: Final = np.uint64(10)
_8: Final = np.uint64(8)
_40: Final = np.uint64(40)
_10_000: Final = np.uint64(10_000)
_10_TO_8: Final = np.uint64(100_000_000)
# In every byte of a word: its lowest bit, its highest, and what is looked for in JSON strings.
_LOWEST: Final = np.uint64(0x0101010101010101)
_ALL: Final = np.uint64(2**64 - 1)
_HIGHEST: Final = np.uint64(0x8080808080808080)
_SPACES: Final = np.uint64(0x2020202020202020)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_EXPONENT_SHIFT: Final = np.uint64(52)
_SIGN_SHIFT: Final = np.uint64(63)
_SIGNIFICAND: Final = np.uint64((1 << 52) - 1)
_HIDDEN_BIT: Final = np.uint64(1 << 52)
_EXPONENT_MASK: Final = np.uint64(0x7FF)
_NOT_A_NUMBER: Final = np.frombuffer(b'{"doubleValue":"NaN"}', np.uint8)
_INFINITE: Final = np.frombuffer(b'{"doubleValue":"Infinity"}', np.uint8)
_MINUS_INFINITE: Final = np.frombuffer(b'{"doubleValue":"-Infinity"}', np.uint8)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@njit(forceinline=True)
def _round_to_odd(power_high: Any, power_low: Any, number: Any) -> Any:
    high, low = multiply_high(power_high, number), power_high * number
    total = low + multiply_high(power_low, number)
    if total < low:
        high += _1
    return high | (_1 if total > _1 else _0)


@njit
def _shortest_decimal(significand: Any, exponent: Any) -> Any:
    """Return (digits, power of ten) of a positive finite double."""
    if exponent != 0:
        c = _HIDDEN_BIT | significand
        q = exponent - 1075
        if -53 < q <= 0:
            rest = np.uint64(-q)
            if c & ((_1 << rest) - _1) == _0:
                return c >> rest, 0
    else:
        c = significand
        q = -1074
    is_odd = c & _1
    is_lower_closer = significand == _0 and exponent > 1
    k = (q * 1262611 - (524031 if is_lower_closer else 0)) >> 22
    h = np.uint64(q + ((-k * 1741647) >> 19) + 1)
    high, low = _POWERS[-k - _MIN_POWER, 0], _POWERS[-k - _MIN_POWER, 1]
    middle = _4 * c
    lower = _round_to_odd(high, low, (middle - (_1 if is_lower_closer else _2)) << h) + is_odd
    value = _round_to_odd(high, low, middle << h)
    upper = _round_to_odd(high, low, (middle + _2) << h) - is_odd
    s = value >> _2
    if s >= _10:
        tens = s // _10
        is_low_inside = lower <= _40 * tens
        is_high_inside = _40 * tens + _40 <= upper
        if is_low_inside != is_high_inside:
            return tens + (_1 if is_high_inside else _0), k + 1
    is_low_inside = lower <= _4 * s
    is_high_inside = _4 * s + _4 <= upper
    if is_low_inside != is_high_inside:
        return s + (_1 if is_high_inside else _0), k
    half = _4 * s + _2
    is_up = value > half or (value == half and (s & _1) != _0)
    return s + (_1 if is_up else _0), k


@njit
def _write_bytes(out: Any, at: int, text: Any) -> Any:
    for index in range(text.size):
        out[at + index] = text[index]
    return at + text.size


@njit(forceinline=True)
def _eight_digits(number: Any) -> Any:
    """Return the eight digits of a number below 10**8 as text in a word, by halves, quarters and eighths."""
    halves = number // _10_000 | (number % _10_000) << np.uint64(32)
    hundreds = (halves * np.uint64(10486) >> np.uint64(20)) & np.uint64(0x7F0000007F)
    quarters = hundreds | (halves - hundreds * np.uint64(100)) << np.uint64(16)
    tens = (quarters * np.uint64(103) >> np.uint64(10)) & np.uint64(0xF000F000F000F)
    return (tens | (quarters - tens * _10) << _8) | np.uint64(0x3030303030303030)


@njit(forceinline=True)
def _write_few_digits(out: Any, at: int, number: Any) -> Any:
    """Write a number below 10**8 in decimal and return the end."""
    word = np.uint64(48) + number % _10
    count = 1
    number //= _10
    while number:
        word = word << _8 | (np.uint64(48) + number % _10)
        count += 1
        number //= _10
    store_word(out, at, word)
    return at + count


@njit
def _write_digits(out: Any, at: int, number: Any) -> Any:
    """Write a number in decimal and return the end."""
    if number < _10_TO_8:
        return _write_few_digits(out, at, number)
    high, low = number // _10_TO_8, number % _10_TO_8
    if high < _10_TO_8:
        at = _write_few_digits(out, at, high)
    else:
        at = _write_few_digits(out, at, high // _10_TO_8)
        store_word(out, at, _eight_digits(high % _10_TO_8))
        at += 8
    store_word(out, at, _eight_digits(low))
    return at + 8


@njit
def write_int(out: Any, at: int, number: Any) -> Any:
    """Write a signed 64-bit number given as its unsigned bits, and return the end."""
    if number >> _SIGN_SHIFT:
        out[at] = 45
        at += 1
        number = ~number + _1
    return _write_digits(out, at, number)


@njit
def write_double(out: Any, at: int, bits: Any) -> Any:
    """Write a double given as its bits, at most 32 bytes, and return the end."""
    exponent = np.int64((bits >> _EXPONENT_SHIFT) & _EXPONENT_MASK)
    significand = bits & _SIGNIFICAND
    is_negative = bits >> _SIGN_SHIFT != _0
    if exponent == 0x7FF:
        if significand != _0:
            return _write_bytes(out, at, _NOT_A_NUMBER)
        return _write_bytes(out, at, _MINUS_INFINITE if is_negative else _INFINITE)
    if is_negative:
        out[at] = 45
        at += 1
    if exponent == 0 and significand == _0:
        digits, power = _0, 0
    else:
        digits, power = _shortest_decimal(significand, exponent)
        while digits % _10 == _0:
            digits //= _10
            power += 1
    return _write_decimal(out, at, digits, power)


@njit
def _write_decimal(out: Any, at: int, digits: Any, power: int) -> Any:
    """Write digits * 10**power as repr does: with an exponent below 1e-4 and from 1e16 on."""
    end = _write_digits(out, at, digits)
    count = end - at
    point = count + power
    if point > 16 or point <= -4:
        if count > 1:
            for index in range(end, at + 1, -1):
                out[index] = out[index - 1]
            out[at + 1] = 46
            end += 1
        out[end] = 101
        shown = point - 1
        out[end + 1] = 45 if shown < 0 else 43
        end += 2
        if abs(shown) < 10:
            out[end] = 48
            end += 1
        return _write_digits(out, end, np.uint64(abs(shown)))
    if point <= 0:
        shift = 2 - point
        for index in range(end - 1, at - 1, -1):
            out[index + shift] = out[index]
        for index in range(at, at + shift):
            out[index] = 48
        out[at + 1] = 46
        return end + shift
    if power >= 0:
        for index in range(power):
            out[end + index] = 48
        out[end + power] = 46
        out[end + power + 1] = 48
        return end + power + 2
    for index in range(end, at + point, -1):
        out[index] = out[index - 1]
    out[at + point] = 46
    return end + 1


@njit(forceinline=True)
def _has_escapes(word: Any) -> Any:
    """Say whether one of eight bytes is a control character, a quote or a backslash."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    found = (word - _SPACES) & ~word
    found |= (quotes - _LOWEST) & ~quotes
    found |= (backslashes - _LOWEST) & ~backslashes
    return found & _HIGHEST != _0


@njit
def _write_escaped(out: Any, at: int, byte: Any) -> Any:
    """Write one byte of a JSON string and return the end."""
    if byte >= 32 and byte != 34 and byte != 92:
        out[at] = byte
        return at + 1
    out[at] = 92
    at += 1
    short = np.uint8(0)
    if byte == 34 or byte == 92:
        short = byte
    elif byte == 10:
        short = np.uint8(110)
    elif byte == 13:
        short = np.uint8(114)
    elif byte == 9:
        short = np.uint8(116)
    elif byte == 12:
        short = np.uint8(102)
    elif byte == 8:
        short = np.uint8(98)
    if short:
        out[at] = short
        return at + 1
    out[at] = 117
    out[at + 1] = 48
    out[at + 2] = 48
    out[at + 3] = _HEX[byte >> 4]
    out[at + 4] = _HEX[byte & 15]
    return at + 5


@njit(forceinline=True)
def write_string(out: Any, at: int, data: Any, start: int, end: int) -> Any:
    """Write valid UTF-8 as a JSON string, at most six bytes for each and two, and return the end."""
    out[at] = 34
    at += 1
    while start < end:
        size = min(end - start, WORD_BYTES)
        word = load_word(data, start)
        beyond = np.uint64(8 * (WORD_BYTES - size))
        # What follows the string becomes spaces, which need no escape; a shift by 64 cannot be.
        if _has_escapes((word << beyond >> beyond) | (_SPACES & ~(_ALL >> beyond))):
            for index in range(start, start + size):
                at = _write_escaped(out, at, data[index])
        else:
            store_word(out, at, word)
            at += size
        start += size
    out[at] = 34
    return at + 1
