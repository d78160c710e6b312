"""The names of a process's Python functions, read from its code objects when a stack has them for the first time.

The addresses come from the kernel, but what lies there may have been freed since, or may never have been a code object:
its type is checked, and every length is bounded. What cannot be read is an unknown function, counted.
"""

from __future__ import annotations

import struct
from collections import OrderedDict

from rootwalk.ebpf.stacks.interpreters import Interpreter
from rootwalk.ebpf.stacks.process_memory import Memory
from rootwalk.instrumentation.profiles import Frame, FrameKind

__all__ = ["UNKNOWN_PYTHON", "CodeNames", "find_package"]

UNKNOWN_PYTHON = Frame(FrameKind.CPYTHON, "unknown")
REMEMBERED = 8192
# Another function may lie where a freed one lay: a name is looked at again after so long.
KNOWN_FOR_S = 30.0
MAX_NAME = 200
# Of a path its end: the file's name, and as a rule the package that it belongs to.
MAX_PATH = 200
MAX_FILE_NAME = 100
MAX_PACKAGE = 64
MAX_TEXT = 65_536
# Where pip and Debian's packages put what they install.
INSTALLED = ("/site-packages/", "/dist-packages/")
CODE_BYTES = 136
TYPE_OFFSET = 8
WORD = struct.Struct("<Q")
LINE = struct.Struct("<i")
TEXT_HEAD = struct.Struct("<qqI")  # PyASCIIObject from its length on: length, hash, state
LENGTH_OFFSET = 16
# Bits of `state`: interned, then kind (bytes a character), compact, ascii.
KIND_SHIFT, COMPACT, ASCII = 2, 1 << 5, 1 << 6
ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def find_package(path: str) -> str:
    """Return the installed package that a source file belongs to; empty where it lies elsewhere.

    >>> find_package("/opt/lib/python3.12/site-packages/torch/nn/modules/module.py")
    'torch'
    """
    for folder in INSTALLED:
        _, found, inside = path.rpartition(folder)
        if found:
            return inside.partition("/")[0].removesuffix(".py")[:MAX_PACKAGE]
    return ""


class CodeNames:
    """Functions of one process.

    Args:
        memory: Its memory.
        interpreter: Its interpreter.

    Attributes:
        unread: Code objects that could not be read.
    """

    def __init__(self, memory: Memory, interpreter: Interpreter) -> None:
        self._memory = memory
        self._interpreter = interpreter
        self._layout = interpreter.layout
        self._known: OrderedDict[int, tuple[Frame, float]] = OrderedDict()
        self.unread = 0

    def frame(self, address: int, now_s: float) -> Frame:
        """Return the function of a code object.

        Args:
            address: Where it lies.
            now_s: Monotonic clock, s.
        """
        known = self._known.get(address)
        if known is not None and now_s - known[1] < KNOWN_FOR_S:
            return known[0]
        frame = self._read(address)
        if frame is None:
            self.unread += 1
            # A process that has ended still had this function a moment ago.
            return known[0] if known is not None else UNKNOWN_PYTHON
        self._known[address] = frame, now_s
        self._known.move_to_end(address)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return frame

    def _read(self, address: int) -> Frame | None:
        data = self._memory.read(address, CODE_BYTES)
        if len(data) < CODE_BYTES:
            return None
        layout, code_type = self._layout, self._interpreter.code_type
        if code_type is not None and WORD.unpack_from(data, TYPE_OFFSET)[0] != code_type:
            return None
        name = self._text(WORD.unpack_from(data, layout.code_qualname)[0], MAX_NAME)
        path = self._text(WORD.unpack_from(data, layout.code_filename)[0], MAX_PATH, tail=True)
        line = LINE.unpack_from(data, layout.code_first_line)[0]
        if not name or path is None or not 0 <= line < 1 << 30:
            return None
        path = path.replace("\\", "/")
        file = path.rpartition("/")[2][-MAX_FILE_NAME:]
        package = find_package(path)
        return Frame(FrameKind.CPYTHON, name, file=file, first_line=line, package=package)

    def _text(self, address: int, most: int, *, tail: bool = False) -> str | None:
        """Return a Python string, its first or last characters; None where there is none."""
        head = self._memory.read(address + LENGTH_OFFSET, TEXT_HEAD.size)
        if len(head) < TEXT_HEAD.size:
            return None
        length, _, state = TEXT_HEAD.unpack(head)
        width = state >> KIND_SHIFT & 7
        if not 0 < length <= MAX_TEXT or width not in ENCODINGS or not state & COMPACT:
            return None
        layout = self._layout
        begin = address + (layout.text_ascii if state & ASCII else layout.text_other)
        taken = min(length, most)
        if tail:
            begin += (length - taken) * width
        data = self._memory.read(begin, taken * width)
        if len(data) != taken * width:
            return None
        text = data.decode(ENCODINGS[width], "replace")
        return "".join(one if one.isprintable() else "?" for one in text)
