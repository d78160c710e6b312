"""Profiles of synthetic jobs, whose truth is known: what each rank spends a step in which stack, by kind of time.

    Spent("main;train_step;log_step;write@libc", off_s=0.060, ranks=(1,), first_step=40)

A frame with `@` is a native function of that binary; others are Python's, `function:file:line:package` as far as that
is told.
One profile of each kind for each rank and ten steps, as an agent sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rootwalk.instrumentation.profiles import (
    Binary,
    Frame,
    FrameKind,
    Profile,
    Sample,
    ValueKind,
    build_request,
)
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.jobs import Job, write_job
from support.stores import query_rows

NS = 1_000_000_000
STEPS_PER_PROFILE = 10
PERIOD_NS = NS // 99
CPU = ValueKind("cpu", "nanoseconds")
COUNT = ValueKind("samples", "count")
OFF_CPU = ValueKind("off_cpu", "nanoseconds")


@dataclass(frozen=True)
class Spent:
    """Seconds a step in one stack, its outermost frame first, on a CPU and off it; ranks None for all.

    `role` is the thread's, as the agent tells it; empty where the producer tells none.
    """

    stack: str
    on_s: float = 0.0
    off_s: float = 0.0
    ranks: tuple[int, ...] | None = None
    first_step: int = 0
    role: str = ""

    def frames(self) -> tuple[Frame, ...]:
        return tuple(made_frame(name) for name in reversed(self.stack.split(";")))

    def at(self, rank: int, step: int) -> bool:
        return (self.ranks is None or rank in self.ranks) and step >= self.first_step


def made_frame(name: str) -> Frame:
    function, mark, binary = name.partition("@")
    if mark:
        return Frame(
            FrameKind.NATIVE, function, binary=Binary(binary), address=abs(hash(name)) % 4096
        )
    told = name.split(":")
    function, file, line, package = [*told, *("", "train.py", "0", "")[len(told) :]]
    first = int(line)
    return Frame(FrameKind.CPYTHON, function, file, first, first, package=package)


def write_sampled_job(
    path: Path,
    job: Job,
    spent: Sequence[Spent],
    *,
    noise: int | None = None,
    has_links: bool = False,
) -> Path:
    """Write a job and its profiles into a store; with a seed of noise samples are drawn, not counted."""
    write_job(path, job)
    random = None if noise is None else np.random.default_rng(noise)
    bodies = list(requests_of(path, job, spent, random, has_links))
    save(path, bodies)
    return path


def save(path: Path, bodies: Iterable[bytes]) -> None:
    records = [JournalRecord(Signal.PROFILES, 9 + n, body, 1, n) for n, body in enumerate(bodies)]
    save_journal_batch(path, records)


def requests_of(
    path: Path,
    job: Job,
    spent: Sequence[Spent],
    random: np.random.Generator | None,
    has_links: bool,
) -> Iterable[bytes]:
    """Yield one request for every ten steps, with the profiles of all ranks."""
    times = query_rows(
        path,
        "SELECT step, rank, min(start_unix_ns), max(end_unix_ns), any_value(trace_id), any_value(span_id)"
        " FROM steps GROUP BY ALL ORDER BY ALL",
    )
    by_step = {(step, rank): row for step, rank, *row in times}
    for first in range(0, job.steps, STEPS_PER_PROFILE):
        steps = range(first, min(first + STEPS_PER_PROFILE, job.steps))
        profiles = []
        for rank in range(job.ranks):
            begin, end = by_step[steps[0], rank][0], by_step[steps[-1], rank][1]
            on, off = [], []
            for step in steps:
                trace, span = by_step[step, rank][2:]
                link = (bytes.fromhex(trace), bytes.fromhex(span)) if has_links else None
                for one in spent:
                    if not one.at(rank, step):
                        continue
                    frames = one.frames()
                    on.append((frames, one.on_s, link, one.role))
                    off.append((frames, one.off_s, link, one.role))
            resource: dict[str, str | int] = {
                "training.job.id": job.name,
                "training.attempt": job.attempt,
                "training.rank": rank,
                "host.name": f"host-{job.host(rank)}",
            }
            span_ns = (begin, end - begin)
            counted = [
                Sample(f, n, _labels(role), k)
                for f, s, k, role in _merged(on)
                if (n := _count(s, random))
            ]
            waited = [Sample(f, round(s * NS), _labels(r), k) for f, s, k, r in _merged(off)]
            profiles.append(Profile(resource, *span_ns, COUNT, counted, CPU, PERIOD_NS))
            profiles.append(Profile(resource, *span_ns, OFF_CPU, waited))
        yield build_request(profiles, "test", "1")


_Link = tuple[bytes, bytes] | None
_Item = tuple[tuple[Frame, ...], float, _Link, str]


def _labels(role: str) -> dict[str, str | bool | int]:
    return {"training.thread.role": role} if role else {}


def _merged(items: Iterable[_Item]) -> list[_Item]:
    sums: dict[tuple[tuple[Frame, ...], _Link, str], float] = {}
    for frames, seconds, link, role in items:
        key = frames, link, role
        sums[key] = sums.get(key, 0.0) + seconds
    return [(frames, seconds, link, role) for (frames, link, role), seconds in sums.items()]


def _count(seconds: float, random: np.random.Generator | None) -> int:
    expected = seconds * NS / PERIOD_NS
    return round(expected) if random is None else int(random.poisson(expected))
