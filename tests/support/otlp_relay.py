"""An OTLP/HTTP relay that writes down every request before it hands it on: `python otlp_relay.py --help`.

It runs as a process of its own, in whatever namespace it is started in. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

READY_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came.

    Attributes:
        path: Path of its URL.
        headers: Its header lines, names in lower case.
        body: Its body, decompressed.
        status: What it was answered with.
    """

    path: str
    headers: dict[str, str]
    body: bytes
    status: int


def read_recording(path: Path) -> list[Request]:
    """Return the requests of a recording, in the order they were answered."""
    requests = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        body = base64.b64decode(entry["body"])
        requests.append(Request(entry["path"], entry["headers"], body, entry["status"]))
    return requests


def _forward(address: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 503, b""  # retryable: the sender comes again
    finally:
        connection.close()


def serve(listen: str, forward: str | None, output: Path) -> None:
    """Relay until SIGTERM; prints the address once it listens."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            kept = {name: value for name, value in headers.items() if name.startswith("content-")}
            status, answer = (200, b"")
            if forward is not None:
                status, answer = _forward(forward, self.path, body, kept)
            plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
            entry = {
                "path": self.path,
                "headers": headers,
                "status": status,
                "body": base64.b64encode(plain).decode("ascii"),
            }
            with lock, output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    host, _, port = listen.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.daemon_threads = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    output.touch()
    sys.stdout.write(f"{host}:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever(poll_interval=0.05)


@contextlib.contextmanager
def running_relay(
    output: Path,
    *,
    listen: str = "127.0.0.1:0",
    forward: str | None = None,
    enter: Sequence[str] = (),
) -> Iterator[str]:
    """Run a relay for the length of a block; gives its base URL.

    Args:
        output: File to write the recording to.
        listen: HOST:PORT; port 0 takes a free one.
        forward: HOST:PORT of a receiver; None acknowledges everything.
        enter: Command that enters another machine.
    """
    command = [*enter, sys.executable, str(Path(__file__).resolve()), listen, str(output)]
    if forward is not None:
        command += ["--forward", forward]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        began_s = time.monotonic()
        address = process.stdout.readline().strip()
        assert address, f"no relay after {time.monotonic() - began_s:.1f} s"
        yield f"http://{address}"
    finally:
        process.terminate()
        process.communicate(timeout=READY_DEADLINE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="relay OTLP/HTTP and write every request down")
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("output", type=Path, help="recording, a JSON line a request")
    parser.add_argument("--forward", help="HOST:PORT of the receiver")
    arguments = parser.parse_args()
    serve(arguments.listen, arguments.forward, arguments.output)


if __name__ == "__main__":
    main()
