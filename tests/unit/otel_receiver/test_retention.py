"""What is deleted from a store, what stays whole, and when its file becomes smaller."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.compaction import apply_retention, compact
from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.drain import JournalDrain
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.replace_file import replace_file
from rootwalk.otel_receiver.retention import Retention, is_compaction_due
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import (
    create_store,
    reading,
    save_journal_batch,
    writing,
)
from support.log_and_profile_messages import (
    log_record,
    log_request,
    profile,
    profile_request,
    sample,
)
from support.otlp_messages import metric, metric_request, span, trace_request
from support.stores import query_rows

DAY_NS = 86_400_000_000_000
WEEK = Retention(age_s=7 * 86_400.0)


def _save(store: Path, *records: tuple[Signal, int, bytes]) -> None:
    save_journal_batch(store, [JournalRecord(*r, 1, n) for n, r in enumerate(records)])


def _steps(numbers: dict[int, int], rank: int, received_day: int) -> tuple[Signal, int, bytes]:
    """Return one rank's steps (span id by step), each with a phase whose id is one larger."""
    spans = []
    for step, number in numbers.items():
        fields = {"start_time_unix_nano": 100 * step, "end_time_unix_nano": 100 * step + 90}
        attributes = {"training.step.number": step}
        spans.append(span(number, "training.rank_step", **fields, attributes=attributes))
        spans.append(span(number + 1, "forward", **fields, attributes=attributes))
    resource = {"training.job.id": "j1", "training.job.attempt": 0, "training.rank": rank}
    return Signal.TRACES, received_day * DAY_NS, trace_request(spans, resource)


def test_a_step_is_kept_whole(store: Path) -> None:
    """Rank 0 reports steps 1 and 2 on day 1, rank 1 step 1 on day 1 and step 2 on day 4; a week ends on day 3."""
    _save(
        store,
        _steps({1: 10, 2: 20}, 0, received_day=1),
        _steps({1: 30}, 1, received_day=1),
        _steps({2: 40}, 1, received_day=4),
    )

    assert apply_retention(store, WEEK, 10 * DAY_NS) == 4
    assert query_rows(
        store, "SELECT step, rank, count(*) FROM spans GROUP BY ALL ORDER BY ALL"
    ) == [
        (2, 0, 2),
        (2, 1, 2),
    ]
    assert query_rows(store, "SELECT steps, ranks, first_unix_ns FROM jobs") == [(1, 1, 200)]
    assert apply_retention(store, WEEK, 10 * DAY_NS) == 0


def test_old_records_of_every_signal_go_and_young_ones_stay(store: Path) -> None:
    gauge = metric_request([metric("g", gauge={"data_points": [{"as_int": 1}]})])
    other = {"training.job.id": "old", "training.rank": 0}
    tables = profile_request([profile([sample(1, values=[1])])])
    for day in (1, 9):
        _save(
            store,
            (Signal.TRACES, day * DAY_NS, trace_request([span(day)], other if day == 1 else None)),
            (Signal.METRICS, day * DAY_NS, gauge),
            (Signal.LOGS, day * DAY_NS, log_request([log_record(body=day)])),
            (Signal.PROFILES, day * DAY_NS, tables),
        )

    assert apply_retention(store, WEEK, 10 * DAY_NS) == 5
    assert query_rows(store, "SELECT job FROM jobs") == [("j1",)]
    assert query_rows(
        store, "SELECT (SELECT count(*) FROM metrics), CAST(body AS TEXT) FROM logs"
    ) == [(1, "9")]
    assert query_rows(store, "SELECT stack FROM profile_samples") == [("main;step",)]
    assert apply_retention(store, WEEK, 100 * DAY_NS) == 5
    for table in ("jobs", "profile_stacks", "profile_dictionaries", "rank_processes"):
        assert query_rows(store, f"FROM {table}") == [], table


@pytest.mark.slow
def test_by_size_the_oldest_go_and_the_file_stays_below(store: Path) -> None:
    """Thirty batches of about 1.5 MB into a store of at most 8 MiB."""
    limit = Retention(size_bytes=8 * 1024 * 1024)
    for batch in range(30):
        spans = [
            span(n, attributes={"text": f"{n * 2654435761 % 2**61:x}" * 20})
            for n in range(batch * 4000, (batch + 1) * 4000)
        ]
        _save(store, (Signal.TRACES, (batch + 1) * DAY_NS, trace_request(spans)))
        apply_retention(store, limit, 99 * DAY_NS)

    assert store.stat().st_size <= 8 * 1024 * 1024
    rows = query_rows(
        store, "SELECT min(start_unix_ns - 1000), max(start_unix_ns - 1000), count(*) FROM spans"
    )
    first, last, count = rows[0]
    assert last == 119_999
    assert 8_000 < count == last - first + 1 < 120_000


