"""A store as OTLP and back: the second store has what the first one has, field by field."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.exporters import otlp
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.otlp_json import read_json_message
from rootwalk.otel_receiver.request_checks import read_request
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, save_journal_batch
from support.examples import examples
from support.log_and_profile_messages import (
    log_record,
    log_request,
    profile,
    profile_request,
    sample,
)
from support.messages import messages_of
from support.otlp_messages import key_values, metric, metric_request, span, trace_request
from support.profile_breakers import SAMPLES as SAMPLES_OF_A_RANK
from support.profile_breakers import build, cpu_profile
from support.profile_rules import find_violations
from support.stores import query_rows

DATA = Path(__file__).parents[1] / "data"
# Every record of the four signals, and what is made from them.
VIEWS = (
    *("spans", "steps", "phases", "collectives", "operations", "stalls", "ranks", "jobs"),
    *("metrics", "sensors", "logs", "profiles", "profile_samples"),
)
DUMPS = DATA / "nvrx_flight_recorder" / "fr_traces" / "lock_gil_1st"
SAMPLES = DATA / "otlp_samples"
MORE = [
    *(SAMPLES / "duckdb-otlp" / f"{name}.jsonl" for name in ("metrics_all_types", "logs_nulls")),
    *(SAMPLES / "duckdb-otlp" / f"otlp_{name}.pb" for name in ("traces", "metrics", "logs")),
    *(SAMPLES / "sig-profiling" / f"{name}.otlp" for name in ("profile", "k8s")),
]
ODD: dict[str, Any] = {
    "text": 'a "b"\n\x1b',
    "whole": -(2**63),
    "real": 1e22,
    "is": False,
    "bytes": b"\x00\xff",
    "list": [1, 2.0, "x", [True]],
    "": "",
}


def there_and_back(store: Path, *options: str) -> Path:
    """Export a store, import what came out, and return the other store."""
    file, other = store.with_name("out.jsonl"), store.with_name("other.duckdb")
    arguments = ["export", str(store), "--format", "otlp", "--output", str(file), *options]
    assert main([*arguments, "--quiet"]) == 0
    assert main(["import", "otlp", str(file), "--store", str(other), "--quiet"]) == 0
    return other


def rows_of(store: Path, view: str) -> Counter[str]:
    """Return the rows of a view, without when they were received."""
    columns = [name for name, *_ in query_rows(store, f"DESCRIBE {view}")]
    kept = ", ".join(name for name in columns if name != "received_unix_ns")
    return Counter(repr(row) for row in query_rows(store, f"SELECT {kept} FROM {view}"))  # noqa: S608


def check_equal(store: Path, other: Path) -> int:
    """Fail where two stores differ; return how many rows they have."""
    total = 0
    for view in VIEWS:
        rows = rows_of(store, view)
        assert rows_of(other, view) == rows, view
        total += rows.total()
    dictionaries = "SELECT dictionary_id, md5(data) FROM profile_dictionaries ORDER BY ALL"
    assert query_rows(other, dictionaries) == query_rows(store, dictionaries)
    return total


def save(store: Path, *requests: tuple[Signal, bytes]) -> Path:
    save_journal_batch(
        store,
        [JournalRecord(signal, 9 + n, body, 1, n) for n, (signal, body) in enumerate(requests)],
    )
    return store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def test_one_of_everything(store: Path) -> None:
    links = [{"trace_id": b"\1" * 16, "span_id": b"\2" * 8, "attributes": key_values(ODD)}]
    events = [{"time_unix_nano": 7, "name": "e", "attributes": key_values(ODD)}]
    histogram = {"count": 2, "sum": 3.5, "bucket_counts": [1, 1], "explicit_bounds": [1.0]}
    exemplar = {"time_unix_nano": 3, "as_int": 4, "filtered_attributes": key_values(ODD)}
    cumulative: Any = {"aggregation_temporality": 2}
    requests = [
        trace_request(
            [
                span(1, links=links, events=events, attributes=ODD, kind=3),
                span(2, status={"code": 2, "message": "no"}, trace_state="a=b", kind=77),
                span(3, status={"code": 0}),
            ]
        ),
        metric_request(
            [
                metric("g", unit="s", gauge={"data_points": [{"as_double": float("nan")}]}),
                metric("i", gauge={"data_points": [{"as_int": 2**60 + 1, "flags": 1}, {}]}),
                metric(
                    "c",
                    sum={
                        "data_points": [{"as_double": -0.5, "exemplars": [exemplar]}],
                        "is_monotonic": True,
                        **cumulative,
                    },
                ),
                metric("h", histogram={"data_points": [histogram, {"count": 0}], **cumulative}),
                metric(
                    "e",
                    exponential_histogram={
                        "data_points": [
                            {
                                "count": 1,
                                "scale": -1,
                                "zero_threshold": 0.1,
                                "min": 1.0,
                                "positive": {"offset": 3, "bucket_counts": [1]},
                            }
                        ],
                        "aggregation_temporality": 1,
                    },
                ),
                metric(
                    "s",
                    summary={
                        "data_points": [
                            {"count": 3, "quantile_values": [{"quantile": 0.5, "value": 1.0}]}
                        ]
                    },
                ),
            ]
        ),
        log_request(
            [
                log_record(time_unix_nano=5, body="x", attributes=ODD, severity_number=9),
                log_record(observed_time_unix_nano=6, event_name="e", flags=1, span_id=b"\3" * 8),
                log_record(body={"a": [1]}, dropped_attributes_count=3, severity_text="W"),
            ]
        ),
        profile_request(
            [
                profile(
                    [sample(1, values=[3], attribute_indices=[1], link_index=1), sample(3)],
                    profile_id=b"\4" * 16,
                ),
                profile([sample(2, timestamps_unix_nano=[1001, 1002])], period=0),
            ]
        ),
    ]
    save(store, *zip(Signal, requests, strict=True))
    assert check_equal(store, there_and_back(store)) >= 3 + 8 + 3 + 2 + 3


def exported_profiles(store: Path, *options: str) -> list[Any]:
    file = store.with_name("out.jsonl")
    arguments = ["export", str(store), "--format", "otlp", "--output", str(file), "--quiet"]
    assert main([*arguments, *options]) == 0
    lines = file.read_bytes().splitlines()
    file.unlink()
    return [read_json_message(ExportProfilesServiceRequest, line) for line in lines]


def test_exported_profiles_keep_the_rules(store: Path) -> None:
    ranks = ({"training.job.id": "a", "training.rank": rank} for rank in (0, 1))
    profiles = [
        cpu_profile(samples, resource=resource)
        for samples, resource in zip(SAMPLES_OF_A_RANK[1:], ranks, strict=True)
    ]
    whole = build(*profiles)
    save(store, (Signal.PROFILES, whole.SerializeToString()))
    exported = exported_profiles(store)
    assert [find_violations(request) for request in exported] == [[]]
    assert exported[0].dictionary == whole.dictionary
    for rank, others in ((0, "vfs_read"), (1, "training.phase")):
        (chosen,) = exported_profiles(store, "--ranks", str(rank))
        assert find_violations(chosen) == []
        alone = build(profiles[rank]).dictionary
        for table, entries in alone.ListFields():
            assert len(getattr(chosen.dictionary, table.name)) == len(entries), table.name
        samples = "SELECT rank, value, stack, attributes, span_id FROM profile_samples"
        sent = query_rows(store, f"{samples} WHERE rank = {rank}")
        assert query_rows(there_and_back(store, "--ranks", str(rank)), samples) == sent
        assert len(sent) == 1
        store.with_name("out.jsonl").unlink()
        store.with_name("other.duckdb").unlink()
        assert others in whole.dictionary.string_table
        assert others not in chosen.dictionary.string_table


@pytest.mark.parametrize(
    "importing",
    [
        ["oplog", DATA / "straggleranalysis" / "trace-ST.parquet"],
        ["kineto", DATA / "kineto" / "num_workers_0-worker0.pt.trace.json.gz"],
        ["flight-recorder", *sorted(DUMPS.glob("_dump_*"))],
        ["otlp", *sorted((SAMPLES / "opentelemetry-proto").glob("*.json")), *MORE],
    ],
    ids=lambda importing: importing[0],
)
@pytest.mark.long
def test_what_others_recorded(store: Path, importing: list[Any]) -> None:
    """Public files of four formats: equal rows, and the same verdict."""
    names = [str(part) for part in importing]
    if names[0] == "oplog":
        names += ["--meta", str(DATA / "straggleranalysis" / "meta-ST.yaml")]
    assert main(["import", *names, "--store", str(store), "--quiet"]) == 0
    other = there_and_back(store)
    assert check_equal(store, other) > 0
    if names[0] != "otlp":
        first, second = (to_object(diagnose(path)) for path in (store, other))
        assert second | {"cost": None} == first | {"cost": None}


@pytest.mark.parametrize(
    ("signal", "message"),
    list(
        zip(
            Signal,
            (
                *(ExportTraceServiceRequest, ExportMetricsServiceRequest),
                *(ExportLogsServiceRequest, ExportProfilesServiceRequest),
            ),
            strict=True,
        )
    ),
    ids=str,
)
@pytest.mark.long
def test_whatever_is_sent(signal: Signal, message: Any) -> None:
    @examples(0.25, suppress_health_check=list(HealthCheck))
    @given(messages_of(message))
    def check(sent: Any) -> None:
        request = read_request(signal, sent.SerializeToString())
        if not request.accepted:
            return
        with tempfile.TemporaryDirectory() as folder:
            store = save(Path(folder) / "store.duckdb", (signal, bytes(request.body)))
            check_equal(store, there_and_back(store))

    check()


def test_lines_are_requests_of_bounded_size(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "ROWS_AT_ONCE", 10)
    long = {"text": "x" * 1000}
    spans = [span(n, attributes=long) for n in range(1, 36)]
    save(store, (Signal.TRACES, trace_request(spans)))
    monkeypatch.setattr(otlp, "MAX_CHARACTERS", 5_000)
    check_equal(store, there_and_back(store))
    lines = store.with_name("out.jsonl").read_text().splitlines()
    assert len(lines) >= 35 / 5
    assert all(list(json.loads(line)) == ["resourceSpans"] for line in lines)
    assert max(map(len, lines)) < 10_000


def test_job_ranks_and_steps_are_chosen(store: Path) -> None:
    requests = []
    for job, rank in (("a", 0), ("a", 1), ("b", 0)):
        resource = {
            "training.job.id": job,
            "training.job.attempt": 0,
            "training.rank": rank,
            "training.world_size": 2,
            "host.id": "h",
        }
        spans = [
            span(
                *(1 + step + 10 * rank + 100 * (job == "b"), "training.rank_step"),
                start_time_unix_nano=1000 * step + 1000,
                end_time_unix_nano=1000 * step + 2000,
                attributes={"training.step.number": step},
            )
            for step in range(4)
        ]
        points = [{"as_double": 1.0, "time_unix_nano": 1000 * n + 1500} for n in range(4)]
        requests += [
            (Signal.TRACES, trace_request(spans, resource)),
            (
                Signal.METRICS,
                metric_request([metric("m", gauge={"data_points": points})], resource),
            ),
        ]
    save(store, *requests)
    other = there_and_back(store, "--job", "a", "--ranks", "1", "--steps", "1:2")
    assert query_rows(other, "SELECT job, rank, step FROM spans ORDER BY ALL") == [
        *(("a", 1, 1), ("a", 1, 2)),
    ]
    assert query_rows(other, "SELECT job, rank, unix_ns FROM metrics ORDER BY ALL") == [
        *(("a", 1, 2500), ("a", 1, 3500)),
    ]


def test_nothing_to_export_is_said(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_store(store)
    file = store.with_name("out.jsonl")
    arguments = ["export", str(store), "--format", "otlp", "--output", str(file), "--quiet"]
    assert main(arguments) == 1
    assert "saw no span, metric, log or profile" in capsys.readouterr().err
    assert not list(store.parent.glob("out.jsonl*"))
