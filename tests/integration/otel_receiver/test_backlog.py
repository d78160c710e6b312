"""A store that does not keep up: senders are told to come again, and everything acknowledged is stored in the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from rootwalk.otel_receiver.store import query_store
from support.otlp_messages import log_request, span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import ReceiverProcess, running_receiver

PROTOBUF = {"Content-Type": "application/x-protobuf"}
LIMIT_BYTES = 128 * 1024 * 1024
# One attribute makes a request of 4 MiB.
PAD = "x" * (4 * 1024 * 1024)
HOLD = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    options = ["--journal-bytes", "128MiB", "--flush-interval", "100ms"]
    options += ["--telemetry-interval", "0", "--metrics-address", "127.0.0.1:0"]
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        yield receiver


def _send_until_refused(receiver: ReceiverProcess) -> tuple[int, grpc.RpcError]:
    with grpc.insecure_channel(receiver.grpc) as channel:
        export = channel.unary_unary(TRACE_EXPORT)
        for number in range(1, 1000):
            body = trace_request([span(number, f"s{number}", attributes={"pad": PAD})])
            try:
                export(body, timeout=30)
            except grpc.RpcError as error:
                return number - 1, error
    raise AssertionError("nothing was refused")


def test_beyond_its_bound_the_journal_takes_nothing_until_it_is_stored(
    receiver: ReceiverProcess,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(receiver.store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        acknowledged, error = _send_until_refused(receiver)
        body = log_request(["a"])
        url = f"http://{receiver.http}/v1/logs"
        response = requests.post(url, body, headers=PROTOBUF, timeout=30)
        metrics = str(receiver.metrics)
        readings = requests.get(f"http://{metrics}/metrics", timeout=30).text
        reader.communicate("")

    assert LIMIT_BYTES <= acknowledged * len(PAD) <= 1.2 * LIMIT_BYTES
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "134217728 bytes of the journal wait to be stored; send again later" in error.details()
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    retry = RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.seconds == 1
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert f'otelcol_exporter_queue_capacity{{exporter="store"}} {LIMIT_BYTES}' in readings

    said = receiver.stop(timeout_s=120.0)
    assert "failed logs backlog 1, failed traces backlog 1" in said
    assert query_store(receiver.store, "SELECT count(*) FROM spans")[2] == [(acknowledged,)]
