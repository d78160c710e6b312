"""How long `diagnose` takes on the last 50 steps of a small and of a big store, side by side.

    python tests/benchmarks/big_store.py --spans 2000000
    python tests/benchmarks/big_store.py --spans 100000000 --folder /big/disk    # the stores stay there

Both stores end with the same simulated job of 8 ranks, 300 steps of which the last 50 are slow. The big one has healthy
steps before it, copied from the simulation by SQL, each with times, sequence numbers and ids of its own. The verdicts
must name the same cause.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import update_summaries

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.jobs import Fault, Job, simulate, write_rows

RANKS = 8
TAIL_STEPS = 300
SLOW_STEPS = 50
# Healthy steps of the tail that are copied to fill the big store.
BLOCK = range(20, 120)
# Spans of one transaction while filling: bounds memory.
CHUNK_SPANS = 2_000_000
# Each store is diagnosed so often; the median counts.
RUNS = 5

_COPY = """
CREATE OR REPLACE TEMP VIEW incoming AS
SELECT b.* REPLACE (
    b.step - {first} + k.k * {length} AS step,
    b.start_unix_ns + (k.k - {blocks}) * {block_ns} AS start_unix_ns,
    b.end_unix_ns + (k.k - {blocks}) * {block_ns} AS end_unix_ns,
    b.end_unix_ns + (k.k - {blocks}) * {block_ns} AS received_unix_ns,
    b.sequence + k.k * {length} * 2 AS sequence,
    printf('%016x', hash(b.span_id, k.k)) AS span_id,
    printf('%032x', hash(b.step, k.k)) AS trace_id,
    hash(b.span_id, k.k) AS span_key,
    replace(b.attributes, '0', (k.k % 10)::TEXT) AS attributes
) FROM block b, range({start}, {stop}) k(k) ORDER BY k.k, b.place
"""


def main() -> int:
    """Build both stores, diagnose each in turn, print seconds and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spans", type=int, default=2_000_000, help="spans (default 2000000)")
    parser.add_argument(
        "--folder", type=Path, help="keep the stores here, and use those that are here already"
    )
    parser.add_argument("--build-only", action="store_true", help="diagnose in a later run")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small, big = folder / "small.duckdb", folder / "big.duckdb"
        build_once(small, 0)
        build_once(big, arguments.spans)
        if arguments.build_only:
            return 0
        print(
            f"big store: {count(big):,} spans, {big.stat().st_size / 1e9:.2f} GB; "
            f"small store: {count(small):,} spans, {small.stat().st_size / 1e6:.1f} MB"
        )
        last = store.query_store(big, "SELECT max(last_step) FROM ranks")[2][0][0]
        for title, small_steps, big_steps in (
            ("the last episode", [], []),
            ("--steps, the last 50", _window(TAIL_STEPS - 1), _window(last)),
        ):
            compare(title, (small, small_steps), (big, big_steps))
    return 0


def build_once(path: Path, spans: int) -> None:
    """Build a store that is not there; it appears complete or not at all."""
    if path.exists():
        return
    began_s = time.monotonic()
    half = path.with_suffix(".building")
    half.unlink(missing_ok=True)
    build(half, spans)
    half.rename(path)
    print(f"built {path.name} in {time.monotonic() - began_s:.0f} s", flush=True)


def build(path: Path, spans: int) -> None:
    """Write a store with about so many spans, at least the tail's."""
    slow = Fault("contention", 3, 0.06, TAIL_STEPS - SLOW_STEPS)
    tail = simulate(Job(ranks=RANKS, steps=TAIL_STEPS, jitter_ratio=0.02, faults=(slow,)))
    for row in tail:
        row["attributes"] = json.dumps({"training.step.number": row["step"], "rank": row["rank"]})
    block = [dict(row, place=n) for n, row in enumerate(tail) if row["step"] in BLOCK]
    blocks = max(spans - len(tail), 0) // len(block)
    offset = blocks * len(BLOCK)
    write_rows(path, [])
    if blocks:
        _fill(path, block, blocks)
    for row in tail:
        row["step"] += offset
        if row.get("sequence") is not None:
            row["sequence"] += offset * 2
    write_more(path, tail)


