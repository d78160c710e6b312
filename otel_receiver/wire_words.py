"""Compiled: eight bytes at a time, which numba has no words for.

Reads and writes reach up to seven bytes beyond what they are about, so every array has `WORD_BYTES` of room at its end.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["WORD_BYTES", "load_word", "multiply_high", "store_word", "to_double"]

WORD_BYTES: Final = 8

_WORD: Final = ir.IntType(64)
_DOUBLE_WORD: Final = ir.IntType(128)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    first = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(first, [at]), _WORD.as_pointer())


@intrinsic
def load_word(_context: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes from an offset on as a little-endian number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def store_word(_context: Any, out: Any, at: Any, word: Any) -> Any:
    """Write a number as eight little-endian bytes from an offset on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, word = arguments
        builder.store(word, _pointer(context, builder, signature.args[0], array, at), align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


@intrinsic
def multiply_high(_context: Any, a: Any, b: Any) -> Any:
    """Return the upper half of a product of unsigned 64-bit numbers."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(number, _DOUBLE_WORD) for number in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(_DOUBLE_WORD, 64)), _WORD)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def to_double(_context: Any, bits: Any) -> Any:
    """Return the double that has these bits."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), generate
