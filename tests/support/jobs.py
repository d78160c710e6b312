"""Synthetic jobs with known faults, written into a real store.

One healthy step of every rank, in ms (the step is 120 ms: nothing else waits)::

    data_load 10 | forward 30 | gap 5 | backward 25 issue#1 25 issue#2 wait 5 | optimizer 20
                                             [ #1: 5 ]     [ #2: 5 ]

A fault adds its seconds at the start of one phase of one rank (all ranks for `uniform`; a checkpoint comes before
data_load, and only in the steps of such a fault), or to the transfers of a rank's second all-reduce (`transfer_…`), or
to what is only counted (`prefetch`: CPU time of loader workers that nobody waits for; `throttled`: time in which a
control group was held back while nothing of it was late).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import rebuild_summaries

NS = 1_000_000_000
START_UNIX_NS = 1_800_000_000 * NS
DATA_LOAD_S, FORWARD_S, GAP_S, BUCKET_S, TRANSFER_S, OPTIMIZER_S = (
    0.010,
    0.030,
    0.005,
    0.025,
    0.005,
    0.020,
)
HEALTHY_STEP_S = 0.120
AGGRESSOR_PID, AGGRESSOR_NAME = 4411, "node_exporter"
# What one fault does to the main thread; `uniform` is extra work on all ranks.
STATE_OF_FAULT = {
    "contention": "foreign",
    "own": "own",
    "quota": "idle",
    "work": "running",
    "uniform": "running",
    "gc": "gc",
    "interrupt": "running",
    "decode": "loader",
    "decode_behind": "own",
    "loader_contention": "loader",
    "loader_quota": "loader",
}
# What a blocked thread waits for, as the stall's attributes tell it; `loader_read` is a worker's wait.
WAIT_OF_FAULT: dict[str, dict[str, Any]] = {
    "gil": {"kind": "interpreter_lock", "waker": (1000, 7007, "thread-0badcafe")},
    "read": {"kind": "file_read", "file_system": "nfs", "device": "0:45"},
    "write": {"kind": "file_sync", "file_system": "ext4", "device": "vdb"},
    "output": {"kind": "pipe_write"},
    "service": {"kind": "socket_read", "peer": "remote", "port": 443},
    "stopped": {"kind": "stop"},
    "reclaim": {"kind": "memory_reclaim_wait"},
    "page_fault": {"kind": "fault"},
    "device": {"kind": "device"},
    # of rank 1: by a thread of its own, and under another process
    "map_lock": {"kind": "memory", "waker": (1001, 7007, "thread-0badcafe")},
    "map_disk": {"kind": "memory", "waker": (4411, 4411, "node_exporter")},
    "loader_read": {"kind": "file_read", "file_system": "fuse", "device": "0:51"},
}
# Faults that only counters or transfers show.
NOT_IN_THREADS = ("prefetch", "throttled", "transfer_foreign", "transfer_own", "transfer_idle")
# Faults of loader workers whose own CPU time grows by what they cost.
WORKING = ("decode", "decode_behind", "prefetch")
# What stands in the way of loader workers that do no more than before.
HOLDING_UP = {"loader_contention": "process", "loader_quota": "idle"}
WORKER_PID = 5000


@dataclass(frozen=True)
class Fault:
    """Seconds added to a phase of one rank in steps first to last (None: to the end).

    `probability` is that of each step, drawn once per step and rank, `period` that of steps from the first on;
    `growth_s` the CPU time that loader workers spend more, where it is not `seconds`.
    """

    kind: str
    rank: int
    seconds: float
    first_step: int
    last_step: int | None = None
    phase: str = "backward"
    pid: int = AGGRESSOR_PID
    name: str = AGGRESSOR_NAME
    probability: float = 1.0
    period: int = 1
    growth_s: float | None = None
    # Where the thread waited, if not on the rank's own CPU.
    cpu: int | None = None

    def at(self, step: int) -> bool:
        inside = self.first_step <= step and (self.last_step is None or step <= self.last_step)
        return (inside and (step - self.first_step) % self.period == 0) and (
            self.probability >= 1.0
            or float(np.random.default_rng([7, self.rank, step]).random()) < self.probability
        )


@dataclass(frozen=True)
class Job:
    """A job to simulate. `jitter_ratio` is the half width of a uniform factor on each piece of work.

    `extra_s` is work per step that a rank always has; `spikes` are steps in which rank 0 takes `spike_s` longer.
    `sensor` is core, proc (runnable time without owners, no stalls) or None (no thread times at all). `loader_s`,
    `gc_s` and `has_cgroup` are the CPU time of loader workers and the collector's time in every step, and whether
    throttling is reported; without them their columns are NULL. `untold` are the steps of a rank at level 0, which does
    not tell what was waited for. `short` are its steps at level 2: its waits are too short for the others. `factor` is
    what a piece of work takes as a part of the usual, from (step, rank, phase).
    """

    name: str = "j1"
    ranks: int = 2
    steps: int = 80
    hosts: int = 1
    faults: tuple[Fault, ...] = ()
    jitter_ratio: float = 0.0
    seed: int = 1
    sensor: str | None = "core"
    skew_s: tuple[float, ...] = ()
    extra_s: dict[int, float] = field(default_factory=dict)
    spikes: tuple[int, ...] = ()
    spike_s: float = 0.3
    cold_s: float = 0.5
    drift_ratio: float = 0.0
    has_collectives: bool = True
    world_size: int | None = None
    attempt: int = 0
    loader_s: float | None = None
    gc_s: float | None = None
    has_cgroup: bool = False
    untold: dict[int, range] = field(default_factory=dict)
    short: dict[int, range] = field(default_factory=dict)
    factor: Callable[[int, int, str], float] | None = None

    def tells_waits(self, step: int, rank: int) -> bool:
        return self.sensor == "core" and step not in self.untold.get(rank, ())

    def host(self, rank: int) -> int:
        return rank * self.hosts // self.ranks


@dataclass
class _Piece:
    """Work of one thread: seconds by state, in the order other states then running."""

    running: float = 0.0
    foreign: float = 0.0
    own: float = 0.0
    idle: float = 0.0
    blocked: float = 0.0
    gc: float = 0.0
    loader: float = 0.0
    # Of `blocked` (interrupts: of `running`), seconds by kind of wait; those of loader workers under `loader_files`.
    waits: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None

    @property
    def total(self) -> float:
        ran = self.running + self.gc
        return ran + self.foreign + self.own + self.idle + self.blocked + self.loader


class _Writer:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows: list[dict[str, Any]] = []

    def span(
        self, name: str, step: int, rank: int, begin: float, end: float, **columns: Any
    ) -> None:
        host = self.job.host(rank)
        skew = self.job.skew_s[host] if self.job.skew_s else 0.0
        key = f"{name}|{step}|{rank}|{len(self.rows)}"
        self.rows.append(
            {
                "trace_id": hashlib.sha256(f"{self.job.name}|{step}".encode()).hexdigest()[:32],
                "span_id": hashlib.sha256(key.encode()).hexdigest()[:16],
                "name": name,
                "kind": "INTERNAL",
                "start_unix_ns": START_UNIX_NS + round((begin + skew) * NS),
                "end_unix_ns": START_UNIX_NS + round((end + skew) * NS),
                "job": self.job.name,
                "attempt": self.job.attempt,
                "rank": rank,
                "local_rank": rank,
                "world_size": self.job.world_size or self.job.ranks,
                "host_id": f"host-id-{host}",
                "host_name": f"host-{host}",
                "pid": 1000 + rank,
                "step": step,
                "outcome": None,
                **columns,
            }
        )

    def states(self, step: int, rank: int, pieces: list[_Piece], waited: float) -> dict[str, Any]:
        totals = {
            n: sum(getattr(p, n) for p in pieces)
            for n in ("running", "foreign", "own", "idle", "blocked", "gc", "loader")
        }
        collected = None if self.job.gc_s is None else round(totals["gc"] * NS)
        if self.job.sensor is None:
            return {"gc_ns": collected}
        split = self.job.sensor == "core"
        totals["blocked"] += totals["loader"]
        is_seen = split and self.job.loader_s is not None
        return {
            "sensor": self.job.sensor,
            "gc_ns": collected,
            "blocked_loader_running_ns": round(totals["loader"] * NS) if is_seen else None,
            "running_ns": round((totals["running"] + totals["gc"]) * NS),
            "runnable_ns": round((totals["foreign"] + totals["own"] + totals["idle"]) * NS),
            "runnable_foreign_ns": round(totals["foreign"] * NS) if split else None,
            "runnable_own_ns": round(totals["own"] * NS) if split else None,
            "runnable_idle_ns": round(totals["idle"] * NS) if split else None,
            "blocked_ns": round((totals["blocked"] + waited) * NS),
            "attributes": self._wait_sums(step, rank, pieces),
        }

    def _wait_sums(self, step: int, rank: int, pieces: list[_Piece]) -> str:
        if not self.job.tells_waits(step, rank):
            return "{}"
        short = self.job.short.get(rank)
        if short is None:
            return _wait_sums(pieces, 0.0001)
        return _wait_sums(pieces, 0.00002) if step in short else _wait_sums([], 0.0001)

    def stall(
        self, step: int, rank: int, phase: str, state: str, begin: float, end: float, **columns: Any
    ) -> None:
        if self.job.sensor == "core" and end - begin >= 0.001:
            common = {
                "thread_id": 1000 + rank,
                "thread_name": "python",
                "role": "main",
                "cpu": rank,
                "sensor": "core",
            }
            self.span(
                f"stall.{state}",
                step,
                rank,
                begin,
                end,
                phase=phase,
                state=state,
                **{**common, **columns},
            )


def _wait_sums(pieces: list[_Piece], told_wait_s: float) -> str:
    """Return the attributes that say what a thread was blocked on, as JSON."""
    waits: dict[str, float] = {}
    for piece in pieces:
        for kind, waited_s in piece.waits.items():
            waits[kind] = waits.get(kind, 0.0) + waited_s
    files_s = waits.pop("loader_files", None)
    attributes: dict[str, Any] = {"training.wait.min_time": told_wait_s}
    if waits:
        attributes["training.wait.kinds"] = _array("stringValue", waits)
        attributes["training.wait.times"] = _array("doubleValue", waits.values())
    if files_s is not None:
        attributes["training.thread.blocked_loader_files_time"] = files_s
    return json.dumps(attributes)


def _array(kind: str, values: Iterable[str | float]) -> dict[str, Any]:
    """Return an attribute's array as the store keeps it."""
    return {"arrayValue": {"values": [{kind: value} for value in values]}}


