"""A program whose threads stand at known places: what a snapshot of it has to show.

    python waiting_program.py [LIBRARY]

With a library, its main thread waits inside of a C function that is called through ctypes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator

LOCK = threading.Lock()
LONG_S = 3600.0


def sleep_in_generator() -> Iterator[int]:
    """Sleep before the first value."""
    time.sleep(LONG_S)  # HERE: generator
    yield 1


class Trainer:
    """Waits in nested calls."""

    def step(self, depth: int) -> int:
        """Go deeper, and wait."""
        if depth:
            return self.step(depth - 1)
        if len(sys.argv) > 1:
            return int(ctypes.CDLL(sys.argv[1]).wait_outer(int(LONG_S)))  # HERE: library
        return sum(one for one in sleep_in_generator())  # HERE: step


def wait_for_lock() -> None:
    """Take a lock that is held."""
    with LOCK:  # HERE: lock
        pass


def spin() -> None:
    """Count without end."""
    count = 0
    while True:
        count += 1  # HERE: spin


def work_in_child() -> None:
    """Wait as a loader's worker does."""
    time.sleep(LONG_S)  # HERE: child


def main() -> None:
    """Start all, say the child's number, and wait."""
    LOCK.acquire()
    child = os.fork()
    if not child:
        work_in_child()
    for function in (wait_for_lock, spin):
        threading.Thread(target=function, daemon=True).start()
    sys.stdout.write(f"{child}\n")
    sys.stdout.flush()
    sorted([2], key=Trainer().step)  # HERE: main


if __name__ == "__main__":
    main()
