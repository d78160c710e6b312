"""Who may send, from where: certificates, tokens and origins, by both transports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from google.rpc.status_pb2 import Status

from support.certificates import Certificates, issue_certificates
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import ReceiverProcess, run_command, running_receiver

HEADERS = {"Content-Type": "application/x-protobuf"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("one\ntwo\n")
    return path


def _export(channel: Any, body: bytes = b"", **metadata: str) -> Any:
    return channel.unary_unary(TRACE_EXPORT)(body, timeout=30, metadata=list(metadata.items()))


def _secure_channel(receiver: ReceiverProcess, *pems: Path) -> Any:
    credentials = grpc.ssl_channel_credentials(*(pem.read_bytes() for pem in pems))
    return grpc.secure_channel(receiver.grpc, credentials)


def test_tls(certificates: Certificates, tmp_path: Path) -> None:
    options = ["--tls-cert", str(certificates.server), "--tls-key", str(certificates.server_key)]
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        url = f"https://{receiver.http}/v1/traces"
        response = requests.post(
            url,
            trace_request([span(1)]),
            headers=HEADERS,
            verify=str(certificates.authority),
            timeout=30,
        )
        with _secure_channel(receiver, certificates.authority) as channel:
            _export(channel, trace_request([span(2)]))
        with pytest.raises(requests.exceptions.SSLError):
            requests.post(url, b"", headers=HEADERS, timeout=30)
        with grpc.insecure_channel(receiver.grpc) as channel, pytest.raises(grpc.RpcError):
            _export(channel)
        said = receiver.stop()

    assert response.status_code == 200
    assert "accepted traces 2" in said


def test_mutual_tls(certificates: Certificates, tmp_path: Path) -> None:
    options = ["--tls-cert", str(certificates.server), "--tls-key", str(certificates.server_key)]
    options += ["--client-ca", str(certificates.authority)]
    pair = (str(certificates.client), str(certificates.client_key))
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        url = f"https://{receiver.http}/v1/traces"
        verify = str(certificates.authority)
        response = requests.post(url, b"", headers=HEADERS, verify=verify, cert=pair, timeout=30)
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.post(url, b"", headers=HEADERS, verify=verify, timeout=30)
        pems = (certificates.authority, certificates.client_key, certificates.client)
        with _secure_channel(receiver, *pems) as channel:
            answer = _export(channel)
        with (
            _secure_channel(receiver, certificates.authority) as channel,
            pytest.raises(grpc.RpcError),
        ):
            _export(channel)

    assert (response.status_code, answer) == (200, b"")


def test_tokens(token_file: Path, tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--token-file", str(token_file)) as receiver:
        url = f"http://{receiver.http}/v1/traces"
        shown = [None, "Bearer none", "Bearer two"]
        responses = [
            requests.post(
                url, b"", headers=HEADERS | ({"Authorization": a} if a else {}), timeout=30
            )
            for a in shown
        ]
        health = requests.get(f"http://{receiver.http}/health", timeout=30)
        with grpc.insecure_channel(receiver.grpc) as channel:
            answer = _export(channel, authorization="Bearer one")
            with pytest.raises(grpc.RpcError) as caught:
                _export(channel, authorization="Bearer none")
        said = receiver.stop()

    error: Any = caught.value
    assert [response.status_code for response in responses] == [401, 401, 200]
    assert responses[0].headers["WWW-Authenticate"] == "Bearer"
    assert "saw no token" in Status.FromString(responses[0].content).message
    assert "saw none of the tokens" in Status.FromString(responses[1].content).message
    assert (health.status_code, answer) == (200, b"")
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "refused traces unauthenticated 3" in said


@pytest.fixture
def open_receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    options = ["--cors-origin", "https://a.example", "--cors-origin", "https://b.example"]
    with running_receiver(tmp_path / "s.duckdb", *options) as running:
        yield running


def test_pages_of_named_origins_may_send(open_receiver: ReceiverProcess) -> None:
    url = f"http://{open_receiver.http}/v1/traces"
    asked = {"Origin": "https://b.example", "Access-Control-Request-Headers": "content-type"}

    preflight = requests.options(url, headers=asked, timeout=30)
    sent = requests.post(url, b"", headers=HEADERS | {"Origin": "https://b.example"}, timeout=30)
    strange = requests.post(url, b"", headers=HEADERS | {"Origin": "https://c.example"}, timeout=30)

    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Headers"] == "content-type"
    for response in (preflight, sent):
        assert response.headers["Access-Control-Allow-Origin"] == "https://b.example"
    assert "Access-Control-Allow-Origin" not in strange.headers


@pytest.mark.parametrize(
    ("options", "saw"),
    [
        (["--tls-cert", "x"], "saw one of --tls-cert and --tls-key; needs both"),
        (["--client-ca", "x"], "saw --client-ca without TLS"),
        (["--tls-cert", "x", "--tls-key", "y"], 'cannot read "x": no such file'),
        (["--token-file", "none"], 'cannot read "none": no such file'),
        (["--max-memory-bytes", "much"], "for --max-memory-bytes: saw no size"),
        (["--max-memory-bytes", "1MiB"], "needs at least 201326592"),
        (["--read-timeout", "0"], "for --read-timeout; needs from 0.1 s"),
        (["--metrics-address", "here"], "saw no host and port"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: list[str], saw: str) -> None:
    listen = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]

    done = run_command("receive", *listen, *options, cwd=tmp_path)

    assert done.returncode == 2
    assert saw in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rootwalk.duckdb.journal").exists()


def test_who_may_write_is_said_when_other_machines_reach_it(
    token_file: Path, tmp_path: Path
) -> None:
    options = ["--http", "0.0.0.0:0", "--token-file", str(token_file)]
    with running_receiver(tmp_path / "s.duckdb", *options) as receiver:
        said = receiver.stop()

    assert "warning: anyone who reaches 0.0.0.0 and has a token can write to the store" in said
    assert "travel in the clear without --tls-cert" in said
