"""Time and memory of `diagnose` for hangs of up to 10,240 ranks, in stores with one record a rank.

    python hang_scale.py [--ranks 1024 4096 10240] [--shapes collectives messages]

Ranks are in groups of 8 (tensor), in lines of 8 stages (pipeline), in groups of 64 (experts), with the others of their
place (data), and three times in the group of all. One rank has not called what the others wait for:

    collectives   each rank has 12 unfinished calls, in all of its groups
    messages      each rank has called two all-to-alls of its 64, as batches of a send and a receive for every other
    live          no dumps: each rank has reported four times that it makes no progress, with its groups and one stack

Each diagnosis runs in a process of its own; it has to name the rank that was chosen and no other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rootwalk.graph.hangs.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.importers.flight_recorder import make_request
from rootwalk.otel_receiver.imports import save_import
from rootwalk.otel_receiver.store import create_store, writing

START_NS = 1_700_000_000_000_000_000
CULPRIT = 77
TENSOR, STAGES, EXPERTS = 8, 8, 64
ISSUED = 1000
ROWS = 512
FRAMES = tuple(f"layer_{depth} (model.py:{depth})" for depth in range(12))


class Groups:
    """The communicators of each rank, their members shared by all."""

    def __init__(self, ranks: int) -> None:
        world = tuple(range(ranks))
        stage = ranks // STAGES
        tensor = [tuple(range(r, r + TENSOR)) for r in range(0, ranks, TENSOR)]
        experts = [tuple(range(r, r + EXPERTS)) for r in range(0, ranks, EXPERTS)]
        pipeline = [tuple(range(r, ranks, stage)) for r in range(stage)]
        data = [
            tuple(range(s * stage + t, (s + 1) * stage, TENSOR))
            for s in range(STAGES)
            for t in range(TENSOR)
        ]
        self._kinds: dict[str, Callable[[int], tuple[str, tuple[int, ...]]]] = {
            "world": lambda r: ("0", world),
            "model": lambda r: ("1", world),
            "optimizer": lambda r: ("2", world),
            "tensor": lambda r: (f"t{r // TENSOR}", tensor[r // TENSOR]),
            "experts": lambda r: (f"e{r // EXPERTS}", experts[r // EXPERTS]),
            "pipeline": lambda r: (f"p{r % stage}", pipeline[r % stage]),
            "data": lambda r: (
                f"d{r // stage}-{r % TENSOR}",
                data[r // stage * TENSOR + r % TENSOR],
            ),
        }

    def of(self, rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name and members by kind."""
        return {kind: find(rank) for kind, find in self._kinds.items()}


def make_record(rank: int, groups: Groups, shape: str) -> RankRecord:
    """Return what one rank has recorded."""
    own = groups.of(rank)
    calls: list[PendingCall] = []

    def call(kind: str, sequence: int, operation: str, peer: int | None = None) -> None:
        order = len(calls)
        calls.append(
            PendingCall(
                *(order, own[kind][0], sequence, operation, peer),
                *(4096 if peer is None else None, "BFloat16", False, START_NS + order, FRAMES),
            )
        )

    if rank != CULPRIT:
        if shape == "messages":
            for batch in (1, 2):
                for peer in own["experts"][1]:
                    if peer != rank:
                        call("experts", ISSUED + batch, "send", peer)
                        call("experts", ISSUED + batch, "recv", peer)
            call("world", ISSUED + 1, "all_reduce")
        else:
            for sequence in range(ISSUED + 1, ISSUED + 5):
                call("tensor", sequence, "all_gather")
                call("data", sequence, "reduce_scatter")
            call("experts", ISSUED + 1, "all_to_all")
            for kind in ("world", "model", "optimizer"):
                call(kind, ISSUED + 1, "all_reduce")
    frontiers = tuple(
        Frontier(
            *(name, kind.upper(), members),
            issued=max(
                [ISSUED, *(c.sequence for c in calls if c.communicator == name and c.peer is None)]
            ),
            has_messages=kind == "experts" and shape == "messages",
            ended=ISSUED,
        )
        for kind, (name, members) in own.items()
    )
    seen_ns = START_NS + len(calls) if calls else None
    return RankRecord(rank, "2.9", "2.27.3", frontiers, tuple(calls), FRAMES, seen_ns)


def write_store(path: Path, ranks: int, shape: str) -> None:
    """Write a store with a record of every rank."""
    groups = Groups(ranks)
    for first in range(0, ranks, ROWS):
        save_import(
            path,
            [
                make_request(make_record(rank, groups, shape), "big", START_NS + 600_000_000_000)
                for rank in range(first, min(first + ROWS, ranks))
            ],
        )


