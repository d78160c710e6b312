"""Flight Recorder dumps into a store: each becomes one event, `training.flight_record`, of its rank.

Its body is the record as JSON text (`flight_store`), so that the view `logs` has all of it; the same file gives the
same event. Its time is the latest that the dump tells, as it does not say when it was taken; that at which it was
observed is when its file was last written, which is not before.

Where the dump tells how long operations took on the device, each of them becomes a span besides, as NCCL Inspector's
do (`flight_recorder_times`): they say who came late in a job that is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.flight_store import to_text
from rootwalk.graph.importers.content import open_content
from rootwalk.graph.importers.flight_recorder_format import (
    MAX_DUMP_BYTES,
    parse_timed_dump,
)
from rootwalk.graph.importers.flight_recorder_times import time_requests
from rootwalk.graph.importers.formats import BrokenPart, Importer, ImportOptions, Note, ReadSoFar
from rootwalk.graph.importers.rank_names import last_number, ranks_of_names, refuse_claims
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.signals import Signal

__all__ = ["DEFAULT_JOB", "configure", "make_request", "read"]

# A dump names no job.
DEFAULT_JOB: Final = "flight-recorder"


def configure(options: ImportOptions) -> Importer:
    """Return the importer of the dumps of one import, whose names together say the ranks.

    Raises:
        ConfigError: If several files claim one rank: whoever is left without a dump would be accused.
    """
    if options.ranks:
        return _Dumps(dict(zip(options.paths, options.ranks, strict=True)))
    ranks = ranks_of_names(options.paths, are_some=True)
    for path in options.paths:
        number = last_number(path)
        if path not in ranks and number is not None:
            ranks[path] = number
    refuse_claims(ranks)
    return _Dumps(ranks)


@dataclass(frozen=True, slots=True)
class _Dumps:
    """Reads dumps of which the ranks are known by path."""

    ranks: dict[Path, int]

    def read(self, path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
        """Yield what a dump says; see `read` of the module."""
        if path not in self.ranks:
            raise DecodeError(
                f'cannot tell whose dump it is: saw the name "{path.name}"; needs one with the rank in it',
                hint="call it rank_3.json, or name the ranks in the order of the files: --rank 0,1,2,3",
            )
        return _read(path, job, self.ranks[path])


def read(path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    """Yield the one event of a dump, and the spans of what it times.

    Raises:
        DecodeError: If it is no dump, or too large.
        OSError: If it cannot be read.
    """
    yield from configure(ImportOptions((path,))).read(path, job)


def _read(path: Path, job: str | None, rank: int) -> Iterator[ImportRequest | BrokenPart]:
    with open_content(path) as content:
        data = content.read(MAX_DUMP_BYTES + 1)
    if len(data) > MAX_DUMP_BYTES:
        raise DecodeError(
            f"cannot read dump: saw more than {MAX_DUMP_BYTES} bytes; needs a dump of one rank"
        )
    record, timed = parse_timed_dump(data, rank)
    yield make_request(record, job or DEFAULT_JOB, path.stat().st_mtime_ns)
    for body, count in time_requests(record, timed, job or DEFAULT_JOB):
        yield ImportRequest(Signal.TRACES, body, count)


def make_request(record: RankRecord, job: str, written_unix_ns: int) -> ImportRequest:
    """Return the event of a rank's record; when its file was written does not make another of it."""
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    world = {record.rank}.union(*(frontier.members for frontier in record.frontiers))
    logs.resource.attributes.extend(
        [
            KeyValue(key=semconv.TRAINING_JOB_ID, value=AnyValue(string_value=job)),
            KeyValue(key=semconv.TRAINING_JOB_ATTEMPT, value=AnyValue(int_value=0)),
            KeyValue(key=semconv.TRAINING_RANK, value=AnyValue(int_value=record.rank)),
            KeyValue(key=semconv.TRAINING_WORLD_SIZE, value=AnyValue(int_value=len(world))),
        ]
    )
    event = logs.scope_logs.add().log_records.add()
    event.event_name = semconv.EVENT_TRAINING_FLIGHT_RECORD
    event.time_unix_nano = record.seen_unix_ns or 0
    event.body.string_value = to_text(record)
    source = request.SerializeToString(deterministic=True)
    event.observed_time_unix_nano = written_unix_ns
    body = request.SerializeToString(deterministic=True)
    return ImportRequest(Signal.LOGS, body, 1, source)
