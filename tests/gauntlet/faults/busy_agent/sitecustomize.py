"""Read by every Python that finds it on its path: starts a busy thread in the agent's process, only there."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

SCHED_IDLE = 5


def compute(file: Path) -> None:
    """Compute whenever the file is there."""
    while True:
        time.sleep(0.1)
        with contextlib.suppress(FileNotFoundError):  # not there, or no longer
            compute_while(file)


def compute_while(file: Path) -> None:
    """Go to the core that the file names, and compute while it is there."""
    core, where = file.read_text().split()
    os.sched_setaffinity(threading.get_native_id(), {int(core)})
    # The agent gives way to everybody, and so would its thread; before a rank it comes only where it is told to.
    policy, priority = (SCHED_IDLE, 0) if where == "idle" else (os.SCHED_RR, 1)
    os.sched_setscheduler(threading.get_native_id(), policy, os.sched_param(priority))
    # zlib lets go of the interpreter lock: the agent's other threads work as before.
    import zlib

    block = bytes(range(256)) * 4096
    used, part = file.with_suffix(".used"), file.with_suffix(".used-part")
    while file.exists():
        began_s = time.monotonic()
        zlib.compress(block, 9)
        # Whole at once: who reads it may do so at any time.
        part.write_text(str(time.thread_time()))
        part.replace(used)
        time.sleep(time.monotonic() - began_s)


def begin() -> None:
    """Start the thread, if this is the agent."""
    name = os.environ.get("BUSY_AGENT_FILE")
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    if name is None or b"agent" not in words:
        return
    threading.Thread(target=compute, args=(Path(name),), daemon=True).start()


begin()
