"""What a span costs the receiver: records per CPU-second of its process, durable before acknowledged.

    python tests/benchmarks/ingest.py --output tests/benchmarks/results/ingest.json

A record counts when its typed row is read back by SQL; CPU time is user and system time of all threads (and children)
from /proc. Senders are two other processes with serialised bodies. Beside Rootwalk, in the same run: the plain-Python
receiver of `plain_receiver.py`, and rotel from PyPI, which receives and writes nowhere. Every case has a process and a
store of its own, and a warm-up that is not counted. The last row is what no receiver with this store can do better
than: columns that are ready in memory, inserted by DuckDB, with nothing received or decoded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import grpc

from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.journal_batches import decode_batch
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, load_writer, writing
from rootwalk.otel_receiver.store_rows import save_records
from support.ingest_servers import Server, running_server
from support.otlp_load import log_body, metric_body, profile_body, unique_trace_bodies
from support.otlp_paths import GRPC_PATHS

SENDERS: Final = 2
READABLE_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the result.

    Attributes:
        name: What is measured.
        server: "rootwalk", "plain" or "rotel".
        signal: What the requests carry.
        records: Spans, points, log records or samples in a request.
        requests: Requests that are counted.
        in_flight: Requests that each sender has on the way.
        is_json: Whether bodies are OTLP/JSON over HTTP instead of protobuf over gRPC.
        view: The public view that holds the records.
        rows: Rows that a request adds to the view.
    """

    name: str
    server: str
    signal: str
    records: int
    requests: int
    in_flight: int = 4
    is_json: bool = False
    view: str = "spans"
    rows: int = 0


CASES: Final = (
    Case("spans, 1,000 a request", "rootwalk", "traces", 1000, 300, rows=1000),
    Case("spans, 1,000 a request: plain Python", "plain", "traces", 1000, 100, rows=1000),
    Case("spans, 1,000 a request: rotel, writing nowhere", "rotel", "traces", 1000, 300),
    # So many that the compiled decoder is loaded, once, in the warm-up.
    Case("spans, 10 a request", "rootwalk", "traces", 10, 12000, in_flight=32, rows=10),
    Case("spans, 10 a request: plain Python", "plain", "traces", 10, 3000, in_flight=32, rows=10),
    Case("spans, 10 a request: rotel, writing nowhere", "rotel", "traces", 10, 6000, in_flight=32),
    Case(
        "spans, 1,000 a request, JSON over HTTP", "rootwalk", "traces", 1000, 60, 4, True, rows=1000
    ),
    Case(
        "metric points, 1,000 a request",
        "rootwalk",
        "metrics",
        1000,
        100,
        view="metrics",
        rows=1000,
    ),
    Case("log records, 1,000 a request", "rootwalk", "logs", 1000, 100, view="logs", rows=1000),
    Case(
        "profile samples, 1,000 a request",
        "rootwalk",
        "profiles",
        1000,
        100,
        view="profiles",
        rows=1,
    ),
)

# Requests of 1,000 spans in a batch of a receiver that has much to store.
INSERTED_REQUESTS: Final = 125
DUCKDB_ALONE: Final = "spans: ready columns into DuckDB, nothing else"

