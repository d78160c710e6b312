"""Ranks that report that they make no progress, as log events in a real store.

A synthetic job: every rank trained well until `STUCK_S`, and does then what its `Rank` says. Times are seconds since
`START_NS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.log_events import EVENT_NAME_TAG
from rootwalk.instrumentation.otlp_wire import encode_field
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.jobs import NS, START_UNIX_NS

JOB = "j1"
START_NS = START_UNIX_NS
STUCK_S = 100.0
WORLD = "0"
# When reports come after the last progress, and stacks.
REPORTS_S = (5.0, 10.0, 15.0, 20.0)
STACKS_S = (10.0, 13.0, 16.0)
ALL_REDUCE_STACK = (
    "futex_wait [kernel]",
    "pthread_cond_wait [libc.so.6]",
    "c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono) [libtorch_cpu.so]",
    "all_reduce (/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py:2810)",
    "main (/home/user/train.py:80)",
)
SLEEP_STACK = (
    "hrtimer_nanosleep [kernel]",
    "clock_nanosleep [libc.so.6]",
    "sleep_forever (/home/user/train.py:57)",
    "main (/home/user/train.py:79)",
)


@dataclass(frozen=True)
class Place:
    """How far a rank has come in one communicator; `pending_s` begins at its last progress."""

    issued: int
    ended: int
    operation: str = "all_reduce"
    communicator: str = WORLD
    name: str = "dp0"
    size: int | None = None
    members: tuple[int, ...] = ()
    size_bytes: int | None = 4096
    backend: str = "gloo"
    is_message: bool = False


@dataclass(frozen=True)
class Rank:
    """What one rank reports.

    Attributes:
        places: How far it has come.
        since_s: When it made progress last.
        resumed_s: When it went on; None where it never did.
        rates: What it uses a second: `cpu`, `main_cpu`, `io`, `wakeups`.
        stacks: Of its training thread, one for each moment of `STACKS_S`; the last stands for all later ones.
        child: Stack of a loader worker.
        attributes: More of its reports.
    """

    places: tuple[Place, ...] = ()
    since_s: float = STUCK_S
    resumed_s: float | None = None
    stage: str | None = "training"
    state: str = "sleeping"
    step: int | None = 66
    usual_s: float | None = 0.2
    rates: Mapping[str, float] = field(default_factory=dict)
    stacks: Sequence[Sequence[str]] = ()
    child: Sequence[str] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


def waiting(**changes: Any) -> Rank:
    """A rank that has called the 66th all_reduce and waits in it."""
    return Rank(**({"places": (Place(66, 65),), "stacks": (ALL_REDUCE_STACK,)} | changes))


def absent(**changes: Any) -> Rank:
    """A rank that has not called it, and sleeps."""
    asleep = {"training.wait.system_call": "clock_nanosleep", "training.wait.kind": "sleep"}
    known = {"places": (Place(65, 65),), "stacks": (SLEEP_STACK,), "attributes": asleep}
    return Rank(**(known | changes))


class Reports:
    """Collects events, and writes them into a store."""

    def __init__(self, world: int, job: str = JOB) -> None:
        self.world = world
        self.job = job
        self._by_rank: dict[int | None, list[tuple[str, float, dict[str, Any]]]] = {}

    def add(self, name: str, rank: int | None, second: float, **attributes: Any) -> None:
        """Add one event; `__` in a name stands for a dot."""
        told = {key.replace("__", "."): value for key, value in attributes.items()}
        self._by_rank.setdefault(rank, []).append((name, second, told))

    def add_rank(self, number: int, rank: Rank, until_s: float = STUCK_S + 20.0) -> None:
        """Add what a rank reports until a time."""
        end_s = until_s if rank.resumed_s is None else min(until_s, rank.resumed_s)
        for idle_s in _times(REPORTS_S, 5.0, end_s - rank.since_s):
            self.report(number, rank, rank.since_s + idle_s, idle_s)
        for number_of, idle_s in enumerate(_times(STACKS_S, 30.0, end_s - rank.since_s)):
            at = rank.since_s + idle_s
            if rank.stacks:
                frames = rank.stacks[min(number_of, len(rank.stacks) - 1)]
                self.stack(number, at, "main", 1, frames)
            if rank.child:
                self.stack(number, at, "loader_worker", 2, rank.child)
        if rank.resumed_s is not None and rank.resumed_s <= until_s:
            self.report(number, rank, rank.resumed_s, 0.0)

    def report(self, number: int, rank: Rank, second: float, idle_s: float) -> None:
        """Add the reports of one rank at one moment."""
        told = {
            semconv.PROCESS_PID: 1000 + number,
            semconv.TRAINING_PROGRESS_STAGE: rank.stage,
            semconv.TRAINING_PROGRESS_IDLE_TIME: idle_s,
            semconv.TRAINING_PROGRESS_USUAL_TIME: rank.usual_s,
            semconv.TRAINING_STEP_NUMBER: rank.step,
            semconv.TRAINING_PROCESS_STATE: rank.state,
            semconv.TRAINING_PROGRESS_CPU_TIME: rank.rates.get("cpu", 0.0) * idle_s,
            semconv.TRAINING_PROGRESS_MAIN_CPU_TIME: rank.rates.get("main_cpu", 0.0) * idle_s,
            semconv.TRAINING_PROGRESS_WAKEUPS: int(rank.rates.get("wakeups", 0.0) * idle_s),
            semconv.TRAINING_PROGRESS_IO_SIZE: int(rank.rates.get("io", 0.0) * idle_s),
            **rank.attributes,
        }
        self.add(semconv.EVENT_TRAINING_RANK_PROGRESS, number, second, **_named(told))
        for place in rank.places:
            told = {
                semconv.COLLECTIVE_COMMUNICATOR_ID: place.communicator,
                semconv.COLLECTIVE_COMMUNICATOR_NAME: place.name,
                semconv.COLLECTIVE_COMMUNICATOR_SIZE: place.size or self.world,
                semconv.COLLECTIVE_COMMUNICATOR_RANKS: list(place.members) or None,
                semconv.COLLECTIVE_BACKEND: place.backend,
                semconv.COLLECTIVE_IS_POINT_TO_POINT: place.is_message,
                semconv.COLLECTIVE_SEQUENCE: place.issued,
                semconv.COLLECTIVE_ENDED_SEQUENCE: place.ended,
                semconv.COLLECTIVE_OPERATION: place.operation,
                semconv.COLLECTIVE_SIZE: place.size_bytes,
                semconv.COLLECTIVE_PENDING_TIME: idle_s if place.issued > place.ended else None,
            }
            self.add(semconv.EVENT_TRAINING_COLLECTIVE_PROGRESS, number, second, **_named(told))

    def stack(
        self, number: int, second: float, role: str, thread: int, frames: Sequence[str]
    ) -> None:
        """Add one stack."""
        told = {
            semconv.PROCESS_PID: 1000 + number,
            semconv.THREAD_ID: thread,
            semconv.TRAINING_THREAD_ROLE: role,
            semconv.TRAINING_STACK_FRAMES: list(frames),
        }
        self.add(semconv.EVENT_TRAINING_RANK_STACK, number, second, **_named(told))

    def end(
        self, number: int, second: float, code: int | None = None, signal: str | None = None
    ) -> None:
        """Add the end of a rank's own process."""
        told = {
            semconv.PROCESS_PID: 1000 + number,
            semconv.TRAINING_PROCESS_IS_CHILD: False,
            semconv.PROCESS_EXIT_CODE: code,
            semconv.TRAINING_SIGNAL_NAME: signal,
        }
        self.add(semconv.EVENT_TRAINING_PROCESS_END, number, second, **_named(told))

    def keep(self, after_s: float, until_s: float) -> None:
        """Keep only what was sent in a time."""
        for rank, events in list(self._by_rank.items()):
            kept = [event for event in events if after_s < event[1] <= until_s]
            self._by_rank[rank] = kept
            if not kept:
                del self._by_rank[rank]

    @property
    def is_empty(self) -> bool:
        """Whether there is no event."""
        return not self._by_rank

    def request(self) -> ExportLogsServiceRequest:
        """Return all events as one request, and forget them."""
        request = ExportLogsServiceRequest()
        for rank, events in self._by_rank.items():
            group = request.resource_logs.add()
            resource = {semconv.TRAINING_JOB_ID: self.job, semconv.TRAINING_JOB_ATTEMPT: 0}
            if rank is not None:
                resource |= {
                    semconv.TRAINING_RANK: rank,
                    semconv.TRAINING_WORLD_SIZE: self.world,
                    semconv.HOST_NAME: f"host-{rank // 8}",
                }
            for key, value in resource.items():
                _set(group.resource.attributes.add(key=key).value, value)
            records = group.scope_logs.add().log_records
            for name, second, attributes in events:
                record = records.add(time_unix_nano=START_NS + round(second * NS))
                record.MergeFromString(encode_field(EVENT_NAME_TAG, name.encode()))
                for key, value in attributes.items():
                    _set(record.attributes.add(key=key).value, value)
        self._by_rank.clear()
        return request

    def save(self, path: Path, received_s: float = STUCK_S + 20.0) -> Path:
        """Write all events into a store."""
        _saved.append(None)
        body = self.request().SerializeToString()
        received_ns = START_NS + round(received_s * NS)
        record = JournalRecord(Signal.LOGS, received_ns, body, len(_saved), 1)
        save_journal_batch(path, [record])
        return path


_saved: list[None] = []


def stuck_job(
    path: Path, ranks: Iterable[Rank], *, world: int | None = None, until_s: float = STUCK_S + 20.0
) -> Path:
    """Write a store of what some ranks report."""
    known = list(ranks)
    reports = Reports(world or len(known))
    for number, rank in enumerate(known):
        reports.add_rank(number, rank, until_s)
    return reports.save(path, until_s)


def _times(first: Sequence[float], pace: float, end: float) -> list[float]:
    times = list(first)
    while times[-1] + pace <= end:
        times.append(times[-1] + pace)
    return [one for one in times if one <= end]


def _named(told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if value is not None}


def _set(target: Any, value: Any) -> None:
    match value:
        case bool():
            target.bool_value = value
        case int():
            target.int_value = value
        case float():
            target.double_value = value
        case str():
            target.string_value = value
        case _:
            for item in value:
                _set(target.array_value.values.add(), item)
