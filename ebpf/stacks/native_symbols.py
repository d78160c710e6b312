"""The functions of the files that processes have mapped, by build id: a library that all ranks map is read once.

Kept are the last `REMEMBERED_FILES` files' tables (16 bytes a function) and the last `REMEMBERED_NAMES` functions.
Names stay as they are in the file: those of C++ are mangled.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from rootwalk.ebpf.stacks.elf_files import ElfFile, Functions, read_name
from rootwalk.ebpf.stacks.mappings import Mapping, Mappings
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.profiles import Binary, Frame, FrameKind

__all__ = ["UNKNOWN_NATIVE", "FileFunctions", "NativeSymbols"]

UNKNOWN_NATIVE = Frame(FrameKind.NATIVE, "unknown")
REMEMBERED_FILES = 64
REMEMBERED_NAMES = 16_384
MAX_NAME = 400


class FileFunctions(NamedTuple):
    """What is known of a file.

    Attributes:
        binary: What it is called.
        segments: Of its loaded segments: place in the file, bytes there, address.
        functions: None where it has no symbols.
    """

    binary: Binary
    segments: tuple[tuple[int, int, int], ...]
    functions: Functions | None

    def address_of(self, offset: int) -> int | None:
        """Return the address of a place in the file, in its own numbers."""
        for begin, size, address in self.segments:
            if begin <= offset < begin + size:
                return offset - begin + address
        return None


class NativeSymbols:
    """Owns the tables.

    Attributes:
        unreadable: Files that could not be read.
    """

    def __init__(self) -> None:
        # By inode, size and path; files of one build id share what is known.
        self._files: OrderedDict[tuple[int, str], FileFunctions] = OrderedDict()
        self._by_build: OrderedDict[str, FileFunctions] = OrderedDict()
        self._frames: OrderedDict[tuple[int, str, int], Frame] = OrderedDict()
        self.unreadable = 0

    def frame(self, mappings: Mappings, mapping: Mapping, address: int) -> Frame:
        """Return the function at an address of a process.

        Args:
            mappings: The process's.
            mapping: The one that the address lies in.
            address: Where.
        """
        if not mapping.is_file:
            # Code that was made at run time, or that the kernel lends: nothing tells its names.
            name = mapping.path.strip("[]") if mapping.path.startswith("[") else "anonymous"
            return Frame(FrameKind.NATIVE, "unknown", binary=Binary(name[:MAX_NAME]))
        found = self._file(mappings, mapping)
        own = found.address_of(address - mapping.start + mapping.offset)
        if own is None:
            return Frame(FrameKind.NATIVE, "unknown", binary=found.binary)
        return self._function(mappings, mapping, found, own)

    def _function(
        self, mappings: Mappings, mapping: Mapping, found: FileFunctions, own: int
    ) -> Frame:
        functions = found.functions
        place = functions.find(own) if functions is not None else None
        if functions is None or place is None:
            return Frame(FrameKind.NATIVE, None, binary=found.binary, address=own)
        key = mapping.inode, mapping.path, place
        frame = self._frames.get(key)
        if frame is None:
            name = _read_name(mappings, mapping, functions, place)
            at = int(functions.at[place])
            frame = Frame(FrameKind.NATIVE, name, binary=found.binary, address=at)
            self._frames[key] = frame
            if len(self._frames) > REMEMBERED_NAMES:
                self._frames.popitem(last=False)
        return frame

    def _file(self, mappings: Mappings, mapping: Mapping) -> FileFunctions:
        key = mapping.inode, mapping.path
        found = self._files.get(key)
        if found is None:
            found = self._files[key] = self._read(mappings, mapping)
            if len(self._files) > REMEMBERED_FILES:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(key)
        return found

    def _read(self, mappings: Mappings, mapping: Mapping) -> FileFunctions:
        name = mapping.path.rpartition("/")[2][:MAX_NAME]
        try:
            with mappings.open(mapping) as file:
                elf = ElfFile(file)
                build_id = elf.build_id()
                known = self._by_build.get(build_id or "")
                if known is not None:
                    return known
                functions = elf.functions()
                segments = tuple((s[2], s[5], s[3]) for s in elf.segments if s[0] == 1)
        except (OSError, DecodeError, ValueError):
            self.unreadable += 1
            return FileFunctions(Binary(name), (), None)
        found = FileFunctions(Binary(name, build_id), segments, functions)
        if build_id is not None:
            self._by_build[build_id] = found
            if len(self._by_build) > REMEMBERED_FILES:
                self._by_build.popitem(last=False)
        return found


def _read_name(
    mappings: Mappings, mapping: Mapping, functions: Functions, place: int
) -> str | None:
    try:
        with mappings.open(mapping) as file:
            name = read_name(file, functions.text, int(functions.name[place]))
    except (OSError, DecodeError, ValueError):
        return None
    return "".join(one if one.isprintable() else "?" for one in name[:MAX_NAME]) or None
