"""Clock events of the CPUs, which programs are attached to: `perf_event_open`, through libc.

Source: perf_event_open(2): struct perf_event_attr, version 0, software event CPU clock.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path

from rootwalk.ebpf.availability import Reason
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["online_cpus", "open_clock", "set_clock"]

# Up to `sample_period`'s neighbours.
EVENT = struct.Struct("<IIQQQQQII")
EVENT_BYTES = 64
SOFTWARE, CPU_CLOCK = 1, 0
SET_PERIOD = 0x40082404  # PERF_EVENT_IOC_PERIOD
PERIOD = struct.Struct("<Q")
CLOSE_ON_EXEC = 8
EVENT_CALL = 298 if platform.machine() == "x86_64" else 241
SECOND_NS = 1_000_000_000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def online_cpus(root: Path = Path("/")) -> list[int]:
    """Return the numbers of the CPUs that are switched on.

    Args:
        root: Where /sys is.
    """
    text = (root / "sys/devices/system/cpu/online").read_text(encoding="ascii").strip()
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def open_clock(cpu: int, hz: int) -> int:
    """Return the descriptor of an event that ticks on one CPU, whatever runs there.

    Raises:
        UnavailableError: NO_PRIVILEGE or LOAD_REFUSED.
    """
    packed = EVENT.pack(SOFTWARE, EVENT_BYTES, CPU_CLOCK, SECOND_NS // hz, 0, 0, 0, 0, 0)
    attributes = ctypes.create_string_buffer(packed, EVENT_BYTES)
    long = ctypes.c_long
    descriptor: int = _LIBC.syscall(
        long(EVENT_CALL), attributes, long(-1), long(cpu), long(-1), long(CLOSE_ON_EXEC)
    )
    if descriptor >= 0:
        return descriptor
    code = ctypes.get_errno()
    refused = code in (errno.EPERM, errno.EACCES)
    reason = Reason.NO_PRIVILEGE if refused else Reason.LOAD_REFUSED
    raise UnavailableError(
        f"cannot open the clock of CPU {cpu}: saw {os.strerror(code)}; needs CAP_PERFMON",
        reason=reason,
        hint=reason.hint,
    )


def set_clock(descriptor: int, hz: int) -> None:
    """Let an event tick so often from now on."""
    fcntl.ioctl(descriptor, SET_PERIOD, PERIOD.pack(SECOND_NS // hz))
