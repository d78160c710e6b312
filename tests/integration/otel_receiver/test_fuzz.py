"""The short form of `make soak-fuzz`: nothing that is sent breaks the receiver or costs a good request."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.request_checks import read_json_request, read_request
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import query_store
from support.fuzzing import GOOD_TRACE_ID, fuzz, mutations
from support.peak_memory import PeakMemory
from support.receiver_process import running_receiver

COUNT = 3000
LIMIT_BYTES = 256 * 1024 * 1024


@pytest.mark.slow
def test_mutated_requests_over_all_routes(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--max-memory-bytes", "256MiB") as receiver:
        with PeakMemory(receiver.process.pid) as peak:
            report = fuzz(receiver, COUNT)
        said = receiver.stop()

    query = f"SELECT span_id FROM spans WHERE trace_id = '{GOOD_TRACE_ID.hex()}'"  # noqa: S608
    _, _, rows = query_store(receiver.store, query)
    assert report.wrong == []
    assert report.mutated >= COUNT
    assert sorted(report.good_span_ids) == sorted(span_id for (span_id,) in rows)
    assert peak.above_idle_bytes < LIMIT_BYTES
    assert "Traceback" not in said
    assert "internal" not in said


@pytest.mark.parametrize("is_json", [False, True], ids=["protobuf", "json"])
def test_a_mutated_request_is_one_or_is_refused(is_json: bool) -> None:
    for body in itertools.islice(mutations(7, is_json=is_json), 5000):
        for signal in Signal:
            try:
                request = read_request(signal, read_json_request(signal, body) if is_json else body)
            except DecodeError:
                continue
            assert request.accepted >= 0
