from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.schema import OLDEST_VERSION, SCHEMA_VERSION
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import (
    create_store,
    query_store,
    reading,
    save_journal_batch,
    writing,
)
from support.otlp_messages import key_values, metric, metric_request, span, trace_request
from support.stores import query_rows

HOUR_NS = 3_600_000_000_000
VIEW_COLUMNS = {
    "rootwalk_schema": "version created_unix_ns product",
    "jobs": "job attempt world_size ranks steps first_unix_ns last_unix_ns",
    "ranks": "job attempt rank local_rank world_size host_id host_name pid first_step last_step",
    "steps": "job attempt step rank host_id host_name trace_id span_id start_unix_ns end_unix_ns duration_ns "
    "is_complete sensor running_ns runnable_ns runnable_foreign_ns runnable_own_ns runnable_idle_ns blocked_ns "
    "gc_ns loader_running_ns blocked_loader_running_ns throttled_ns received_unix_ns blocked_loader_files_ns "
    "wait_kinds wait_times wait_min_ns",
    "phases": "job attempt step rank host_id phase phase_index trace_id span_id start_unix_ns end_unix_ns "
    "duration_ns sensor running_ns runnable_ns runnable_foreign_ns runnable_own_ns runnable_idle_ns blocked_ns "
    "gc_ns blocked_loader_running_ns blocked_loader_files_ns wait_kinds wait_times wait_min_ns",
    "collectives": "job attempt step rank host_id phase communicator_id communicator_name communicator_size "
    "sequence is_point_to_point operation bytes backend trace_id span_id start_unix_ns end_unix_ns duration_ns "
    "runnable_ns runnable_foreign_ns runnable_own_ns runnable_idle_ns is_end_known",
    "stalls": "job attempt step rank host_id host_name phase thread_id thread_name role state sensor cpu "
    "aggressor_kind aggressor_pid aggressor_name aggressor_cgroup aggressor_ns aggressors trace_id span_id "
    "parent_span_id start_unix_ns end_unix_ns duration_ns wait_kind wait_system_call wait_peer wait_peer_port "
    "wait_file_system wait_device waker_pid waker_thread_id waker_name own_thread_id own_thread_name own_thread_ns "
    "own_threads",
    "spans": "trace_id span_id parent_span_id name kind start_unix_ns end_unix_ns duration_ns status_code "
    "status_message job attempt rank step host_id host_name service_name scope_name attributes resource links "
    "events trace_state",
    "metrics": "name kind unit unix_ns start_unix_ns value job attempt rank host_id host_name service_name "
    "scope_name attributes resource data is_monotonic",
    "logs": "unix_ns observed_unix_ns severity_number severity_text event_name body trace_id span_id flags job "
    "attempt rank host_id host_name service_name scope_name attributes resource dropped_attributes",
    "profiles": "unix_ns duration_ns profile_id sample_type unit period_type period_unit period sample_count job "
    "attempt rank host_id host_name service_name scope_name attributes resource payload_format payload "
    "dropped_attributes",
    "profile_samples": "unix_ns duration_ns profile_id sample_type unit job attempt rank host_id host_name "
    "service_name value values times_unix_ns trace_id span_id attributes stack",
    "nodes": "job attempt id kind label attributes",
    "edges": "job attempt source_id target_id kind seconds evidence_ids attributes",
    "evidence": "job attempt id signal value unit peers history z trace_id span_id query attributes",
    "findings": "job attempt id state reason layer rank onset_step share_s confidence_band verdict written_unix_ns "
    "detected_unix_ns named_unix_ns closed_unix_ns",
    "sensors": "host_id host_name job sensor status reason backend tier unix_ns",
    "clock_offsets": "job attempt host_id offset_ns",
}


def _save(store: Path, *requests: tuple[int, bytes], signal: Signal = Signal.TRACES) -> int:
    return save_journal_batch(
        store,
        [JournalRecord(signal, time_ns, body, 1, n) for n, (time_ns, body) in enumerate(requests)],
    )


@pytest.mark.parametrize("view", sorted(VIEW_COLUMNS))
def test_columns_of_the_public_views(store: Path, view: str) -> None:
    rows = query_rows(store, f"DESCRIBE {view}")

    types = {name: column_type for name, column_type, *_ in rows}
    assert " ".join(types) == VIEW_COLUMNS[view]
    assert {t for name, t in types.items() if name.endswith(("_ns", "step"))} <= {
        "BIGINT",
        "BIGINT[]",
    }