# What limits each row. The first is from CPU time measured stage by stage; the others are read from the busiest threads
# of the run and the code, not from a profile.
LIMITS: Final[dict[str, str]] = {
    "spans, 1,000 a request": "DuckDB: appending and compressing 60 columns is half, the compiled decoder a sixth,"
    " gRPC, the journal and opening the store the rest.",
    "spans, 1,000 a request: plain Python": "The Python loop over attributes and json.dumps.",
    "spans, 1,000 a request: rotel, writing nowhere": "Nothing is stored: HTTP/2 and decoding in Rust.",
    "spans, 10 a request": "Decoding and DuckDB are half, the event loop in Python (HTTP/2, checks, sending) a third,"
    " the journal's thread a tenth.",
    "spans, 10 a request: plain Python": "gRPC's event loop in Python, a wake-up for each request, then the loop over"
    " attributes.",
    "spans, 10 a request: rotel, writing nowhere": "HTTP/2 frames for each request.",
    "spans, 1,000 a request, JSON over HTTP": "JSON text to protobuf messages in Python, before anything is stored.",
    "metric points, 1,000 a request": "The Python loop over points and attributes.",
    "log records, 1,000 a request": "The Python loop over records and attributes.",
    "profile samples, 1,000 a request": "The Python loop over samples.",
    DUCKDB_ALONE: "DuckDB's appending and compressing: the attributes' JSON is two"
    " fifths, the rest is spread over 28 columns with values and 31 without.",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case; rates are medians over the rounds.

    Attributes:
        case: Its name.
        records_per_cpu_s: Records per second of CPU time of the receiver; None when the signal is refused.
        us_per_record: The same as a cost.
        rounds_per_cpu_s: Every round's rate.
        records_per_s: Records per second of wall time, with the senders on the same cores.
        records: Records that were counted in a round.
        thread_shares: CPU time of the busiest threads as a share of the process's.
        limit: What limits it.
    """

    case: str
    records_per_cpu_s: float | None
    us_per_record: float | None
    rounds_per_cpu_s: list[float]
    records_per_s: float | None
    records: int
    thread_shares: list[float]
    limit: str


class RefusedError(Exception):
    """The server does not take this signal."""


def request_bodies(case: Case, first: int) -> Iterator[bytes]:
    """Yield bodies without end."""
    match case.signal:
        case "traces":
            return unique_trace_bodies(case.records, first, as_json=case.is_json)
        case "metrics":
            return itertools.repeat(metric_body(case.records))
        case "logs":
            return itertools.repeat(log_body(case.records))
        case _:
            return itertools.repeat(profile_body(case.records))


def send_requests(
    case: Case, server: tuple[str, str], first: int, counts: tuple[int, int], barrier: Any
) -> None:
    """Send so many requests, wait for the others, send so many more: the life of a sender process."""
    bodies = list(itertools.islice(request_bodies(case, first), sum(counts)))
    post = post_by_http if case.is_json else post_by_grpc
    barrier.wait()
    post(case, server, bodies[: counts[0]])
    barrier.wait()
    barrier.wait()
    post(case, server, bodies[counts[0] :])
    barrier.wait()


def post_by_grpc(case: Case, server: tuple[str, str], bodies: list[bytes]) -> None:
    """Send every body and return when all are acknowledged."""
    with grpc.insecure_channel(server[0]) as channel:
        export = channel.unary_unary(GRPC_PATHS[Signal(case.signal)])
        on_the_way: list[Any] = []
        for body in bodies:
            if len(on_the_way) >= case.in_flight:
                on_the_way.pop(0).result(timeout=60)
            on_the_way.append(export.future(body, wait_for_ready=True))
        for call in on_the_way:
            call.result(timeout=60)


def post_by_http(case: Case, server: tuple[str, str], bodies: list[bytes]) -> None:
    """Send every body, one after the other."""
    for body in bodies:
        request = urllib.request.Request(
            f"http://{server[1]}/v1/{case.signal}",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            response.read()


def probe(case: Case, server: tuple[str, str]) -> None:
    """Send one request.

    Raises:
        RefusedError: If the server does not take such requests.
    """
    body = next(request_bodies(case, 1 << 60))
    try:
        (post_by_http if case.is_json else post_by_grpc)(case, server, [body])
    except grpc.RpcError as error:
        raise RefusedError(error.details()) from error
    except OSError as error:
        raise RefusedError(str(error)) from error


def measure(case: Case, folder: Path) -> tuple[float, float, list[float]]:
    """Return records per CPU-second, records per second, and the shares of the busiest threads.

    Raises:
        RefusedError: As `probe`.
    """
    warm = max(case.requests // 6, SENDERS)
    with running_server(case.server, folder) as server:
        addresses = (server.grpc, server.http)
        probe(case, addresses)
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(SENDERS + 1, timeout=150)
        counts = (warm // SENDERS, case.requests // SENDERS)
        senders = [
            context.Process(
                target=send_requests, args=(case, addresses, (n + 1) << 40, counts, barrier)
            )
            for n in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        try:
            barrier.wait()
            barrier.wait()
            rows = (1 + SENDERS * counts[0]) * case.rows
            _wait_readable(server, case, rows)
            before_s, threads_before_s = server.cpu_s(), server.thread_cpu_s()
            start_s = time.monotonic()
            barrier.wait()
            barrier.wait()
            _wait_readable(server, case, rows + SENDERS * counts[1] * case.rows)
            wall_s = time.monotonic() - start_s
            cpu_s = server.cpu_s() - before_s
            threads_s = server.thread_cpu_s()
        finally:
            for sender in senders:
                sender.join(timeout=10)
                sender.kill()
    records = SENDERS * counts[1] * case.records
    shares = sorted(
        ((s - threads_before_s.get(t, 0.0)) / cpu_s for t, s in threads_s.items()), reverse=True
    )
    return records / cpu_s, records / wall_s, [round(share, 2) for share in shares[:4]]


def _wait_readable(server: Server, case: Case, rows: int) -> None:
    if server.count is None:
        return
    deadline_s = time.monotonic() + READABLE_DEADLINE_S
    while (seen := server.count(case.view)) < rows:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"cannot measure {case.name}: {seen} of {rows} rows can be read")
        time.sleep(0.1)


def measure_insert(folder: Path) -> tuple[float, float, list[float]]:
    """Return the same as `measure` for spans that the store's own statements insert; the first batch does not count."""
    load_writer()
    store = folder / "insert.duckdb"
    create_store(store)
    bodies = unique_trace_bodies(1000, 1 << 40, as_json=False)
    insert_batch(store, list(itertools.islice(bodies, INSERTED_REQUESTS)), segment=1)
    batch = list(itertools.islice(bodies, INSERTED_REQUESTS))
    cpu_s, wall_s = insert_batch(store, batch, segment=2)
    return INSERTED_REQUESTS * 1000 / cpu_s, INSERTED_REQUESTS * 1000 / wall_s, [1.0]


def insert_batch(store: Path, bodies: list[bytes], segment: int) -> tuple[float, float]:
    """Decode requests, insert their spans as a receiver does, and return the insert's CPU and wall seconds."""
    records = [
        JournalRecord(Signal.TRACES, time.time_ns(), body, segment, end_bytes)
        for end_bytes, body in enumerate(bodies, start=1)
    ]
    pieces = decode_batch(records)
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    with writing(store) as connection:
        save_records(connection, pieces, segment, len(bodies))
    return time.process_time() - start_cpu_s, time.monotonic() - start_s


def summarise(name: str, results: Sequence[tuple[float, float, list[float]]], records: int) -> Row:
    """Return the medians of some rounds as a row."""
    rates = [rate for rate, _, _ in results]
    rate = statistics.median(rates)
    return Row(
        name,
        round(rate),
        round(1e6 / rate, 2),
        [round(value) for value in rates],
        round(statistics.median(wall for _, wall, _ in results)),
        records,
        results[0][2],
        LIMITS.get(name, ""),
    )


def measure_insert_rounds(rounds: int) -> Row:
    """Return the medians of some rounds of `measure_insert`."""
    results = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="rootwalk-bench-") as name:
            results.append(measure_insert(Path(name)))
    return summarise(DUCKDB_ALONE, results, INSERTED_REQUESTS * 1000)


