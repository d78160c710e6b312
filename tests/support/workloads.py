"""Small processes with known behaviour, to compare what the kernel tells with what they did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

BURN = (
    "import os, time\n"
    "os.sched_setaffinity(0, {%d})\n"
    "end = time.monotonic() + %f\n"
    "while time.monotonic() < end: pass\n"
)
# A neighbour with a name of its own: one can tell that the name was found and not guessed.
NAMED_BURN = (
    "import ctypes, os\n"
    "ctypes.CDLL(None).prctl(15, b'%s', 0, 0, 0)\n"  # PR_SET_NAME
    "os.sched_setaffinity(0, {%d})\n"
    "while True: pass\n"
)
THREADS = (
    "import ctypes, os, threading, zlib\n"
    "os.sched_setaffinity(0, {%d})\n"
    "data = bytes(50_000_000)\n"  # zlib lets go of the interpreter lock, so both really want the CPU
    "pair = [threading.Thread(target=lambda: [zlib.crc32(data) for _ in range(10_000)], daemon=True) for _ in '12']\n"
    "[thread.start() for thread in pair]\n"
    "[thread.join() for thread in pair]\n"
)
# Each thread keeps a CPU busy: zlib lets go of the interpreter lock.
EVERYWHERE = (
    "import threading, zlib\n"
    "data = bytes(50_000_000)\n"
    "work = lambda: [zlib.crc32(data) for _ in range(10_000)]\n"
    "threads = [threading.Thread(target=work, daemon=True) for _ in range(%d)]\n"
    "[thread.start() for thread in threads]\n"
    "[thread.join() for thread in threads]\n"
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
SLEEP = "import time\nend = time.monotonic() + %f\nwhile time.monotonic() < end: time.sleep(%f)\n"


def taken_ns() -> int:
    """Return for how long interrupts and other machines have had this machine's CPUs, all together.

    Which the kernel charges to no thread, though one of them counts as running meanwhile: no switch takes place.
    """
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    interrupts, soft_interrupts, stolen = (int(field) for field in fields[6:9])
    return (interrupts + soft_interrupts + stolen) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def check_ran(ran_ns: int, account_ns: int, taken_ns: int, rel: float, least_ns: int = 0) -> None:
    """Check for how long somebody ran by switches against the kernel's account, which leaves out what was taken."""
    near_ns = max(rel * account_ns, least_ns)
    assert account_ns - near_ns <= ran_ns <= account_ns + taken_ns + near_ns


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


def named_burn(cpu: int, name: str) -> str:
    """Return code that keeps one CPU busy under a command name of at most 15 bytes."""
    return NAMED_BURN % (name, cpu)


def burn_everywhere(threads: int) -> str:
    """Return code whose threads keep as many CPUs busy."""
    return EVERYWHERE % threads


def two_threads(cpu: int) -> str:
    """Return code whose two threads compete for one CPU."""
    return THREADS % cpu


def ping_pong(cpu: int) -> str:
    """Return code of two processes that wake each other all the time on one CPU."""
    return PING_PONG % cpu


def sleeper(duration_s: float = 60.0, nap_s: float = 0.02) -> str:
    """Return code that sleeps nearly all of the time, so long each time."""
    return SLEEP % (duration_s, nap_s)


def state_of(pid: int) -> str:
    """Return the letter of a process's state, as ps shows it."""
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return stat.rpartition(")")[2].split()[0]


def wait_until(
    condition: Callable[[], bool], deadline_s: float = 10.0, period_s: float = 0.02
) -> None:
    """Wait for a condition, looking every `period_s`; fail after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not reached within {deadline_s} s")
        time.sleep(period_s)
