"""Where CPython keeps what a single stack with lines is read from, by version: offsets in bytes.

`layouts` has what the stack program needs for every sample. A single snapshot needs more (the instruction that runs,
the table of lines), and follows two more versions: 3.10, which knows threads by their POSIX number alone, and 3.14,
which states its own offsets and marks references in the low bits of an address.

Source: CPython Include/cpython/code.h, frameobject.h and pystate.h (3.10), Include/internal/pycore_frame.h (3.11 to
3.13), pycore_interpframe_structs.h, pycore_stackref.h and pycore_debug_offsets.h (3.14); 64-bit builds that are neither
debug nor free-threaded. Held against 3.10.13, 3.11.7, 3.12.1 and 3.13.0; 3.14 was read in its source alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from rootwalk.ebpf.stacks.layouts import (
    COOKIE,
    LAYOUTS,
    OWN_OFFSETS_BYTES,
    Layout,
    check_own_offsets,
)

__all__ = ["KNOWN_VERSIONS", "STATED_BYTES", "FrameLayout", "choose_frame_layout"]

# The beginning of `_PyRuntime` in which 3.14 states its offsets, as far as they are used here.
STATED = struct.Struct("<8s48Q")
STATED_BYTES = max(STATED.size, OWN_OFFSETS_BYTES)
FREE_THREADED = 2  # number of the word
# No offset of these structures is larger; the largest of 3.13 is 7,344.
MAX_OFFSET = 1 << 20
STATES_OFFSETS = (3, 13)
V3_14 = (3, 14)
# Number of the word in 3.14's `_PyRuntime`.
WORDS_3_14: Mapping[str, int] = {
    "interpreters_head": 5,
    "interpreter_next": 8,
    "threads_head": 9,
    "thread_next": 24,
    "thread_frame": 26,
    "thread_id": 27,
    "thread_native_id": 28,
    "frame_previous": 32,
    "frame_code": 33,
    "frame_instruction": 34,
    "frame_owner": 36,
    "code_filename": 40,
    "code_qualname": 42,
    "code_lines": 43,
    "code_first_line": 44,
    "code_instructions": 48,
}


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """Offsets of one version.

    Attributes:
        base: What the stack program knows, too; of 3.10 its native id and owner do not exist.
        interpreter_next: In `PyInterpreterState`: the next interpreter.
        thread_id: In `PyThreadState`: the POSIX number of the thread; with glibc, the address of its descriptor.
        frame_instruction: In the frame: the instruction that runs. An address; in 3.10 a number of 32 bits in units of
            2 bytes.
        code_lines: In `PyCodeObject`: the table of lines, a `bytes` object.
        code_instructions: Where the instructions begin in the code object; None where they are an object of their own.
        has_native_id: Whether a thread's state has the kernel's number of it.
        has_owner: Whether frames say who owns them; those of the interpreter's own calls from C are none of Python's.
    """

    base: Layout
    interpreter_next: int
    thread_id: int
    frame_instruction: int
    code_lines: int
    code_instructions: int | None
    has_native_id: bool = True
    has_owner: bool = True


_LAYOUTS: Mapping[tuple[int, int], FrameLayout] = {
    (3, 10): FrameLayout(
        Layout(32, 8, 8, 0, 24, None, 32, 24, 0, 104, 112, 40, 48, 72),
        *(0, 176, 96, 120, None),
        has_native_id=False,
        has_owner=False,
    ),
    (3, 11): FrameLayout(LAYOUTS[3, 11], 0, 152, 56, 136, 184),
    (3, 12): FrameLayout(LAYOUTS[3, 12], 0, 136, 56, 136, 192),
    (3, 13): FrameLayout(LAYOUTS[3, 13], 7264, 152, 56, 136, 200),
}
KNOWN_VERSIONS = (*_LAYOUTS, V3_14)


def choose_frame_layout(version: tuple[int, int], runtime: bytes) -> FrameLayout | None:
    """Return the layout of an interpreter; None where its version or build is not known.

    Args:
        version: Major and minor.
        runtime: The first `STATED_BYTES` of its `_PyRuntime`.
    """
    if version == V3_14:
        return _stated_layout(runtime)
    known = _LAYOUTS.get(version)
    if known is not None and version >= STATES_OFFSETS and check_own_offsets(runtime, known.base):
        return None
    return known


def _stated_layout(runtime: bytes) -> FrameLayout | None:
    """Return the layout that a 3.14 states; None where it cannot be one."""
    if len(runtime) < STATED.size or runtime[:8] != COOKIE:
        return None
    words = STATED.unpack_from(runtime)
    at = {name: words[number] for name, number in WORDS_3_14.items()}
    # The line table follows the qualified name, and the instructions end the code object: as in 3.11 to 3.13.
    is_likely = (
        not words[FREE_THREADED]
        and max(at.values()) < MAX_OFFSET
        and at["code_qualname"] + 8 == at["code_lines"] < at["code_instructions"]
        and at["frame_previous"] == at["frame_code"] + 8
        and at["thread_id"] + 8 == at["thread_native_id"]
    )
    if not is_likely:
        return None
    base = Layout(
        interpreters_head=at["interpreters_head"],
        threads_head=at["threads_head"],
        thread_next=at["thread_next"],
        thread_native_id=at["thread_native_id"],
        thread_frame=at["thread_frame"],
        frame_in_cframe=None,
        frame_code=at["frame_code"],
        frame_previous=at["frame_previous"],
        frame_owner=at["frame_owner"],
        code_filename=at["code_filename"],
        code_qualname=at["code_qualname"],
        code_first_line=at["code_first_line"],
        text_ascii=LAYOUTS[3, 13].text_ascii,
        text_other=LAYOUTS[3, 13].text_other,
    )
    return FrameLayout(
        base,
        interpreter_next=at["interpreter_next"],
        thread_id=at["thread_id"],
        frame_instruction=at["frame_instruction"],
        code_lines=at["code_lines"],
        code_instructions=at["code_instructions"],
    )
