"""What one writes in an afternoon: OTLP/gRPC with upb, a Python loop over attributes, Arrow, DuckDB.

    python tests/benchmarks/plain_receiver.py plain.duckdb ready.json

The baseline of `make bench-ingest`. It promises what Rootwalk promises: a request is in a file and synced before it
is acknowledged (requests that wait share a sync), and its rows are stored 20,000 spans or 2 s later. It checks
nothing, recovers nothing, and stores a span twice when it is sent twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import duckdb
import grpc
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
FLUSH_SPANS: Final = 20_000
FLUSH_INTERVAL_S: Final = 2.0
# The five attributes of the load that Rootwalk has columns for.
PROMOTED: Final = {
    "training.step.number": "step",
    "training.phase": "phase",
    "training.phase.index": "phase_index",
    "training.thread.running_time": "running_s",
    "thread.name": "thread_name",
}
SCHEMA: Final = pa.schema(
    [
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("parent_span_id", pa.string()),
        ("name", pa.string()),
        ("kind", pa.int64()),
        ("start_unix_ns", pa.int64()),
        ("end_unix_ns", pa.int64()),
        ("status_code", pa.int64()),
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("phase_index", pa.int64()),
        ("running_s", pa.float64()),
        ("thread_name", pa.string()),
        ("attributes", pa.string()),
        ("resource", pa.string()),
    ]
)


class PlainStore:
    """A thread that decodes and inserts what the other thread has synced."""

    def __init__(self, path: Path) -> None:
        columns = ", ".join(f"{field.name} {_sql_type(field.type)}" for field in SCHEMA)
        self._connection = duckdb.connect(str(path), config={"threads": 1})
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS spans ({columns})")
        self._connection.close()
        self._path = path
        self.bodies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            columns = new_columns()
            append_request(columns, self.bodies.get())
            deadline_s = time.monotonic() + FLUSH_INTERVAL_S
            while len(columns["name"]) < FLUSH_SPANS:
                try:
                    body = self.bodies.get(timeout=max(0.0, deadline_s - time.monotonic()))
                except queue.Empty:
                    break
                append_request(columns, body)
            incoming = pa.table(columns, schema=SCHEMA)
            # Opened for each commit, as Rootwalk does, so that others can read in between.
            connection = connect(self._path)
            connection.register("incoming", incoming)
            connection.execute("INSERT INTO spans SELECT * FROM incoming")
            connection.close()


def connect(path: Path) -> Any:
    """Return a connection for writing; waits for a reader to finish."""
    while True:
        try:
            return duckdb.connect(str(path), config={"threads": 1})
        except duckdb.IOException:
            time.sleep(0.02)


class GroupSync:
    """A thread that appends bodies to one file and syncs it once for all that wait."""

    def __init__(self, path: Path, store: PlainStore) -> None:
        self._file = path.with_suffix(".log").open("ab", buffering=0)
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[bytes, Any, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    async def append(self, body: bytes) -> None:
        """Return when the body is durable."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.put((body, loop, done))
        await done

    def _run(self) -> None:
        while True:
            group = [self._waiting.get()]
            while not self._waiting.empty():
                group.append(self._waiting.get())
            self._file.write(b"".join(body for body, _, _ in group))
            os.fdatasync(self._file.fileno())
            for body, loop, done in group:
                self._store.bodies.put(body)
                loop.call_soon_threadsafe(done.set_result, None)


def new_columns() -> dict[str, list[Any]]:
    """Return an empty list for each column."""
    return {name: [] for name in SCHEMA.names}


def append_request(columns: dict[str, list[Any]], body: bytes) -> None:
    """Add the spans of a request to the columns."""
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = json.dumps(
            {a.key: attribute_value(a.value) for a in resource_spans.resource.attributes}
        )
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                attributes = {a.key: attribute_value(a.value) for a in span.attributes}
                columns["trace_id"].append(span.trace_id.hex())
                columns["span_id"].append(span.span_id.hex())
                columns["parent_span_id"].append(span.parent_span_id.hex())
                columns["name"].append(span.name)
                columns["kind"].append(span.kind)
                columns["start_unix_ns"].append(span.start_time_unix_nano)
                columns["end_unix_ns"].append(span.end_time_unix_nano)
                columns["status_code"].append(span.status.code)
                for key, name in PROMOTED.items():
                    columns[name].append(attributes.get(key))
                columns["attributes"].append(json.dumps(attributes))
                columns["resource"].append(resource)


def attribute_value(value: Any) -> Any:
    """Return a scalar attribute as Python has it, anything else as text."""
    kind = value.WhichOneof("value")
    if kind in ("string_value", "int_value", "double_value", "bool_value"):
        return getattr(value, kind)
    return str(value)


def _sql_type(arrow_type: Any) -> str:
    return {pa.string(): "TEXT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}[arrow_type]


async def serve(store: Path, ready: Path) -> None:
    """Listen until the process is ended."""
    sync = GroupSync(store, PlainStore(store))

    async def export(body: bytes, _context: Any) -> bytes:
        await sync.append(body)
        return b""

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    method = grpc.unary_unary_rpc_method_handler(export)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Export": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready.write_text(json.dumps({"grpc": f"127.0.0.1:{port}"}), encoding="utf-8")
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2])))
