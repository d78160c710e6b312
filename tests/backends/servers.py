"""The back ends as processes of their own on free ports of loopback."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend_programs import HERE, build_program

from support.ports import free_ports
from support.relays import running_relay

EXAMPLES = HERE.parents[1] / "examples" / "collector"
# Profiles are in development.
GATES = "--feature-gates=service.profilesSupport"
QUIET = HERE / "collector" / "quiet.yaml"


@dataclass(frozen=True, slots=True)
class Server:
    """A running back end.

    Attributes:
        otlp: Where it takes telemetry.
        api: Base URL for questions.
        traces: What a trace's id is put behind to ask for it; empty where there are none.
    """

    otlp: str
    api: str
    traces: str = ""


@contextlib.contextmanager
def running_jaeger(folder: Path) -> Iterator[Server]:
    """Run Jaeger with its storage in memory."""
    otlp_port, api_port = free_ports(2)
    otlp, api = f"127.0.0.1:{otlp_port}", f"127.0.0.1:{api_port}"
    command = [str(build_program("jaeger")), "--config", str(HERE / "jaeger" / "config.yaml")]
    environment = os.environ | {"JAEGER_OTLP": otlp, "JAEGER_HTTP": api}
    with running_relay(command, api_port, folder / "jaeger.log", environment):
        yield Server(otlp, f"http://{api}", f"http://{api}/api/v3/traces/")


@contextlib.contextmanager
def running_prometheus(folder: Path) -> Iterator[Server]:
    """Run Prometheus with its OTLP receiver."""
    (port,) = free_ports(1)
    command = [
        str(build_program("prometheus")),
        "--config.file", str(EXAMPLES.parent / "compose" / "prometheus.yml"),
        "--storage.tsdb.path", tempfile.mkdtemp(dir=folder),
        "--web.listen-address", f"127.0.0.1:{port}",
        "--web.enable-otlp-receiver",
    ]  # fmt: skip
    with running_relay(command, port, folder / "prometheus.log"):
        yield Server(f"http://127.0.0.1:{port}/api/v1/otlp", f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def running_collector(example: str, folder: Path, *more: str, **environment: str) -> Iterator[str]:
    """Run a Collector with one of the example configurations to a clean end; give its OTLP/HTTP base URL.

    Args:
        example: Name of its file in examples/collector.
        folder: Where its log goes.
        more: Names of files there that are read beside it.
        environment: Where it sends to, by the variables that the file names.
    """
    grpc_port, http_port = free_ports(2)
    listens = {
        "COLLECTOR_GRPC": f"127.0.0.1:{grpc_port}",
        "COLLECTOR_HTTP": f"127.0.0.1:{http_port}",
    }
    command = [str(build_program("collector")), GATES]
    for path in (EXAMPLES / example, *(EXAMPLES / name for name in more), QUIET):
        command += ["--config", str(path)]
    log = folder / f"{example}.log"
    with running_relay(command, http_port, log, os.environ | listens | environment):
        yield f"http://127.0.0.1:{http_port}"
    said = log.read_text()
    assert "Shutdown complete" in said, f"the Collector did not end as it should:\n{said[-4000:]}"
