"""Readers of memory and disks that are taken away are in the verdict's missing sensors, with what they would decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf.block_io import BlockIoReader
from rootwalk.ebpf.memory import MemoryReader
from rootwalk.ebpf.paging import PagingReader
from rootwalk.ebpf.reader import Place, Reader
from rootwalk.ebpf.readers import probe_readers
from rootwalk.graph.columns import JobData, SensorRow
from rootwalk.graph.graph_store import choose_job, read_outline
from rootwalk.graph.verdict import missing_sensors
from rootwalk.otel_receiver import store
from support.jobs import Job, write_job

WOULD_DECIDE = {
    MemoryReader: ("MEM_RECLAIM",),
    PagingReader: ("SWAP",),
    BlockIoReader: ("CKPT_IO", "DATALOADER_IO", "STORAGE_SLOW"),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobData:
    path = write_job(tmp_path_factory.mktemp("job") / "store.duckdb", Job(steps=5))
    with store.reading(path) as connection:
        key = choose_job(connection, None)
        assert key is not None
        return read_outline(connection, key, (0, 5))


@pytest.mark.parametrize("kind", WOULD_DECIDE, ids=lambda kind: kind.sensor)
def test_reader_that_is_taken_away(kind: type[Reader], job: JobData, tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[kind])
    assert sensor.reason is not None
    row = SensorRow("host-a", sensor.sensor, sensor.status.value, sensor.reason.value)
    (missing,) = missing_sensors(replace(job, sensors=(row,)))
    assert (missing.sensor, missing.reason, missing.hosts) == (
        kind.sensor,
        sensor.reason,
        ("host-a",),
    )
    assert missing.would_decide == WOULD_DECIDE[kind]
