"""TCP that cannot be read, or not everywhere, is in the verdict's missing sensors, with what it would have decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf import sock_diag
from rootwalk.ebpf.availability import Reason, Sensor, Status
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.readers import KINDS, probe_readers
from rootwalk.ebpf.sensors import SENSOR_NAMES
from rootwalk.ebpf.tcp import TcpReader
from rootwalk.graph.columns import SensorRow
from rootwalk.graph.graph_store import read_outline
from rootwalk.graph.job_choice import choose_job
from rootwalk.graph.model import MissingSensor
from rootwalk.graph.verdict import missing_sensors
from rootwalk.otel_receiver import store
from support.jobs import Job, write_job

HOST = "host-a"
WOULD_DECIDE = ("EXTERNAL_SERVICE", "NET_CONGESTION", "NET_LOSS", "TRANSPORT_FALLBACK")


def missing(sensor: Sensor, folder: Path) -> tuple[MissingSensor, ...]:
    """What the verdict about a job says when an agent has told this of its sensor."""
    assert sensor.reason is not None
    row = SensorRow(HOST, sensor.sensor, sensor.status.value, sensor.reason.value)
    with store.reading(write_job(folder / "store.duckdb", Job(steps=5))) as connection:
        key = choose_job(connection, None)
        assert key is not None
        job = read_outline(connection, key, (0, 5))
    return missing_sensors(replace(job, sensors=(row,)))


def test_it_is_a_reader_that_can_be_switched_off() -> None:
    assert TcpReader in KINDS
    assert TcpReader.sensor in SENSOR_NAMES


def test_kernel_without_the_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sock_diag, "NETLINK_SOCK_DIAG", 31)  # a protocol that no kernel has
    (sensor,) = probe_readers(Place(), kinds=[TcpReader])
    assert (sensor.status, sensor.reason) == (Status.UNAVAILABLE, Reason.NO_INET_DIAG)
    assert missing(sensor, tmp_path) == (
        MissingSensor("tcp", "NO_INET_DIAG", (HOST,), WOULD_DECIDE),
    )


def test_other_networks_that_cannot_be_entered(tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[TcpReader])  # there is no /proc/self/ns
    assert (sensor.status, sensor.reason) == (Status.DEGRADED, Reason.OWN_NETWORK_ONLY)
    assert missing(sensor, tmp_path) == (
        MissingSensor("tcp", "OWN_NETWORK_ONLY", (HOST,), WOULD_DECIDE),
    )
