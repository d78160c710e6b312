"""A million mutated requests over all routes: crashes, memory, and what became of the good ones in between.

python tests/benchmarks/fuzz.py --count 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from rootwalk.otel_receiver.store import query_store
from support.fuzzing import GOOD_TRACE_ID, fuzz
from support.peak_memory import PeakMemory
from support.receiver_process import running_receiver

LIMIT_BYTES = 256 * 1024 * 1024


def main() -> int:
    """Fuzz and print the figures; return 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=1_000_000, help="mutated requests (default 1,000,000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="another seed, other requests")
    arguments = parser.parse_args()
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rootwalk-fuzz-") as name:
        store = Path(name) / "s.duckdb"
        options = ("--max-memory-bytes", str(LIMIT_BYTES))
        with running_receiver(store, *options) as receiver:
            with PeakMemory(receiver.process.pid) as peak:
                report = fuzz(receiver, arguments.count, arguments.seed)
            crashes = int(receiver.process.poll() is not None)
            said = "" if crashes else receiver.stop()
        query = f"SELECT span_id FROM spans WHERE trace_id = '{GOOD_TRACE_ID.hex()}'"  # noqa: S608
        _, _, rows = query_store(store, query)
    lost = len(set(report.good_span_ids) - {span_id for (span_id,) in rows})
    figures = {
        "mutated": report.mutated,
        "crashes": crashes,
        "wrong_answers": len(report.wrong),
        "good": len(report.good_span_ids),
        "good_lost": lost,
        "peak_above_idle_bytes": peak.above_idle_bytes,
        "limit_bytes": LIMIT_BYTES,
        "answers": dict(sorted(report.answers.items())),
        "seconds": round(time.monotonic() - start_s, 1),
    }
    print(json.dumps(figures))
    for line in report.wrong[:10]:
        print(line, file=sys.stderr)
    if "Traceback" in said:
        print(said, file=sys.stderr)
    is_right = not (crashes or report.wrong or lost or "Traceback" in said)
    return 0 if is_right and peak.above_idle_bytes < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
