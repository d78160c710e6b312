"""Flight recorders that were read from ranks while they stood still: the same records that files of them give."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import duckdb
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.hangs.live_dumps import LiveDumps, read_live_dumps
from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.flight_dumps import START_NS, FlightJob

JOB = "train"
TAKEN_NS = START_NS + 60_000_000_000

# Two ranks of a job over gloo: one waits in an all-reduce that the other never calls, and reads its own recorder.
RANK = """
import sys, threading, time
import torch, torch.distributed as dist
from rootwalk.instrumentation.flight_dump import FlightDump
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
dist.all_reduce(torch.ones(8))
if rank:
    sys.stdin.read()
else:
    threading.Thread(target=dist.all_reduce, args=(torch.ones(8),), daemon=True).start()
    time.sleep(1.0)
    read = threading.Event()
    def deliver(text):
        print(text, flush=True)
        read.set()
    FlightDump(deliver).ask()
    read.wait(60)
"""


def add(store: Path, bodies: Mapping[int, str], unix_ns: int = TAKEN_NS, attempt: int = 0) -> None:
    """Store one event a rank."""
    request = ExportLogsServiceRequest()
    for rank, body in bodies.items():
        of = request.resource_logs.add()
        of.resource.attributes.add(key="training.job.id").value.string_value = JOB
        of.resource.attributes.add(key="training.rank").value.int_value = rank
        of.resource.attributes.add(key="training.job.attempt").value.int_value = attempt
        event = of.scope_logs.add().log_records.add(time_unix_nano=unix_ns)
        event.event_name = semconv.EVENT_TRAINING_FLIGHT_RECORDER_DUMP
        event.body.string_value = body
        event.attributes.add(key="process.pid").value.int_value = 100 + rank
    save_journal_batch(
        store, [JournalRecord(Signal.LOGS, 1, request.SerializeToString(), len(bodies), unix_ns)]
    )


def read(store: Path, *bounds: int, attempt: int = 0) -> LiveDumps:
    with duckdb.connect(str(store), read_only=True) as connection:
        return read_live_dumps(connection, JOB, attempt, *bounds)


def absent() -> FlightJob:
    """Return a job of four ranks, of which rank 2 has not called the last collective."""
    job = FlightJob(4, {"0": range(4)})
    job.call_all(range(4), "0")
    job.finish(range(4), "0")
    job.call_all((0, 1, 3), "0")
    return job


def texts(job: FlightJob) -> dict[int, str]:
    return {rank: json.dumps(job.dump(rank, has_history=True)) for rank in range(job.ranks)}


def test_records_are_those_of_files_and_name_the_same_rank(tmp_path: Path) -> None:
    store, job = tmp_path / "s.duckdb", absent()
    add(store, texts(job))
    found = read(store)
    expected = [replace(one, written_unix_ns=TAKEN_NS) for one in job.records(has_history=True)]
    assert found.records == expected
    assert not found.broken
    (operation,) = find_hang(found.records).operations
    assert set(operation.absent) == {2}


def test_the_newest_dump_of_a_rank_is_taken_and_others_of_the_job_are_not(tmp_path: Path) -> None:
    store, old, new = tmp_path / "s.duckdb", FlightJob(2, {"0": range(2)}), absent()
    old.call_all(range(2), "0")
    add(store, texts(old), TAKEN_NS)
    add(store, texts(new), TAKEN_NS + 5)
    add(store, texts(old), TAKEN_NS + 9, attempt=1)
    found = read(store)
    assert {one.rank: one.written_unix_ns for one in found.records} == dict.fromkeys(
        range(4), TAKEN_NS + 5
    )
    assert found.records[0].frontiers == new.records(has_history=True)[0].frontiers
    assert [one.rank for one in read(store, TAKEN_NS, TAKEN_NS + 4).records] == [0, 1]
    assert read(store, TAKEN_NS + 10).records == []
    assert [one.rank for one in read(store, attempt=1).records] == [0, 1]


def test_a_broken_dump_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    store, bodies = tmp_path / "s.duckdb", texts(absent())
    bodies[1] = bodies[1][:-20]
    bodies[2] = "cposix\nsystem\n(S'true'\ntR."
    bodies[3] = '{"version": "9.1"}'
    add(store, bodies)
    found = read(store)
    assert [one.rank for one in found.records] == [0]
    assert set(found.broken) == {1, 2, 3}
    assert all(reason.startswith("cannot read dump: saw ") for reason in found.broken.values())


def test_a_store_without_dumps_has_no_records(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    add(store, {})
    assert read(store).records == []


def test_a_rank_that_waits_over_gloo_is_read_by_its_own_thread(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANK]
    with (
        subprocess.Popen([*command, "1", str(tmp_path / "f")], stdin=subprocess.PIPE) as other,
        subprocess.Popen(
            [*command, "0", str(tmp_path / "f")], stdout=subprocess.PIPE, text=True
        ) as rank,
    ):
        try:
            assert rank.stdout is not None
            text = rank.stdout.readline()
        finally:
            rank.kill()
            other.kill()
    store = tmp_path / "s.duckdb"
    add(store, {0: text})
    (record,) = read(store).records
    assert [(call.operation, call.sequence) for call in record.pending] == [("all_reduce", 2)]
    assert record.frontiers[0].issued == 2
