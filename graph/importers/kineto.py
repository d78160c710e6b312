"""PyTorch profiles (Kineto, Chrome's trace format) into a store: one file is one rank.

    the whole                               training.profile, so that two profiles of one rank are seen
    ProfilerStep#N                          training.rank_step, and training.step of rank 0
    what the step waited for                training.device.path with training.device.operation, see `kineto_path`
    data loading, forward, backward, ...    phases, with the seconds of device and operators in them
    record_param_comms, NCCL kernels        collective.<operation>
    kernels and copies with operators       an OTLP profile gpu_kernel, see `kineto_gpu`

Spans have the ids that a live job's have, so ranks meet in the same traces. A profile names no job, and its host only
in the file name; hosts that nobody names have clocks of their own. A collective's sequence is not in a profile: it is
counted in each step, which all members do alike. A profile without steps has its collectives alone, counted from its
beginning, and how long the device was in them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.graph.align import UNKNOWN_HOST
from rootwalk.graph.importers.formats import BrokenPart, Importer, ImportOptions, Note, ReadSoFar
from rootwalk.graph.importers.kineto_attributes import (
    key_values,
    operation_attributes,
    path_attributes,
    work_attributes,
)
from rootwalk.graph.importers.kineto_collectives import (
    POINT_TO_POINT,
    Collective,
    find_collectives,
    groups,
)
from rootwalk.graph.importers.kineto_gpu import Owner, gpu_requests
from rootwalk.graph.importers.kineto_json import TraceFile
from rootwalk.graph.importers.kineto_order import OrderMatches, find_order_matches
from rootwalk.graph.importers.kineto_path import StepPath, walk_steps
from rootwalk.graph.importers.kineto_profile import Profile, StepMark, Thread
from rootwalk.graph.importers.kineto_ranks import ProfileRanks, find_ranks
from rootwalk.graph.importers.kineto_steps import (
    StepTimes,
    find_main_thread,
    measure_steps,
    sort_steps,
)
from rootwalk.graph.input_waits import PROFILE_SCOPE
from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

__all__ = ["DEFAULT_JOB", "configure", "read"]

# A profile names no job.
DEFAULT_JOB: Final = "kineto"
ATTEMPT: Final = 0
SPANS_PER_REQUEST: Final = 500
# Collectives of a step and communicator are numbered from the step's number times this.
SEQUENCES_PER_STEP: Final = 1_000_000
MAX_RANKS: Final = 1 << 20
# As `torch.profiler.tensorboard_trace_handler` names files, by host, process and time.
_HOST_IN_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*)_\d+\.\d+\.pt\.trace\.json")


def read(path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    """Yield the spans of a profile.

    Raises:
        DecodeError: If it is no profile, or does not tell its rank or its steps.
        OSError: If it cannot be read.
    """
    yield from configure(ImportOptions((path,))).read(path, job)


def configure(options: ImportOptions) -> Importer:
    """Return the importer of profiles; `options.ranks` are those of files that do not name their own."""
    return _Profiles(
        find_ranks(options.paths, options.ranks),
        find_order_matches(options.paths),
    )


@dataclass(frozen=True, slots=True)
class _Profiles:
    ranks: ProfileRanks
    order: OrderMatches

    def read(
        self, path: Path, job: str | None
    ) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
        """Yield the spans of a profile; see `read` of the module."""
        return _read(path, job, self.ranks, self.order)


@dataclass(frozen=True, slots=True)
class _Source:
    """Which rank's profile it is."""

    job: str
    rank: int
    world_size: int | None
    host: str | None
    thread: Thread
    base_ns: int

    def resource(self) -> dict[str, str | int]:
        """Return what tells the rank from others."""
        told: dict[str, str | int | None] = {
            semconv.TRAINING_JOB_ID: self.job,
            semconv.TRAINING_JOB_ATTEMPT: ATTEMPT,
            semconv.TRAINING_RANK: self.rank,
            semconv.TRAINING_WORLD_SIZE: self.world_size,
            semconv.PROCESS_PID: int(self.thread[0]) if self.thread[0].isdecimal() else None,
            semconv.HOST_ID: self.host or f"{UNKNOWN_HOST}{self.rank}",
            semconv.HOST_NAME: self.host,
        }
        return {key: value for key, value in told.items() if value is not None}

    def owner(self) -> Owner:
        """Return what is needed to tell whose the device's time was."""
        return Owner(self.job, ATTEMPT, self.rank, self.base_ns, self.resource())


