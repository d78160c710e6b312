"""Real clients, none written by us, against the receiver: every signal by every transport and compression they offer.

    client    sends by                                   compressions
    python    grpc, http/protobuf, http/json             none, gzip, deflate
    js        grpc, http/protobuf, http/json             none, gzip
    go        grpc, http/protobuf                        none, gzip
    java      grpc, http/protobuf                        none, gzip
    collector grpc, http/protobuf, http/json             what each exporter lists; profiles too

Each sends one of everything; what the store has is compared field by field. Prints a row for each combination and
returns 1 when anything is missing or otherwise.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from client_programs import build_program  # noqa: E402

from support.one_of_everything import find_differences  # noqa: E402
from support.one_profile import find_profile_differences, send_profile  # noqa: E402
from support.ports import free_port  # noqa: E402
from support.receiver_process import ReceiverProcess, running_receiver  # noqa: E402
from support.relays import running_relay  # noqa: E402

GRPC, PROTOBUF, JSON = "grpc", "http/protobuf", "http/json"
TIMEOUT_S = 60.0
# What a relay's own receiver is spoken to: the plainest there is.
PYTHON = (sys.executable, str(HERE / "python" / "emit.py"))


@dataclass(frozen=True, slots=True)
class Sending:
    """One run of one client."""

    client: str
    protocol: str
    compression: str

    @property
    def name(self) -> str:
        """The service.name it sends with."""
        return f"{self.client} {self.protocol} {self.compression}"


COLLECTOR_OVER_HTTP = (
    "none",
    "gzip",
    "zlib",
    "deflate",
    "snappy",
    "x-snappy-framed",
    "zstd",
    "lz4",
)
TRANSPORTS: dict[str, dict[str, tuple[str, ...]]] = {
    "python": dict.fromkeys((GRPC, PROTOBUF, JSON), ("none", "gzip", "deflate")),
    "js": {GRPC: ("none", "gzip"), PROTOBUF: ("none", "gzip"), JSON: ("none", "gzip")},
    "go": {GRPC: ("none", "gzip"), PROTOBUF: ("none", "gzip")},
    "java": {GRPC: ("none", "gzip"), PROTOBUF: ("none", "gzip")},
    "collector": {
        GRPC: ("none", "gzip", "snappy", "zstd"),
        PROTOBUF: COLLECTOR_OVER_HTTP,
        JSON: COLLECTOR_OVER_HTTP,
    },
}


def commands(client: str, protocol: str) -> Sequence[str]:
    """Return what starts a client that is its own program."""
    if client == "python" and protocol != JSON:
        return PYTHON
    folder = build_program(client)
    if client == "python":
        return (str(folder / "venv" / "bin" / "python"), str(folder / "emit.py"))
    if client == "js":
        return ("node", str(folder / "emit.mjs"))
    if client == "go":
        return (str(folder / "client"),)
    return ("java", "-cp", f"{folder}/target/classes:{folder}/libs/*", "Emit")


def emit(command: Sequence[str], *arguments: str) -> str:
    """Run a client to its end with protocol, compression, endpoint and service.name; return what it said."""
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout + done.stderr


def relay(sending: Sending, receiver: ReceiverProcess, folder: Path) -> str:
    """Send one of everything, and a profile, through a Collector; return what it said."""
    built = build_program("collector")
    is_grpc = sending.protocol == GRPC
    port = free_port()
    environment = os.environ | {
        "CLIENT_LISTEN": f"127.0.0.1:{port}",
        "CLIENT_ENDPOINT": receiver.grpc if is_grpc else f"http://{receiver.http}",
        "CLIENT_COMPRESSION": sending.compression,
        "CLIENT_ENCODING": "json" if sending.protocol == JSON else "proto",
        "CLIENT_EXPORTER": "otlp_grpc" if is_grpc else "otlp_http",
    }
    command = [
        str(built / "built" / "otelcol-clients"),
        "--config", str(built / "config.yaml"),
        "--feature-gates=service.profilesSupport",
    ]  # fmt: skip
    log = folder / "collector.log"
    with running_relay(command, port, log, environment) as running:
        emit(PYTHON, GRPC, "none", f"http://{running.grpc}", sending.name)
        send_profile(running.grpc, sending.name)
    return log.read_text()


def main() -> int:
    """Run what the arguments ask for; return 0 when all of it came back as it was sent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", default=[], help=f"of {', '.join(TRANSPORTS)}; all")
    clients = parser.parse_args().clients or list(TRANSPORTS)
    sendings = [
        Sending(client, protocol, compression)
        for client in clients
        for protocol, compressions in TRANSPORTS[client].items()
        for compression in compressions
    ]
    wrong = [client for client in clients if report(client, sendings)]
    return 1 if wrong else 0


def report(client: str, sendings: Sequence[Sending]) -> bool:
    """Run a client by each of its transports, print a line for each signal, and return whether one was wrong."""
    mine = [sending for sending in sendings if sending.client == client]
    said: dict[Sending, str] = {}
    with tempfile.TemporaryDirectory(prefix="rootwalk-clients-") as name:
        folder = Path(name)
        store = folder / "s.duckdb"
        with running_receiver(store, "--telemetry-interval", "0") as receiver:
            for sending in mine:
                address = receiver.grpc if sending.protocol == GRPC else receiver.http
                if client == "collector":
                    said[sending] = relay(sending, receiver, folder)
                else:
                    said[sending] = emit(
                        commands(client, sending.protocol),
                        sending.protocol,
                        sending.compression,
                        f"http://{address}",
                        sending.name,
                    )
            receiver.stop()
        return sum(print_sending(store, sending, said[sending]) for sending in mine) > 0


def print_sending(store: Path, sending: Sending, said: str) -> bool:
    """Print what became of each signal of one sending; return whether that is wrong."""
    differences = find_differences(store, sending.name)
    if sending.client == "collector":
        differences["profiles"] = find_profile_differences(store, sending.name)
    is_wrong = False
    for signal, found in differences.items():
        verdict = "WRONG" if found else "ok"
        row = f"{sending.client:10} {signal:9} {sending.protocol:14} {sending.compression:15}"
        print(row, verdict, flush=True)
        if found:
            is_wrong = True
            print("  " + "\n  ".join(found), file=sys.stderr)
    if is_wrong:
        print(said[-2000:], file=sys.stderr)
    return is_wrong


if __name__ == "__main__":
    sys.exit(main())
