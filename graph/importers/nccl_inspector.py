"""Logs of NCCL Inspector into a store: each operation of a rank becomes a span `collective.<operation>`.

The files of one job belong into one import: only together they say which rank a process is. A span begins when the
host called the operation and ends when the device was done where the log is verbose. Else only its duration is known:
it ends when its line was written, which comes later, and says that its end is not known.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.graph.importers.content import open_content, read_lines
from rootwalk.graph.importers.formats import BrokenPart, Importer, ImportOptions, Note, ReadSoFar
from rootwalk.graph.importers.nccl_inspector_format import (
    MAX_LINE_BYTES,
    InspectorRecord,
    Member,
    is_foreign,
    parse_line,
    parse_member,
)
from rootwalk.graph.importers.rank_numbers import RankNumbers
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

__all__ = ["DEFAULT_JOB", "configure", "read"]

logger = logging.getLogger(__name__)

# A log names no job.
DEFAULT_JOB: Final = "nccl-inspector"
# Spans of one request: some 150 KB.
REQUEST_SPANS: Final = 500


def read(path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    """Yield the operations of one log, of a job of which there is no other.

    Raises:
        DecodeError: If it is compressed and damaged.
        OSError: If it cannot be read.
    """
    return configure(ImportOptions((path,))).read(path, job)


def configure(options: ImportOptions) -> Importer:
    """Return the importer of logs that are one job's; what cannot be read of them, its `read` will tell."""
    members: dict[Member, None] = {}
    for path in options.paths:
        try:
            members.update(dict.fromkeys(_members(path)))
        except (DecodeError, OSError):
            continue
    ranks = RankNumbers(members)
    if not ranks.is_told and members:
        logger.warning(
            "ranks are numbered by host and pid: no communicator in these files has all %d processes",
            ranks.world_size,
        )
    return _LogImporter(ranks)


def _members(path: Path) -> Iterator[Member]:
    with open_content(path) as content:
        for _, line in read_lines(content, MAX_LINE_BYTES):
            member = parse_member(line)
            if member is not None:
                yield member


@dataclass(frozen=True, slots=True)
class _LogImporter:
    ranks: RankNumbers

    def read(
        self, path: Path, job: str | None
    ) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
        batch = _Batch(job or DEFAULT_JOB, self.ranks)
        foreign = records = 0
        with open_content(path) as content:
            for number, line in read_lines(content, MAX_LINE_BYTES):
                if is_foreign(line):
                    foreign += 1
                    continue
                records += 1
                try:
                    batch.add(number, line)
                except DecodeError as error:
                    yield BrokenPart(f"line {number}", error)
                if batch.spans == REQUEST_SPANS:
                    yield batch.take()
        if batch.spans:
            yield batch.take()
        if foreign and not records:
            raise DecodeError(
                f"cannot read the log: saw {foreign} lines and no operation in them;"
                " needs JSON lines of NCCL Inspector"
            )
        if foreign:
            yield Note("records_left_out", foreign)


class _Batch:
    """A request while it grows: spans by the rank that recorded them."""

    def __init__(self, job: str, ranks: RankNumbers) -> None:
        self._job = job
        self._ranks = ranks
        self._clear()

    def _clear(self) -> None:
        self.spans = 0
        self._request = ExportTraceServiceRequest()
        self._scopes: dict[tuple[str, int, int], Any] = {}
        # The same lines are the same under another job, and whatever the other files say of the ranks.
        self._source = hashlib.blake2b(person=b"nccl-inspector")

    def add(self, number: int, line: bytes) -> None:
        """Append the span of one line.

        Raises:
            DecodeError: If the line cannot be read.
        """
        record = parse_line(line)
        member = record.member
        rank = self._ranks.rank_of(member)
        if rank is None:
            raise DecodeError(
                f"cannot tell whose line it is: saw process {member.pid} of {member.host} with several ranks;"
                " needs a process a rank, or lines of the communicator of all"
            )
        key = (member.host, member.pid, rank)
        if key not in self._scopes:
            self._scopes[key] = self._add_scope(member, rank)
        self._scopes[key].spans.append(self._span(record, number))
        self._source.update(line)
        self.spans += 1

    def take(self) -> ImportRequest:
        """Return what has been added since the last call."""
        body = self._request.SerializeToString(deterministic=True)
        request = ImportRequest(Signal.TRACES, body, self.spans, self._source.digest())
        self._clear()
        return request

    def _add_scope(self, member: Member, rank: int) -> Any:
        spans = self._request.resource_spans.add()
        spans.resource.attributes.extend(
            [
                _text(semconv.TRAINING_JOB_ID, self._job),
                _number(semconv.TRAINING_JOB_ATTEMPT, 0),
                _number(semconv.TRAINING_RANK, rank),
                _number(semconv.TRAINING_WORLD_SIZE, self._ranks.world_size),
                _text(semconv.HOST_ID, member.host),
                _text(semconv.HOST_NAME, member.host),
                _number(semconv.PROCESS_PID, member.pid),
            ]
        )
        return spans.scope_spans.add()

    def _span(self, record: InspectorRecord, number: int) -> Span:
        member = record.member
        own = (member.host, member.pid, member.place)
        key = (member.communicator, record.function, record.is_message, record.sequence)
        # Lines that were written in one microsecond keep their order.
        end = record.ended_unix_ns or record.written_unix_ns + number % 1000
        start = record.called_unix_ns
        if start is None:
            start = max(end - round((record.device_s or 0.0) * 1e9), 0)
        return Span(
            trace_id=_hash(16, *key, *(own if record.is_message else ())),
            span_id=_hash(8, *key, *own),
            name=f"collective.{record.operation}",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=start,
            end_time_unix_nano=end,
            attributes=self._attributes(record),
        )

    def _attributes(self, record: InspectorRecord) -> list[KeyValue]:
        member = record.member
        # Sequence numbers say which collective it is only together with the function.
        communicator = member.communicator + ("" if record.is_message else f"-{record.function}")
        found = [
            _text(semconv.COLLECTIVE_OPERATION, record.operation),
            _text(semconv.COLLECTIVE_COMMUNICATOR_ID, communicator),
            _text(semconv.COLLECTIVE_COMMUNICATOR_NAME, record.name),
            _number(semconv.COLLECTIVE_COMMUNICATOR_SIZE, member.size),
            _number(semconv.COLLECTIVE_SEQUENCE, record.sequence),
            _number(semconv.COLLECTIVE_SIZE, record.size_bytes),
            _text(semconv.COLLECTIVE_BACKEND, "nccl"),
            _flag(semconv.COLLECTIVE_IS_POINT_TO_POINT, record.is_message),
            _flag(semconv.COLLECTIVE_IS_END_KNOWN, record.ended_unix_ns is not None),
        ]
        if record.device_s is not None:
            seconds = AnyValue(double_value=record.device_s)
            found.append(KeyValue(key=semconv.COLLECTIVE_DEVICE_TIME, value=seconds))
        if record.peer is not None:
            peer = self._ranks.rank_at(member.communicator, record.peer)
            if peer is not None:
                found.append(_number(semconv.COLLECTIVE_ROOT, peer))
        return found


def _hash(size_bytes: int, *parts: object) -> bytes:
    return hashlib.blake2b("|".join(map(str, parts)).encode(), digest_size=size_bytes).digest()


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


def _flag(key: str, value: bool) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(bool_value=value))
