"""Operation traces into a store: a span for every operation, and one for every step of every rank.

A trace whose clock begins anew each step does not say when a step was: step n is put n hours after the first second of
2000. What lies between two steps is then not the job's. `rank` is the trace's own column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from rootwalk.graph.importers.formats import BrokenPart, Importer, ImportOptions
from rootwalk.graph.importers.oplog_format import (
    TYPES,
    Degrees,
    OperationType,
    Row,
    Scope,
    read_degrees,
    read_rows,
)
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import ConfigError, DecodeError
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

__all__ = ["configure"]

# Seconds of Unix time before this are no time at which a trace was made: the clock begins elsewhere.
_UNIX_FROM_S: Final = 1e9
_EPOCH_NS: Final = 946_684_800_000_000_000
_STEP_NS: Final = 3_600_000_000_000
# Operations of one type and step that a communicator's numbers have room for.
_MAX_IN_STEP: Final = 100_000
_NS: Final = 1e9
# Spans of one request.
_MAX_STEPS_AT_ONCE: Final = 10_000
_OWN_WORK: Final = OperationType(None, Scope.OWN, None)


def configure(options: ImportOptions) -> Importer:
    """Return the importer of a job's operation traces.

    Args:
        options: With the file of the job's degrees.

    Raises:
        ConfigError: If it is missing or cannot be used.
    """
    if options.meta is None:
        raise ConfigError(
            "cannot import oplog: saw no degrees of the job; needs --meta",
            hint="--meta meta.yaml, with trial_name, dp_size, pp_size and world_size, one a line",
        )
    return _Oplog(read_degrees(options.meta))


_Place = tuple[int, int]


@dataclass(slots=True)
class _Outline:
    """What has to be known before the first span: where each rank is, and from when to when its steps last."""

    rows: dict[tuple[int, _Place], int] = field(default_factory=dict)
    bounds_s: dict[tuple[int, int, _Place], tuple[float, float]] = field(default_factory=dict)

    def take(self, row: Row) -> None:
        """Add an operation."""
        place = (row.replica, row.stage)
        self.rows[row.rank, place] = self.rows.get((row.rank, place), 0) + 1
        key, end_s = (row.step, row.rank, place), row.start_s + row.duration_s
        low, high = self.bounds_s.get(key, (row.start_s, end_s))
        self.bounds_s[key] = (min(low, row.start_s), max(high, end_s))

    def workers(self) -> dict[int, _Place]:
        """Return the replica and stage of each rank: those of most of its rows."""
        ordered = sorted(self.rows, key=lambda key: (self.rows[key], key))
        return dict(ordered)

    @property
    def is_unix(self) -> bool:
        """Whether the times are Unix times."""
        return min((low for low, _ in self.bounds_s.values()), default=0.0) >= _UNIX_FROM_S


class _Oplog:
    """The importer of one job."""

    def __init__(self, degrees: Degrees) -> None:
        self._degrees = degrees

    def read(self, path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
        """Yield the operations of a file."""
        outline = _Outline()
        for batch in read_rows(path, self._degrees):
            for row in batch:
                if isinstance(row, Row):
                    outline.take(row)
        spans = _Spans(job or self._degrees.job, self._degrees, outline)
        yield from spans.steps()
        for batch in read_rows(path, self._degrees):
            kept: list[Row] = []
            for row in batch:
                if not isinstance(row, Row):
                    yield _broken(*row)
                elif (place := spans.workers[row.rank]) != (row.replica, row.stage):
                    saw = f"rank {row.rank} at dp_rank {row.replica}, stage {row.stage}"
                    text = f"saw {saw}; needs {place} as in most rows"
                    yield _broken(row.number, text)
                else:
                    kept.append(row)
            if kept:
                yield spans.operations(kept)


def _broken(number: int, text: str) -> BrokenPart:
    return BrokenPart(f"row {number}", DecodeError(f"cannot read the operation: {text}"))


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


class _Spans:
    """Rows as spans of one job."""

    def __init__(self, job: str, degrees: Degrees, outline: _Outline) -> None:
        self._job = job
        self._degrees = degrees
        self._outline = outline
        self.workers = outline.workers()
        self._is_unix = outline.is_unix
        self._fixed: dict[tuple[int, str], list[KeyValue]] = {}

    def steps(self) -> Iterator[ImportRequest]:
        """Yield the ranks' steps."""
        bounds_s = {
            (step, rank): bounds
            for (step, rank, place), bounds in self._outline.bounds_s.items()
            if self.workers[rank] == place
        }
        ordered = sorted(bounds_s)
        for first in range(0, len(ordered), _MAX_STEPS_AT_ONCE):
            chosen = ordered[first : first + _MAX_STEPS_AT_ONCE]
            request = ExportTraceServiceRequest()
            scopes: dict[int, Any] = {}
            for step, rank in chosen:
                low, high = bounds_s[step, rank]
                span = self._scope(request, scopes, rank).spans.add(
                    trace_id=self._trace_id(step),
                    span_id=self._step_id(step, rank),
                    name="training.rank_step",
                    kind=1,
                    start_time_unix_nano=self._unix_ns(step, low),
                    end_time_unix_nano=self._unix_ns(step, high),
                )
                outcome = semconv.TrainingStepOutcome.COMPLETE
                span.attributes.append(_number(semconv.TRAINING_STEP_NUMBER, step))
                span.attributes.append(_text(semconv.TRAINING_STEP_OUTCOME, outcome))
            yield _request(request, len(chosen))

    def operations(self, rows: list[Row]) -> ImportRequest:
        """Return some operations as a request."""
        request = ExportTraceServiceRequest()
        scopes: dict[int, Any] = {}
        for row in rows:
            self._add(self._scope(request, scopes, row.rank), row)
        return _request(request, len(rows))

    def _scope(self, request: Any, scopes: dict[int, Any], rank: int) -> Any:
        scope = scopes.get(rank)
        if scope is None:
            spans = request.resource_spans.add()
            replica, stage = self.workers[rank]
            spans.resource.attributes.extend(
                [
                    _text(semconv.TRAINING_JOB_ID, self._job),
                    _number(semconv.TRAINING_JOB_ATTEMPT, 0),
                    _number(semconv.TRAINING_RANK, rank),
                    _number(semconv.TRAINING_WORLD_SIZE, self._degrees.world_size),
                    _number(semconv.TRAINING_DATA_PARALLEL_RANK, replica),
                    _number(semconv.TRAINING_PIPELINE_STAGE, stage),
                ]
            )
            scope = scopes[rank] = spans.scope_spans.add()
        return scope

    def _add(self, scope: Any, row: Row) -> None:
        known = TYPES.get(row.type, _OWN_WORK)
        name = f"collective.{known.collective}" if known.collective else f"operation.{row.type}"
        span = scope.spans.add(
            trace_id=self._trace_id(row.step),
            span_id=self._id("operation", row.rank, row.step, row.type, row.sequence)[:8],
            parent_span_id=self._step_id(row.step, row.rank),
            name=name,
            kind=1,
            start_time_unix_nano=self._unix_ns(row.step, row.start_s),
            end_time_unix_nano=self._unix_ns(row.step, row.start_s + row.duration_s),
        )
        fixed = self._fixed.get((row.rank, row.type))
        if fixed is None:
            fixed = self._fixed[row.rank, row.type] = self._fixed_attributes(row, known)
        span.attributes.extend(fixed)
        span.attributes.append(_number(semconv.TRAINING_STEP_NUMBER, row.step))
        span.attributes.append(_number(semconv.TRAINING_OPERATION_SEQUENCE, row.sequence))
        if row.micro_batch >= 0:
            span.attributes.append(_number(semconv.TRAINING_MICRO_BATCH, row.micro_batch))
        if known.collective is not None:
            number = row.step * _MAX_IN_STEP + row.sequence % _MAX_IN_STEP
            span.attributes.append(_number(semconv.COLLECTIVE_SEQUENCE, number))

    def _fixed_attributes(self, row: Row, known: OperationType) -> list[KeyValue]:
        """Return what is the same for all operations of one type on one rank."""
        found = [_text(semconv.TRAINING_OPERATION_TYPE, row.type)]
        if known.phase is not None:
            found.append(_text(semconv.TRAINING_PHASE, known.phase))
        if known.collective is None:
            return found
        communicator, size = self._communicator(row, known)
        is_message = known.scope in (Scope.NEXT, Scope.PREVIOUS)
        message = KeyValue(
            key=semconv.COLLECTIVE_IS_POINT_TO_POINT, value=AnyValue(bool_value=is_message)
        )
        return [
            *found,
            _text(semconv.COLLECTIVE_OPERATION, known.collective),
            _text(semconv.COLLECTIVE_COMMUNICATOR_ID, communicator),
            _text(semconv.COLLECTIVE_COMMUNICATOR_NAME, communicator),
            _number(semconv.COLLECTIVE_COMMUNICATOR_SIZE, size),
            message,
        ]

    def _communicator(self, row: Row, known: OperationType) -> tuple[str, int]:
        """Return who takes part: a name that all members give it, and how many they are in the trace."""
        replicas, stages = self._degrees.replicas, self._degrees.stages
        match known.scope:
            case Scope.STAGE:
                return f"{row.type} of stage {row.stage}", replicas
            case Scope.ENDS:
                return f"{row.type} of replica {row.replica}", min(stages, 2)
            case Scope.ALL:
                return row.type, replicas * stages
            case Scope.OWN:
                return f"{row.type} of rank {row.rank}", 1
            case _:
                other = (row.stage + (1 if known.scope is Scope.NEXT else -1)) % stages
                ends = (row.stage, other) if known.collective == "send" else (other, row.stage)
                return f"{known.phase} of replica {row.replica}, stage {ends[0]} to {ends[1]}", 2

    def _unix_ns(self, step: int, time_s: float) -> int:
        begin_ns = 0 if self._is_unix else _EPOCH_NS + step * _STEP_NS
        return begin_ns + round(time_s * _NS)

    def _step_id(self, step: int, rank: int) -> bytes:
        return self._id("step", rank, step)[:8]

    def _trace_id(self, step: int) -> bytes:
        return self._id("trace", step)

    def _id(self, *parts: str | int) -> bytes:
        text = "|".join(map(str, (self._job, *parts)))
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _request(request: Any, records: int) -> ImportRequest:
    return ImportRequest(Signal.TRACES, request.SerializeToString(deterministic=True), records)
