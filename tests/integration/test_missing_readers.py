"""A reader that is taken away is in the verdict's missing sensors, with what it would have decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Sensor
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.ebpf.readers import KINDS, probe_readers
from rootwalk.graph.columns import JobData, SensorRow
from rootwalk.graph.graph_store import choose_job, read_outline
from rootwalk.graph.reasons import WOULD_DECIDE
from rootwalk.graph.verdict import missing_sensors
from rootwalk.otel_receiver import store
from support.jobs import Job, write_job

HOST = "host-a"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobData:
    path = write_job(tmp_path_factory.mktemp("job") / "store.duckdb", Job(steps=5))
    with store.reading(path) as connection:
        key = choose_job(connection, None)
        assert key is not None
        return read_outline(connection, key, (0, 5))


def row(sensor: Sensor) -> SensorRow:
    reason = sensor.reason.value if sensor.reason is not None else None
    return SensorRow(HOST, sensor.sensor, sensor.status.value, reason)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.sensor)
def test_reader_that_is_taken_away(kind: type[Reader], job: JobData, tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[kind])
    (missing,) = missing_sensors(replace(job, sensors=(row(sensor),)))
    assert (missing.sensor, missing.hosts) == (kind.sensor, (HOST,))
    assert missing.reason == sensor.reason
    assert missing.would_decide == WOULD_DECIDE[kind.sensor] != ()