def _wait_attributes(wait: dict[str, Any]) -> str:
    """Return the attributes of a stall that say what the thread waited for, as JSON."""
    pid, tid, name = wait.get("waker", (None, None, None))
    attributes = {
        "training.wait.kind": wait["kind"],
        "training.wait.peer": wait.get("peer"),
        "network.peer.port": wait.get("port"),
        "system.filesystem.type": wait.get("file_system"),
        "system.device": wait.get("device"),
        "training.waker.pid": pid,
        "training.waker.thread.id": tid,
        "training.waker.name": name,
    }
    return json.dumps({key: value for key, value in attributes.items() if value is not None})


def simulate(job: Job) -> list[dict[str, Any]]:
    """Return the rows of `span_records` for a job."""
    writer = _Writer(job)
    random = np.random.default_rng(job.seed)
    now = [0.0] * job.ranks
    for step in range(job.steps):
        _simulate_step(writer, job, random, step, now)
    return writer.rows


def _piece(
    job: Job, random: np.random.Generator, base: float, step: int, rank: int, phase: str
) -> _Piece:
    factor = (
        1.0
        + job.jitter_ratio * float(random.uniform(-1.0, 1.0))
        + job.drift_ratio * step / job.steps
    )
    if job.factor is not None:
        factor *= job.factor(step, rank, phase)
    piece = _Piece(running=base * factor)
    if phase == "forward":
        # The collector's usual time is a part of the work.
        piece.gc = job.gc_s or 0.0
        piece.running -= piece.gc
        piece.running += job.extra_s.get(rank, 0.0) + (job.cold_s if step == 0 else 0.0)
        piece.running += job.spike_s if rank == 0 and step in job.spikes else 0.0
    for fault in job.faults:
        if (
            fault.phase == phase
            and fault.kind not in NOT_IN_THREADS
            and fault.at(step)
            and (fault.rank == rank or fault.kind == "uniform")
        ):
            _strike(piece, fault)
    return piece


