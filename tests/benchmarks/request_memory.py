"""Peak memory over the size of a request, for each signal: the factors of the receiver's memory gate.

    python tests/benchmarks/request_memory.py

Each row is a process of its own that reads, checks and frames one request of the smallest records that senders write,
which expand most, and reads its peak resident memory from the kernel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rootwalk.otel_receiver.journal import encode_record
from rootwalk.otel_receiver.memory_gate import EXPANSION_BY_SIGNAL, JSON_EXPANSION_BY_SIGNAL
from rootwalk.otel_receiver.otlp_json import render_json_message
from rootwalk.otel_receiver.request_checks import parse_request, read_json_request, read_request
from rootwalk.otel_receiver.signals import Signal
from support.otlp_messages import (
    log_request,
    metric,
    metric_request,
    profile_request,
    span,
    trace_request,
)

SIZE_BYTES = 16 * 1024 * 1024
# Records that are enough for a piece, whose copies make the request: repeated fields of two messages join.
PIECE_RECORDS = 1000
BUILDERS: dict[Signal, Callable[[], bytes]] = {
    Signal.TRACES: lambda: trace_request(
        [span(n + 1, attributes={f"k{i}": i for i in range(10)}) for n in range(PIECE_RECORDS)]
    ),
    Signal.METRICS: lambda: metric_request(
        [metric("m", gauge={"data_points": [{"as_int": n}]}) for n in range(PIECE_RECORDS)]
    ),
    Signal.LOGS: lambda: log_request(["a line"] * PIECE_RECORDS),
    Signal.PROFILES: lambda: profile_request([[{"stack_index": 1, "values": [1]}] * PIECE_RECORDS]),
}


def build_body(signal: Signal, *, is_json: bool) -> bytes:
    """Return a request of about `SIZE_BYTES`."""
    piece = BUILDERS[signal]()
    if not is_json:
        return piece * (SIZE_BYTES // len(piece))
    message = render_json_message(parse_request(signal, piece))
    groups = next(key for key in message if key.startswith("resource"))
    copies = SIZE_BYTES // len(json.dumps(message, separators=(",", ":")))
    message[groups] = message[groups] * copies
    return json.dumps(message, separators=(",", ":")).encode()


def measure(signal: Signal, *, is_json: bool, path: Path) -> float:
    """Return the peak of resident memory above the start over the size of the body in a file."""
    read_request(signal, read_json_request(signal, b"{}"))
    Path("/proc/self/clear_refs").write_text("5")
    before_bytes = peak_bytes()
    # One buffer of the size that was announced, as the servers make it.
    body = bytearray(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(body)
    request = read_request(signal, read_json_request(signal, body) if is_json else body)
    record = encode_record(signal, time.time_ns(), request.body)
    joined = b"".join([record, b"x"])
    assert len(joined) > len(request.body)
    return (peak_bytes() - before_bytes) / len(body)


def peak_bytes() -> int:
    """Return the peak resident memory of this process since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel names no peak")


def main() -> None:
    """Measure all, each in a process of its own."""
    if len(sys.argv) > 1:
        signal = Signal(sys.argv[1])
        print(measure(signal, is_json=sys.argv[2] == "json", path=Path(sys.argv[3])))
        return
    path = Path(f"/tmp/rootwalk-request-{time.time_ns()}")  # noqa: S108 -- removed below
    for signal in Signal:
        for form in ("protobuf", "json"):
            path.write_bytes(build_body(signal, is_json=form == "json"))
            command = [sys.executable, __file__, signal, form, str(path)]
            ratio = float(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
            reserved = (JSON_EXPANSION_BY_SIGNAL if form == "json" else EXPANSION_BY_SIGNAL)[signal]
            print(f"{signal:8} {form:8} {ratio:5.1f} times its size, {reserved} reserved")
    path.unlink()


if __name__ == "__main__":
    main()
