"""`rootwalk import otlp`: every form of file, whole and broken, once and again, into a real store."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.importers import importing, otlp
from rootwalk.graph.importers.formats import BrokenPart, ImportOptions, load_importer
from rootwalk.graph.importers.importing import ImportSummary, import_files
from rootwalk.otel_receiver.imports import save_import
from rootwalk.otel_receiver.otlp_json import render_json_message
from rootwalk.otel_receiver.signals import Signal
from support.log_and_profile_messages import (
    log_record,
    log_request,
    profile,
    profile_request,
    sample,
)
from support.otlp_messages import metric, metric_request, span, trace_request
from support.stores import query_rows

SAMPLES = Path(__file__).parents[1] / "data" / "otlp_samples"
TRACES, METRICS, LOGS, PROFILES = Signal
POINTS = {"data_points": [{"as_double": 2.5, "time_unix_nano": 9}]}
# One request of each signal: 2 spans, 1 point, 1 log record, 1 sample.
BODIES = [
    trace_request([span(1), span(2)]),
    metric_request([metric("m", gauge=POINTS)]),
    log_request([log_record(time_unix_nano=5, body="x")]),
    profile_request([profile([sample(1, values=[3])])]),
]
MESSAGES: list[Any] = [
    ExportTraceServiceRequest,
    ExportMetricsServiceRequest,
    ExportLogsServiceRequest,
    ExportProfilesServiceRequest,
]
COUNTS = {TRACES: 2, METRICS: 1, LOGS: 1, PROFILES: 1}
VIEWS = ("spans", "metrics", "logs", "profile_samples")


def as_json(number: int) -> bytes:
    message = MESSAGES[number].FromString(BODIES[number])
    return json.dumps(render_json_message(message)).encode()


def as_lines() -> bytes:
    return b"".join(as_json(number) + b"\n" for number in range(len(BODIES)))


def prefixed(messages: list[bytes]) -> bytes:
    return b"".join(len(message).to_bytes(4) + message for message in messages)


FORMS: dict[str, Callable[[], bytes]] = {
    "lines": as_lines,
    "lines after white space": lambda: b"\n\n  \n" + as_lines(),
    "last line without an end": lambda: as_lines().rstrip(),
    "gzip": lambda: gzip.compress(as_lines()),
    "gzip in members": lambda: b"".join(map(gzip.compress, as_lines().splitlines(keepends=True))),
    "zstd": lambda: zstandard.compress(as_lines()),
    "zstd in frames": lambda: b"".join(
        map(zstandard.compress, as_lines().splitlines(keepends=True))
    ),
    "prefixed protobuf": lambda: prefixed(BODIES),
    "prefixed zstd protobuf": lambda: prefixed([zstandard.compress(body) for body in BODIES]),
    "prefixed zstd json": lambda: prefixed([zstandard.compress(as_json(n)) for n in range(4)]),
    "gzip of prefixed protobuf": lambda: gzip.compress(prefixed(BODIES)),
}


class Imported:
    """What one import came to, and what it said."""

    def __init__(self, summary: ImportSummary, broken: list[tuple[Path, BrokenPart]]) -> None:
        self.summary = summary
        self.places = [(path.name, part.place) for path, part in broken]
        self.texts = [str(part.error) for _, part in broken]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def run_import(
    store: Path, *paths: Path, job: str | None = None, is_strict: bool = False
) -> Imported:
    broken: list[tuple[Path, BrokenPart]] = []
    summary = import_files(
        load_importer("otlp", ImportOptions()),
        list(paths),
        store,
        job=job,
        is_strict=is_strict,
        on_broken=lambda path, part: broken.append((path, part)),
        on_progress=lambda path, summary: None,
    )
    return Imported(summary, broken)


def write(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def count_rows(store: Path) -> dict[str, int]:
    """Rows by view, without those that say that a file is broken."""
    counts = {view: query_rows(store, f"SELECT count(*) FROM {view}")[0][0] for view in VIEWS}  # noqa: S608
    return counts | {"logs": counts["logs"] - len(files_told_broken(store))}


def files_told_broken(store: Path) -> list[str]:
    """Names of the files that the store says are broken."""
    query = (
        "SELECT attributes ->> '$.\"rootwalk.import.file.name\"' FROM logs"
        " WHERE event_name = 'rootwalk.import.broken_file'"
    )
    return [name for (name,) in query_rows(store, query)]


ALL_ROWS = {"spans": 2, "metrics": 1, "logs": 1, "profile_samples": 1}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_stored_once(form: str, store: Path, tmp_path: Path) -> None:
    path = write(tmp_path, FORMS[form]())

    first = run_import(store, path)
    again = run_import(store, path)

    assert first.texts == again.texts == []
    assert first.summary.records == COUNTS
    assert (again.summary.records, again.summary.known) == (dict.fromkeys(Signal, 0), 5)
    assert count_rows(store) == ALL_ROWS


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("form", ["protobuf", "gzip", "line", "many lines"])
def test_one_request_of_each_signal(number: int, form: str, store: Path, tmp_path: Path) -> None:
    content = {
        "protobuf": BODIES[number],
        "gzip": gzip.compress(BODIES[number]),
        "line": as_json(number),
        "many lines": json.dumps(json.loads(as_json(number)), indent=2).encode(),
    }[form]

    done = run_import(store, write(tmp_path, content))

    assert done.texts == []
    assert done.summary.records == dict.fromkeys(Signal, 0) | {
        tuple(Signal)[number]: list(COUNTS.values())[number]
    }


def test_forms_of_one_request_are_the_same_request(store: Path, tmp_path: Path) -> None:
    paths = [write(tmp_path, make(), f"{n}") for n, make in enumerate(FORMS.values())]

    done = run_import(store, *paths)

    assert done.summary.records == COUNTS
    assert done.summary.known == 5 * (len(FORMS) - 1)
    assert count_rows(store) == ALL_ROWS


def test_a_file_that_has_grown_adds_what_is_new(store: Path, tmp_path: Path) -> None:
    lines = as_lines().splitlines(keepends=True)
    # A Collector writes on: its last line was half there.
    path = write(tmp_path, b"".join(lines[:2]) + lines[2][:40])
    first = run_import(store, path)
    path.write_bytes(b"".join(lines))
    second = run_import(store, path)

    assert first.places == [("file", "line 3")]
    assert first.summary.broken_files == 1
    assert second.texts == []
    assert (second.summary.records[LOGS], second.summary.known) == (1, 3)
    assert count_rows(store) == ALL_ROWS


def test_spans_that_came_by_another_way_long_ago_are_known(store: Path, tmp_path: Path) -> None:
    run_import(store, write(tmp_path, BODIES[0]))
    with duckdb.connect(str(store)) as connection:
        connection.execute("DELETE FROM imported_requests")
        connection.execute("UPDATE span_records SET received_unix_ns = 1")
    both = trace_request([span(2), span(3)])
    done = run_import(store, write(tmp_path, both))

    assert (done.summary.records[TRACES], done.summary.known) == (1, 1)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(3,)]


def test_broken_lines_are_named_and_the_rest_goes_on(store: Path, tmp_path: Path) -> None:
    good = as_json(0) + b"\n"
    bad = write(tmp_path, good + b"{no json\n\n" + b'{"other": 1}\n' + as_json(1), "bad")
    behind = write(tmp_path, as_json(2), "behind")

    done = run_import(store, bad, behind)

    assert done.places == [("bad", "line 2"), ("bad", "line 4")]
    assert (done.summary.files, done.summary.broken_files) == (2, 1)
    assert count_rows(store) == ALL_ROWS | {"profile_samples": 0}
    assert files_told_broken(store) == ["bad"]


def test_strict_stops_at_the_first(store: Path, tmp_path: Path) -> None:
    bad = write(tmp_path, as_json(0) + b"\n{no json\n" + as_json(1), "bad")
    behind = write(tmp_path, as_json(2), "behind")

    done = run_import(store, bad, behind, is_strict=True)

    assert done.places == [("bad", "line 2")]
    assert (done.summary.files, done.summary.broken_files) == (1, 1)
    assert count_rows(store) == dict.fromkeys(VIEWS, 0) | {"spans": 2}


@pytest.mark.parametrize(
    ("content", "place", "saw"),
    [
        (b"", "the whole file", "saw 0 bytes"),
        (b" \n\n", "the whole file", "with nothing in them"),
        (b"{}", "the whole file", "with nothing in them"),
        (b"[]", "the whole file", "saw 5b 5d at its beginning"),
        (b"PK\x03\x04rest", "the whole file", "saw 50 4b 03 04"),
        (b'{"traceEvents": []}', "line 1", "saw JSON without resourceSpans"),
        (b'{"resourceSpans": 7}', "line 1", "saw 7 at resourceSpans; needs an array"),
        (b'{\n "resourceSpans": [\n', "line 1", "that are not JSON"),
        (BODIES[0][:-3], "byte 0", "a field that goes on after the end"),
        (b"\x0a\x02\x12\x7f", "byte 0", "cannot decode a request"),
        # What protobuf of another kind may look like: valid, and none of its fields known.
        (b"\x0a\x02\x08\x07", "byte 0", "saw 4 bytes without a record"),
        (b"\x0a\x02\x08\x07\x12\x02\x08\x07", "byte 0", "saw 8 bytes without a record"),
        (prefixed(BODIES)[:-5], f"byte {len(prefixed(BODIES[:3]))}", "of its"),
        (prefixed([b"\x08\x01"]), "byte 0", "saw field 1"),
        (prefixed(BODIES[:1]) + b"\0", f"byte {len(prefixed(BODIES[:1]))}", "saw 0 of its 0 bytes"),
        (prefixed([b"\x28\xb5\x2f\xfd damaged"]), "byte 0", "cannot decompress the body"),
        (gzip.compress(as_lines())[:-9], "the whole file", "in mid-stream"),
        (zstandard.compress(as_lines())[:-9], "the whole file", "in mid-stream"),
        (
            gzip.compress(as_lines()) + b"\x1f\x8bjunk",
            "the whole file",
            "cannot decompress the file",
        ),
        (trace_request([span(1, trace_id=b"ab")]), "byte 0", "saw trace or span ids"),
    ],
)
def test_broken_file_is_named_with_what_was_seen(
    content: bytes, place: str, saw: str, store: Path, tmp_path: Path
) -> None:
    behind = write(tmp_path, as_json(1), "behind")

    done = run_import(store, write(tmp_path, content), behind)

    assert done.places == [("file", place)]
    assert saw in done.texts[0]
    assert query_rows(store, "SELECT count(*) FROM metrics") == [(1,)]


def test_an_empty_file_beside_others_is_told_and_no_failure(store: Path, tmp_path: Path) -> None:
    # As the Collector's file exporter leaves one for a signal that never came.
    empty, whole = write(tmp_path, b"", "logs.jsonl"), write(tmp_path, as_json(0), "traces.jsonl")
    bad = write(tmp_path, b"{}", "bad.jsonl")

    beside = run_import(store, empty, whole)
    alone = run_import(store, empty)
    with_bad = run_import(store, empty, bad, whole)
    strict = run_import(store, empty, whole, is_strict=True)

    assert beside.places == [("logs.jsonl", "the whole file")]
    assert beside.summary.is_whole
    names = "SELECT DISTINCT attributes ->> 'rootwalk.import.file.name' FROM logs"
    assert ("logs.jsonl",) in query_rows(store, names)
    assert [alone.summary.is_whole, with_bad.summary.is_whole, strict.summary.is_whole] == [
        False,
        False,
        False,
    ]


def test_no_file_and_a_folder_are_told(store: Path, tmp_path: Path) -> None:
    done = run_import(store, tmp_path / "absent", tmp_path)
    assert done.places == [("absent", "the whole file"), (tmp_path.name, "the whole file")]
    assert ["no such file" in done.texts[0], "is a directory" in done.texts[1]] == [True, True]


def test_a_request_of_the_size_of_a_brace_is_protobuf(store: Path, tmp_path: Path) -> None:
    # A resource entry of 123 bytes: the file begins with a line feed and a brace.
    empty = len(trace_request([span(1, "")], resource={})) - 2
    body = trace_request([span(1, "n" * (123 - empty))], resource={})
    while body[1] != ord("{"):
        name = "n" * (123 - empty - (body[1] - 123))
        body = trace_request([span(1, name)], resource={})
    assert body.startswith(b"\n{")

    done = run_import(store, write(tmp_path, body))

    assert (done.texts, done.summary.records[TRACES]) == ([], 1)


def test_a_job_is_given_to_what_names_none(store: Path, tmp_path: Path) -> None:
    bare = trace_request([span(1)], resource={})
    named = trace_request([span(2)], resource={"training.job.id": "own"})

    run_import(store, write(tmp_path, prefixed([bare, named])), job="j7")

    assert query_rows(store, "SELECT job FROM spans ORDER BY span_id") == [("j7",), ("own",)]


def test_the_same_file_under_another_job_is_not_doubled(store: Path, tmp_path: Path) -> None:
    path = write(tmp_path, metric_request([metric("m", gauge=POINTS)]))
    run_import(store, path)
    done = run_import(store, path, job="j7")
    assert done.summary.records[METRICS] == 0
    assert query_rows(store, "SELECT count(*) FROM metrics WHERE name = 'm'") == [(1,)]


def test_profiles_with_one_dictionary_stay_apart(store: Path, tmp_path: Path) -> None:
    requests = [profile_request([profile([sample(1, values=[n])])]) for n in (3, 5, 7)]

    run_import(store, write(tmp_path, prefixed(requests)))

    assert query_rows(store, "SELECT value FROM profile_samples ORDER BY ALL") == [(3,), (5,), (7,)]


def test_an_import_that_was_killed_goes_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [metric_request([metric(f"m{n}", gauge=POINTS)]) for n in range(7)]
    path = write(tmp_path, prefixed(requests))
    monkeypatch.setattr(importing, "BATCH_REQUESTS", 2)
    # The batches before the third are stored, as if the process had died there.
    calls: list[Any] = []

    def save(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return save_import(*arguments)

    monkeypatch.setattr(importing, "save_import", save)
    with pytest.raises(KeyboardInterrupt):
        run_import(store, path)
    assert query_rows(store, "SELECT count(*) FROM metrics") == [(4,)]

    done = run_import(store, path)

    assert (done.summary.records[METRICS], done.summary.known) == (3, 4)
    assert query_rows(store, "SELECT count(DISTINCT name), count(*) FROM metrics") == [(7, 7)]


def test_a_large_request_is_stored_in_pieces(store: Path, tmp_path: Path) -> None:
    # 5 MiB: above what is parsed whole.
    records = [log_record(time_unix_nano=n + 1, body="x" * 1024) for n in range(5_000)]
    path = write(tmp_path, log_request(records))

    done = run_import(store, path)
    again = run_import(store, path)

    assert (done.summary.records[LOGS], again.summary.known) == (5_000, 5_000)
    assert query_rows(store, "SELECT count(*) FROM imported_requests")[0][0] > 1


def test_a_line_that_is_too_long_is_passed_over(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 2_000)
    long = b'{"resourceSpans": [' + b" " * 5_000 + b"]}\n"

    done = run_import(store, write(tmp_path, as_json(0) + b"\n" + long + as_json(1) + b"\n"))

    assert done.places == [("file", "line 2")]
    assert count_rows(store) == dict.fromkeys(VIEWS, 0) | {"spans": 2, "metrics": 1}


def test_samples_of_others_twice(store: Path, tmp_path: Path) -> None:
    names = [
        path
        for path in sorted(SAMPLES.rglob("*"))
        if path.suffix in (".json", ".jsonl", ".pb", ".otlp")
    ]
    copies = [
        Path(shutil.copy(path, tmp_path / f"{n}{path.suffix}")) for n, path in enumerate(names)
    ]

    first = run_import(store, *names)
    again = run_import(store, *copies)

    broken = {
        "empty",
        "malformed",
        "metrics_temporality_strings",
        "multifile_malformed_traces",
        "whitespace",
    }
    assert {Path(name).stem for name, _ in first.places} == broken
    assert sum(first.summary.records.values()) > 200
    assert sum(again.summary.records.values()) == 0
    assert again.summary.known == sum(first.summary.records.values()) + first.summary.known
