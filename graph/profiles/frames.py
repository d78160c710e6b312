"""Frames of a profiles dictionary as names that are equal in every process, each name once.

A stack becomes a tuple of numbers, outermost frame first. Nothing in a dictionary is trusted: a number that it lacks
means none, a name may be empty or anything, and of a stack deeper than `MAX_DEPTH` both ends are kept.

Source: opentelemetry-proto 1.10, profiles/v1development: entry 0 of each table means none, a stack lists its leaf
first, the lines of a location their innermost function first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rootwalk.instrumentation import semconv

__all__ = ["MAX_DEPTH", "Frame", "FrameNumbers", "Stack", "read_stacks"]

# Deeper than people read; a recursion's middle says nothing that its ends do not.
MAX_DEPTH: Final = 256
# Templates of C++ have names of thousands of characters.
MAX_NAME: Final = 160
UNKNOWN: Final = "unknown"
CUT: Final = "(frames left out)"
PYTHON: Final = "cpython"
_TYPE_KEY: Final = semconv.PROFILE_FRAME_TYPE
_PACKAGE_KEY: Final = semconv.TRAINING_FRAME_PACKAGE
# Packages that run a job's code and are not written by its people, whoever else installs their own as a package.
FRAMEWORKS: Final = frozenset(
    (
        *(
            "torch",
            "functorch",
            "torchgen",
            "torchvision",
            "torchaudio",
            "torchtitan",
            "triton",
            "numpy",
        ),
        *(
            "accelerate",
            "deepspeed",
            "lightning",
            "lightning_fabric",
            "pytorch_lightning",
            "megatron",
        ),
        *(
            "transformers",
            "datasets",
            "tokenizers",
            "peft",
            "apex",
            "transformer_engine",
            "flash_attn",
            "xformers",
        ),
        *(
            "ray",
            "fsspec",
            "PIL",
            "cv2",
            "pandas",
            "pyarrow",
            "wandb",
            "mlflow",
            "tensorboard",
            "tqdm",
        ),
    )
)
_CYTHON_ENDS: Final = (".py", ".pyx")

# Numbers of frames, outermost first.
Stack = tuple[int, ...]


class Frame(NamedTuple):
    """One function: its name, the file or binary that it is in, and the line where it begins.

    `file` is empty and `line` 0 where they are not known; `is_python` tells whether it is the interpreter's frame.
    `package` is what its source was installed with; empty where it is the job's own, or the producer does not tell.
    """

    function: str
    file: str = ""
    line: int = 0
    is_python: bool = False
    package: str = ""

    @property
    def label(self) -> str:
        """What people read.

        >>> Frame("decode", "jpeg.py", 12, True).label
        'decode (jpeg.py:12)'
        """
        if not self.file or self.file in self.function:
            return self.function
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.function} ({place})"

    @property
    def is_own_code(self) -> bool:
        """Whether the job's people may have written it: Python, no module of Python's own library, no framework.

        A package's first file, and code without a file, may be anybody's: they count as not theirs.
        """
        if self.package in FRAMEWORKS:
            return False
        stem, dot, ending = self.file.rpartition(".")
        if not dot or f".{ending}" not in _CYTHON_ENDS or stem == "__init__":
            return False
        return stem not in sys.stdlib_module_names


class FrameNumbers:
    """The frames that were met, each with a number from 0."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._numbers: dict[Frame, int] = {}

    def number(self, frame: Frame) -> int:
        """Return a frame's number, a new one for a new frame."""
        number = self._numbers.get(frame)
        if number is None:
            number = self._numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return number


def read_stacks(dictionary: Any, indices: Sequence[int], numbers: FrameNumbers) -> dict[int, Stack]:
    """Return stacks of a dictionary by their index; those without a frame are one unknown frame.

    Args:
        dictionary: A message ProfilesDictionary, or anything shaped like it.
        indices: Of the stacks that are wanted.
        numbers: What the frames are numbered by; new ones are added.
    """
    places: dict[int, Stack] = {}

    def place(index: int) -> Stack:
        found = places.get(index)
        if found is None:
            frames = _frames_at(dictionary, index)
            found = places[index] = tuple(numbers.number(frame) for frame in frames)
        return found

    stacks: dict[int, Stack] = {}
    for index in indices:
        entry = _entry(dictionary.stack_table, index)
        leaf_first = () if entry is None else entry.location_indices
        cut: tuple[int, ...] = ()
        if len(leaf_first) > MAX_DEPTH:
            half = MAX_DEPTH // 2
            inner, outer = leaf_first[:half], leaf_first[-half:]
            cut = (numbers.number(Frame(CUT)),)
        else:
            inner, outer = leaf_first, ()
        found = [frame for location in reversed(outer) for frame in place(location)]
        found += cut
        found += [frame for location in reversed(inner) for frame in place(location)]
        stacks[index] = tuple(found) or (numbers.number(Frame(UNKNOWN)),)
    return stacks


def _entry(table: Any, index: int) -> Any | None:
    """Return an entry of a table; None for number 0 and for one that is not there."""
    return table[index] if 0 < index < len(table) else None


def _string(dictionary: Any, index: int) -> str:
    return str(_entry(dictionary.string_table, index) or "")


def _frames_at(dictionary: Any, index: int) -> list[Frame]:
    """Return the functions at a location, outermost first."""
    location = _entry(dictionary.location_table, index)
    if location is None:
        return [Frame(UNKNOWN)]
    mapping = _entry(dictionary.mapping_table, location.mapping_index)
    binary = "" if mapping is None else _base(_string(dictionary, mapping.filename_strindex))
    told = _attributes(dictionary, location)
    is_python, package = told.get(_TYPE_KEY) == PYTHON, _short(told.get(_PACKAGE_KEY, ""))
    frames = []
    for line in list(reversed(location.lines))[:MAX_DEPTH]:
        function = _entry(dictionary.function_table, line.function_index)
        if function is None:
            frames.append(Frame(UNKNOWN, binary))
            continue
        name = _short(_string(dictionary, function.name_strindex)) or UNKNOWN
        file = _base(_string(dictionary, function.filename_strindex))
        first = function.start_line if file and function.start_line > 0 else 0
        frames.append(Frame(name, file or binary, first, is_python, package))
    return frames or [Frame(f"{binary}+0x{location.address:x}" if binary else UNKNOWN, binary)]


def _attributes(dictionary: Any, location: Any) -> dict[str, str]:
    """Return a location's attributes that are text."""
    entries = (_entry(dictionary.attribute_table, index) for index in location.attribute_indices)
    return {
        _string(dictionary, one.key_strindex): one.value.string_value
        or _string(dictionary, one.value.string_value_strindex)
        for one in entries
        if one is not None
    }


def _base(path: str) -> str:
    return _short(path.replace("\\", "/").rpartition("/")[2])


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
