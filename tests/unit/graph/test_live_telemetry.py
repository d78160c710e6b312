"""Findings as spans and metrics: on the slow step, by the registry, and few series however many culprits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rootwalk.graph.live.findings import Exemplar, LiveFinding
from rootwalk.graph.live.marks import Marks, build_mark
from rootwalk.graph.live.meters import MAX_CULPRITS, JobMeter
from rootwalk.graph.live.track import Ledger, Notice
from rootwalk.instrumentation import ids
from support.live_check import check_request
from support.live_verdicts import make_episode, make_finding, make_verdict

STEP = Exemplar(
    ids.trace_id("j1", 0, 44).hex(), ids.rank_step_id("j1", 0, 44, 1).hex(), 44, 1000, 5000
)
LOST, COUNT, OPEN = (f"rootwalk.finding.{name}" for name in ("lost.time", "count", "open"))


def opened(reason: str = "CPU_QUOTA", rank: int = 1) -> Notice:
    verdict = make_verdict(make_finding(reason, rank))
    (notice,) = Ledger().take(verdict, make_episode(40, 44, is_open=True), 100)
    return notice


def closed() -> Notice:
    ledger, verdict = Ledger(), make_verdict(make_finding())
    ledger.take(verdict, make_episode(40, 44, is_open=True), 100)
    *_, notice = ledger.take(verdict, make_episode(40, 49, is_open=False), 100)
    return notice


def values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def mark_of(notice: Notice) -> Span:
    request = build_mark(notice, STEP)
    assert request is not None
    assert check_request(request) == []
    (group,) = request.resource_spans
    (scope,) = group.scope_spans
    (span,) = list[Span](scope.spans)
    assert values(group.resource.attributes)["training.job.id"] == "j1"
    return span


def points_of(request: ExportMetricsServiceRequest | None) -> dict[str, list[Any]]:
    assert request is not None
    ((scope,),) = [group.scope_metrics for group in request.resource_metrics]
    return {m.name: list(getattr(m, m.WhichOneof("data")).data_points) for m in scope.metrics}


def sums_of(request: ExportMetricsServiceRequest | None, name: str) -> dict[Any, float]:
    return {
        (seen["rootwalk.finding.reason"], seen.get("training.rank")): p.as_double or p.as_int
        for p in points_of(request)[name]
        for seen in [values(p.attributes)]
    }


def test_a_mark_lies_on_the_culprits_part_of_the_slow_step_and_says_why() -> None:
    span = mark_of(opened())

    assert (span.trace_id.hex(), span.parent_span_id.hex()) == STEP[:2]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1000, 5000)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert span.status.message.startswith("rank 1 (host-0): throttled")
    assert span.name == "rootwalk.finding"


def test_where_no_rank_is_to_blame_the_whole_step_is_marked() -> None:
    notice = opened()
    nobody = replace(notice, finding=replace(notice.finding, rank=None))
    assert mark_of(nobody).parent_span_id == ids.step_id("j1", 0, 44)


def test_a_mark_that_is_sent_again_is_the_same_span() -> None:
    assert mark_of(opened()) == mark_of(opened())


def test_what_closes_or_has_no_step_is_not_marked() -> None:
    assert build_mark(closed(), STEP) is None
    assert build_mark(opened(), None) is None
    assert build_mark(opened(), STEP._replace(start_unix_ns=-1)) is None


def test_a_finding_that_opens_again_on_a_step_has_marked_it() -> None:
    marks = Marks()

    assert marks.build(opened(), STEP) == build_mark(opened(), STEP)
    assert marks.build(opened(), STEP) is None
    assert marks.build(opened(), STEP._replace(step=45)) is not None
    assert marks.build(opened("NET_LOSS"), STEP) is not None


NS = 1_000_000_000


def test_sums_are_by_reason_and_rank_and_as_the_registry_says() -> None:
    meter = JobMeter("j1", 0, 7)
    finding = opened().finding  # 0.060 s in each of steps 40 to 44
    meter.add_findings([finding])
    meter.add_steps([0.1, 0.15, 0.3])

    request = meter.take(9)

    assert sums_of(request, LOST) == pytest.approx({("CPU_QUOTA", 1): 0.3})
    assert sums_of(request, OPEN) == {("CPU_QUOTA", 1): 1}
    assert request is not None
    assert check_request(request) == []
    for points in points_of(request).values():
        for point in points:
            assert (point.start_time_unix_nano, point.time_unix_nano) == (7, 9)
    (steps,) = points_of(request)["training.step.duration"]
    assert (steps.count, steps.sum) == (3, pytest.approx(0.55))
    # 0.1 s is in the bucket that ends with it, 0.15 s in the next, 0.3 s in the one after.
    assert list(steps.bucket_counts) == [0, 0, 0, 1, 1, 1, *[0] * 8]


def test_a_share_that_becomes_less_takes_nothing_back() -> None:
    meter = JobMeter("j1", 0, 7)
    finding = opened().finding
    meter.add_findings([finding])
    meter.add_findings([replace(finding, share_s=0.001)])
    assert sums_of(meter.take(9), LOST) == pytest.approx({("CPU_QUOTA", 1): 0.3})


def test_closed_and_forgotten_findings_still_count() -> None:
    meter = JobMeter("j1", 0, 7)
    first = opened().finding
    meter.add_findings([first])
    meter.add_findings([replace(first, closed_unix_ns=200)])
    assert sums_of(meter.take(9), OPEN) == {("CPU_QUOTA", 1): 0}
    meter.add_findings([replace(first, id="later", first_step=90, last_step=90)])
    request = meter.take(10)
    assert sums_of(request, COUNT) == {("CPU_QUOTA", 1): 2}
    assert sums_of(request, LOST) == pytest.approx({("CPU_QUOTA", 1): 0.36})
    assert sums_of(request, OPEN) == {("CPU_QUOTA", 1): 1}


def test_nothing_new_is_nothing_to_send() -> None:
    meter = JobMeter("j1", 0, 7)
    assert meter.take(8) is None
    meter.add_findings([opened().finding])
    assert meter.take(9) is not None
    meter.add_findings([opened().finding])
    assert meter.take(10) is None


def test_sums_of_a_job_that_stands_still_are_sent_each_minute() -> None:
    """A back end to which nothing comes for minutes forgets the series, and its alert ends."""
    meter = JobMeter("j1", 0, 7)
    finding = replace(opened().finding, share_s=None, onset_unix_ns=0)
    sent = []
    for second in range(1, 302):
        meter.add_stuck([], [finding], second * NS)
        if (request := meter.take(second * NS)) is not None:
            sent.append(second)
            assert sums_of(request, LOST) == {("CPU_QUOTA", 1): second}
    assert sent == [1, 61, 121, 181, 241, 301]
    meter.add_stuck([], [replace(finding, closed_unix_ns=310 * NS)], 320 * NS)
    request = meter.take(320 * NS)
    assert sums_of(request, OPEN) == {("CPU_QUOTA", 1): 0}
    assert sums_of(request, LOST) == {("CPU_QUOTA", 1): 310}
    meter.add_stuck([], [replace(finding, closed_unix_ns=310 * NS)], 900 * NS)
    assert meter.take(900 * NS) is None


def test_sums_of_a_job_that_ended_while_it_was_slow_are_not_sent_for_ever() -> None:
    meter = JobMeter("j1", 0, 7)
    meter.add_findings([opened().finding])
    assert meter.take(9) is not None
    assert meter.take(900 * NS) is None


def test_a_new_culprit_every_step_does_not_make_a_new_series_for_ever() -> None:
    meter = JobMeter("j1", 0, 7)
    for number in range(3 * MAX_CULPRITS):
        meter.add_findings([_culprit(number)])
    lost = points_of(meter.take(9))[LOST]
    assert len(lost) == MAX_CULPRITS + 1
    assert sum(p.as_double for p in lost) == pytest.approx(3 * MAX_CULPRITS * 0.3)


def _culprit(number: int) -> LiveFinding:
    return replace(opened().finding, id=str(number), rank=number, host=f"host-{number}")