def _fill_and_empty(store: Path) -> None:
    """Leave a file of some 30 MB of which next to nothing is used, and a few rows in every kind of table."""
    _save(store, (Signal.TRACES, DAY_NS, trace_request([span(1), span(2)])))
    with writing(store) as connection:
        connection.execute("CREATE TABLE wide AS SELECT uuid() AS text FROM range(1500000)")
        connection.execute("INSERT INTO clock_offsets VALUES ('j1', 0, 'h1', 300)")
        connection.execute("UPDATE journal_progress SET segment = 9, end_bytes = 90")
    with writing(store) as connection:
        connection.execute("DROP TABLE wide")
        connection.execute("CHECKPOINT")


def test_a_file_that_is_mostly_free_is_copied(store: Path) -> None:
    _fill_and_empty(store)
    size_bytes = store.stat().st_size
    before = [
        query_rows(store, f"FROM {t} ORDER BY ALL")
        for t in ("spans", "ranks", "clock_offsets", "rootwalk_schema")
    ]
    with reading(store) as connection:
        assert is_compaction_due(connection, WEEK)

    assert apply_retention(store, WEEK, DAY_NS) == 0

    assert store.stat().st_size < size_bytes / 4
    after = [
        query_rows(store, f"FROM {t} ORDER BY ALL")
        for t in ("spans", "ranks", "clock_offsets", "rootwalk_schema")
    ]
    assert after == before
    assert query_rows(store, "SELECT segment, end_bytes FROM journal_progress") == [(9, 90)]
    assert [path.name for path in store.parent.iterdir()] == ["s.duckdb"]


def test_a_store_that_is_in_use_is_not_replaced(store: Path) -> None:
    """Another process reads it: what that process sees must be what later writers write to."""
    new = store.with_name("s.duckdb.compacting")
    create_store(new)
    before = store.stat()
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print(1, flush=True); input()"
    command = [sys.executable, "-c", hold, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not replace_file(new, store, before)
        holder.stdin.write(b"\n")
        holder.stdin.close()
    assert replace_file(new, store, before)
    assert store.stat().st_ino != before.st_ino


def test_a_store_that_was_written_to_since_is_not_replaced(store: Path) -> None:
    new = store.with_name("s.duckdb.compacting")
    create_store(new)
    before = store.stat()
    with writing(store) as connection:
        connection.execute("INSERT INTO clock_offsets VALUES ('j1', 0, 'h1', 300)")

    assert not replace_file(new, store, before)
    assert query_rows(store, "SELECT offset_ns FROM clock_offsets") == [(300,)]


@pytest.mark.slow
def test_killed_in_the_middle_of_a_compaction(store: Path) -> None:
    """A process compacts again and again until it is killed: at no moment is the store anything but whole."""
    spans = [span(n, attributes={"text": f"{n:0200d}"}) for n in range(20_000)]
    _save(store, (Signal.TRACES, DAY_NS, trace_request(spans)))
    code = "import sys, pathlib; from rootwalk.otel_receiver.compaction import compact\n"
    code += "while True: print(compact(pathlib.Path(sys.argv[1])), flush=True)"
    for kill_after_s in (0.02, 0.05, 0.11, 0.17, 0.23):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(store)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"True\n"
            time.sleep(kill_after_s)
            process.kill()
        assert query_rows(store, "SELECT count(*), count(DISTINCT span_id) FROM spans") == [
            (20_000, 20_000)
        ]
    assert compact(store)
    assert [path.name for path in store.parent.iterdir()] == ["s.duckdb"]


def test_what_a_killed_compaction_left_is_removed(store: Path) -> None:
    left = store.with_name("s.duckdb.compacting")
    left.write_bytes(b"half a copy")

    assert compact(store)
    assert not left.exists()
    assert query_rows(store, "SELECT count(*) FROM spans") == [(0,)]


def test_the_drain_deletes_without_new_records(store: Path) -> None:
    _save(store, (Signal.TRACES, DAY_NS, trace_request([span(1)])))
    # More than half does not go at once: the clock may be wrong.
    new = trace_request([span(number) for number in range(2, 5)])
    _save(store, (Signal.TRACES, time.time_ns(), new))
    drain = JournalDrain(
        store,
        store.with_name("s.duckdb.journal"),
        IngestCounters(),
        flush_interval_s=0.01,
        flush_records=1,
        retention=WEEK,
        retention_interval_s=0.05,
    )
    drain.start()
    try:
        deadline_s = time.monotonic() + 20
        while query_rows(store, "SELECT count(*) FROM spans") != [(3,)]:
            assert time.monotonic() < deadline_s
    finally:
        drain.stop()


@pytest.mark.parametrize(
    ("retention", "saw"),
    [(Retention(age_s=1.0), "for 1 s"), (Retention(size_bytes=1000), "to 1000 bytes")],
)
def test_limits_that_cannot_be_kept(retention: Retention, saw: str) -> None:
    with pytest.raises(ConfigError, match=saw):
        retention.validate()
