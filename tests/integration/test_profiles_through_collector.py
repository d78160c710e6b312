"""Real stacks through a real Collector and back: what is stored is what a sender without one in between would store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rootwalk.ebpf.agent_profiles import build_profiles
from rootwalk.instrumentation.export import OtlpSender
from rootwalk.instrumentation.profiles import build_request
from support.built_programs import SETUP
from support.ports import free_ports
from support.profile_rules import find_violations
from support.rank_identities import identity
from support.receiver_process import running_receiver
from support.relays import running_relay
from support.stack_truth import HERE, build_library, open_stacks, run_shapes
from support.stored_profiles import read_profiles

pytestmark = [pytest.mark.bpf, pytest.mark.variant]

COLLECTOR = SETUP / "backends" / "collector" / "built" / "otelcol-backends"
PERIOD_NS = 1_000_000_000 // 99
CONFIG = """
receivers: {otlp: {protocols: {http: {endpoint: "${env:LISTEN}"}}}}
exporters:
  otlp_http: {endpoint: "http://${env:HTTP}", retry_on_failure: {enabled: false}}
  otlp_grpc: {endpoint: "${env:GRPC}", tls: {insecure: true}, retry_on_failure: {enabled: false}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: ["${env:EXPORTER}"]}}
"""


class Rank:
    """A rank whose time below a moment is forward, behind it backward."""

    identity = identity(3)

    def __init__(self, middle_ns: int) -> None:
        self._middle_ns = middle_ns

    def context_of(self, mono_ns: int) -> tuple[bytes, bytes]:
        return b"\1" * 16, (b"\2" if mono_ns < self._middle_ns else b"\3") * 8

    def phase_of(self, mono_ns: int) -> str:
        return "forward" if mono_ns < self._middle_ns else "backward"

    def collective_of(self, mono_ns: int) -> str | None:
        return "all_reduce" if mono_ns >= self._middle_ns else None


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A request as the agent builds it, of a real process's stacks."""
    folder = tmp_path_factory.mktemp("shapes")
    shapes = [str(HERE / "stack_shapes.py"), str(build_library(folder)), str(folder / "log"), "1"]
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, *shapes], 120.0)
    times = sorted(sample.mono_ns for sample in samples)
    ranks = {1: Rank(times[len(times) // 2])}
    made = build_request(build_profiles(samples, ranks, (0, 9_000_000_000), PERIOD_NS), "s", "1")
    assert find_violations(made) == []
    return made


def send(endpoint: str, body: bytes) -> None:
    sender = OtlpSender(endpoint, "profiles", timeout_s=20.0)
    try:
        assert sender.post(body, 1)
        assert sender.refused_records == 0
    finally:
        sender.close()


@pytest.mark.parametrize("exporter", ["otlp_http", "otlp_grpc"])
def test_a_collector_changes_nothing(tmp_path: Path, body: bytes, exporter: str) -> None:
    if not COLLECTOR.exists():
        pytest.skip("collector: needs `make test-backends` once, which builds it")
    direct, relayed = tmp_path / "direct.duckdb", tmp_path / "relayed.duckdb"
    with running_receiver(direct, "--telemetry-interval", "0") as receiver:
        send(f"http://{receiver.http}", body)
        receiver.stop()
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    (port,) = free_ports(1)
    with running_receiver(relayed, "--telemetry-interval", "0") as receiver:
        environment = os.environ | {
            "LISTEN": f"127.0.0.1:{port}",
            "HTTP": receiver.http,
            "GRPC": receiver.grpc,
            "EXPORTER": exporter,
        }
        command = [str(COLLECTOR), "--config", str(config)]
        command.append("--feature-gates=service.profilesSupport")
        with running_relay(command, port, tmp_path / "log", environment) as relay:
            send(f"http://{relay.grpc}", body)
        receiver.stop()
    profiles, samples = read_profiles(direct)
    assert len(profiles) == 3
    assert len(samples) > 20
    assert read_profiles(relayed) == (profiles, samples), (tmp_path / "log").read_text()
