"""Traffic of network interfaces, as /proc/net/dev tells it for one network namespace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rootwalk.ebpf.kernel_files import parse_number
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv

__all__ = ["Traffic", "measure_traffic", "parse_net_dev"]

COLUMNS = 16
# Where the columns of each direction begin; bytes, packets, errors and drops come first.
RECEIVE, TRANSMIT = 0, 8


@dataclass(frozen=True, slots=True)
class Traffic:
    """What passed an interface in one direction."""

    bytes: int
    packets: int
    errors: int
    drops: int


def parse_net_dev(text: str) -> dict[str, tuple[Traffic, Traffic]]:
    """Return what was received and sent, by interface."""
    interfaces = {}
    for line in text.splitlines():
        name, _, rest = line.rpartition(":")  # a name may hold a colon, numbers do not
        counts = [number for word in rest.split() if (number := parse_number(word)) is not None]
        if name and len(counts) == COLUMNS:
            received, sent = (Traffic(*counts[at : at + 4]) for at in (RECEIVE, TRANSMIT))
            interfaces[name.strip()] = (received, sent)
    return interfaces


def measure_traffic(
    name: str, traffic: tuple[Traffic, Traffic], slot: int | None = None
) -> Iterator[Measurement]:
    """Return the core metrics of one interface."""
    for direction, passed in zip(("receive", "transmit"), traffic, strict=True):
        attributes = {
            semconv.NETWORK_INTERFACE_NAME: name,
            semconv.NETWORK_IO_DIRECTION: direction,
        }
        # The convention names the interface by another attribute here.
        device = {semconv.SYSTEM_DEVICE: name, semconv.NETWORK_IO_DIRECTION: direction}
        for metric, value, which in (
            (semconv.METRIC_SYSTEM_NETWORK_IO, passed.bytes, attributes),
            (semconv.METRIC_SYSTEM_NETWORK_PACKET_COUNT, passed.packets, device),
            (semconv.METRIC_SYSTEM_NETWORK_ERRORS, passed.errors, attributes),
            (semconv.METRIC_SYSTEM_NETWORK_PACKET_DROPPED, passed.drops, attributes),
        ):
            yield Measurement(metric, value, which, slot)