def _read(
    path: Path, job: str | None, ranks: ProfileRanks, order: OrderMatches
) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    file = TraceFile(path)
    profile = Profile()
    yield from file.read(profile.add)
    notes = {"texts_repaired": file.repaired, "events_left_out": file.left_out}
    yield from (Note(kind, count) for kind, count in notes.items() if count)
    told = file.header.get("distributedInfo")
    distributed: dict[str, Any] = told if isinstance(told, dict) else {}
    rank = _find_rank(path, distributed.get("rank"), ranks)
    if ranks.assumed.get(path) == rank and not _is_rank(distributed.get("rank")):
        yield Note(ranks.note, 1)
    configuration = dict(groups(distributed.get("pg_config")))
    collectives = order.named(path, find_collectives(profile, rank, configuration))
    if order.has(path):
        yield Note("collectives_in_order", len(collectives))
    found = [] if profile.steps else _told(collectives)
    thread = profile.calls[0].thread if found and profile.calls else find_main_thread(profile)
    world_size = distributed.get("world_size")
    is_size = type(world_size) is int and 0 < world_size <= MAX_RANKS
    base_ns = file.header.get("baseTimeNanoseconds", 0)
    host = _HOST_IN_NAME.match(path.name)
    source = _Source(
        job=job or DEFAULT_JOB,
        rank=rank,
        world_size=world_size if is_size else None,
        host=host[1] if host else None,
        thread=thread,
        base_ns=base_ns if type(base_ns) is int and 0 <= base_ns < 1 << 62 else 0,
    )
    if found:
        yield from _requests(source, _Spans(source).without_steps(found))
        yield from gpu_requests(profile, [], source.owner())
        return
    marks: list[StepMark] = []
    for item in sort_steps(profile.steps[thread]):
        if isinstance(item, BrokenPart):
            yield item
        elif source.base_ns + item.start_ns <= 0:
            text = f"cannot place the step: saw its start at {item.start_ns} ns; needs a time after 1970"
            yield BrokenPart(f"step {item.number}", DecodeError(text))
        else:
            marks.append(item)
    steps = measure_steps(profile, thread, marks, is_whole=file.is_whole)
    paths = list(walk_steps(profile, thread, steps))
    yield from _requests(source, _Spans(source).make(steps, collectives, paths))
    yield from gpu_requests(profile, steps, source.owner())


def _told(collectives: list[Collective]) -> list[Collective]:
    """Return the collectives on a device whose group is told: of others, nobody can say who waited for whom."""
    return [
        one
        for one in collectives
        if one.device_ns is not None and (one.communicator_size or 0) > 1 and one.start_ns > 0
    ]


def _find_rank(path: Path, told: Any, ranks: ProfileRanks) -> int:
    """Return the rank that a profile tells, else the one that was asked for, that of its name, or its place."""
    if _is_rank(told):
        return int(told)
    rank = ranks.get(path)
    if rank is None:
        raise DecodeError(
            "cannot tell the rank: saw none in distributedInfo, nor in the file's name, and other files that"
            " have theirs; needs one",
            hint="name the ranks in the order of the files, such as --rank 0,1,2,3",
        )
    return rank


def _is_rank(told: Any) -> bool:
    return type(told) is int and 0 <= told < MAX_RANKS


