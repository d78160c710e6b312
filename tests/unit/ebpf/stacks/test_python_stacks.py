"""Python stacks out of another process's memory: the right ones of a synthetic one, and an end in every broken one."""

from __future__ import annotations

import struct
from random import Random

import pytest

from rootwalk.ebpf.stacks.frame_layouts import (
    KNOWN_VERSIONS,
    STATED,
    WORDS_3_14,
    FrameLayout,
    choose_frame_layout,
)
from rootwalk.ebpf.stacks.interpreters import Located
from rootwalk.ebpf.stacks.layouts import COOKIE
from rootwalk.ebpf.stacks.python_stacks import MAX_FRAMES, MAX_THREADS, PythonStacks

RUNTIME, INTERPRETER, STATE, TYPE = 0x10000, 0x20000, 0x30000, 0x40000
FRAMES, CODES, TEXTS = 0x100000, 0x200000, 0x300000
PID = 77
# What a 3.14.0 states, but for the two large ones.
OFFSETS_3_14 = {
    "interpreters_head": 800,
    "interpreter_next": 7344,
    "threads_head": 7432,
    "thread_next": 8,
    "thread_frame": 72,
    "thread_id": 152,
    "thread_native_id": 160,
    "frame_previous": 8,
    "frame_code": 0,
    "frame_instruction": 56,
    "frame_owner": 74,
    "code_filename": 112,
    "code_qualname": 128,
    "code_lines": 136,
    "code_first_line": 68,
    "code_instructions": 208,
}