def write_live_store(path: Path, ranks: int) -> None:
    """Write a store in which every rank reports for 20 s that it makes no progress."""
    create_store(path)
    stage = ranks // STAGES
    groups = {
        "world": ("'0'", ranks),
        "model": ("'1'", ranks),
        "optimizer": ("'2'", ranks),
        "tensor": (f"'t' || rank // {TENSOR}", TENSOR),
        "experts": (f"'e' || rank // {EXPERTS}", EXPERTS),
        "pipeline": (f"'p' || rank % {stage}", STAGES),
        "data": (f"'d' || rank // {stage} || '-' || rank % {TENSOR}", stage // TENSOR),
    }
    with writing(path) as connection:
        for report in (5, 10, 15, 20):
            idle = f"{report}.0"
            _insert(
                connection,
                *("training.rank.progress", ranks, report),
                f"""json_object('process.pid', 1000 + rank, 'training.progress.stage', 'training',
                    'training.progress.idle_time', {idle}, 'training.progress.usual_time', 0.2,
                    'training.step.number', 66, 'training.process.state', 'sleeping',
                    'training.progress.cpu_time', 0.1, 'training.progress.main_cpu_time', 0.0,
                    'training.progress.wakeups', 1, 'training.progress.io_size', 0,
                    'training.wait.system_call', CASE rank WHEN {CULPRIT} THEN 'clock_nanosleep' ELSE 'futex' END)""",
            )
            for kind, (name, size) in groups.items():
                _insert(
                    connection,
                    *("training.collective.progress", ranks, report),
                    f"""json_object('collective.communicator.id', {name}, 'collective.communicator.name', '{kind}',
                        'collective.communicator.size', {size}, 'collective.backend', 'nccl',
                        'collective.is_point_to_point', false, 'collective.operation', 'all_reduce',
                        'collective.sequence', {ISSUED} + CASE rank WHEN {CULPRIT} THEN 0 ELSE 1 END,
                        'collective.ended_sequence', {ISSUED}, 'collective.size', 4096,
                        'collective.pending_time', CASE rank WHEN {CULPRIT} THEN NULL ELSE {idle} END)""",
                )
        frames = json.dumps({"arrayValue": {"values": [{"stringValue": f} for f in FRAMES]}})
        _insert(
            connection,
            *("training.rank.stack", ranks, 10),
            f"""json_object('thread.id', 1000 + rank, 'training.thread.role', 'main',
                'training.stack.frames', CAST(CASE rank WHEN {CULPRIT}
                    THEN replace('{frames}', 'layer_0 ', 'sleep ') ELSE '{frames}' END AS JSON))""",
        )


def _insert(connection: Any, event: str, ranks: int, second: int, attributes: str) -> None:
    """Write one event of every rank."""
    told_ns = START_NS + second * 1_000_000_000
    resource = json.dumps({"training.world_size": ranks})
    columns = (
        "received_unix_ns, unix_ns, event_name, job, attempt, rank, host_name, attributes, resource"
    )
    connection.execute(
        f"INSERT INTO log_records ({columns}) SELECT ?, ?, ?, 'big', 0, rank, 'host-' || rank // 8,"  # noqa: S608
        f" CAST({attributes} AS TEXT), ? FROM range(?) AS r(rank)",
        [told_ns + 1_000_000_000, told_ns, event, resource, ranks],
    )


def measure(ranks: int, shape: str) -> Iterator[str]:
    """Yield the cells of one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.duckdb"
        began_s = time.perf_counter()
        if shape == "live":
            write_live_store(store, ranks)
        else:
            write_store(store, ranks, shape)
        write_s = time.perf_counter() - began_s
        command = [sys.executable, "-m", "rootwalk.graph", "diagnose", str(store), "--json"]
        began_s = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        took_s = time.perf_counter() - began_s
        verdict = json.loads(done.stdout)
        accused = [finding["subject"]["ranks"] for finding in verdict["findings"]]
        if accused != [[CULPRIT]]:
            raise SystemExit(f"{ranks} ranks, {shape}: blamed {accused}, not rank {CULPRIT}")
        yield from (shape, f"{ranks:,}", f"{took_s:.1f}")
        yield f"{verdict['cost']['peak_rss_bytes'] / 1e9:.2f}"
        yield f"{store.stat().st_size / 1e6:.0f}"
        yield f"{write_s:.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="time and memory of hangs of many ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096, 10240])
    parser.add_argument("--shapes", nargs="+", default=["collectives", "messages", "live"])
    arguments = parser.parse_args()
    print("| hang | ranks | diagnose, s | peak memory, GB | store, MB | making the store, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for shape in arguments.shapes:
        for ranks in arguments.ranks:
            print(f"| {' | '.join(measure(ranks, shape))} |", flush=True)


if __name__ == "__main__":
    main()
