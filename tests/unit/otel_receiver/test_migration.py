"""A store of an older schema version is brought up to this one by whoever opens it first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.schema import SCHEMA_VERSION
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, save_journal_batch
from support.otlp_messages import span, trace_request
from support.stores import query_rows

SCHEMA_2 = Path(__file__).parents[2] / "data" / "schema-2.sql"
STEP = (
    "INSERT INTO span_records BY NAME SELECT ? AS received_unix_ns, printf('%032x', 1) AS trace_id,"
)
STEP += " printf('%016x', ?) AS span_id, 'training.rank_step' AS name, ? AS start_unix_ns, ? AS end_unix_ns,"
STEP += " 'j1' AS job, 0 AS attempt, ? AS rank, 2 AS world_size, 'h1' AS host_id, 'alpha' AS host_name, 4411 AS pid,"
STEP += " ? AS step, 'complete' AS outcome, '{}' AS attributes, '{}' AS resource, '[]' AS links, '[]' AS events"
METRIC = "INSERT INTO metric_records BY NAME SELECT 9 AS received_unix_ns, ? AS name, 'gauge' AS kind, 5 AS unix_ns,"
METRIC += " CAST(? AS DOUBLE) AS value, 'j1' AS job, 0 AS attempt, 1 AS rank, 'h1' AS host_id, 'alpha' AS host_name,"
METRIC += " ? AS attributes, '{\"process.pid\":7}' AS resource, '{}' AS data"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Steps 1 and 2 of ranks 0 and 1, each 10 ns, one after the other; a sensor and a CPU limit of rank 1."""
    path = tmp_path / "old.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(SCHEMA_2.read_text("utf-8"))
        connection.execute("INSERT INTO schema_versions VALUES (2, 1, 'rootwalk 0.1.0')")
        connection.execute("UPDATE journal_progress SET segment = 7, end_bytes = 70")
        for step in (1, 2):
            for rank in (0, 1):
                start, number = 1000 + 10 * step, 10 * step + rank
                values = [time.time_ns(), number, start, start + 10, rank, step]
                connection.execute(STEP, values)
        sensor = '{"rootwalk.sensor.name":"sched","rootwalk.sensor.status":"available"}'
        connection.execute(METRIC, ["rootwalk.sensor.state", 1, sensor])
        connection.execute(METRIC, ["training.cgroup.cpu.limit", 2.5, "{}"])
        connection.execute("INSERT INTO findings (job, attempt, id) VALUES ('j1', 0, 'f1')")
    return path


def test_what_the_old_store_said_the_new_one_says(old: Path) -> None:
    views = ["jobs", "ranks", "steps", "spans", "metrics", "sensors"]
    columns: dict[str, str] = {}
    before: dict[str, list[Any]] = {}
    with duckdb.connect(str(old)) as connection:
        for view in views:
            described = connection.execute(f"DESCRIBE {view}").fetchall()
            columns[view] = ", ".join(name for name, *_ in described)
            before[view] = connection.execute(f"FROM {view} ORDER BY ALL").fetchall()

    for view in views:
        query = f"SELECT {columns[view]} FROM {view} ORDER BY ALL"  # noqa: S608  (names of our own)
        assert query_rows(old, query) == before[view]
    assert query_rows(old, "FROM rootwalk_schema") == [(SCHEMA_VERSION, 1, "rootwalk 0.1.0")]
    assert query_rows(old, "SELECT id, state FROM findings") == [("f1", "open")]
    assert query_rows(old, "SELECT count(*) FROM logs") == [(0,)]


def test_it_has_the_tables_and_views_of_a_new_store(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.duckdb"
    create_store(new)
    columns = "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns()"
    columns += " WHERE NOT internal ORDER BY 1, 2"

    assert query_rows(old, columns) == query_rows(new, columns)
    assert query_rows(old, "SELECT segment, end_bytes FROM journal_progress") == [(7, 70)]


def test_a_span_of_the_old_store_is_not_stored_again(old: Path) -> None:
    again = trace_request([span(10), span(12)])

    assert save_journal_batch(old, [JournalRecord(Signal.TRACES, time.time_ns(), again, 8, 1)]) == 1
    assert query_rows(
        old,
        "SELECT span_id[-2:], end_unix_ns FROM spans WHERE span_id[-2:] IN ('0a', '0c') ORDER BY 1",
    ) == [
        ("0a", 1020),
        ("0c", 1017),
    ]


def test_processes_and_states_are_known(old: Path) -> None:
    assert query_rows(old, "SELECT rank, pid FROM rank_processes ORDER BY ALL") == [
        (0, 4411),
        (1, 7),
        (1, 4411),
    ]
    assert query_rows(old, "SELECT name, rank, value FROM metric_states ORDER BY ALL") == [
        ("rootwalk.sensor.state", 1, 1.0),
        ("training.cgroup.cpu.limit", 1, 2.5),
    ]


def test_views_of_version_3_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "three.duckdb"
    create_store(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE OR REPLACE VIEW stalls AS SELECT job, attempt FROM span_records")
        connection.execute("UPDATE schema_versions SET version = 3")

    assert query_rows(path, "SELECT wait_kind, waker_name FROM stalls") == []
    assert query_rows(path, "SELECT version FROM rootwalk_schema") == [(SCHEMA_VERSION,)]


def test_waits_of_version_4_are_known_from_the_length_that_it_told(tmp_path: Path) -> None:
    # Steps 1 and 2 of rank 0 and a phase of each; what its thread waited for is told of step 1 only.
    path = tmp_path / "four.duckdb"
    create_store(path)
    waits = '{"training.wait.kinds":{"arrayValue":{"values":[{"stringValue":"futex"}]}},'
    waits += '"training.wait.times":{"arrayValue":{"values":[{"doubleValue":0.02}]}}}'
    phase = "UPDATE span_records SET phase = 'forward', phase_index = 0, name = 'training.phase'"
    with duckdb.connect(str(path)) as connection:
        for number, (step, attributes) in enumerate(((1, waits), (1, "{}"), (2, "{}"), (2, "{}"))):
            connection.execute(STEP, [time.time_ns(), number, 1000, 1010, 0, step])
            chosen = " WHERE span_id = printf('%016x', ?)"
            told = [attributes, number]
            connection.execute(f"UPDATE span_records SET attributes = ?{chosen}", told)  # noqa: S608
            if number % 2:
                connection.execute(phase + chosen, [number])
        connection.execute("UPDATE schema_versions SET version = 4")

    query = "SELECT step, wait_kinds, wait_times, wait_min_ns FROM steps ORDER BY step"
    assert query_rows(path, query) == [(1, ["futex"], [0.02], 100_000), (2, [], [], None)]
    assert query_rows(path, "SELECT step, wait_min_ns FROM phases ORDER BY step") == [
        (1, 100_000),
        (2, None),
    ]
