"""A stand-in for Pyroscope's push service: it keeps what it is sent, and can be one that never answers."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.pprof_files import StackCounts, count_stacks, pprof_message

PUSH = "/push.v1.PusherService/Push"


@dataclass
class Pushed:
    """What came: the path of each request, and of each series its labels and what its profiles say."""

    address: str
    paths: list[str] = field(default_factory=list)
    series: list[tuple[dict[str, str], list[StackCounts]]] = field(default_factory=list)


@contextmanager
def pyroscope_server(*, answers: bool = True) -> Iterator[Pushed]:
    """Listen on loopback for the length of a block."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            pushed.paths.append(self.path)
            if not answers:
                over.wait()
                return
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            pushed.series += map(_read_series, pprof_message("PushRequest").FromString(body).series)
            self.send_response(200)
            self.send_header("Content-Type", "application/proto")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    pushed = Pushed(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield pushed
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def _read_series(series: Any) -> tuple[dict[str, str], list[StackCounts]]:
    labels = {one.name: one.value for one in series.labels}
    raw = [one.raw_profile for one in series.samples]
    plain = [gzip.decompress(one) if one[:2] == b"\x1f\x8b" else one for one in raw]
    return labels, [count_stacks(pprof_message().FromString(one)) for one in plain]
