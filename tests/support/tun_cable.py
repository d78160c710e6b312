"""A cable between two machines that takes a known time, which may change: packets wait in this process.

machine A: tun0 ──▶ read, wait delay, write ──▶ tun0: machine B, and back
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rootwalk.ebpf.net_namespaces import read_in_namespace
from support.namespaces import Machine

DEVICE = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
NAME = "tun0"
PACKET_BYTES = 65_536
ADDRESSES = ("10.78.0.1", "10.78.0.2")


@dataclass(slots=True)
class SlowCable:
    """One such cable.

    Attributes:
        delay_s: How long a packet takes from now on, each way.
        addresses: Of its ends.
        carried: Packets that have come to their end, both ways.
        waited_s: How long they have waited together.
    """

    delay_s: float
    addresses: tuple[str, str] = ADDRESSES
    carried: int = 0
    waited_s: float = 0.0


def _open_device() -> int:
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = struct.pack("16sH14x", NAME.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    return descriptor


def _carry(devices: tuple[int, int], cable: SlowCable, stop: int) -> None:
    """Carry packets both ways until something is written to `stop`."""
    waiting: list[tuple[float, int, int, bytes, float]] = []
    count = 0
    while True:
        left_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        ready, _, _ = select.select([*devices, stop], [], [], left_s)
        if stop in ready:
            return
        now_s = time.monotonic()
        for source, sink in (devices, devices[::-1]):
            if source in ready:
                with contextlib.suppress(BlockingIOError):
                    count += 1
                    packet = os.read(source, PACKET_BYTES)
                    heapq.heappush(waiting, (now_s + cable.delay_s, count, sink, packet, now_s))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, sink, packet, came_s = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(sink, packet)
            cable.carried += 1
            cable.waited_s += time.monotonic() - came_s


@contextlib.contextmanager
def slow_cable(
    machines: tuple[Machine, Machine], delay_s: float, mtu_bytes: int = 1500
) -> Iterator[SlowCable]:
    """A second way between two machines, `delay_s` long each way.

    Args:
        machines: Its ends.
        delay_s: At first.
        mtu_bytes: Of a packet; large ones cost this process less.
    """
    if not Path(DEVICE).exists():
        pytest.skip(f"tun: needs {DEVICE}")
    devices = []
    cable = SlowCable(delay_s)
    stop, tell_stop = os.pipe()
    try:
        for machine, address in zip(machines, ADDRESSES, strict=True):
            devices.append(read_in_namespace(Path(f"/proc/{machine.holder}/ns/net"), _open_device))
            for words in (
                ["ip", "address", "add", f"{address}/24", "dev", NAME],
                ["ip", "link", "set", NAME, "mtu", str(mtu_bytes), "up"],
            ):
                subprocess.run(machine.command(*words), check=True)
        carrier = threading.Thread(
            target=_carry, args=((devices[0], devices[1]), cable, stop), name="slow cable"
        )
        carrier.start()
        try:
            yield cable
        finally:
            os.write(tell_stop, b"x")
            carrier.join()
    finally:
        for descriptor in (*devices, stop, tell_stop):
            os.close(descriptor)
