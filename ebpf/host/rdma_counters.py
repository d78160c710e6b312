"""What each port for remote memory access did (InfiniBand, RoCE, EFA): bytes, packets, state, rate, losses, congestion.

What counts: traffic and events of a port since its driver was loaded, or its counters were cleared; old cards stop at
the top of 32 bits. What the kernel calls data is counted in 4-byte words and told in bytes. `port_xmit_wait` is the
number of the card's clock ticks in which it had something to send and could not: credits are missing, the fabric is
congested. What does not count: traffic by process or queue pair; Ethernet frames of the same port (the sensor
`nic_counters`), except that RoCE frames are in both.

Where: /sys/class/infiniband/<device>/ports/<port>/{state,rate,counters/*,hw_counters/*}. Oldest kernel: 4.9.
Cost: 140 us a port (copies of the files, in memory). A card was not there: each file asks its firmware, and the rate
follows the cost, at most 1/10,000 of a CPU.

Source: Documentation/ABI/stable/sysfs-class-infiniband; NVIDIA, "Understanding mlx5 Linux counters";
drivers/infiniband/hw/efa/efa_verbs.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.host.limited import LimitedNames
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.kernel_files import read_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv

__all__ = ["RdmaCountersReader", "parse_rate", "parse_state"]

WORD_BYTES = 4
GBIT_PER_S_BYTES = 1e9 / 8
ACTIVE = 4  # "4: ACTIVE"; 1 is down, 2 initialising, 3 armed
# A host with sixteen GPUs has some twenty ports; virtual functions may add hundreds.
MAX_PORTS = 32
RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
# Files of counters/ and hw_counters/, direction, and what one unit of them is; the first that a port has is told.
BYTES = (
    ("counters/port_rcv_data", "receive", WORD_BYTES),
    ("counters/port_xmit_data", "transmit", WORD_BYTES),
    ("hw_counters/rx_bytes", "receive", 1),
    ("hw_counters/tx_bytes", "transmit", 1),
)
PACKETS = (
    ("counters/port_rcv_packets", "receive", 1),
    ("counters/port_xmit_packets", "transmit", 1),
    ("hw_counters/rx_pkts", "receive", 1),
    ("hw_counters/tx_pkts", "transmit", 1),
)
PORT_EVENTS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)
CARD_EVENTS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
    "impaired_remote_conn_events",
    "unresponsive_remote_events",
)
EVENTS = (
    *(f"counters/{name}" for name in PORT_EVENTS),
    *(f"hw_counters/{name}" for name in CARD_EVENTS),
)


def parse_rate(text: str) -> float | None:
    """Return a port's rate, bytes a second, from a line such as "400 Gb/sec (4X NDR)"."""
    found = RATE.match(text)
    return float(found[1]) * GBIT_PER_S_BYTES if found else None


def parse_state(text: str) -> bool | None:
    """Return whether a port can send, from a line such as "4: ACTIVE"; None when it is not one."""
    number = text.partition(":")[0].strip()
    return int(number) == ACTIVE if number.isdecimal() else None


class RdmaCountersReader(Reader):
    """Reads ports for remote memory access.

    Raises:
        UnavailableError: NO_DEVICE.
    """

    sensor = "rdma_counters"
    tier = TIER_NONE
    backend = "sysfs"

    def __init__(self, place: Place) -> None:
        self._folder = Path(place.root, "sys/class/infiniband")
        self._names = LimitedNames(MAX_PORTS)
        if not self._list_ports():
            raise missing_file("RDMA ports", f'no port in "{self._folder}"', Reason.NO_DEVICE)
        self._pace = Pace()

    def measurements(self) -> Iterable[Measurement]:
        """Return counters since the drivers were loaded, and ports as they are now."""
        return self._pace.take(self._read)

    def losses(self) -> Mapping[str, int]:
        """Return how many ports were left out."""
        return self._names.losses()

    def _list_ports(self) -> list[str]:
        return self._names.take(
            f"{path.parent.parent.name}/ports/{path.name}"
            for path in self._folder.glob("*/ports/[0-9]*")
        )

    def _read(self) -> Iterator[Measurement]:
        for port in self._list_ports():
            device, _, number = port.split("/")
            yield from _read_port(f"{self._folder}/{port}", f"{device}:{number}")


def _read_port(folder: str, port: str) -> Iterator[Measurement]:
    hardware = {semconv.HW_ID: port}
    is_up = parse_state(read_text(f"{folder}/state"))
    if is_up is not None:
        yield Measurement(semconv.METRIC_HW_NETWORK_UP, int(is_up), hardware)
    rate = parse_rate(read_text(f"{folder}/rate"))
    if rate is not None and is_up:  # a port that is down names the rate that it had, or could have
        yield Measurement(semconv.METRIC_HW_NETWORK_BANDWIDTH_LIMIT, rate, hardware)
    for metric, files in (
        (semconv.METRIC_HW_NETWORK_IO, BYTES),
        (semconv.METRIC_HW_NETWORK_PACKETS, PACKETS),
    ):
        told = set()
        for name, direction, unit in files:
            count = read_number(f"{folder}/{name}") if direction not in told else None
            if count is not None:
                told.add(direction)
                attributes = {**hardware, semconv.NETWORK_IO_DIRECTION: direction}
                yield Measurement(metric, count * unit, attributes)
    for name in EVENTS:
        count = read_number(f"{folder}/{name}")
        if count is not None:
            event = {semconv.TRAINING_RDMA_EVENT: name.rpartition("/")[2]}
            yield Measurement(semconv.METRIC_TRAINING_RDMA_EVENTS, count, {**hardware, **event})
