"""Packets whose arrival keeps a chosen CPU in a soft interrupt for milliseconds each, in a network of its own.

Packets that a process sends to itself over loopback are steered to that CPU, where some hundred sockets look at each
with a filter as long as the kernel takes. The interface is gone with its process; nothing outside is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

COUNT = 101
PAUSE_S = 0.005
LISTENERS = 300
# The kernel's limit for the memory of one socket takes a thousand instructions.
INSTRUCTIONS = 1000
PLACE = (
    "mount -t sysfs sysfs /sys && ip link set lo up"
    ' && echo {mask:x} > /sys/class/net/lo/queues/rx-0/rps_cpus && exec "$@"'
)
SEND = f"""
import ctypes, os, socket, struct, sys, time
os.sched_setaffinity(0, {{%d}})
load, end = struct.pack("HBBI", 0x30, 0, 0, 0), struct.pack("HBBI", 0x06, 0, 0, 0)
code = ctypes.create_string_buffer(load * ({INSTRUCTIONS} - 1) + end)
listeners = []
for _ in range(%d):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", {INSTRUCTIONS}, ctypes.addressof(code)))
    one.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
    one.bind(("lo", 3))
    listeners.append(one)
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(receiver.getsockname())
print("ready", flush=True)
for _ in sys.stdin:
    for _ in range({COUNT}):
        sender.send(b"x")
        time.sleep({PAUSE_S})
    print("sent", flush=True)
"""


class SlowPackets:
    """The process that sends them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        """Begin to send `COUNT` packets; returns at once."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def wait_for(self, answer: str) -> None:
        """Wait until it says so."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != answer:
            pytest.skip("namespaces: needs root, and filters for packet sockets")


@contextmanager
def slow_packets(from_cpu: int, to_cpu: int, listeners: int = LISTENERS) -> Iterator[SlowPackets]:
    """Run the sender for the length of a block; skip where it cannot be.

    Args:
        from_cpu: Where it runs.
        to_cpu: Where its packets are received.
        listeners: Sockets that look at each; of fewer a packet is less likely to find the one before still there.
    """
    if not all(shutil.which(tool) for tool in ("unshare", "ip")):
        pytest.skip("namespaces: needs unshare and ip")
    place = PLACE.format(mask=1 << to_cpu)
    python = [sys.executable, "-S", "-E", "-c", SEND % (from_cpu, listeners)]
    with subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", place, "-", *python],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    ) as process:
        try:
            packets = SlowPackets(process)
            packets.wait_for("ready")
            yield packets
        finally:
            process.kill()
