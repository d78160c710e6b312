"""A reader that is taken away is in the verdict's missing sensors, with what it would have decided.

Every reader that there is, with nothing of the machine to read: no files below the root, and no kernel programs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason, Sensor, available, unavailable
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.ebpf.readers import KINDS, probe_readers
from rootwalk.graph.columns import JobData, SensorRow
from rootwalk.graph.graph_store import read_outline
from rootwalk.graph.job_choice import choose_job
from rootwalk.graph.reasons import WOULD_DECIDE
from rootwalk.graph.verdict import missing_sensors
from rootwalk.otel_receiver import store
from support.jobs import Job, write_job

HOST = "host-a"

every_reader = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.sensor)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobData:
    path = write_job(tmp_path_factory.mktemp("job") / "store.duckdb", Job(steps=5))
    with store.reading(path) as connection:
        key = choose_job(connection, None)
        assert key is not None
        return read_outline(connection, key, (0, 5))


def watched_by(job: JobData, sensor: Sensor) -> JobData:
    reason = sensor.reason.value if sensor.reason is not None else None
    return replace(job, sensors=(SensorRow(HOST, sensor.sensor, sensor.status.value, reason),))


def check(job: JobData, sensor: Sensor) -> None:
    (missing,) = missing_sensors(watched_by(job, sensor))
    assert (missing.sensor, missing.hosts) == (sensor.sensor, (HOST,))
    assert missing.reason == sensor.reason
    assert missing.would_decide == WOULD_DECIDE[sensor.sensor] != ()


def test_every_reader_decides_something() -> None:
    assert not {kind.sensor for kind in KINDS} - WOULD_DECIDE.keys()


@every_reader
def test_reader_that_is_taken_away(kind: type[Reader], job: JobData, tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[kind])
    check(job, sensor)


@every_reader
def test_reader_that_is_switched_off(kind: type[Reader], job: JobData) -> None:
    (sensor,) = probe_readers(Place(), without=[kind.sensor], kinds=[kind])
    assert sensor.reason is Reason.SWITCHED_OFF
    check(job, sensor)


@every_reader
def test_reader_that_fails_at_work(kind: type[Reader], job: JobData) -> None:
    check(job, unavailable(kind.sensor, Reason.READER_FAILED, kind.tier))


@every_reader
def test_reader_that_is_there_is_not_missing(kind: type[Reader], job: JobData) -> None:
    there = watched_by(job, available(kind.sensor, kind.tier, "proc"))
    assert kind.sensor not in {missing.sensor for missing in missing_sensors(there)}
