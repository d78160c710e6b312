"""Findings in a line and as log events: by the registry, with the trace context of the slow step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from rootwalk.graph.live.events import build_events
from rootwalk.graph.live.findings import Exemplar
from rootwalk.graph.live.track import Ledger, Notice
from rootwalk.graph.live.words import render_notice
from rootwalk.instrumentation import semconv
from support.live_check import check_request
from support.live_verdicts import make_episode, make_finding, make_verdict

EXEMPLAR = Exemplar("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 44, 4, 5)
PYTHON_TYPES = {"string": str, "int": int, "double": float}


def take(*verdicts_until: tuple[str, int, bool]) -> Notice:
    """Return the last notice of a series of verdicts: reason, last step, whether the episode goes on."""
    ledger = Ledger()
    notices: list[Notice] = []
    for now, (reason, last, is_open) in enumerate(verdicts_until, start=100):
        verdict = make_verdict(make_finding(reason))
        notices += ledger.take(verdict, make_episode(40, last, is_open=is_open), now)
    return notices[-1]


def records(request: ExportLogsServiceRequest) -> list[LogRecord]:
    assert check_request(request) == []
    ((scope,),) = [resource.scope_logs for resource in request.resource_logs]
    return list(scope.log_records)


def values(attributes: list[KeyValue]) -> dict[str, object]:
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in attributes}


OPENED = ("CPU_QUOTA", 44, True)
CHANGED = (("UNKNOWN_HOST", 44, True), ("PY_GC", 60, True))
CLOSED = (OPENED, ("CPU_QUOTA", 49, False))


@pytest.mark.parametrize("notice", [take(OPENED), take(*CHANGED), take(*CLOSED)])
def test_events_are_as_the_registry_says(notice: Notice) -> None:
    for record in records(build_events(notice, EXEMPLAR, 1)):
        definition = semconv.EVENTS[record.event_name]
        seen = values(list(record.attributes))
        assert definition.required <= seen.keys() <= definition.attributes
        for key, value in seen.items():
            assert type(value) is PYTHON_TYPES[semconv.ATTRIBUTES[key]], key


def test_an_opened_finding_is_an_event_on_the_slow_step() -> None:
    request = build_events(take(OPENED), EXEMPLAR, 777)

    (record,) = records(request)
    assert (record.event_name, record.severity_text) == ("rootwalk.finding.opened", "ERROR")
    assert (record.trace_id.hex(), record.span_id.hex()) == EXEMPLAR[:2]
    assert (record.time_unix_nano, record.observed_time_unix_nano) == (100, 777)
    assert record.body.string_value.startswith("rank 1 (host-0): throttled")
    seen = values(list(record.attributes))
    assert seen["rootwalk.finding.id"] == "CPU_QUOTA/1/40"
    assert (seen["training.rank"], seen["host.name"]) == (1, "host-0")
    resource = values(list(request.resource_logs[0].resource.attributes))
    assert (resource["training.job.id"], resource["training.job.attempt"]) == ("j1", 0)


def test_a_changed_finding_is_an_end_and_a_beginning() -> None:
    closed, opened = records(build_events(take(*CHANGED), None, 1))

    assert (closed.event_name, opened.event_name) == (
        "rootwalk.finding.closed",
        "rootwalk.finding.opened",
    )
    assert values(list(opened.attributes))["rootwalk.finding.replaces"] == "UNKNOWN_HOST/1/40"
    assert (opened.trace_id, opened.span_id) == (b"", b"")


def test_a_closed_finding_is_information() -> None:
    (record,) = records(build_events(take(*CLOSED), EXEMPLAR, 1))

    assert (record.event_name, record.severity_text) == ("rootwalk.finding.closed", "INFO")
    assert record.time_unix_nano == 101


def test_what_is_not_known_is_left_out() -> None:
    notice = take(OPENED)
    nobody = replace(notice.finding, rank=None, host=None, layer=None, share_s=None)

    (record,) = records(build_events(replace(notice, finding=nobody), EXEMPLAR, 1))

    left_out = {
        "training.rank",
        "host.name",
        "rootwalk.finding.layer",
        "rootwalk.finding.share",
    }
    assert not left_out & values(list(record.attributes)).keys()


@pytest.mark.parametrize(
    ("notice", "line"),
    [
        (take(OPENED), "j1: slow since step 40: {quota}"),
        (take(*CHANGED), "j1: slow since step 40: {gc}; before: {host}"),
        (take(*CLOSED), "j1: over since step 50: {quota}, 10 steps, 0.600 s in all"),
    ],
)
def test_each_change_is_one_line(notice: Notice, line: str) -> None:
    words = {
        name: take((reason, 44, True)).finding.text
        for name, reason in (("quota", "CPU_QUOTA"), ("gc", "PY_GC"), ("host", "UNKNOWN_HOST"))
    }
    assert render_notice(notice) == line.format(**words)
