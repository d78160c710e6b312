"""A reader that is missing says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.host import HOST_KINDS
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.ebpf.readers import KINDS, probe_readers
from rootwalk.ebpf.sensors import SENSOR_NAMES, probe_sensors

EXPECTED = {
    "psi": Reason.NO_PSI,
    "cpu": Reason.NO_COUNTERS,
    "cpu_frequency": Reason.NO_CPU_CLOCK,
    "affinity": Reason.NO_COUNTERS,
    "vmstat": Reason.NO_COUNTERS,
    "cgroup_memory": Reason.NO_CGROUP,
    "disks": Reason.NO_COUNTERS,
    "nic_counters": Reason.NO_DEVICE,
    "rdma_counters": Reason.NO_DEVICE,
}


@pytest.mark.parametrize("kind", HOST_KINDS, ids=lambda kind: kind.sensor)
def test_without_its_files_a_reader_is_unavailable_with_its_reason(
    kind: type[Reader], tmp_path: Path
) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[kind])
    assert (sensor.status, sensor.reason) == (Status.UNAVAILABLE, EXPECTED[kind.sensor])
    assert sensor.detail is not None
    assert sensor.detail.startswith("cannot read ")


@pytest.mark.parametrize("kind", HOST_KINDS, ids=lambda kind: kind.sensor)
def test_every_reader_can_be_switched_off(kind: type[Reader], tmp_path: Path) -> None:
    assert kind in KINDS
    assert kind.sensor in SENSOR_NAMES
    found = {
        sensor.sensor: sensor.reason for sensor in probe_sensors(["bpf", kind.sensor], tmp_path)
    }
    assert found[kind.sensor] is Reason.SWITCHED_OFF
