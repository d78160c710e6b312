"""What forwarding costs those who send: the same load with no target, and with one that is away, silent, or well.

Rounds are interleaved; prints requests a second, the 50th and the 99th percentile of their latency, and the CPU time of
the receiver for each case, and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil

from support.forward_targets import http_other
from support.otlp_messages import span, trace_request
from support.otlp_paths import TRACE_EXPORT
from support.receiver_process import running_receiver

SPANS_A_REQUEST = 200
SENDERS = 4
CASES = ("none", "away", "silent", "well")


@contextmanager
def target(case: str) -> Iterator[tuple[str, ...]]:
    """Give the options of `receive` for one case."""
    if case == "none":
        yield ()
        return
    if case == "away":
        yield ("--forward", "http://127.0.0.1:9")
        return
    with http_other() as other:
        if case == "silent":
            other.silent.set()
        yield ("--forward", other.url)


def measure(case: str, requests: int) -> tuple[float, float, float, float]:
    """Return requests a second, latency p50 and p99 in s, and CPU seconds of the receiver."""
    attributes = {f"key.{number}": f"value {number}" for number in range(10)}
    bodies = [
        trace_request(
            [
                span(sender * 10_000_000 + first + n + 1, "s", attributes=attributes)
                for n in range(SPANS_A_REQUEST)
            ]
        )
        for sender in range(SENDERS)
        for first in range(0, SPANS_A_REQUEST * 25, SPANS_A_REQUEST)
    ]
    latencies: list[float] = []

    def send(address: str, mine: list[bytes]) -> None:
        with grpc.insecure_channel(address) as channel:
            export = channel.unary_unary(TRACE_EXPORT)
            for number in range(requests // SENDERS):
                began = time.perf_counter()
                export(mine[number % len(mine)], timeout=30)
                latencies.append(time.perf_counter() - began)

    with (
        tempfile.TemporaryDirectory() as folder,
        target(case) as options,
        running_receiver(Path(folder) / "s.duckdb", *options) as receiver,
    ):
        process = psutil.Process(receiver.process.pid)
        before = sum(process.cpu_times()[:2])
        began = time.perf_counter()
        threads = [
            threading.Thread(target=send, args=(receiver.grpc, bodies[n::SENDERS]))
            for n in range(SENDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s = time.perf_counter() - began
        cpu_s = sum(process.cpu_times()[:2]) - before
    p99 = statistics.quantiles(latencies, n=100)[98]
    return len(latencies) / wall_s, statistics.median(latencies), p99, cpu_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds a case (default 5)")
    parser.add_argument("--requests", type=int, default=2000, help="a round (default 2,000)")
    arguments = parser.parse_args()
    rounds = [
        {case: measure(case, arguments.requests) for case in CASES} for _ in range(arguments.rounds)
    ]
    print("target   requests/s  p50 s    p99 s    receiver CPU s   (medians of rounds)")
    for case in CASES:
        columns = zip(*(done[case] for done in rounds), strict=True)
        rate, p50_s, p99_s, cpu_s = (statistics.median(column) for column in columns)
        print(f"{case:8} {rate:10.0f}  {p50_s:.4f}   {p99_s:.4f}   {cpu_s:.2f}")


if __name__ == "__main__":
    main()
