"""Other people's receivers that send on to ours: rotel from PyPI, the Collector built with its own builder."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.ports import free_ports

# A machine that does other things at higher priority: seconds become a minute.
READY_DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class Relay:
    """A running relay; `grpc` is where it receives OTLP/gRPC, as HOST:PORT."""

    grpc: str


@contextlib.contextmanager
def running_relay(
    command: Sequence[str], port: int, log: Path, environment: dict[str, str] | None = None
) -> Iterator[Relay]:
    """Run a relay for the length of a block; it is asked to end, so that it sends what it holds."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            deadline = time.monotonic() + READY_DEADLINE_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield Relay(f"127.0.0.1:{port}")
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def rotel_relay(protocol: str, compression: str, endpoint: str, log: Path) -> Iterator[Relay]:
    """Run rotel: OTLP/gRPC in, OTLP by a protocol and a compression out."""
    import rotel

    port, http_port = free_ports(2)
    agent = Path(rotel.__file__).with_name("rotel-agent")
    command = [
        str(agent), "start",
        "--otlp-grpc-endpoint", f"127.0.0.1:{port}",
        "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
        "--exporter", "otlp",
        "--otlp-exporter-endpoint", endpoint,
        "--otlp-exporter-protocol", "grpc" if protocol == "grpc" else "http",
        "--otlp-exporter-compression", compression,
    ]  # fmt: skip
    with running_relay(command, port, log) as relay:
        yield relay
