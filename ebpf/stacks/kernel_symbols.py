"""The kernel's functions by address, from /proc/kallsyms. Needs root or CAP_SYSLOG; without, addresses there are 0."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from pathlib import Path

from rootwalk.instrumentation.profiles import Frame, FrameKind

__all__ = ["UNKNOWN_KERNEL", "KernelSymbols"]

UNKNOWN_KERNEL = Frame(FrameKind.KERNEL, "unknown")
FUNCTIONS = frozenset("tTwW")
# No function of the kernel is longer; what lies further behind a symbol is code that has no name.
MAX_FUNCTION_BYTES = 1 << 17
MAX_FUNCTIONS = 1_000_000


class KernelSymbols:
    """Owns the table, which is read once, when it is asked for the first time: some 100,000 functions, 4 MB, 0.1 s.

    Args:
        path: Where the kernel lists them.
    """

    def __init__(self, path: Path = Path("/proc/kallsyms")) -> None:
        self._path = path
        self._addresses: array[int] | None = None
        self._places: array[int] = array("I")
        self._names = b""
        self._frames: dict[int, Frame] = {}

    def frame(self, address: int) -> Frame:
        """Return the function at an address."""
        if self._addresses is None:
            self._addresses = self._read()
        place = bisect_right(self._addresses, address) - 1
        if place < 0 or address - self._addresses[place] >= MAX_FUNCTION_BYTES:
            return UNKNOWN_KERNEL
        begin = self._places[place]
        frame = self._frames.get(begin)
        if frame is None:
            name = self._names[begin : self._names.index(b"\0", begin)].decode("ascii", "replace")
            frame = self._frames[begin] = Frame(FrameKind.KERNEL, name)
        return frame

    def _read(self) -> array[int]:
        found: list[tuple[int, bytes]] = []
        try:
            with self._path.open("rb") as lines:
                for line in lines:
                    words = line.split(None, 3)
                    if len(words) > 2 and words[1].decode("latin-1") in FUNCTIONS:
                        found.append((int(words[0], 16), words[2]))
                        if len(found) >= MAX_FUNCTIONS:
                            break
        except (OSError, ValueError):
            found = []
        found = sorted(one for one in found if one[0])
        names = bytearray()
        for _, name in found:
            self._places.append(len(names))
            names += name + b"\0"
        self._names = bytes(names)
        return array("Q", (address for address, _ in found))