def _strike(piece: _Piece, fault: Fault) -> None:
    piece.fault = fault
    if fault.kind in HOLDING_UP:
        # The worker takes turns with what stands in its way.
        piece.loader += fault.seconds / 2
        piece.blocked += fault.seconds / 2
        return
    if fault.kind == "interrupt":
        piece.waits["interrupt"] = piece.waits.get("interrupt", 0.0) + fault.seconds
    if fault.kind in WAIT_OF_FAULT:
        kind = "loader_files" if fault.kind == "loader_read" else WAIT_OF_FAULT[fault.kind]["kind"]
        piece.waits[kind] = piece.waits.get(kind, 0.0) + fault.seconds
    state = STATE_OF_FAULT.get(fault.kind, "blocked")
    setattr(piece, state, getattr(piece, state) + fault.seconds)


def _simulate_step(
    writer: _Writer, job: Job, random: np.random.Generator, step: int, now: list[float]
) -> None:
    issued: list[list[float]] = []
    pieces: list[dict[str, list[_Piece]]] = []
    for rank in range(job.ranks):
        bases = [
            ("data_load", DATA_LOAD_S),
            ("forward", FORWARD_S),
            ("backward", BUCKET_S),
            ("optimizer", OPTIMIZER_S),
        ]
        if any(f.phase == "checkpoint" and f.rank == rank and f.at(step) for f in job.faults):
            bases.insert(0, ("checkpoint", 0.0))
        own = {name: [_piece(job, random, base, step, rank, name)] for name, base in bases}
        own["backward"].append(_piece(job, random, BUCKET_S, step, rank, "backward 2"))
        before = (
            pieces[0] for name, pieces in own.items() if name not in ("backward", "optimizer")
        )
        backward = now[rank] + sum(piece.total for piece in before) + GAP_S
        first = backward + own["backward"][0].total
        issued.append([first, first + own["backward"][1].total])
        pieces.append(own)
    done_first = max(times[0] for times in issued) + TRANSFER_S
    done = max(done_first, max(times[1] for times in issued)) + TRANSFER_S
    done += sum(f.seconds for f in job.faults if f.kind.startswith("transfer_") and f.at(step))
    for rank in range(job.ranks):
        ends = (
            [done_first, done]
            if job.has_collectives and job.ranks > 1
            else [issued[rank][0], issued[rank][1]]
        )
        now[rank] = _write_rank(
            writer, job, step, rank, now[rank], pieces[rank], issued[rank], ends
        )


