"""Four times what the receiver can take, from senders that repeat for ever, within the memory that it is allowed.

    python tests/benchmarks/overload.py --seconds 60

First its capacity is measured: the spans per second that two senders get stored. Then spans are offered at four times
that rate, by gRPC and by HTTP, and every sender repeats each request until it is acknowledged; offering ends after the
time, repeating when nothing is left. Requests are acknowledged faster than they are stored, so it is the journal that
fills up; it is given less than its default, so that it does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from rootwalk.otel_receiver.store import query_store
from support.overload import measure_capacity, overload
from support.peak_memory import PeakMemory
from support.receiver_process import running_receiver

LIMIT_BYTES = 256 * 1024 * 1024
JOURNAL_BYTES = 256 * 1024 * 1024
CAPACITY_S = 3.0
# What was acknowledged and waits in the journal is stored before the receiver ends.
STOP_TIMEOUT_S = 1800.0


def main() -> int:
    """Overload the receiver and print the figures; return 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of offering (default 60)")
    parser.add_argument("--times", type=float, default=4.0, help="of the capacity (default 4)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rootwalk-overload-") as name:
        store = Path(name) / "s.duckdb"
        options = ["--max-memory-bytes", str(LIMIT_BYTES), "--journal-bytes", str(JOURNAL_BYTES)]
        options += ["--telemetry-interval", "0"]
        with running_receiver(store, *options) as receiver:
            with PeakMemory(receiver.process.pid) as peak:
                capacity, warm_up_spans = measure_capacity(receiver, CAPACITY_S)
                report = overload(receiver, arguments.times * capacity, arguments.seconds)
            start_s = time.monotonic()
            receiver.stop(STOP_TIMEOUT_S)
            stop_s = time.monotonic() - start_s
        _, _, rows = query_store(store, "SELECT count(*) FROM spans")
    stored = rows[0][0]
    figures = {
        "capacity_spans_per_s": round(capacity),
        "offered_spans": report.offered_spans,
        "refused_requests": report.refused_requests,
        "acknowledged_spans": report.acknowledged_spans,
        "stored_spans": stored - warm_up_spans,
        "seconds_until_all_acknowledged": round(report.seconds, 1),
        "seconds_until_all_stored": round(report.seconds + stop_s, 1),
        "peak_above_idle_bytes": peak.above_idle_bytes,
        "limit_bytes": LIMIT_BYTES,
        "unexpected": report.unexpected[:10],
    }
    print(json.dumps(figures))
    is_kept = stored - warm_up_spans == report.acknowledged_spans == report.offered_spans
    is_right = is_kept and not report.unexpected
    return 0 if is_right and peak.above_idle_bytes < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
