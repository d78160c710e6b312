"""Diagnose a hang from a store: read what flight recorders told, find what waits, store the graph, decide from it.

Where none has told anything, the agents' counts of NCCL's calls may (`counted`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rootwalk.graph.hangs.counted import read_counted_hang
from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.flight_store import (
    find_flight_job,
    find_last_attempt,
    has_times,
    read_flight_records,
    read_process_ends,
)
from rootwalk.graph.hangs.forked import find_forked
from rootwalk.graph.hangs.judge import Hang, find_hang
from rootwalk.graph.hangs.on_device import find_on_device
from rootwalk.graph.hangs.quality import find_problems
from rootwalk.graph.hangs.verdict import build_hang_graph, hang_verdict
from rootwalk.graph.import_quality import read_broken_files
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.model import DataQuality, Verdict

__all__ = ["HangCase", "conclude_hang", "read_hang"]


@dataclass(frozen=True, slots=True)
class HangCase:
    """The records of one job, what they say, and what is wrong with them.

    `last_attempt` is the last one with steps, None without any. `has_times` is whether the store has communication of
    it with its times, so that a job in which nothing hangs can be judged as a slow one. `is_counted` is whether counts
    of calls tell it, and no flight recorder.
    """

    job: str
    attempt: int
    last_attempt: int | None
    records: Sequence[RankRecord]
    quality: tuple[DataQuality, ...]
    hang: Hang
    has_times: bool = False
    is_counted: bool = False

    @property
    def answers(self) -> bool:
        """Whether it says more of the job than its steps do: an operation hangs, and no later attempt has begun."""
        if self.last_attempt is None:
            return bool(self.hang.operations) or not self.has_times
        return bool(self.hang.operations) and self.attempt >= self.last_attempt


def read_hang(connection: Any, job: str | None) -> HangCase | None:
    """Return what flight recorders told of a job, else counts of NCCL's calls; None if they told nothing.

    Raises:
        ConfigError: If several jobs have such records and none is named.
    """
    found = find_flight_job(connection, job)
    if found is None:
        return _read_counted(connection, job)
    with _no_collection():
        records, doubled = read_flight_records(connection, *found)
        ends = read_process_ends(connection, *found)
        hang = find_forked(connection, *found, find_hang(records, doubled.unsettled, ends))
        hang = find_on_device(connection, *found, hang)
    quality = (*find_problems(hang, records, doubled), *read_broken_files(connection, found[0]))
    last_attempt = find_last_attempt(connection, found[0])
    return HangCase(*found, last_attempt, records, quality, hang, has_times(connection, *found))


def _read_counted(connection: Any, job: str | None) -> HangCase | None:
    found = read_counted_hang(connection, job)
    if found is None:
        return None
    key = (found.job, found.attempt)
    hang = find_on_device(connection, *key, find_forked(connection, *key, found.hang))
    last_attempt = find_last_attempt(connection, found.job)
    return HangCase(*key, last_attempt, found.records, (), hang, is_counted=True)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python not look for garbage: no call refers to itself, and looking through millions takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def conclude_hang(store_path: Path, case: HangCase) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    graph, evidence = build_hang_graph(
        case.job, case.hang, case.records, is_counted=case.is_counted
    )
    decide = partial(hang_verdict, case.job, case.attempt, case.hang, case.records, case.quality)
    key = JobKey(case.job, case.attempt, case.hang.world)
    return keep_verdict(store_path, key, graph, evidence, decide)