def _write_rank(
    writer: _Writer,
    job: Job,
    step: int,
    rank: int,
    begin: float,
    own: dict[str, list[_Piece]],
    issued: list[float],
    ends: list[float],
) -> float:
    time_s, waited_total = begin, 0.0
    for index, (phase, pieces) in enumerate(own.items()):
        time_s += GAP_S if phase == "backward" else 0.0
        start = time_s
        for piece in pieces:
            _write_stalls(writer, step, rank, phase, piece, time_s)
            time_s += piece.total
        waited = 0.0
        if phase == "backward":
            waited = max(ends[-1] - issued[-1], 0.0)
            writer.stall(step, rank, phase, "blocked", time_s, time_s + waited)
            waited_total += waited
        time_s += waited
        states = writer.states(step, rank, pieces, waited)
        writer.span(phase, step, rank, start, time_s, phase=phase, phase_index=index, **states)
    if job.has_collectives and job.ranks > 1:
        for number, (issue, end) in enumerate(zip(issued, ends, strict=True)):
            columns = {
                "operation": "all_reduce",
                "communicator_id": "c0",
                "communicator_name": "default_pg",
            }
            more = {
                "communicator_size": job.ranks,
                "sequence": 2 * step + number + 1,
                "is_point_to_point": False,
            }
            if number == 1:
                more |= _behind_in_transfer(job, step, rank)
            writer.span(
                "collective.all_reduce", step, rank, issue, end, phase="backward", **columns, **more
            )
    everything = [piece for pieces in own.values() for piece in pieces] + [_Piece(running=GAP_S)]
    states = writer.states(step, rank, everything, waited_total) | _counted(job, step, rank)
    writer.span(
        "training.rank_step", step, rank, begin, time_s, **{**states, "outcome": "complete"}
    )
    return time_s


def _behind_in_transfer(job: Job, step: int, rank: int) -> dict[str, Any]:
    """Return what a member's other threads stood behind in its second all-reduce."""
    sums = dict.fromkeys(("foreign", "own", "idle"), 0.0)
    for fault in job.faults:
        if fault.kind.startswith("transfer_") and fault.rank == rank and fault.at(step):
            sums[fault.kind.removeprefix("transfer_")] += fault.seconds
    if job.sensor != "core":
        return {}
    return {f"runnable_{kind}_ns": round(seconds * NS) for kind, seconds in sums.items()}