def write_more(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows behind what is stored."""
    with store.writing(path) as connection:
        connection.execute("CREATE TEMP TABLE incoming AS FROM span_records LIMIT 0")
        names = sorted({name for row in rows for name in row})
        defaults = {"resource": "{}", "links": "[]", "events": "[]"}
        columns = {name: [row.get(name) for row in rows] for name in names}
        columns |= {name: [text] * len(rows) for name, text in defaults.items()}
        columns["received_unix_ns"] = [row["end_unix_ns"] for row in rows]
        connection.register("tail", pa.table(columns))
        connection.execute("INSERT INTO incoming BY NAME FROM tail")
        connection.execute("INSERT INTO span_records BY NAME FROM incoming")
        update_summaries(connection, "span_records")


def _fill(path: Path, block: list[dict[str, Any]], blocks: int) -> None:
    starts = [row["start_unix_ns"] for row in block if row["name"] == "training.rank_step"]
    ends = [row["end_unix_ns"] for row in block if row["name"] == "training.rank_step"]
    per_chunk = max(CHUNK_SPANS // len(block), 1)
    with store.writing(path) as connection:
        columns = sorted({name for row in block for name in row})
        connection.register(
            "rows", pa.table({name: [row.get(name) for row in block] for name in columns})
        )
        connection.execute("CREATE TEMP TABLE block AS FROM span_records LIMIT 0")
        connection.execute("ALTER TABLE block ADD COLUMN place BIGINT")
        connection.execute(
            "INSERT INTO block BY NAME SELECT *, '{}' AS resource, '[]' AS links, '[]' AS events,"
            " 0 AS received_unix_ns FROM rows"
        )
        for start in range(0, blocks, per_chunk):
            query = _COPY.format(
                first=BLOCK.start,
                length=len(BLOCK),
                blocks=blocks,
                block_ns=max(ends) - min(starts),
                start=start,
                stop=min(start + per_chunk, blocks),
            )
            connection.begin()
            connection.execute(query)
            connection.execute(
                "INSERT INTO span_records BY NAME SELECT * EXCLUDE (place) FROM incoming"
            )
            update_summaries(connection, "span_records")
            connection.commit()


def count(path: Path) -> int:
    """Return the number of spans in a store."""
    return int(store.query_store(path, "SELECT count(*) FROM spans")[2][0][0])


def compare(title: str, small: tuple[Path, list[str]], big: tuple[Path, list[str]]) -> None:
    """Diagnose both in turn and print what each took."""
    seconds: dict[Path, list[float]] = {small[0]: [], big[0]: []}
    causes: dict[Path, list[str]] = {}
    for _ in range(RUNS):
        for path, options in (small, big):
            began_s = time.monotonic()
            command = [sys.executable, "-m", "rootwalk.graph", "diagnose", str(path), "--json"]
            done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
            seconds[path].append(time.monotonic() - began_s)
            verdict = json.loads(done.stdout)
            causes[path] = [
                f"{f['reason']} rank {f['subject']['rank']}" for f in verdict["findings"]
            ]
    if causes[small[0]] != causes[big[0]]:
        raise SystemExit(f"the verdicts differ: {causes}")
    small_s, big_s = (statistics.median(seconds[path]) for path in (small[0], big[0]))
    print(
        f"{title}: small {small_s:.2f} s, big {big_s:.2f} s, ratio {big_s / small_s:.2f}; "
        f"both name {', '.join(causes[small[0]])}"
    )


def _window(last: int) -> list[str]:
    return ["--steps", f"{last - SLOW_STEPS + 1}:{last}"]


if __name__ == "__main__":
    sys.exit(main())
