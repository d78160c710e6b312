"""The official Python SDK, alone and with rotel from PyPI as a relay: its telemetry comes back field by field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.one_of_everything import find_differences
from support.receiver_process import running_receiver
from support.relays import rotel_relay

pytest.importorskip("rotel", reason="needs rotel from PyPI", exc_type=ImportError)

EMIT = Path(__file__).resolve().parents[2] / "clients" / "python" / "emit.py"
WELL: dict[str, list[str]] = {"traces": [], "metrics": [], "logs": []}


def emit(protocol: str, compression: str, endpoint: str, sender: str) -> None:
    """Run the official Python SDK in a process of its own."""
    command = [sys.executable, str(EMIT), protocol, compression, endpoint, sender]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_three_signals_through_rotel(tmp_path: Path, protocol: str, compression: str) -> None:
    store = tmp_path / "s.duckdb"
    with running_receiver(store, "--flush-interval", "50ms") as receiver:
        endpoint = f"http://{receiver.grpc if protocol == 'grpc' else receiver.http}"
        with rotel_relay(protocol, compression, endpoint, tmp_path / "rotel.log") as relay:
            emit("grpc", "none", f"http://{relay.grpc}", "through-rotel")
        receiver.stop()

    assert find_differences(store, "through-rotel") == WELL, (tmp_path / "rotel.log").read_text()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_three_signals_of_the_python_sdk(tmp_path: Path, protocol: str, compression: str) -> None:
    store = tmp_path / "s.duckdb"
    with running_receiver(store, "--flush-interval", "50ms") as receiver:
        endpoint = f"http://{receiver.grpc if protocol == 'grpc' else receiver.http}"
        emit(protocol, compression, endpoint, "python")
        receiver.stop()

    assert find_differences(store, "python") == WELL
    assert all(find_differences(store, "nobody").values())
