"""What the kernel itself says for how long one thread waited for memory: its delay accounting, by netlink.

An account of its own, switched on for a test: it times the same waits by other means than tracepoints.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SWITCH = Path("/proc/sys/kernel/task_delayacct")
NETLINK_GENERIC = 16
CONTROLLER = 16
CTRL_GETFAMILY, CTRL_FAMILY_ID, CTRL_FAMILY_NAME = 3, 1, 2
TASKSTATS_GET, TASKSTATS_PID = 1, 1
AGGREGATE_PID, STATISTICS = 4, 3
NLMSG_ERROR = 2
# include/uapi/linux/taskstats.h, an ABI but for version 15, in which fields were put between these.
BROKEN_VERSION = 15
RECLAIM = struct.Struct("<QQ")
RECLAIM_OFFSET, COMPACTION_OFFSET = 312, 352


@dataclass(frozen=True, slots=True)
class TaskDelays:
    """Number and time of one thread's reclaims (direct and of its group) and of its compactions for allocations."""

    reclaims: int
    reclaim_ns: int
    compactions: int
    compaction_ns: int


@contextlib.contextmanager
def delay_accounting() -> Iterator[None]:
    """Account for the threads that start in this block; skips the test where that is not possible."""
    try:
        before = SWITCH.read_text()
        SWITCH.write_text("1")
    except OSError as error:
        pytest.skip(f"delayacct: {error.strerror}")
    try:
        yield
    finally:
        SWITCH.write_text(before)


def _attributes(data: bytes) -> dict[int, bytes]:
    found, offset = {}, 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("<HH", data, offset)
        found[kind & 0x3FFF] = data[offset + 4 : offset + length]
        offset += max((length + 3) // 4 * 4, 4)
    return found


def _ask(family: int, command: int, kind: int, value: bytes) -> dict[int, bytes]:
    attribute = struct.pack("<HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
    body = struct.pack("<BBH", command, 1, 0) + attribute
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as netlink:
        netlink.bind((0, 0))
        netlink.send(struct.pack("<IHHII", 16 + len(body), family, 1, 1, 0) + body)
        answer = netlink.recv(65_536)
    _, answer_type, *_ = struct.unpack_from("<IHHII", answer)
    if answer_type == NLMSG_ERROR:
        raise OSError(-struct.unpack_from("<i", answer, 16)[0], "taskstats")
    return _attributes(answer[20:])


def read_task_delays(tid: int) -> TaskDelays:
    """Return the account of a live thread."""
    found = _ask(CONTROLLER, CTRL_GETFAMILY, CTRL_FAMILY_NAME, b"TASKSTATS\0")
    family = struct.unpack("<H", found[CTRL_FAMILY_ID])[0]
    answer = _ask(family, TASKSTATS_GET, TASKSTATS_PID, struct.pack("<I", tid))
    statistics = _attributes(answer[AGGREGATE_PID])[STATISTICS]
    if struct.unpack_from("<H", statistics)[0] == BROKEN_VERSION:
        pytest.skip("delayacct: taskstats version 15 has its fields elsewhere")
    return TaskDelays(
        *RECLAIM.unpack_from(statistics, RECLAIM_OFFSET),
        *RECLAIM.unpack_from(statistics, COMPACTION_OFFSET),
    )
