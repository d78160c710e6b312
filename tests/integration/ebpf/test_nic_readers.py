"""Network interfaces between two machines made of namespaces: frames and link changes that these tests cause."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.host.nic_counters import MAX_INTERFACES, NicCountersReader
from rootwalk.ebpf.reader import Place
from support import workloads
from support.fake_host import told, unhurried
from support.namespaces import INTERFACE, Machine, require_namespaces, two_machines

__all__ = ["unhurried"]

pytestmark = pytest.mark.usefixtures("unhurried")

FRAMES, FRAME_BYTES = 1009, 131
TOGGLES = 7
# Frames of a type that nobody answers: no address is looked up, nothing comes back.
SEND = f"""
import socket
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("{INTERFACE}", 0))
frame = bytes.fromhex("ffffffffffff" "020000000001" "88b5").ljust({FRAME_BYTES}, b"x")
for _ in range({FRAMES}):
    sender.send(frame)
"""
# The reader runs where the interface is, with a view of /sys that belongs there.
READ = f"""
import json
from pathlib import Path
from rootwalk.ebpf.host.ethtool import Ethtool
from rootwalk.ebpf.host.nic_counters import NicCountersReader
from rootwalk.ebpf.reader import Place
reader = NicCountersReader(Place())
values = {{}}
for one in reader.measurements():
    attributes = {{k: v for k, v in one.attributes.items() if v != "{INTERFACE}"}}
    values[" ".join([one.metric, *sorted(map(str, attributes.values()))])] = one.value
ethtool = Ethtool()
print(json.dumps([values, ethtool.read("{INTERFACE}")]))
"""


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    require_namespaces()
    with two_machines() as pair:
        for machine in pair:
            # Nothing but what the test sends: no neighbour discovery.
            quiet = (
                f"echo 1 > /proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6 2> /dev/null || true"
            )
            run(machine, "sh", "-c", quiet)
            run(machine, "mount", "-t", "sysfs", "rootwalk-test", "/sys")
        yield pair


def run(machine: Machine, *words: str) -> str:
    done = subprocess.run(machine.command(*words), capture_output=True, text=True, check=True)
    return done.stdout


def read(machine: Machine) -> tuple[dict[str, float], dict[str, int]]:
    values, statistics = json.loads(run(machine, sys.executable, "-c", READ))
    return values, statistics


def test_frames_of_a_rank_in_a_namespace_of_its_own(machines: tuple[Machine, Machine]) -> None:
    sender, receiver = machines
    reader = NicCountersReader(Place())
    reader.watch(sender.holder, 1)
    reader.watch(receiver.holder, 2)
    before = told(reader)
    run(sender, sys.executable, "-c", SEND)
    after = told(reader)
    grown = {key: after[key] - before[key] for key in after if key[2] is not None}
    for slot, direction in ((1, "transmit"), (2, "receive")):
        packets = ("system.network.packet.count", (direction, INTERFACE), slot)
        sizes = ("system.network.io", (INTERFACE, direction), slot)
        assert grown[packets] == FRAMES
        assert grown[sizes] == FRAMES * FRAME_BYTES
    assert grown["system.network.packet.count", ("transmit", INTERFACE), 2] == 0
    reader.close()


def test_link_that_goes_down_and_up(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    before, statistics = read(here)
    toggle = f"ip link set {INTERFACE} down && ip link set {INTERFACE} up"
    run(there, "sh", "-ec", "\n".join([toggle] * TOGGLES))
    after, _ = read(here)
    changes = "training.nic.carrier.changes"
    assert after[changes] - before[changes] == 2 * TOGGLES
    # The kernel tells of a link that comes and goes with a delay of up to a second.
    workloads.wait_until(lambda: read(here)[0]["hw.network.up"] == 1)
    run(there, "ip", "link", "set", INTERFACE, "down")
    workloads.wait_until(lambda: read(here)[0]["hw.network.up"] == 0)
    # The driver's own words, by ethtool's call: a cable between namespaces knows its other end.
    index = run(there, "cat", f"/sys/class/net/{INTERFACE}/ifindex")
    assert statistics["peer_ifindex"] == int(index)


def test_link_of_a_rank_in_a_namespace_of_its_own(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    reader = NicCountersReader(Place())
    reader.watch(here.holder, 1)
    key = ("training.nic.carrier.changes", (INTERFACE,), 1)
    before = told(reader)[key]
    toggle = f"ip link set {INTERFACE} down && ip link set {INTERFACE} up"
    run(there, "sh", "-ec", "\n".join([toggle] * TOGGLES))
    assert told(reader)[key] - before == 2 * TOGGLES
    reader.forget(here.holder)
    assert key not in told(reader)
    reader.close()


def test_speed_is_the_kernels_own(machines: tuple[Machine, Machine]) -> None:
    here, _ = machines
    speed_mbit_s = int(run(here, "cat", f"/sys/class/net/{INTERFACE}/speed"))
    assert read(here)[0]["hw.network.bandwidth.limit"] == speed_mbit_s * 125_000


def test_physical_interfaces_of_this_machine_are_chosen() -> None:
    folder = Path("/sys/class/net")
    physical = {path.name for path in folder.iterdir() if (path / "device").exists()}
    if not physical:
        pytest.skip("nic_counters: needs a physical interface")
    reader = NicCountersReader(Place())
    names = {key[1][0] for key in told(reader) if key[0] == "system.network.io"}
    assert names == physical or len(names) == MAX_INTERFACES
    reader.close()
