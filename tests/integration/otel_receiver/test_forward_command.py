"""`rootwalk receive --forward` as a process: two receivers, crashes, and no loop."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest
import requests

from rootwalk.otel_receiver.store import query_store
from support.certificates import issue_certificates
from support.forward_targets import http_other
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import ReceiverProcess, run_command, running_receiver, start_receiver
from support.workloads import wait_until

ROUNDS = 4
SPANS_A_REQUEST = 10


def send_until_gone(receiver: ReceiverProcess, first: int, acknowledged: set[int]) -> None:
    """Send requests one after the other and write down the spans of those that were acknowledged."""
    with grpc.insecure_channel(receiver.grpc) as channel:
        export = channel.unary_unary(TRACE_EXPORT)
        while True:
            numbers = range(first, first + SPANS_A_REQUEST)
            first += SPANS_A_REQUEST
            try:
                export(trace_request([span(n) for n in numbers]), timeout=10)
            except grpc.RpcError:
                return
            acknowledged |= set(numbers)


def send(receiver: ReceiverProcess, *numbers: int) -> None:
    with grpc.insecure_channel(receiver.grpc) as channel:
        channel.unary_unary(TRACE_EXPORT)(trace_request([span(n) for n in numbers]), timeout=10)


def span_numbers(store: Path) -> set[int]:
    return {int(str(row[0]), 16) for row in query_store(store, "SELECT span_id FROM spans")[2]}


@pytest.mark.parametrize(
    "scheme",
    [pytest.param("grpc", marks=pytest.mark.long), pytest.param("http", marks=pytest.mark.variant)],
)
def test_after_kills_the_other_end_has_all_that_was_acknowledged(
    tmp_path: Path, scheme: str
) -> None:
    store, far_store = tmp_path / "near.duckdb", tmp_path / "far.duckdb"
    chance = random.Random(5)  # noqa: S311  (moments to kill at, not secrets)
    acknowledged: set[int] = set()
    with running_receiver(far_store, "--flush-interval", "50ms") as far:
        url = f"{scheme}://{far.grpc if scheme == 'grpc' else far.http}"
        options = ("--flush-interval", "50ms", "--forward", url)
        for number in range(ROUNDS):
            near = start_receiver(store, *options)
            seen = len(acknowledged)
            sender = threading.Thread(
                target=send_until_gone, args=(near, 1 + number * 1_000_000, acknowledged)
            )
            sender.start()
            deadline = time.monotonic() + chance.uniform(0.1, 0.8)
            while time.monotonic() < deadline or len(acknowledged) == seen:
                time.sleep(0.005)
            near.kill()
            sender.join()
            assert acknowledged - span_numbers(store) == set()  # a reader keeps what is to be sent
        near = start_receiver(store, *options)
        near.stop()
        far.stop()

    assert len(acknowledged) >= ROUNDS * SPANS_A_REQUEST
    assert acknowledged - span_numbers(far_store) == set()
    assert not (tmp_path / "near.duckdb.journal").exists()


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_with_certificates_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    issued = issue_certificates(tmp_path)
    far_options = ["--tls-cert", str(issued.server), "--tls-key", str(issued.server_key)]
    far_options += ["--client-ca", str(issued.authority)]
    with running_receiver(tmp_path / "far.duckdb", *far_options) as far:
        url = f"{scheme}://{far.grpc if scheme == 'grpcs' else far.http}"
        # Without a certificate to show, it waits; the next one, which has one, sends it.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(issued.authority))
        with running_receiver(tmp_path / "near.duckdb", "--forward", url) as near:
            send(near, 1, 2)
            said = near.stop()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(issued.client))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(issued.client_key))
        with running_receiver(tmp_path / "near.duckdb", "--forward", url) as near:
            near.stop()
        far.stop()

    assert f"cannot forward to {url}" in said
    assert span_numbers(tmp_path / "far.duckdb") == {1, 2}
    assert not (tmp_path / "near.duckdb.journal").exists()


def test_what_is_sent_on_can_be_watched(tmp_path: Path) -> None:
    options = ["--metrics-address", "127.0.0.1:0", "--telemetry-interval", "0"]
    with http_other() as other:
        other.answers = [(503, {"Retry-After": "0"}, b""), (200, {}, b""), (403, {}, b"")]
        options += ["--forward", other.url]
        with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
            send(receiver, 1)
            wait_until(lambda: other.asked == 2, 30.0)
            send(receiver, 2)
            metrics = str(receiver.metrics)
            # A request is counted as refused a moment before it is out of the queue.
            empty = f'otelcol_exporter_queue_size{{exporter="{other.url}"}} 0'
            wait_until(lambda: "refused" in (now := _forward_lines(metrics)) and empty in now, 30.0)
            lines = _forward_lines(metrics)

    assert f'otelcol_exporter_queue_capacity{{exporter="{other.url}"}} {1024**3}' in lines
    name = f'rootwalk_forward_requests{{exporter="{other.url}",signal="traces",outcome='
    assert f'{name}"success"}} 1' in lines
    assert f'{name}"refused",error_type="' in lines
    assert f'rootwalk_forward_failures{{exporter="{other.url}",error_type="' in lines
    assert f'rootwalk_forward_dropped{{exporter="{other.url}"}} 0' in lines


def _forward_lines(metrics: str) -> str:
    text = requests.get(f"http://{metrics}/metrics", timeout=30).text
    return "\n".join(line for line in text.splitlines() if "exporter=" in line)


def test_what_waits_for_a_target_that_is_away_outlives_a_clean_stop(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with http_other() as other:
        pass
    with running_receiver(store, "--forward", other.url) as receiver:
        send(receiver, 1, 2)
        said = receiver.stop()
    stored = span_numbers(store)
    port = int(other.url.rpartition(":")[2])
    with http_other(port) as other, running_receiver(store, "--forward", other.url) as receiver:
        receiver.stop()

    assert stored == {1, 2}
    assert f"cannot forward to {other.url}: connection refused" in said
    assert "are not sent yet; they wait in" in said
    assert other.bodies() == [trace_request([span(1), span(2)])]
    assert not (tmp_path / "s.duckdb.journal").exists()


def test_without_forward_what_waited_is_given_up_and_said(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with http_other() as other:
        pass
    with running_receiver(store, "--forward", other.url) as receiver:
        send(receiver, 1)
        receiver.stop()
    with running_receiver(store) as receiver:
        said = receiver.stop()

    assert "what an earlier receiver had still to forward is not sent on" in said
    assert not (tmp_path / "s.duckdb.journal").exists()


@pytest.mark.parametrize("answer", ["silent", "away", "refusing"])
def test_a_bad_target_holds_up_nobody(tmp_path: Path, answer: str) -> None:
    store = tmp_path / "s.duckdb"
    with http_other() as other:
        if answer == "silent":
            other.silent.set()
        if answer == "refusing":
            other.answers = [(403, {}, b"")] * 1000
        url = "http://127.0.0.1:9" if answer == "away" else other.url
        options = ("--flush-interval", "50ms", "--forward", url)
        with running_receiver(store, *options) as receiver:
            slowest_s = 0.0
            for number in range(1, 201):
                began = time.monotonic()
                send(receiver, number)
                slowest_s = max(slowest_s, time.monotonic() - began)
            other.closing.set()
            receiver.stop()

    assert span_numbers(store) == set(range(1, 201))
    assert slowest_s < 5.0  # the target's time-out is 10 s


def test_forwarding_to_itself_is_refused(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    addresses = ("--grpc", "127.0.0.1:0", "--http", f"127.0.0.1:{port}")

    done = run_command(
        "receive", "--store", "s.duckdb", *addresses, "--forward", f"http://localhost:{port}",
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 2
    assert f"cannot forward to http://localhost:{port}: this receiver listens there" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s.duckdb.journal").exists()


@pytest.mark.parametrize(
    ("options", "saw"),
    [
        (("--forward", "c:4318"), 'cannot forward to "c:4318"'),
        (("--forward", "http://c", "--forward", "http://c/"), "cannot forward to http://c twice"),
        (
            ("--forward", "http://c", "--forward-queue-bytes", "1MiB"),
            "cannot forward with a queue of 1048576 bytes",
        ),
        (("--forward-queue-bytes", "much"), 'cannot use "much" for --forward-queue-bytes'),
    ],
)
def test_what_cannot_be_forwarded_to_is_refused_at_start(
    tmp_path: Path, options: tuple[str, ...], saw: str
) -> None:
    done = run_command("receive", "--store", "s.duckdb", *options, cwd=tmp_path)

    assert done.returncode == 2
    assert saw in done.stderr
    assert not (tmp_path / "s.duckdb").exists()
