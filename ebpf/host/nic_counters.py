"""What each network interface did: bytes, packets, errors, drops, link state and speed, pauses, the driver's losses.

What counts: traffic of whoever uses the interface, since the driver was loaded; counters of a driver that is loaded
again begin at 0, as it tells them. The host: physical interfaces and virtual functions, and every one but the loopback
where there are no such (a container sees one end of a cable to its host). A rank in a network namespace of its own: the
interfaces there and how often their links changed, told for the rank; the latter needs CAP_SYS_ADMIN. What does not
count: bridges, cables between namespaces and bonds beside the devices that they use, traffic by process, RDMA that
bypasses the kernel (the sensor `rdma_counters`).

Where: /proc/net/dev, /proc/<pid>/net/dev, /sys/class/net/<name>/, rtnetlink, the driver by ethtool's call. Oldest
kernel: any.
Cost: 100 us a reading with 1 interface, its driver's statistics included; 0.9 ms with 32, without (a copy of the
files, in memory). Statistics of a large card: not measured; the rate follows the cost, at most 1/10,000 of a CPU.

Source: Documentation/networking/statistics.rst, Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.host.ethtool import Ethtool
from rootwalk.ebpf.host.limited import LimitedNames
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.net_dev import measure_traffic, parse_net_dev
from rootwalk.ebpf.host.net_links import NamespaceLinks
from rootwalk.ebpf.host.nic_statistics import measure_statistics
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.kernel_files import read_number, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv

__all__ = ["NicCountersReader"]

LOOPBACK = "lo"
# A host with sixteen GPUs has some twenty ports; with virtual functions, hundreds that nobody uses.
MAX_INTERFACES = 32
# A rank's namespace: its own interface and some for RDMA.
MAX_RANK_INTERFACES = 8
# The driver is asked under the lock that all configuration of the network needs.
DRIVER_INTERVAL_S = 10.0
MBIT_PER_S_BYTES = 1_000_000 / 8
# operstate: whether packets can pass; "unknown" is said by drivers that do not know.
UP, DOWN = ("up",), ("down", "lowerlayerdown", "notpresent", "dormant", "testing")


class NicCountersReader(Reader):
    """Reads network interfaces.

    Raises:
        UnavailableError: NO_DEVICE.
    """

    sensor = "nic_counters"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        self._traffic = f"{place.root}/proc/net/dev"
        self._own_namespace = Path(place.root, "proc/self/ns/net")
        self._root = place.root
        self._folder = Path(place.root, "sys/class/net")
        self._is_physical: dict[str, bool] = {}
        self._names = LimitedNames(MAX_INTERFACES)
        self._rank_names = LimitedNames(MAX_RANK_INTERFACES)
        if not self._choose(parse_net_dev(read_text(self._traffic))):
            raise missing_file(
                "network interfaces", "none but the loopback interface", Reason.NO_DEVICE
            )
        # A fake machine's interfaces have no drivers here.
        self._ethtool = Ethtool() if place.root == Path("/") else None
        self._ranks = RankFolders(place.root)
        self._links: dict[int, NamespaceLinks | None] = {}
        self._pace = Pace()
        # A link that went down is worth knowing soon, and costs little to ask for; traffic has most of the cost.
        self._link_pace = Pace()
        self._driver_pace = Pace(DRIVER_INTERVAL_S)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's interfaces where it has its own."""
        self._ranks.watch(pid, slot)

    def forget(self, pid: int) -> None:
        """Stop following a rank."""
        for slot in self._ranks.forget(pid):
            self._leave(slot)

    def measurements(self) -> Iterable[Measurement]:
        """Return counters since the drivers were loaded, and links as they are now."""
        for slot in self._ranks:
            if slot not in self._links:
                self._enter(slot)
        return [
            *self._pace.take(self._read_traffic),
            *self._link_pace.take(self._read_links),
            *self._driver_pace.take(self._read_drivers),
        ]

    def losses(self) -> Mapping[str, int]:
        """Return how many interfaces were left out."""
        left_out = self._names.left_out + self._rank_names.left_out
        return {"device_limit": left_out} if left_out else {}

    def _choose(self, names: Iterable[str]) -> list[str]:
        """Return the interfaces that are told of; whether one is physical is asked once while it is there."""
        known = self._is_physical
        self._is_physical = {
            name: known[name] if name in known else (self._folder / name / "device").exists()
            for name in names
        }
        physical = [name for name, is_one in self._is_physical.items() if is_one]
        others = [name for name in self._is_physical if name != LOOPBACK]
        return self._names.take(physical or others)

    def _read_traffic(self) -> Iterator[Measurement]:
        interfaces = parse_net_dev(read_text(self._traffic))
        for name in self._choose(interfaces):
            yield from measure_traffic(name, interfaces[name])
        for slot in self._ranks:
            if self._has_own_namespace(slot):
                own = parse_net_dev(self._ranks.read(slot, "net/dev"))
                for name in self._rank_names.take(own.keys() - {LOOPBACK}):
                    yield from measure_traffic(name, own[name], slot)

    def _read_links(self) -> Iterator[Measurement]:
        for name in self._choose(self._is_physical):
            yield from self._link(name)
        for slot in self._ranks:
            yield from self._rank_links(slot)

    def _has_own_namespace(self, slot: int) -> bool:
        try:
            own = self._own_namespace.stat().st_ino
            return Path(self._root, f"proc/{self._ranks.pid(slot)}/ns/net").stat().st_ino != own
        except OSError:
            return False  # it has ended, or is another user's

    def _enter(self, slot: int) -> None:
        """Open a rank's namespace where it has one of its own: once, and not in the time that readings may take."""
        self._links[slot] = None
        if self._has_own_namespace(slot):
            with contextlib.suppress(OSError):
                file = Path(self._root, f"proc/{self._ranks.pid(slot)}/ns/net")
                self._links[slot] = NamespaceLinks(file)

    def _rank_links(self, slot: int) -> Iterator[Measurement]:
        """Tell of changes of the links in a rank's namespace; of none where it may not be entered."""
        links = self._links.get(slot)
        changes = {} if links is None else links.read()
        for name in self._rank_names.take(changes.keys() - {LOOPBACK}):
            interface = {semconv.NETWORK_INTERFACE_NAME: name}
            metric = semconv.METRIC_TRAINING_NIC_CARRIER_CHANGES
            yield Measurement(metric, changes[name], interface, slot)

    def _leave(self, slot: int) -> None:
        links = self._links.pop(slot, None)
        if links is not None:
            links.close()

    def _link(self, name: str) -> Iterator[Measurement]:
        folder = f"{self._folder}/{name}"
        interface = {semconv.NETWORK_INTERFACE_NAME: name}
        changes = read_number(f"{folder}/carrier_changes")
        if changes is not None:
            yield Measurement(semconv.METRIC_TRAINING_NIC_CARRIER_CHANGES, changes, interface)
        missed = read_number(f"{folder}/statistics/rx_missed_errors")
        if missed is not None:
            attributes = {**interface, semconv.TRAINING_NIC_EVENT: "rx_missed_errors"}
            yield Measurement(semconv.METRIC_TRAINING_NIC_EVENTS, missed, attributes)
        state = read_text(f"{folder}/operstate").strip()
        if state in UP + DOWN:
            yield Measurement(semconv.METRIC_HW_NETWORK_UP, int(state in UP), {semconv.HW_ID: name})

    def _read_drivers(self) -> Iterator[Measurement]:
        for name in self._choose(self._is_physical):
            speed_mbit_s = read_number(f"{self._folder}/{name}/speed")
            if speed_mbit_s is not None and speed_mbit_s > 0:  # -1: the driver does not know
                yield Measurement(
                    semconv.METRIC_HW_NETWORK_BANDWIDTH_LIMIT,
                    speed_mbit_s * MBIT_PER_S_BYTES,
                    {semconv.HW_ID: name},
                )
            if self._ethtool is not None:
                yield from measure_statistics(name, self._ethtool.read(name))

    def close(self) -> None:
        """Let go of ranks, of their namespaces and of the sockets."""
        self._ranks.close()
        for slot in list(self._links):
            self._leave(slot)
        if self._ethtool is not None:
            self._ethtool.close()
