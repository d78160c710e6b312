"""Other ends for forwarded requests, real servers on loopback that answer as they are told: well, badly, or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

SERVICE = "opentelemetry.proto.collector"
METHODS = {
    "/v1/traces": f"{SERVICE}.trace.v1.TraceService",
    "/v1/metrics": f"{SERVICE}.metrics.v1.MetricsService",
}


@dataclass
class Other:
    """One other end.

    Attributes:
        url: Where it is.
        answers: What the next requests are answered with: status (HTTP number or gRPC code's name), headers or
            seconds to wait, body. When there are none left, everything is accepted.
        accepted: (path, body) of what was accepted.
        headers: Headers or metadata of every request.
        asked: Requests, whatever they were answered with.
        silent: While it is set, nothing is answered.
    """

    url: str = ""
    answers: list[tuple[Any, Any, bytes]] = field(default_factory=list)
    accepted: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0
    silent: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        while self.silent.is_set() and not self.closing.wait(0.01):
            pass

    def bodies(self) -> list[bytes]:
        return [body for _, body in self.accepted]


@contextmanager
def http_other(port: int = 0) -> Iterator[Other]:
    """Run an OTLP/HTTP server for the length of a block."""
    other = Other()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 1.0  # a connection that its client forgot ends by itself

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            other.asked += 1
            other.headers.append({name.lower(): value for name, value in self.headers.items()})
            other.hold()
            status, headers, answer = other.answers.pop(0) if other.answers else (200, {}, b"")
            if status == 200:
                other.accepted.append((self.path, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    other.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield other
    finally:
        other.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_other() -> Iterator[Other]:
    """Run an OTLP/gRPC server for the length of a block."""
    other = Other()

    def export(path: str) -> Any:
        def method(body: bytes, context: Any) -> bytes:
            other.asked += 1
            other.headers.append(dict(context.invocation_metadata()))
            other.hold()
            code, wait_s, answer = other.answers.pop(0) if other.answers else ("OK", None, b"")
            if code == "OK":
                other.accepted.append((path, body))
                return bytes(answer)
            if wait_s is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", _details(wait_s)),))
            context.abort(grpc.StatusCode[code], answer.decode())
            return b""

        return grpc.unary_unary_rpc_method_handler(method)

    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(service, {"Export": export(path)})
                for path, service in METHODS.items()
            )
        )
        other.url = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield other
        finally:
            other.closing.set()
            server.stop(0.1).wait()


def _details(wait_s: float) -> bytes:
    retry = RetryInfo()
    retry.retry_delay.FromNanoseconds(int(wait_s * 1e9))
    status = Status(code=14)
    status.details.add().Pack(retry)
    return bytes(status.SerializeToString())