class Room:
    """Memory that is written word by word; what was not written cannot be read."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.reads = 0

    def write(self, address: int, data: bytes) -> None:
        for place, one in enumerate(data):
            page, at = divmod(address + place, 4096)
            self.pages.setdefault(page, bytearray(4096))[at] = one

    def word(self, address: int, value: int) -> None:
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        found = bytearray()
        while len(found) < size:
            page, at = divmod(address + len(found), 4096)
            if page not in self.pages:
                break
            found += self.pages[page][at : at + size - len(found)]
        return bytes(found)


def stated(**changes: int) -> bytes:
    words: list[int] = [0] * 48
    for name, number in WORDS_3_14.items():
        words[number - 1] = {**OFFSETS_3_14, **changes}.get(name, 0)
    words[1] = changes.get("free_threaded", 0)
    return STATED.pack(COOKIE, *words)


def layout_of(version: tuple[int, int]) -> FrameLayout:
    found = choose_frame_layout((3, 12) if version == (3, 13) else version, stated())
    assert found is not None
    return found


class Made:
    """A process with one thread in a chain of frames, in the form of one version."""

    def __init__(self, version: tuple[int, int], frames: int, tag: int = 0) -> None:
        self.room, self.layout = Room(), layout_of(version)
        base = self.layout.base
        self.located = Located(version, RUNTIME, TYPE, "python")
        self.room.word(RUNTIME + base.interpreters_head, INTERPRETER)
        self.room.word(INTERPRETER + base.threads_head, STATE)
        self.room.word(INTERPRETER + self.layout.interpreter_next, 0)
        self.room.word(STATE + base.thread_next, 0)
        if self.layout.has_native_id:
            self.room.word(STATE + base.thread_native_id, PID)
        else:
            self.room.word(STATE + self.layout.thread_id, STATE + 0x2000)
            self.room.write(STATE + 0x2000, struct.pack("<180ii75i", *[1] * 180, PID, *[2] * 75))
        first = FRAMES
        if base.frame_in_cframe is not None:
            first = STATE + 0x1000
            self.room.word(first + base.frame_in_cframe, FRAMES)
        self.room.word(STATE + base.thread_frame, first)
        for place in range(frames):
            self.frame(place, FRAMES + 0x100 * (place + 1) if place + 1 < frames else 0, tag)

    def frame(self, place: int, previous: int, tag: int, owner: int = 0) -> None:
        base, at, code = self.layout.base, FRAMES + 0x100 * place, CODES + 0x1000 * place
        self.room.write(at, bytes(128))
        self.room.word(at + base.frame_previous, previous)
        self.room.word(at + base.frame_code, code | tag)
        begin = self.layout.code_instructions
        self.room.word(at + self.layout.frame_instruction, code + begin + 4 if begin else 2)
        if self.layout.has_owner:
            self.room.write(at + base.frame_owner, bytes([owner]))
        self.room.write(code, bytes(256))
        self.room.word(code + 8, TYPE)
        for name, offset in ((f"f{place}", base.code_qualname), ("/a/b.py", base.code_filename)):
            text = TEXTS + 0x1000 * place + offset * 8
            self.room.word(code + offset, text)
            head = struct.pack("<QQqqI", 1, 1, len(name), -1, 1 << 2 | 1 << 5 | 1 << 6)
            self.room.write(text, head.ljust(base.text_ascii, b"\0") + name.encode())
        self.room.write(code + base.code_first_line, struct.pack("<i", 10))
        # The third unit of 2 bytes is 3 lines below the first line.
        table = bytes([0x80 | 13 << 3 | 1, 2, 0x80 | 13 << 3, 4])
        table = bytes([4, 1, 2, 2]) if begin is None else table
        lines = TEXTS + 0x1000 * place + 0x800
        self.room.word(code + self.layout.code_lines, lines)
        self.room.write(lines, struct.pack("<QQqq", 1, 1, len(table), -1) + table)

    def stack(self) -> list[str]:
        stacks = PythonStacks(self.room, self.located, self.layout)
        threads = stacks.threads(PID, {PID: PID, 99: 99})
        assert [thread.tid for thread in threads] == [PID]
        return [f"{one.function} {one.file}:{one.line}" for one in stacks.frames(threads[0], 0.0)]


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_a_stack_is_read_with_its_lines(version: tuple[int, int]) -> None:
    made = Made(version, 3, tag=1 if version == (3, 14) else 0)
    assert made.stack() == ["f0 b.py:13", "f1 b.py:13", "f2 b.py:13"]


def test_frames_of_calls_from_c_are_left_out() -> None:
    made = Made((3, 12), 4)
    made.frame(1, FRAMES + 0x200, 0, owner=3)
    assert made.stack() == ["f0 b.py:13", "f2 b.py:13", "f3 b.py:13"]


def test_a_frame_that_has_not_begun_stands_where_its_function_begins() -> None:
    made = Made((3, 12), 1)
    made.room.word(FRAMES + made.layout.frame_instruction, CODES + 192 - 2)
    assert made.stack() == ["f0 b.py:10"]


def test_a_chain_that_comes_back_ends() -> None:
    made = Made((3, 12), 3)
    made.room.word(FRAMES + 0x200 + made.layout.base.frame_previous, FRAMES)
    assert made.stack() == ["f0 b.py:13", "f1 b.py:13", "f2 b.py:13"]


def test_of_a_recursion_the_innermost_frames_are_read() -> None:
    made = Made((3, 11), MAX_FRAMES + 30)
    stack = made.stack()
    assert len(stack) == MAX_FRAMES
    assert stack[0] == "f0 b.py:13"


def test_a_stack_ends_at_what_is_no_code_object() -> None:
    made = Made((3, 12), 3)
    made.room.word(CODES + 0x1000 + 8, TYPE + 8)
    assert made.stack() == ["f0 b.py:13"]


def test_threads_that_come_back_to_each_other_end() -> None:
    made = Made((3, 12), 1)
    made.room.word(STATE + made.layout.base.thread_next, STATE)
    assert made.stack() == ["f0 b.py:13"]
    interpreter = INTERPRETER + made.layout.interpreter_next
    made.room.word(interpreter, INTERPRETER)
    assert made.stack() == ["f0 b.py:13"]
    assert made.room.reads < MAX_THREADS


def test_a_forked_child_has_its_own_number_though_its_state_has_its_parents() -> None:
    made = Made((3, 11), 1)
    stacks = PythonStacks(made.room, made.located, made.layout)
    (thread,) = stacks.threads(1234, {1234: 1234})
    assert thread.tid == 1234
    assert stacks.threads(1234, {1234: 1234, PID: PID})[0].tid == PID


def test_threads_of_a_container_have_the_numbers_that_the_host_knows() -> None:
    made = Made((3, 12), 1)
    stacks = PythonStacks(made.room, made.located, made.layout)
    assert [one.tid for one in stacks.threads(4000, {1: 4000, PID: 4077})] == [4077]


def test_offsets_that_a_3_14_states_are_taken_if_they_can_be_true() -> None:
    assert choose_frame_layout((3, 14), stated()) is not None
    assert choose_frame_layout((3, 14), stated(free_threaded=1)) is None
    assert choose_frame_layout((3, 14), stated(code_lines=144)) is None
    assert choose_frame_layout((3, 14), stated(threads_head=1 << 40)) is None
    assert choose_frame_layout((3, 14), stated()[:100]) is None
    assert choose_frame_layout((3, 13), stated()) is None
    assert choose_frame_layout((3, 9), stated()) is None


def test_random_memory_is_survived() -> None:
    random = Random(5)  # noqa: S311  (repeatable)
    for version in KNOWN_VERSIONS:
        for _ in range(150):
            made = Made(version, 4)
            for _ in range(20):
                page = random.choice(list(made.room.pages))
                at = page * 4096 + random.randrange(0, 600, 8)
                near = random.choice((0, FRAMES, CODES, TEXTS, STATE, random.getrandbits(64)))
                made.room.word(at, near + random.choice((0, 8, 0x100)))
            stacks = PythonStacks(made.room, made.located, made.layout)
            for thread in stacks.threads(PID, {PID: PID}):
                assert len(stacks.frames(thread, 0.0)) <= MAX_FRAMES