def _requests(source: _Source, spans: Iterator[Span]) -> Iterator[ImportRequest]:
    """Yield the spans as requests, some hundred in each."""
    resource = source.resource()
    while True:
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        group.resource.attributes.extend(key_values(resource))
        scope = group.scope_spans.add()
        scope.scope.name = PROFILE_SCOPE
        for span in spans:
            scope.spans.append(span)
            if len(scope.spans) == SPANS_PER_REQUEST:
                break
        if not scope.spans:
            return
        body = request.SerializeToString(deterministic=True)
        yield ImportRequest(Signal.TRACES, body, len(scope.spans))


class _Spans:
    """Makes the spans of one profile.

    Args:
        source: Whose they are.
    """

    def __init__(self, source: _Source) -> None:
        self._source = source

    def make(
        self, steps: list[StepTimes], collectives: list[Collective], paths: list[StepPath | None]
    ) -> Iterator[Span]:
        """Yield the spans of the steps with what is in them, and with their paths."""
        position = 0
        if steps:
            yield self._whole(steps[0], steps[-1])
        for step, path in zip(steps, paths, strict=True):
            yield from self._step(step)
            if path is not None:
                yield from self._path(step.mark, path)
            while (
                position < len(collectives) and collectives[position].start_ns < step.mark.start_ns
            ):
                position += 1
            first = position
            while position < len(collectives) and collectives[position].start_ns < step.mark.end_ns:
                position += 1
            yield from self._collectives(step, collectives[first:position])

    def _whole(self, first: StepTimes, last: StepTimes) -> Span:
        source = self._source
        bounds = (first.mark.start_ns, last.mark.end_ns)
        who = (source.job, source.rank, source.host, *source.thread, source.base_ns, *bounds)
        own_id = _digest("profile", *who)[:8]
        return self._span("training.profile", first.mark.number, own_id, b"", bounds, {})

    def _step(self, step: StepTimes) -> Iterator[Span]:
        source, number = self._source, step.mark.number
        bounds = (step.mark.start_ns, step.mark.end_ns)
        root_id = ids.step_id(source.job, ATTEMPT, number)
        own_id = ids.rank_step_id(source.job, ATTEMPT, number, source.rank)
        told = {semconv.TRAINING_STEP_NUMBER: number}
        if source.rank == 0:
            yield self._span("training.step", number, root_id, b"", bounds, told)
        outcome = semconv.TrainingStepOutcome
        done = outcome.COMPLETE if step.is_complete else outcome.INCOMPLETE
        attributes = told | {semconv.TRAINING_STEP_OUTCOME: done.value} | work_attributes(step.work)
        yield self._span("training.rank_step", number, own_id, root_id, bounds, attributes)
        for index, phase in enumerate(step.phases):
            mark = phase.mark
            attributes = told | {
                semconv.TRAINING_PHASE: mark.phase.value,
                semconv.TRAINING_PHASE_INDEX: index,
                **work_attributes(phase.work),
            }
            if mark.phase is semconv.TrainingPhase.DATA_LOAD:
                attributes[semconv.TRAINING_LOADER_IS_OWN] = mark.is_own_loader
            span_id = ids.phase_id(source.job, ATTEMPT, number, source.rank, index)
            bounds = (mark.start_ns, mark.end_ns)
            yield self._span(mark.phase.value, number, span_id, own_id, bounds, attributes)

    def _path(self, mark: StepMark, path: StepPath) -> Iterator[Span]:
        source, number = self._source, mark.number
        told: dict[str, str | int | float] = {semconv.TRAINING_STEP_NUMBER: number}
        who = ("path", source.job, ATTEMPT, number, source.rank)
        own_id, parent_id = _digest(*who)[:8], ids.rank_step_id(*who[1:])
        bounds = (mark.start_ns, mark.end_ns)
        attributes = told | path_attributes(path)
        yield self._span("training.device.path", number, own_id, parent_id, bounds, attributes)
        for index, one in enumerate(path.operations):
            span_id = _digest(*who, index)[:8]
            bounds = (one.start_ns, one.end_ns)
            part = told | operation_attributes(one)
            yield self._span("training.device.operation", number, span_id, own_id, bounds, part)

    def _collectives(self, step: StepTimes, collectives: list[Collective]) -> Iterator[Span]:
        source, number = self._source, step.mark.number
        counts: Counter[tuple[str, bool]] = Counter()
        for one in collectives:
            is_p2p = one.operation in POINT_TO_POINT
            counts[one.communicator_id, is_p2p] += 1
            sequence = number * SEQUENCES_PER_STEP + counts[one.communicator_id, is_p2p]
            who = (source.job, ATTEMPT, source.rank, one.communicator_id, sequence)
            shared_id = ids.collective_shared_id(
                source.job, ATTEMPT, one.communicator_id, sequence, is_p2p=is_p2p
            )
            span = self._span(
                f"collective.{one.operation}",
                number,
                ids.collective_id(*who, is_p2p=is_p2p),
                ids.rank_step_id(source.job, ATTEMPT, number, source.rank),
                (one.start_ns, one.end_ns),
                {
                    semconv.TRAINING_STEP_NUMBER: number,
                    **_described(one, sequence),
                    semconv.COLLECTIVE_DEVICE_TIME: None
                    if one.device_ns is None
                    else one.device_ns / 1e9,
                },
            )
            span.links.add(trace_id=span.trace_id, span_id=shared_id)
            yield span

    def without_steps(self, collectives: list[Collective]) -> Iterator[Span]:
        """Yield the spans of collectives that belong to no step."""
        source = self._source
        counts: Counter[tuple[str, bool]] = Counter()
        for one in collectives:
            key = (one.communicator_id, one.operation in POINT_TO_POINT)
            counts[key] += 1
            # Another profile of the same rank has calls of the same numbers, which are not the same calls.
            own = (source.rank, source.base_ns + one.start_ns) if key[1] else ()
            shared = ("collective", source.job, *key, counts[key])
            mine = (*shared, source.rank, source.base_ns + one.start_ns)
            seconds = {semconv.COLLECTIVE_DEVICE_TIME: (one.device_ns or 0) / 1e9}
            yield Span(
                trace_id=_digest(*shared, *own)[:16],
                span_id=_digest(*mine)[:8],
                name=f"collective.{one.operation}",
                kind=Span.SPAN_KIND_INTERNAL,
                start_time_unix_nano=source.base_ns + one.start_ns,
                end_time_unix_nano=source.base_ns + one.end_ns,
                attributes=key_values(_described(one, counts[key]) | seconds),
            )

    def _span(
        self,
        name: str,
        step: int,
        span_id: bytes,
        parent_id: bytes,
        bounds: tuple[int, int],
        attributes: dict[str, Any],
    ) -> Span:
        return Span(
            trace_id=ids.trace_id(self._source.job, ATTEMPT, step),
            span_id=span_id,
            parent_span_id=parent_id,
            name=name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=self._source.base_ns + bounds[0],
            end_time_unix_nano=self._source.base_ns + bounds[1],
            attributes=key_values(attributes),
        )


def _digest(*parts: object) -> bytes:
    return hashlib.sha256("|".join(map(str, parts)).encode()).digest()


def _described(one: Collective, sequence: int) -> dict[str, Any]:
    """Return what a span says of a collective."""
    return {
        semconv.COLLECTIVE_OPERATION: one.operation,
        semconv.COLLECTIVE_COMMUNICATOR_ID: one.communicator_id,
        semconv.COLLECTIVE_COMMUNICATOR_NAME: one.communicator_name,
        semconv.COLLECTIVE_COMMUNICATOR_SIZE: one.communicator_size,
        semconv.COLLECTIVE_SEQUENCE: sequence,
        semconv.COLLECTIVE_SIZE: one.size_bytes,
        semconv.COLLECTIVE_DATA_TYPE: one.data_type,
        semconv.COLLECTIVE_IS_POINT_TO_POINT: one.operation in POINT_TO_POINT,
        semconv.COLLECTIVE_IS_END_KNOWN: None if one.is_end_known else False,
    }