def measure_rounds(case: Case, rounds: int) -> Row:
    """Return the medians of some rounds."""
    results = []
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="rootwalk-bench-") as name:
                results.append(measure(case, Path(name)))
    except RefusedError as error:
        return Row(case.name, None, None, [], None, 0, [], f"not measured: {error}")
    return summarise(case.name, results, case.requests * case.records)


def print_row(row: Row) -> None:
    """Print one row of the table."""
    rate = "-" if row.records_per_cpu_s is None else f"{row.records_per_cpu_s:,.0f}"
    cost = "-" if row.us_per_record is None else f"{row.us_per_record:.2f}"
    wall = "-" if row.records_per_s is None else f"{row.records_per_s:,.0f}"
    print(
        f"{row.case:50}{rate:>12}{cost:>9}{wall:>12}  {row.thread_shares} {row.limit}", flush=True
    )


def main() -> int:
    """Measure, print, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="rounds a case (default 3)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    print(f"{'':50}{'per CPU-s':>12}{'us each':>9}{'per s':>12}")
    rows = []
    for case in CASES:
        if arguments.only in case.name:
            rows.append(measure_rounds(case, arguments.rounds))
            print_row(rows[-1])
    if arguments.only in DUCKDB_ALONE:
        rows.append(measure_insert_rounds(arguments.rounds))
        print_row(rows[-1])
    if arguments.output is not None:
        result = {
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "duckdb": duckdb.__version__,
            "rows": [asdict(row) for row in rows],
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