def test_a_rank_step_its_phase_and_its_stall(store: Path) -> None:
    """Step 3 from 1000 to 2000 ns; forward from 1100 to 1500; a stall from 1200 to 1300."""
    step = {"training.step.number": 3}

    def during(number: int, name: str, start: int, end: int, **attributes: Any) -> Any:
        return span(
            number,
            name,
            start_time_unix_nano=start,
            end_time_unix_nano=end,
            attributes=step | attributes,
        )

    _save(
        store,
        (
            9,
            trace_request(
                [
                    during(
                        1,
                        "training.rank_step",
                        1000,
                        2000,
                        **{
                            "training.step.outcome": "complete",
                            "training.thread.sensor": "core",
                            "training.thread.running_time": 9e-7,
                            "training.thread.runnable_time": 1e-7,
                            "training.thread.blocked_loader_running_time": 3e-8,
                            "training.loader.running_time": 8e-7,
                            "training.gc.time": 2e-8,
                            "training.cgroup.throttled_time": 4e-8,
                        },
                    ),
                    during(
                        2,
                        "forward",
                        1100,
                        1500,
                        **{
                            "training.phase": "forward",
                            "training.phase.index": 1,
                            "training.thread.blocked_loader_running_time": 0.0,
                            "training.gc.time": 2e-8,
                        },
                    ),
                    during(
                        3,
                        "stall.runnable",
                        1200,
                        1300,
                        **{
                            "training.phase": "forward",
                            "thread.id": 77,
                            "process.pid": 4411,
                            "training.thread.state": "runnable",
                            "training.aggressor.pid": 99,
                            "training.aggressor.time": 8e-8,
                        },
                    ),
                    during(4, "training.step", 1000, 2000),
                ]
            ),
        ),
    )

    assert query_rows(
        store,
        "SELECT rank, step, duration_ns, is_complete, running_ns, runnable_ns, blocked_ns, gc_ns,"
        " loader_running_ns, blocked_loader_running_ns, throttled_ns FROM steps",
    ) == [(1, 3, 1000, True, 900, 100, None, 20, 800, 30, 40)]
    assert query_rows(
        store,
        "SELECT phase, phase_index, start_unix_ns, duration_ns, gc_ns, blocked_loader_running_ns FROM phases",
    ) == [("forward", 1, 1100, 400, 20, 0)]
    assert query_rows(
        store,
        "SELECT phase, thread_id, state, aggressor_pid, aggressor_ns, duration_ns FROM stalls",
    ) == [("forward", 77, "runnable", 99, 80, 100)]
    assert query_rows(store, "FROM jobs") == [("j1", 0, 2, 1, 1, 1000, 2000)]
    assert query_rows(store, "FROM ranks") == [("j1", 0, 1, 1, 2, "h1", "alpha", 4411, 3, 3)]
    assert query_rows(store, "SELECT resource ->> 'training.job.id' FROM spans LIMIT 1") == [
        ("j1",)
    ]


def test_collectives_are_aligned_where_the_offset_is_known(store: Path) -> None:
    """The clock of h1 is 300 ns ahead."""
    attributes = {
        "collective.communicator.id": "c",
        "collective.sequence": 5,
        "collective.is_point_to_point": False,
        "training.step.number": 1,
    }
    sent = [span(0, "collective.all_reduce", span_id=b"12345678", attributes=attributes)]
    other = [span(0, "collective.all_reduce", span_id=b"abcdefgh", attributes=attributes)]
    resource = {"training.job.id": "j1", "training.job.attempt": 0, "training.rank": 0}
    _save(store, (9, trace_request(sent)), (9, trace_request(other, resource | {"host.id": "h0"})))
    with writing(store) as connection:
        connection.execute("INSERT INTO clock_offsets VALUES ('j1', 0, 'h1', 300)")

    assert query_rows(
        store,
        "SELECT rank, start_unix_ns, end_unix_ns, duration_ns, is_point_to_point FROM collectives ORDER BY rank",
    ) == [(0, 1000, 1005, 5, False), (1, 700, 705, 5, False)]


def test_sensors_shows_the_last_state(store: Path) -> None:
    def state(unix_ns: int, status: str, tier: int) -> Any:
        attributes = {
            "rootwalk.sensor.name": "sched",
            "rootwalk.sensor.status": status,
            "rootwalk.sensor.tier": tier,
        }
        point = {"as_int": 1, "time_unix_nano": unix_ns, "attributes": key_values(attributes)}
        return metric("rootwalk.sensor.state", gauge={"data_points": [point]})

    host = {"training.job.id": "j1", "host.id": "h1", "host.name": "alpha"}
    body = metric_request([state(20, "degraded", 0), state(10, "available", 2)], host)
    _save(store, (9, body), signal=Signal.METRICS)

    assert query_rows(store, "FROM sensors") == [
        ("h1", "alpha", "j1", "sched", "degraded", None, None, 0, 20)
    ]


def test_a_span_that_is_sent_again_within_an_hour_is_stored_once(store: Path) -> None:
    again = trace_request([span(1), span(2)])

    first = _save(store, (HOUR_NS, trace_request([span(1), span(1)])))
    second = _save(store, (2 * HOUR_NS, again), (2 * HOUR_NS, again))

    assert (first, second) == (1, 3)
    assert query_rows(store, "SELECT span_id FROM spans ORDER BY 1") == [
        ("0000000000000001",),
        ("0000000000000002",),
    ]


