"""What the largest hosts cost: how much is told of them, in all and of each thing that there are many of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rootwalk.ebpf.host import HOST_KINDS
from rootwalk.ebpf.reader import Place
from support.fake_host import told, unhurried
from support.large_host import DISKS, INTERFACES, NODES, PORTS, RANKS, list_ranks, write_large_host

__all__ = ["unhurried"]

PORT_VALUES = 2 + 4 + 30  # state, speed; bytes and packets in both directions; events
PER_DEVICE = {
    "disks": DISKS * 7,
    "nic_counters": INTERFACES * (8 + 4),
    "rdma_counters": PORTS * PORT_VALUES,
    "affinity": 1 + NODES * 3 + RANKS * (2 + 2 + 2 + 2 + 2),
}


@pytest.mark.usefixtures("unhurried")
def test_values_grow_with_devices_and_ranks_and_with_nothing_else(tmp_path: Path) -> None:
    write_large_host(tmp_path)
    counts: Counter[str] = Counter()
    for kind in HOST_KINDS:
        reader = kind(Place(tmp_path))  # type: ignore[call-arg]
        for slot, pid in enumerate(list_ranks()):
            reader.watch(pid, slot)
        counts[kind.sensor] = len(told(reader))
        assert reader.losses() == {}
        reader.close()
    for sensor, count in PER_DEVICE.items():
        assert counts[sensor] == count, sensor
    # Pressure, CPU times, throttling, memory; of each rank pressure, its clock, its group's memory and freezer.
    assert counts.total() - sum(PER_DEVICE.values()) == 5 + 8 + 4 + 7 + RANKS * (6 + 2 + 6)
