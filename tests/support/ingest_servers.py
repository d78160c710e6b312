"""The receivers that the ingest benchmark compares: Rootwalk's, one in plain Python, and rotel."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil

from rootwalk.otel_receiver.store import query_store
from support.ports import free_ports
from support.receiver_process import running_receiver

PLAIN_RECEIVER = Path(__file__).resolve().parents[1] / "benchmarks" / "plain_receiver.py"


@dataclass(frozen=True, slots=True)
class Server:
    """A running receiver; `count` says how many rows of a view can be read, None where nothing is stored."""

    process: psutil.Process
    grpc: str
    http: str
    count: Callable[[str], int] | None

    def cpu_s(self) -> float:
        """Return the CPU time of the process and its children so far."""
        total = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def thread_cpu_s(self) -> dict[int, float]:
        """Return the CPU time of each thread so far."""
        return {t.id: t.user_time + t.system_time for t in self.process.threads()}


@contextlib.contextmanager
def running_server(name: str, folder: Path) -> Iterator[Server]:
    """Run a receiver for the length of a block: "rootwalk", "plain" or "rotel"."""
    store = folder / "store.duckdb"
    if name == "rootwalk":
        with running_receiver(store) as receiver:
            process = psutil.Process(receiver.process.pid)
            yield Server(
                process,
                receiver.grpc,
                receiver.http,
                lambda view: int(query_store(store, f"SELECT count(*) FROM {view}")[2][0][0]),  # noqa: S608
            )
            receiver.stop()
        return
    command, grpc_address = _other_server(name, folder, store)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            if not grpc_address:
                ready = folder / "ready.json"
                while not ready.exists() or not ready.read_text():
                    time.sleep(0.05)
                grpc_address = json.loads(ready.read_text())["grpc"]
            count = None if name == "rotel" else _counter(store)
            yield Server(psutil.Process(child.pid), grpc_address, "", count)
        finally:
            for process in psutil.Process(child.pid).children(recursive=True):
                process.kill()
            child.kill()


def _other_server(name: str, folder: Path, store: Path) -> tuple[list[str], str]:
    if name == "plain":
        script = PLAIN_RECEIVER
        return [sys.executable, str(script), str(store), str(folder / "ready.json")], ""
    ports = free_ports(2)
    import rotel

    agent = str(Path(rotel.__file__).with_name("rotel-agent"))
    command = [agent, "start", "--exporter", "blackhole"]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{ports[0]}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{ports[1]}"]
    return command, f"127.0.0.1:{ports[0]}"


def _counter(store: Path) -> Callable[[str], int]:
    def count(view: str) -> int:
        try:
            with duckdb.connect(str(store), read_only=True) as connection:
                row = connection.execute(f"SELECT count(*) FROM {view}").fetchone()  # noqa: S608
        except duckdb.IOException:
            return -1
        return int(row[0]) if row else 0

    return count