def test_the_first_copy_of_a_span_is_kept_when_the_second_ends_elsewhere(store: Path) -> None:
    _save(store, (HOUR_NS, trace_request([span(1, end_time_unix_nano=1010)])))
    late = [span(1, end_time_unix_nano=1020), span(1, end_time_unix_nano=1030), span(2)]

    assert _save(store, (2 * HOUR_NS, trace_request(late))) == 2
    assert query_rows(store, "SELECT span_id[-1:], end_unix_ns FROM spans ORDER BY 1") == [
        ("1", 1010),
        ("2", 1007),
    ]


def test_equal_span_ids_of_two_traces_are_two_spans(store: Path) -> None:
    other = span(1, trace_id=bytes(15) + b"\x02")
    _save(store, (HOUR_NS, trace_request([span(1)])))

    assert _save(store, (HOUR_NS, trace_request([other, span(1)]))) == 1
    assert query_rows(store, "SELECT trace_id[-1:], span_id[-1:] FROM spans ORDER BY 1") == [
        ("1", "1"),
        ("2", "1"),
    ]


def test_after_an_hour_it_is_another_span(store: Path) -> None:
    _save(store, (HOUR_NS, trace_request([span(1)])))

    assert _save(store, (2 * HOUR_NS + 1, trace_request([span(1)]))) == 0
    assert query_rows(store, "SELECT count(*) FROM spans") == [(2,)]


def test_text_with_every_kind_of_character(store: Path) -> None:
    text = 'a\0b"\\\n\u2028é\U0001f600'
    _save(store, (9, trace_request([span(1, text, attributes={"k": text})])))

    assert query_rows(store, "SELECT name, attributes ->> 'k' FROM spans WHERE name = name") == [
        (text, text)
    ]


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000], ids=["empty", "text"])
def test_a_file_that_is_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.duckdb"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="saw a file that is not a DuckDB database"), reading(path):
        pass
    assert path.read_bytes() == content


def test_a_database_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    connection = duckdb.connect(str(path))
    connection.execute("CREATE TABLE t (x INTEGER)")
    connection.close()
    content = path.read_bytes()

    with (
        pytest.raises(StoreError, match="saw a DuckDB file that rootwalk has not written"),
        reading(path),
    ):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [OLDEST_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_schema_version(store: Path, version: int) -> None:
    with writing(store) as connection:
        connection.execute(
            "UPDATE schema_versions SET version = ?, product = 'rootwalk 9'", [version]
        )

    with pytest.raises(
        StoreError,
        match=f"saw schema version {version} by rootwalk 9; needs schema version {SCHEMA_VERSION}",
    ):
        query_rows(store, "FROM jobs")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"), reading(tmp_path / "none.duckdb"):
        pass


@pytest.mark.parametrize("folder", ["none", "file"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / folder / "s.duckdb"

    with pytest.raises(StoreError, match=f'cannot create the store "{path}"'):
        create_store(path)


@pytest.mark.parametrize(
    ("query", "saw"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nothing FROM jobs", "nothing"),
        ("DELETE FROM nodes", "read-only"),
    ],
)
def test_a_query_that_cannot_be_answered(store: Path, query: str, saw: str) -> None:
    with pytest.raises(StoreError, match=f"cannot answer the query: .*{saw}") as caught:
        query_store(store, query)
    assert "\n" not in str(caught.value)


def test_threads_take_turns(store: Path) -> None:
    """DuckDB refuses to open one file for reading and for writing in one process at the same time."""
    with ThreadPoolExecutor(1) as threads:
        with reading(store) as connection:
            saving = threads.submit(_save, store, (9, trace_request([span(1)])))
            assert connection.execute("SELECT count(*) FROM spans").fetchone() == (0,)
        assert saving.result(timeout=10) == 0
    assert query_rows(store, "SELECT count(*) FROM spans") == [(1,)]


@pytest.mark.parametrize(("vacuums", "row_groups"), [(False, 3), (True, 1)])
def test_a_few_rows_need_not_wait_for_row_groups_that_others_wrote(
    store: Path, vacuums: bool, row_groups: int
) -> None:
    for number in range(3):
        with writing(store, vacuums=False) as connection:
            connection.execute(
                "INSERT INTO edges SELECT 'j', 0, i::TEXT, ?, 'k', 1, '[]', '{}' FROM range(2000) t(i)",
                [str(number)],
            )

    with writing(store, vacuums=vacuums) as connection:
        connection.execute("INSERT INTO clock_offsets VALUES ('j', 0, 'h', 1)")

    with reading(store) as connection:
        found = connection.execute(
            "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('edges')"
        ).fetchone()
    assert found == (row_groups,)
