"""A way from the job to the store that reorders, repeats, splits, batches or drops: what a Collector may do.

    job of four ranks on two hosts, contention on rank 3 -> requests -> reordered ... -> receiver -> verdict

What loses nothing changes nothing. What loses records is said, and nobody else is accused for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver.signals import Signal
from support.job_requests import JobRequests
from support.jobs import START_UNIX_NS, Fault, Job
from support.other_producers import receive
from support.verdicts import check_verdict

RANKS, STEPS, AT_ONCE = 4, 120, 5
FAULT_RANK = 3
JOB = Job("lossy", ranks=RANKS, steps=STEPS, hosts=2, faults=(Fault("contention", 3, 0.060, 60),))
HEALTHY = Job("lossy", ranks=RANKS, steps=STEPS, hosts=2)
MESSAGES: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
}
SIGNALS = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS}
Requests = Sequence[tuple[str, bytes]]


def requests_of(job: Job) -> Requests:
    """Return what ranks and agents of a job send, in the order in which they do."""
    made = JobRequests(job, START_UNIX_NS)
    return [
        one for first in range(0, STEPS, AT_ONCE) for one in made.steps(first, first + AT_ONCE - 1)
    ]


def shuffled(requests: Requests) -> Requests:
    return random.Random(7).sample(requests, len(requests))  # noqa: S311  (a seeded order)


def repeated(requests: Requests) -> Requests:
    """Return them with every third one sent again later: an answer that was lost."""
    return [*requests, *requests[::3]]


def batched(requests: Requests) -> Requests:
    """Return them as one request a signal: parts of a protobuf message are concatenated."""
    return [
        (path, b"".join(body for other, body in shuffled(requests) if other == path))
        for path in MESSAGES
    ]


def split(requests: Requests) -> Requests:
    """Return them with one span or metric a request, in no order."""
    alone = []
    for path, body in requests:
        message = MESSAGES[path].FromString(body)
        for group in getattr(message, message.DESCRIPTOR.fields[0].name):
            for scope in getattr(group, group.DESCRIPTOR.fields[1].name):
                for record in getattr(scope, scope.DESCRIPTOR.fields[1].name):
                    one = MESSAGES[path]()
                    to_group = getattr(one, one.DESCRIPTOR.fields[0].name).add()
                    to_group.resource.CopyFrom(group.resource)
                    to_scope = getattr(to_group, group.DESCRIPTOR.fields[1].name).add()
                    to_scope.scope.CopyFrom(scope.scope)
                    getattr(to_scope, scope.DESCRIPTOR.fields[1].name).add().CopyFrom(record)
                    alone.append((path, one.SerializeToString()))
    return shuffled(alone)


def store_of(path: Path, requests: Requests) -> Path:
    for signal_path, signal in SIGNALS.items():
        receive(path, signal, [body for one, body in requests if one == signal_path])
    return path


def told(path: Path) -> dict[str, Any]:
    """Return the verdict but for what tells of the reading itself."""
    verdict = to_object(check_verdict(diagnose(path)))
    return {key: value for key, value in verdict.items() if key not in ("id", "cost", "created")}


@pytest.fixture(scope="module")
def sent() -> Requests:
    return requests_of(JOB)


@pytest.mark.parametrize("way", [shuffled, repeated, batched, split])
def test_what_loses_nothing_changes_nothing(
    tmp_path: Path, sent: Requests, way: Callable[[Requests], Requests]
) -> None:
    direct = told(store_of(tmp_path / "direct.duckdb", sent))

    assert direct["findings"][0]["subject"]["rank"] == FAULT_RANK
    assert told(store_of(tmp_path / "far.duckdb", way(sent))) == direct


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("job", [JOB, HEALTHY])
@pytest.mark.parametrize("seed", range(3))
def test_what_was_dropped_is_said_and_nobody_is_accused_for_it(
    tmp_path: Path, job: Job, share: float, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311  (a seeded loss)
    kept = [one for one in requests_of(job) if draw.random() >= share]

    verdict = check_verdict(diagnose(store_of(tmp_path / "s.duckdb", kept)))

    assert "DROPPED" in {item.code for item in verdict.data_quality}
    accused = {finding.subject.rank for finding in verdict.findings}
    assert accused <= ({FAULT_RANK} if job is JOB else set())
