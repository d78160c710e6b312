"""A hang that ranks report and that their own flight recorders tell too: which of them decides where they differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.flight_dumps import FlightJob
from support.progress_reports import JOB, START_NS, STUCK_S, absent, stuck_job, waiting
from support.verdicts import check_verdict

RANKS, ABSENT = 4, 3
TAKEN_NS = START_NS + round((STUCK_S + 10.0) * 1e9)
WITHOUT_HOOKS = {"stage": None, "step": None, "usual_s": None, "places": ()}


def add_dumps(store: Path, missing: int) -> None:
    """Store a dump of each rank, by which one has not called the last collective."""
    job = FlightJob(RANKS, {"0": range(RANKS)})
    job.call_all(range(RANKS), "0")
    job.finish(range(RANKS), "0")
    job.call_all([rank for rank in range(RANKS) if rank != missing], "0")
    request = ExportLogsServiceRequest()
    for rank in range(RANKS):
        of = request.resource_logs.add()
        of.resource.attributes.add(key="training.job.id").value.string_value = JOB
        of.resource.attributes.add(key="training.rank").value.int_value = rank
        event = of.scope_logs.add().log_records.add(time_unix_nano=TAKEN_NS)
        event.event_name = semconv.EVENT_TRAINING_FLIGHT_RECORDER_DUMP
        event.body.string_value = json.dumps(job.dump(rank, has_history=True))
        event.attributes.add(key="process.pid").value.int_value = 100 + rank
    body = request.SerializeToString()
    save_journal_batch(store, [JournalRecord(Signal.LOGS, TAKEN_NS, body, 10_001, 1)])


def solve(folder: Path, missing: int, *, has_hooks: bool) -> Verdict:
    """Return the verdict about a job in which rank 3 stands elsewhere, with dumps by which a rank is missing."""
    more = {} if has_hooks else WITHOUT_HOOKS
    ranks = [waiting(**more)] * ABSENT + [absent(**more)]
    store = stuck_job(folder / "s.duckdb", ranks)
    add_dumps(store, missing)
    return check_verdict(diagnose(store))


@pytest.mark.parametrize("has_hooks", [True, False])
def test_where_they_agree_nothing_is_said_of_it(tmp_path: Path, has_hooks: bool) -> None:
    verdict = solve(tmp_path, ABSENT, has_hooks=has_hooks)
    assert [finding.subject.ranks for finding in verdict.findings] == [(ABSENT,)]
    assert "EVIDENCE_DISAGREES" not in {item.code for item in verdict.data_quality}


def test_counts_of_calls_decide_and_the_difference_is_said(tmp_path: Path) -> None:
    verdict = solve(tmp_path, 1, has_hooks=True)
    assert [finding.subject.ranks for finding in verdict.findings] == [(ABSENT,)]
    (item,) = [one for one in verdict.data_quality if one.code == "EVIDENCE_DISAGREES"]
    assert item.text == (
        "flight recorders name rank 1, the ranks' counts of their calls rank 3: the counts decide"
    )
    assert item.count == 2


def test_recorders_decide_where_there_are_stacks_alone(tmp_path: Path) -> None:
    verdict = solve(tmp_path, 1, has_hooks=False)
    assert [finding.subject.ranks for finding in verdict.findings] == [(1,)]
    assert verdict.kind == "hang"
