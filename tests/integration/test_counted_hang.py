"""A job that hangs without a flight recorder: what the agents' counts of NCCL's calls say of it, through the store.

rank    0    1    2    3
called  41   41   40   41, told every 5 s while it grows and once a minute then; no GPU was there
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.flight_recorder import make_request
from rootwalk.graph.render.text import render_text
from rootwalk.instrumentation import ids, semconv
from rootwalk.otel_receiver.imports import save_import
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.flight_dumps import START_NS, FlightJob
from support.stores import query_rows
from support.verdicts import check_verdict

JOB, RANKS, NS = "train", 4, 1_000_000_000
WORLD = ids.nccl_communicator_id(bytes(128))
# Seconds at which a count is told: it grows by one every 5 s, and stands still from 200 s on.
GROWS_S, STILL_S = range(0, 205, 5), (260, 320)


def add_point(
    request: ExportMetricsServiceRequest,
    rank: int,
    second: float,
    value: float,
    attributes: Mapping[str, str | int | bool],
    name: str = semconv.METRIC_TRAINING_NCCL_OPERATIONS,
) -> None:
    of = request.resource_metrics.add()
    of.resource.attributes.add(key="training.job.id").value.string_value = JOB
    of.resource.attributes.add(key="training.rank").value.int_value = rank
    of.resource.attributes.add(key="host.name").value.string_value = f"host-{rank // 2}"
    metric = of.scope_metrics.add().metrics.add(name=name)
    metric.sum.is_monotonic = True
    point = metric.sum.data_points.add(
        time_unix_nano=START_NS + round(second * NS), as_double=value
    )
    for key, told in attributes.items():
        one = point.attributes.add(key=key).value
        if isinstance(told, bool):
            one.bool_value = told
        elif isinstance(told, int):
            one.int_value = told
        else:
            one.string_value = told


def counted(path: Path, missing: Mapping[int, int]) -> Path:
    """Write a store of counts in which some ranks have called so many less at the end.

    Args:
        path: Of the store.
        missing: By rank.
    """
    request = ExportMetricsServiceRequest()
    for rank in range(RANKS):
        attributes: dict[str, str | int | bool] = {
            semconv.COLLECTIVE_COMMUNICATOR_ID: WORLD,
            semconv.COLLECTIVE_COMMUNICATOR_SIZE: RANKS,
            semconv.COLLECTIVE_IS_POINT_TO_POINT: False,
        }
        last = len(GROWS_S) - missing.get(rank, 0)
        for second in (*GROWS_S, *STILL_S):
            add_point(request, rank, second, min(1 + second // 5, last), attributes)
    save_journal_batch(path, [JournalRecord(Signal.METRICS, 1, request.SerializeToString(), 1, 1)])
    return path


def test_rank_that_has_not_called_what_the_others_have_is_named(tmp_path: Path) -> None:
    store = counted(tmp_path / "job.duckdb", {2: 1})
    verdict = check_verdict(diagnose(store, job=JOB))
    (finding,) = verdict.findings
    assert (finding.kind, finding.reason, finding.subject.ranks) == ("hang", "NOT_JOINED", (2,))
    assert finding.confidence.score == 0.6
    assert verdict.hang is not None
    assert (verdict.hang.communicator, verdict.hang.sequence) == (WORLD, 41)
    assert (verdict.hang.joined, verdict.hang.absent) == ((0, 1, 3), (2,))
    assert verdict.victims.ranks == (0, 1, 3)
    (row,) = finding.evidence
    assert (row.signal, row.value, row.unit, row.peers) == (
        semconv.METRIC_TRAINING_NCCL_OPERATIONS,
        *(40.0, "{operation}", 41.0),
    )
    assert row.query is not None
    assert query_rows(store, row.query) == [(40.0,)]
    assert f"#41 of {WORLD}" in render_text(verdict)
    # The answer is the same when it is asked for again, with the graph in the store.
    assert diagnose(store).findings[0].id == finding.id


def test_equal_counts_accuse_nobody(tmp_path: Path) -> None:
    verdict = check_verdict(diagnose(counted(tmp_path / "job.duckdb", {}), job=JOB))
    assert (verdict.findings, verdict.hang) == ((), None)


def test_calls_in_a_communicator_that_was_not_seen_leave_it_open(tmp_path: Path) -> None:
    store = counted(tmp_path / "job.duckdb", {2: 1})
    request = ExportMetricsServiceRequest()
    unknown = {
        semconv.TRAINING_NCCL_OPERATION: "all_reduce",
        semconv.TRAINING_NCCL_COMMUNICATOR: "0x7fff",
    }
    add_point(request, 2, 100.0, 9.0, unknown, semconv.METRIC_TRAINING_NCCL_CALLS)
    save_journal_batch(store, [JournalRecord(Signal.METRICS, 2, request.SerializeToString(), 2, 2)])
    verdict = check_verdict(diagnose(store, job=JOB))
    assert (verdict.findings, verdict.outcome) == ((), "insufficient_evidence")
    assert verdict.hang is not None
    assert verdict.hang.absent == (2,)


def test_points_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    store = counted(tmp_path / "job.duckdb", {2: 1})
    request = ExportMetricsServiceRequest()
    same: dict[str, str | int | bool] = {
        semconv.COLLECTIVE_COMMUNICATOR_ID: WORLD,
        semconv.COLLECTIVE_COMMUNICATOR_SIZE: RANKS,
    }
    for value in (float("nan"), float("inf")):
        add_point(request, 2, 100.0, value, same)
    save_journal_batch(store, [JournalRecord(Signal.METRICS, 2, request.SerializeToString(), 2, 2)])
    (finding,) = check_verdict(diagnose(store, job=JOB)).findings
    assert finding.subject.ranks == (2,)


def test_flight_recorders_say_more_and_are_asked_first(tmp_path: Path) -> None:
    store = counted(tmp_path / "job.duckdb", {2: 1})
    job = FlightJob(RANKS, {"0": range(RANKS)})
    job.call_all((0, 2, 3), "0")
    save_import(store, [make_request(record, JOB, 0) for record in job.records()])
    (finding,) = check_verdict(diagnose(store, job=JOB)).findings
    assert finding.subject.ranks == (1,)
    assert {row.signal for row in finding.evidence} == {"collective.unfinished_calls"}