def _counted(job: Job, step: int, rank: int) -> dict[str, Any]:
    """Return what is known of a rank's step as a whole: its loader workers and its control group."""
    mine = [f for f in job.faults if f.rank == rank and f.at(step)]
    result: dict[str, Any] = {}
    if job.loader_s is not None and job.sensor == "core":
        grown = sum(f.seconds for f in mine if f.kind in WORKING and f.growth_s is None)
        grown += sum(f.growth_s for f in mine if f.growth_s is not None)
        result["loader_running_ns"] = round((job.loader_s + grown) * NS)
    if job.has_cgroup:
        held = ("quota", "throttled", "loader_quota", "transfer_idle")
        result["throttled_ns"] = round(sum(f.seconds for f in mine if f.kind in held) * NS)
    return result


def _write_stalls(
    writer: _Writer, step: int, rank: int, phase: str, piece: _Piece, begin: float
) -> None:
    fault = piece.fault
    if fault is None or STATE_OF_FAULT.get(fault.kind) in ("running", "gc"):
        return
    end = begin + fault.seconds
    wait = WAIT_OF_FAULT.get(fault.kind)
    if wait is not None:
        is_worker = fault.kind == "loader_read"
        columns: dict[str, Any] = {"attributes": _wait_attributes(wait)}
        if is_worker:
            writer.stall(step, rank, phase, "blocked", begin, end)
            columns |= {"role": "loader_worker", "thread_id": WORKER_PID + rank}
        state = "stopped" if fault.kind == "stopped" else "blocked"
        writer.stall(step, rank, phase, state, begin, end, **columns)
        return
    if fault.kind in ("blocked", "decode", *HOLDING_UP):
        writer.stall(step, rank, phase, "blocked", begin, end)
        if fault.kind in HOLDING_UP:
            # The second half of the wait: the worker stands runnable.
            columns = _standing_behind(fault, rank) | {"role": "loader_worker"}
            columns["thread_id"] = WORKER_PID + rank
            writer.stall(step, rank, phase, "runnable", begin + fault.seconds / 2, end, **columns)
        return
    writer.stall(step, rank, phase, "runnable", begin, end, **_standing_behind(fault, rank))


def _standing_behind(fault: Fault, rank: int) -> dict[str, Any]:
    """Return the columns of a stall that say what ran in a thread's place."""
    kinds = {"own": "own", "decode_behind": "own", "quota": "idle", **HOLDING_UP}
    pid, name = {
        "own": (1000 + rank, "python"),
        "decode_behind": (WORKER_PID + rank, "pt_data_worker"),
        "quota": (0, "swapper"),
        "loader_quota": (0, "swapper"),
    }.get(fault.kind, (fault.pid, fault.name))
    return {
        **({} if fault.cpu is None else {"cpu": fault.cpu}),
        "aggressor_kind": kinds.get(fault.kind, "process"),
        "aggressor_pid": pid,
        "aggressor_name": name,
        "aggressor_cgroup": "/system.slice/x",
        "aggressor_ns": round(fault.seconds * NS),
        "aggressors": json.dumps([{"pid": pid, "name": name, "ns": round(fault.seconds * NS)}]),
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Create a store and put rows of `span_records` into it; missing columns are NULL."""
    store.create_store(path)
    defaults = {
        "received_unix_ns": START_UNIX_NS,
        "attributes": "{}",
        "resource": "{}",
        "links": "[]",
        "events": "[]",
    }
    names = sorted({name for row in rows for name in row} | defaults.keys())
    columns = {name: [row.get(name, defaults.get(name)) for row in rows] for name in names}
    with store.writing(path) as connection:
        if rows:
            table = pa.table(columns)
            connection.register("incoming", table)
            connection.execute("INSERT INTO span_records BY NAME SELECT * FROM incoming")
            connection.unregister("incoming")
            rebuild_summaries(connection)
    return path


def write_job(path: Path, job: Job) -> Path:
    """Create a store with one simulated job."""
    return write_rows(path, simulate(job))


def add_cpu_limit(path: Path, rank: int, limit: float, job: str = "j1") -> None:
    """Say by a metric that a rank's control group may use so many CPUs."""
    with store.writing(path) as connection:
        connection.execute(
            "INSERT INTO metric_records (received_unix_ns, name, kind, unit, unix_ns, value, job, attempt, rank,"
            " attributes, resource, data) VALUES (?, 'training.cgroup.cpu.limit', 'gauge', '{cpu}', ?, ?, ?, 0, ?,"
            " '{}', '{}', '{}')",
            [START_UNIX_NS, START_UNIX_NS, limit, job, rank],
        )
        rebuild_summaries(connection)
