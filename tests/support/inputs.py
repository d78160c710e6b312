"""One job of every kind of input that a verdict can rest on, with a known fault, as changed as an invariant needs it.

Hosts, or ranks where an input knows no hosts, have clocks that are apart by parts of `Change.skew_s`; ranks have other
numbers; jobs have other names. Nothing of it is what makes a job slow, so that nothing of it may change a verdict.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rootwalk.graph.cli import main
from rootwalk.graph.importers.plain_pickle import load_plain
from support.counters import Told, add_counters, growing, level
from support.flight_dumps import START_NS, FlightJob
from support.inspector_logs import TENSOR_DATA, InspectorJob, Late, SlowGroup
from support.jobs import HEALTHY_STEP_S, Fault, Job, simulate, write_rows
from support.pipelines import PipelineJob
from support.profiles import BASE_NS, MadeProfile, document

__all__ = ["FAULT_S", "INPUTS", "ONSET", "SKEW_OF_HOST", "Change", "Input", "add_idle_host"]

DATA = Path(__file__).parents[1] / "data"
# How far ahead the clock of each host is, as a part of the skew; the next ones begin anew.
SKEW_OF_HOST = (0.0, 1.0, -1.0, 0.5)
ONSET, FAULT_S = 40, 0.060
# Files are written so long after the last call: when the watchdog has waited, or while an agent looks.
WATCHDOG_NS, LOOK_NS = 600_000_000_000, 2_000_000_000


@dataclass(frozen=True)
class Change:
    """What is done to a job that may not change its verdict.

    Attributes:
        skew_s: How far clocks are apart, in parts of `SKEW_OF_HOST`.
        place: New number of each rank; None for the old ones.
        job: Its name.
        lost: A rank, by its old number, whose file there is not; None for all files.
    """

    skew_s: float = 0.0
    place: tuple[int, ...] | None = None
    job: str = "j1"
    lost: int | None = None

    def skew_of(self, host: int) -> float:
        """Return how far a host's clock is ahead, in seconds."""
        return self.skew_s * SKEW_OF_HOST[host % len(SKEW_OF_HOST)]

    def number(self, rank: int) -> int:
        """Return the new number of a rank."""
        return rank if self.place is None else self.place[rank]


@dataclass(frozen=True)
class Input:
    """A kind of input.

    Attributes:
        ranks: How many its job has.
        put: Puts its job, changed, into a store: the store, an empty folder for files, and the change.
        first: Reason and ranks of the first finding of the unchanged job.
        can_align: Whether something in it shows what its clocks are apart.
        can_renumber: Whether its ranks can have other numbers; those of a recorded job are what they are.
    """

    ranks: int
    put: Callable[[Path, Path, Change], None]
    first: tuple[str, tuple[int, ...]]
    can_align: bool = True
    can_renumber: bool = True


def _import(kind: str, store: Path, paths: list[Path], change: Change, *options: str) -> None:
    names = [str(path) for path in paths]
    arguments = ["--store", str(store), "--quiet", "--job", change.job, *options]
    assert main(["import", kind, *names, *arguments]) == 0


def _put_pipeline(store: Path, folder: Path, change: Change) -> None:
    """Operations of 8 workers, of whom that of replica 2 and stage 0 is slow."""
    plain = PipelineJob(slow={(2, 0): 1.5})
    job = replace(
        plain,
        rank_of=lambda replica, stage: change.number(plain.rank(replica, stage)),
        # No time is before 0.
        skew_s={change.number(rank): 10.0 + change.skew_of(rank) for rank in range(8)},
    )
    trace, meta = job.write(folder)
    _import("oplog", store, [trace], change, "--meta", str(meta))


def _put_recorded_pipeline(store: Path, folder: Path, change: Change) -> None:
    """A quarter of a public job of 8 workers whose last stage has more work."""
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(DATA / "straggleranalysis" / "trace-ST.parquet")
    steps = sorted(set(table.column("step").to_pylist()))[::4]
    rows = [row for row in table.to_pylist() if row["step"] in steps]
    for row in rows:
        row["start_ts"] = float(row["start_ts"]) + 10.0 + change.skew_of(row["rank"])
    trace = folder / "trace.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), trace)
    meta = DATA / "straggleranalysis" / "meta-ST.yaml"
    _import("oplog", store, [trace], change, "--meta", str(meta))


