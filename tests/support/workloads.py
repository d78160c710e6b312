"""Small processes with known behaviour, to compare what the kernel tells with what they did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

BURN = (
    "import os, time\n"
    "os.sched_setaffinity(0, {%d})\n"
    "end = time.monotonic() + %f\n"
    "while time.monotonic() < end: pass\n"
)
THREADS = (
    "import ctypes, os, threading, zlib\n"
    "os.sched_setaffinity(0, {%d})\n"
    "data = bytes(50_000_000)\n"  # zlib lets go of the interpreter lock, so both really want the CPU
    "pair = [threading.Thread(target=lambda: [zlib.crc32(data) for _ in range(10_000)], daemon=True) for _ in '12']\n"
    "[thread.start() for thread in pair]\n"
    "[thread.join() for thread in pair]\n"
)
# The child ends with its parent: the pipe is closed then.
PING_PONG = (
    "import os\n"
    "os.sched_setaffinity(0, {%d})\n"
    "(a, b), (c, d) = os.pipe(), os.pipe()\n"
    "if os.fork():\n"
    "    os.close(a), os.close(d)\n"
    "    while os.write(b, b'x') and os.read(c, 1): pass\n"
    "else:\n"
    "    os.close(b), os.close(c)\n"
    "    while os.read(a, 1) and os.write(d, b'x'): pass\n"
)
SLEEP = "import time\nend = time.monotonic() + %f\nwhile time.monotonic() < end: time.sleep(0.02)\n"


def last_cpu() -> int:
    """Return the highest CPU that this process may use."""
    return max(os.sched_getaffinity(0))


@contextmanager
def python(
    code: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a piece of Python for the duration of a block, and end it then."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code], env={**os.environ, **(environment or {})}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def burn(cpu: int, duration_s: float = 60.0) -> str:
    """Return code that keeps one CPU busy."""
    return BURN % (cpu, duration_s)


def two_threads(cpu: int) -> str:
    """Return code whose two threads compete for one CPU."""
    return THREADS % cpu


def ping_pong(cpu: int) -> str:
    """Return code of two processes that wake each other all the time on one CPU."""
    return PING_PONG % cpu


def sleeper(duration_s: float = 60.0) -> str:
    """Return code that sleeps nearly all of the time."""
    return SLEEP % duration_s


def wait_until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Wait for a condition; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not reached within {deadline_s} s")
        time.sleep(0.02)
