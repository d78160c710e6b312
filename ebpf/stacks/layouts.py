"""Where CPython keeps what a stack is read from, by version: offsets in bytes.

A version that is not here is refused. A layout holds for all patch releases, between which CPython does not change
these structures (seen in 3.11.2 and 3.11.7, 3.12.1, 3.13.0). 3.13 tells its own: `check_own_offsets` compares.

Source: CPython Include/internal/pycore_runtime.h, pycore_interp.h, pycore_frame.h; Include/cpython/pystate.h, code.h,
unicodeobject.h; of 64-bit builds that are neither debug (Py_TRACE_REFS) nor free-threaded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LAYOUTS", "OWN_OFFSETS_BYTES", "Layout", "check_own_offsets"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of one version.

    Attributes:
        interpreters_head: In `_PyRuntimeState`: the first interpreter.
        threads_head: In `PyInterpreterState`: the newest thread.
        thread_next: In `PyThreadState`: the next thread.
        thread_native_id: The kernel's number of the thread.
        thread_frame: The frame that runs, or the C frame that points to it.
        frame_in_cframe: In `_PyCFrame`: the frame; None where the thread has it.
        frame_code: In `_PyInterpreterFrame`: the code object.
        frame_previous: The caller's frame.
        frame_owner: Who owns it, one byte.
        code_filename: In `PyCodeObject`: the source file.
        code_qualname: The function's name with those around it.
        code_first_line: Where it begins, 32 bits.
        text_ascii: In `PyASCIIObject`: where ASCII text begins.
        text_other: In `PyCompactUnicodeObject`: where other text begins.
    """

    interpreters_head: int
    threads_head: int
    thread_next: int
    thread_native_id: int
    thread_frame: int
    frame_in_cframe: int | None
    frame_code: int
    frame_previous: int
    frame_owner: int
    code_filename: int
    code_qualname: int
    code_first_line: int
    text_ascii: int
    text_other: int


LAYOUTS: Mapping[tuple[int, int], Layout] = {
    (3, 11): Layout(40, 16, 8, 160, 56, 8, 32, 48, 69, 112, 128, 72, 48, 72),
    (3, 12): Layout(40, 72, 8, 144, 56, 0, 0, 8, 70, 112, 128, 68, 40, 56),
    (3, 13): Layout(632, 7344, 8, 160, 72, None, 0, 8, 70, 112, 128, 68, 40, 56),
}

# `_Py_DebugOffsets` of 3.13, with which `_PyRuntime` begins: a cookie, the version, whether it is free-threaded, then
# the offsets in groups, each after the size of its structure.
COOKIE = b"xdebugpy"
OWN_OFFSETS = struct.Struct("<8s47Q")
OWN_OFFSETS_BYTES = OWN_OFFSETS.size
FREE_THREADED = 2
# Number of the word -> what it is.
OWN_WORDS = {
    5: "interpreters_head",
    9: "threads_head",
    21: "thread_next",
    23: "thread_frame",
    25: "thread_native_id",
    29: "frame_previous",
    30: "frame_code",
    33: "frame_owner",
    35: "code_filename",
    37: "code_qualname",
    39: "code_first_line",
}


def check_own_offsets(data: bytes, layout: Layout) -> str | None:
    """Return why a layout does not fit what the interpreter says of itself; None where it fits.

    Args:
        data: The first `OWN_OFFSETS_BYTES` of its `_PyRuntime`.
        layout: What is to be checked.
    """
    if len(data) < OWN_OFFSETS.size or data[:8] != COOKIE:
        return "it does not tell its offsets"
    words = OWN_OFFSETS.unpack_from(data)
    if words[FREE_THREADED]:
        return "it is free-threaded"
    for number, name in OWN_WORDS.items():
        if words[number] != getattr(layout, name):
            return f"{name} is {words[number]}, not {getattr(layout, name)}"
    return None
