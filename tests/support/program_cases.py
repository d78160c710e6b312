"""What a training program tells of itself that tells a reason, as `counter_cases` has it of hosts.

    steps   60 of 120 ms | 60 of 180 ms        the fault costs 60 ms a step, from step 60 on

Spans and attributes as the hooks and the importer of profiles send them; generated, beside simulated jobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import rebuild_summaries
from support.jobs import NS, Fault

# What spans tell needs no look of an agent: fewer steps will do than for counters.
FAULT_S, STEPS, ONSET = 0.060, 120, 60
WORK = Fault("work", 1, FAULT_S, ONSET)
DEVICE = Fault("device", 1, FAULT_S, ONSET, phase="forward")
SLOW_ALL = Fault("uniform", 0, FAULT_S, ONSET)
# What a rank tells of one of its steps, given the row of the step: columns of a span, or attributes of the step itself.
Row = dict[str, Any]
Tell = Callable[[Row, float], Iterator[Row]]


def lasting(name: str, seconds: float, usual_s: float = 0.0) -> Tell:
    """A span within each step, longer from some step on."""

    def tell(step: Row, much: float) -> Iterator[Row]:
        length_s = usual_s + seconds * much
        if length_s > 0.0:
            start = step["start_unix_ns"] + NS // 100
            yield {
                "name": name,
                "start_unix_ns": start,
                "end_unix_ns": start + round(length_s * NS),
            }

    return tell


def retries(step: Row, much: float) -> Iterator[Row]:
    """Three retries a slow step."""
    if much >= 1.0:
        attributes = json.dumps({"training.allocator.retries": 3})
        yield {"name": "torch.allocator", "attributes": attributes}


def evaluation(step: Row, much: float) -> Iterator[Row]:
    """A phase of its own in the time that the step takes longer."""
    for one in lasting("evaluation", FAULT_S)(step, much):
        yield {**one, "phase": "evaluation", "phase_index": 9}


def exchange(step: Row, much: float) -> Iterator[Row]:
    """An all-to-all of 1 MB there and 1 MB back; an expert with twice the tokens sends 2 MB back."""
    for number, size in enumerate((1_000_000, 1_000_000 + 1_000_000 * much)):
        yield {
            "name": "collective.all_to_all_single",
            "operation": "all_to_all_single",
            "bytes": round(size),
            "span_number": number,
        }


def of_step(**amounts: tuple[float, float]) -> Tell:
    """Attributes of the step itself: before, and how much more when it is slow."""

    def tell(step: Row, much: float) -> Iterator[Row]:
        told = {f"training.device.{k}_time": b + more * much for k, (b, more) in amounts.items()}
        yield {"own_attributes": told}

    return tell


# Columns that a span has in common with its step.
KEPT = frozenset(
    (
        *("job", "attempt", "rank", "local_rank", "world_size", "host_id", "host_name", "pid"),
        *("step", "trace_id", "start_unix_ns", "end_unix_ns", "kind", "received_unix_ns"),
        *("resource", "links", "events", "attributes"),
    )
)


@dataclass(frozen=True)
class ProgramCase:
    """What tells a reason, the fault that it goes with, and what the verdict says without it."""

    reason: str
    without: str
    fault: Fault
    tell: Tell
    subject: str
    is_common: bool = False


COMPILING = lasting("torch.compile", FAULT_S)
SYNC = of_step(synchronize=(0.010, FAULT_S), launch_gap=(0.010, FAULT_S))
GAPS = of_step(synchronize=(0.010, 0.0), launch_gap=(0.010, FAULT_S))
EXPOSED = of_step(exposed=(0.005, FAULT_S), communication=(0.080, 0.0))
PROGRAM_CASES = {
    "compile": ProgramCase("COMPILE", "WORK_IMBALANCE", WORK, COMPILING, "compiler:host-1/1"),
    "all compile": ProgramCase("COMPILE", "GLOBAL_SLOW", SLOW_ALL, COMPILING, "compiler:j1", True),
    "allocator": ProgramCase("ALLOCATOR", "UNKNOWN_GPU", DEVICE, retries, "allocator:host-1/1"),
    "all allocators": ProgramCase(
        "ALLOCATOR", "GLOBAL_SLOW", SLOW_ALL, retries, "allocator:j1", True
    ),
    "evaluation": ProgramCase(
        "UNEVEN_EVAL", "WORK_IMBALANCE", WORK, evaluation, "evaluation:host-1/1"
    ),
    "experts": ProgramCase(
        "EXPERT_IMBALANCE", "WORK_IMBALANCE", WORK, exchange, "experts:host-1/1"
    ),
    "synchronising": ProgramCase(
        "ACCIDENTAL_SYNC", "GLOBAL_SLOW", SLOW_ALL, SYNC, "synchronization:j1", True
    ),
    "one synchronises": ProgramCase(
        "ACCIDENTAL_SYNC", "WORK_IMBALANCE", WORK, SYNC, "synchronization:host-1/1"
    ),
    "launches": ProgramCase("LAUNCH_BOUND", "GLOBAL_SLOW", SLOW_ALL, GAPS, "launches:j1", True),
    "overlap": ProgramCase("OVERLAP_LOST", "GLOBAL_SLOW", SLOW_ALL, EXPOSED, "overlap:j1", True),
}


def add_told(path: Path, tell: Tell, much: Callable[[int, int], float]) -> None:
    """Put into a store what each rank tells of each step; `much` of (rank, step): 1 as much as the fault costs."""
    with store.writing(path) as connection:
        cursor = connection.execute(
            "SELECT * FROM span_records WHERE name = 'training.rank_step' ORDER BY rank, step"
        )
        names = [column[0] for column in cursor.description]
        kept = [name for name in names if name in KEPT]
        rows: list[Row] = []
        for values in cursor.fetchall():
            step = dict(zip(names, values, strict=True))
            for one in tell(step, much(step["rank"], step["step"])):
                if "own_attributes" in one:
                    _amend(connection, step, one["own_attributes"])
                    continue
                number = one.pop("span_number", 0)
                key = f"{one['name']}|{number}|{step['rank']}|{step['step']}"
                span_id = hashlib.sha256(key.encode()).hexdigest()[:16]
                rows.append({**{k: step[k] for k in kept}, "span_id": span_id, **one})
        if rows:
            columns = sorted({name for row in rows for name in row})
            table = pa.table({name: [row.get(name) for row in rows] for name in columns})
            connection.register("incoming", table)
            connection.execute("INSERT INTO span_records BY NAME SELECT * FROM incoming")
            connection.unregister("incoming")
        rebuild_summaries(connection)


def _amend(connection: Any, step: Row, told: dict[str, float]) -> None:
    attributes = json.dumps(json.loads(step["attributes"]) | told)
    connection.execute(
        "UPDATE span_records SET attributes = ? WHERE span_id = ?", [attributes, step["span_id"]]
    )