def _put_profiles(store: Path, folder: Path, change: Change) -> None:
    """Profiles of 4 ranks, of whom the third loads its data 55 ms longer."""
    loads = [0.0] * 4
    for rank, load_ms in enumerate((5.0, 5.0, 60.0, 5.0)):
        loads[change.number(rank)] = load_ms
    paths = []
    for rank in sorted(set(range(4)) - {change.lost}):
        made = MadeProfile(
            change.number(rank), tuple(loads), loader="_MultiProcessingDataLoaderIter"
        )
        skew_ns = round(change.skew_of(rank) * 1e9)
        text = document(made) | {"baseTimeNanoseconds": BASE_NS + skew_ns}
        paths.append(folder / f"rank{made.rank}.json")
        paths[-1].write_text(json.dumps(text))
    _import("kineto", store, paths, change)


def _put_dumps(later_ns: int) -> Callable[[Path, Path, Change], None]:
    """Dumps of 8 ranks in two groups; rank 3 has not called what all others wait in."""

    def put(store: Path, folder: Path, change: Change) -> None:
        job = FlightJob(8, {"0": range(8), "1": range(4)})
        job.call_all((0, 1, 2), "1")
        job.call_all((4, 5, 6, 7), "0")
        if change.place is not None:
            job = job.permuted(dict(enumerate(change.place)))
        paths = []
        for rank in sorted(set(range(8)) - {change.lost}):
            number = change.number(rank)
            paths.append(folder / f"nccl_trace_rank_{number}")
            skew_ns = round(change.skew_of(rank // 2) * 1e9)
            _write_dump(paths[-1], job.dump(number), skew_ns, START_NS + later_ns)
        _import("flight-recorder", store, paths, change)

    return put


def _put_recorded_dumps(case: str) -> Callable[[Path, Path, Change], None]:
    def put(store: Path, folder: Path, change: Change) -> None:
        paths = []
        recorded = sorted((DATA / "nvrx_flight_recorder" / "fr_traces" / case).glob("_dump_*"))
        dumps = {int(path.name[6:]): load_plain(path.read_bytes()) for path in recorded}
        last_ns = max(e["time_created_ns"] for dump in dumps.values() for e in dump["entries"])
        for rank, dump in sorted(dumps.items()):
            path = folder / f"_dump_{rank}"
            # Eight ranks a host, as the job had them.
            skew_ns = round(change.skew_of(rank // 8) * 1e9)
            _write_dump(path, dump, skew_ns, last_ns + WATCHDOG_NS)
            paths.append(path)
        _import("flight-recorder", store, paths, change)

    return put


def _write_dump(path: Path, dump: dict[str, Any], skew_ns: int, written_ns: int) -> None:
    """Write a dump whose times, that of its file among them, are those of a clock that is ahead."""
    for entry in dump["entries"]:
        for name, value in entry.items():
            if name.endswith("_ns") and name.startswith("time_") and value:
                entry[name] = value + skew_ns
    path.write_bytes(pickle.dumps(dump, protocol=2))
    os.utime(path, ns=(written_ns + skew_ns, written_ns + skew_ns))


def _put_live(job: Job, told: Callable[[int], tuple[Told, ...]] | None = None) -> Any:
    """A live job with a fault, and counters of each host."""

    def put(store: Path, folder: Path, change: Change) -> None:
        skew_s = tuple(change.skew_of(host) for host in range(job.hosts))
        rows = simulate(replace(job, name=change.job, skew_s=skew_s))
        for row in rows:
            row["rank"] = change.number(row["rank"])
        write_rows(store, rows)
        if told is not None and change.job == "j1":
            counters = [
                replace(
                    one,
                    skew_s=skew_s[host],
                    rank=None if one.rank is None else change.number(one.rank),
                )
                for host in range(job.hosts)
                for one in told(host)
            ]
            add_counters(store, tuple(counters), job.steps * (HEALTHY_STEP_S + FAULT_S))

    return put


def _put_inspector(job: InspectorJob, *, is_verbose: bool) -> Any:
    """Logs of NCCL Inspector of 8 ranks on 4 hosts."""

    def put(store: Path, folder: Path, change: Change) -> None:
        made = replace(job, lines={}, names=change.place or ()).run(is_verbose=is_verbose)
        old = {change.number(rank): rank for rank in range(job.ranks)}
        if change.lost is not None:
            del made.lines[change.number(change.lost)]
        for rank, lines in made.lines.items():
            skew_us = round(change.skew_of(old[rank] // job.per_host) * 1e6)
            for item in lines:
                _move_line(item, skew_us)
        _import("nccl-inspector", store, made.write(folder), change)

    return put


def _move_line(item: dict[str, Any], skew_us: int) -> None:
    item["metadata"]["dump_timestamp_us"] += skew_us
    times = item.get("coll_perf", {}).get("event_trace_ts")
    if times is None:
        return
    for name in ("coll_start_ts", "coll_stop_ts"):
        times[name] += skew_us
    for event in times["kernel_events"]:
        for name in ("kernel_start_ts", "kernel_stop_ts", "kernel_record_ts"):
            event[name] += skew_us


def _steal(host: int) -> tuple[Told, ...]:
    """From the onset on, half of what host 1 ran is taken from it."""
    begin_s = 200 * HEALTHY_STEP_S
    user = Told("system.cpu.time", growing(1.0, -70.0), host, None, {"cpu.mode": "user"})
    rate = 0.5 if host == 1 else 0.0
    return (
        user,
        Told("system.cpu.time", growing(rate, begin_s), host, None, {"cpu.mode": "steal"}),
    )


def _again(host: int) -> tuple[Told, ...]:
    """From the onset on, segments of rank 1 are sent again."""
    if host != 1:
        return ()
    to_ranks = {"training.tcp.peer": "rank", "training.tcp.peer.rank": "0"}
    rate, begin_s = 5.0, 200 * HEALTHY_STEP_S
    lost = growing(rate, begin_s)
    slow = level(0.0002, 0.0016, begin_s)
    return (
        Told("training.tcp.retransmitted.segments", lost, host, host, to_ranks),
        Told("training.tcp.rtt.mean", slow, host, host, to_ranks),
    )


def _live(*faults: Fault, ranks: int = 4, steps: int = 80) -> Job:
    return Job(ranks=ranks, hosts=ranks, steps=steps, jitter_ratio=0.02, faults=faults)


_LATE = InspectorJob(per_host=2, calls=TENSOR_DATA, iterations=80, late=(Late(5, 0.04, 40),))
_SLOW = InspectorJob(
    per_host=2, calls=TENSOR_DATA, iterations=80, slow=(SlowGroup("data", 5, None, 40),)
)

INPUTS: dict[str, Input] = {
    "oplog": Input(8, _put_pipeline, ("SLOW_COMPUTE", (2,))),
    "oplog, recorded": Input(
        8, _put_recorded_pipeline, ("STAGE_IMBALANCE", ()), can_renumber=False
    ),
    "kineto": Input(4, _put_profiles, ("UNKNOWN_HOST", (2,))),
    "flight-recorder": Input(8, _put_dumps(WATCHDOG_NS), ("NOT_JOINED", (3,)), can_align=False),
    "flight-recorder, just written": Input(
        8, _put_dumps(LOOK_NS), ("NOT_JOINED", (3,)), can_align=False
    ),
    "flight-recorder, recorded gpu_error": Input(
        16,
        _put_recorded_dumps("gpu_error_1st"),
        ("GPU_HANG", (12, 14)),
        can_align=False,
        can_renumber=False,
    ),
    "flight-recorder, recorded lock_gil": Input(
        16,
        _put_recorded_dumps("lock_gil_1st"),
        ("NOT_JOINED", (9, 14)),
        can_align=False,
        can_renumber=False,
    ),
    "live, contention": Input(
        4,
        _put_live(_live(Fault("contention", 2, FAULT_S, ONSET))),
        ("CPU_CONTENTION", (2,)),
    ),
    "live, all slower": Input(
        4, _put_live(_live(Fault("uniform", 1, FAULT_S, ONSET))), ("GLOBAL_SLOW", ())
    ),
    "live, stolen": Input(
        2,
        _put_live(_live(Fault("work", 1, FAULT_S, 200), ranks=2, steps=400), _steal),
        ("CPU_STEAL", (1,)),
    ),
    "live, lost": Input(
        2,
        _put_live(_live(Fault("transfer_foreign", -1, FAULT_S, 200), ranks=2, steps=400), _again),
        ("NET_LOSS", ()),
    ),
    "live, no collectives": Input(
        4,
        _put_live(replace(_live(Fault("contention", 2, FAULT_S, ONSET)), has_collectives=False)),
        ("CPU_CONTENTION", (2,)),
        can_align=False,
    ),
    "nccl-inspector": Input(8, _put_inspector(_LATE, is_verbose=True), ("UNKNOWN_HOST", (5,))),
    "nccl-inspector, terse": Input(
        8, _put_inspector(_LATE, is_verbose=False), ("UNKNOWN_HOST", (5,))
    ),
    "nccl-inspector, slow transfers": Input(
        8, _put_inspector(_SLOW, is_verbose=True), ("UNKNOWN_NET", ())
    ),
}


def add_idle_host(store: Path) -> None:
    """Add what an agent tells of a host without ranks, whose counters move as if it were the one at fault."""
    idle = 97
    told = (
        *_steal(1),
        Told("system.network.packet.dropped", growing(50.0, 24.0), 1, None, {"device": "eth0"}),
    )
    add_counters(store, tuple(replace(one, host=idle) for one in told), 60.0)
