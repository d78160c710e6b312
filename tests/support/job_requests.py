"""A simulated job (`jobs`) as its ranks and agents would send it: OTLP requests, a batch of steps at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation import ids, semconv
from rootwalk.otel_receiver.resource_columns import RESOURCE_ATTRIBUTES
from rootwalk.otel_receiver.span_columns import PROMOTED_ATTRIBUTES
from support.jobs import NS, START_UNIX_NS, Job, simulate
from support.otlp_messages import key_values, metric, metric_request, span, trace_request

RESOURCE_KEYS = {column: key for key, (column, _) in RESOURCE_ATTRIBUTES.items()}
SPAN_KEYS = {column: key for key, (column, _) in PROMOTED_ATTRIBUTES.items()}
STATES = ("running", "runnable", "blocked")
Row = dict[str, Any]


class JobRequests:
    """The requests of one job.

    Args:
        job: The job.
        begin_unix_ns: When its first step begins, by its ranks' clocks.
        host: Id and name of the host of all of them; None for made-up ones.

    What was sent is noted: `span_ids` by step, `points` of metrics, and `thread_s`, the counters' last values.
    """

    def __init__(self, job: Job, begin_unix_ns: int, host: tuple[str, str] | None = None) -> None:
        self.job = job
        self.begin_unix_ns = begin_unix_ns
        self.span_ids: dict[int, set[str]] = {}
        self.points = 0
        self.thread_s = {(rank, state): 0.0 for rank in range(job.ranks) for state in STATES}
        self._shift_ns = begin_unix_ns - START_UNIX_NS
        self._rows: dict[tuple[int, int], list[Row]] = {}
        for row in simulate(job):
            if host is not None:
                row["host_id"], row["host_name"] = host
            self._rows.setdefault((row["step"], row["rank"]), []).append(row)

    def trace_id(self, step: int) -> str:
        return ids.trace_id(self.job.name, self.job.attempt, step).hex()

    def steps(self, first: int, last: int) -> Iterator[tuple[str, bytes]]:
        """Yield (path, body) of what was recorded in steps first to last, a request of each signal and rank."""
        for rank in range(self.job.ranks):
            rows = [row for step in range(first, last + 1) for row in self._rows[step, rank]]
            resource = {
                key: rows[0][name] for name, key in RESOURCE_KEYS.items() if name in rows[0]
            }
            resource[semconv.SERVICE_NAME] = "training"
            spans = [one for step in range(first, last + 1) for one in self._spans(step, rank)]
            yield "/v1/traces", trace_request(spans, resource, "rootwalk.instrumentation")
            yield "/v1/metrics", metric_request([self._thread_time(rank, rows)], resource)

    def _spans(self, step: int, rank: int) -> list[Any]:
        rows = self._rows[step, rank]
        who = (self.job.name, self.job.attempt, step)
        rank_step = ids.rank_step_id(*who, rank)
        phases = {
            row["phase"]: ids.phase_id(*who, rank, row["phase_index"])
            for row in rows
            if "phase_index" in row
        }
        spans = []
        for row in rows:
            name, links = row["name"], []
            if name == "training.rank_step":
                own, parent = rank_step, ids.step_id(*who)
                if rank == 0:
                    bare = {"name": "training.step", **_bounds(row), "step": step}
                    spans.append(self._span(bare, parent, b"", []))
            elif "phase_index" in row:
                own, parent = phases[name], rank_step
            elif name.startswith("collective."):
                key = (row["communicator_id"], row["sequence"])
                own = ids.collective_id(*who[:2], rank, *key, is_p2p=False)
                parent = phases[row["phase"]]
                shared = ids.collective_shared_id(*who[:2], *key, is_p2p=False)
                links = [Span.Link(trace_id=bytes.fromhex(self.trace_id(step)), span_id=shared)]
            else:
                own = ids.stall_id(*who, rank, row["thread_id"], row["start_unix_ns"])
                parent = phases[row["phase"]]
            spans.append(self._span(row, own, parent, links))
        return spans

    def _span(self, row: Row, own: bytes, parent: bytes, links: list[Any]) -> Any:
        self.span_ids.setdefault(row["step"], set()).add(own.hex())
        return span(
            0,
            row["name"],
            trace_id=bytes.fromhex(self.trace_id(row["step"])),
            span_id=own,
            parent_span_id=parent,
            start_time_unix_nano=row["start_unix_ns"] + self._shift_ns,
            end_time_unix_nano=row["end_unix_ns"] + self._shift_ns,
            attributes=_attributes(row),
            links=links,
        )

    def _thread_time(self, rank: int, rows: Sequence[Row]) -> Any:
        """Return the counter of the main thread's time by state up to the last of these steps."""
        steps = [row for row in rows if row["name"] == "training.rank_step"]
        points = []
        for state in STATES:
            self.thread_s[rank, state] += sum(row[f"{state}_ns"] or 0 for row in steps) / NS
            attributes = {
                semconv.TRAINING_THREAD_ROLE: "main",
                semconv.TRAINING_THREAD_STATE: state,
                semconv.TRAINING_THREAD_SENSOR: "core",
            }
            points.append(
                {
                    "start_time_unix_nano": self.begin_unix_ns,
                    "time_unix_nano": steps[-1]["end_unix_ns"] + self._shift_ns,
                    "as_double": self.thread_s[rank, state],
                    "attributes": key_values(attributes),
                }
            )
        self.points += len(points)
        data = {
            "data_points": points,
            "is_monotonic": True,
            "aggregation_temporality": AGGREGATION_TEMPORALITY_CUMULATIVE,
        }
        return metric(semconv.METRIC_TRAINING_THREAD_TIME, unit="s", sum=data)


def _bounds(row: Row) -> Row:
    return {key: row[key] for key in ("start_unix_ns", "end_unix_ns")}


def _attributes(row: Row) -> dict[str, Any]:
    """Return the attributes that a row's columns and its JSON were made from."""
    attributes = {
        key: _plain(value) for key, value in json.loads(row.get("attributes", "{}")).items()
    }
    for column, key in SPAN_KEYS.items():
        value = row.get(column)
        if value is not None:
            attributes[key] = value / NS if column.endswith("_ns") else value
    if row["name"].startswith("stall."):
        attributes[semconv.PROCESS_PID] = row["pid"]
    aggressors = json.loads(row.get("aggressors", "[]"))
    if aggressors:
        attributes[semconv.TRAINING_AGGRESSOR_PIDS] = [one["pid"] for one in aggressors]
        attributes[semconv.TRAINING_AGGRESSOR_NAMES] = [one["name"] for one in aggressors]
        attributes[semconv.TRAINING_AGGRESSOR_TIMES] = [one["ns"] / NS for one in aggressors]
    return attributes


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [item for entry in value["arrayValue"]["values"] for item in entry.values()]
    return value
