"""Diagnose a hang from a store: read what flight recorders told, find what waits, store the graph, decide from it.

Ranks that make no progress report it themselves (`live_diagnosis`); dumps that say otherwise are more exact, and the
verdict says that both differ. Where there is neither, the agents' counts of NCCL's calls may tell it (`counted`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from rootwalk.graph.hangs.live_diagnosis import LiveCase, conclude_live, read_live
from rootwalk.graph.hangs.live_dumps import read_live_dumps
from rootwalk.graph.hangs.live_judge import Basis
from rootwalk.graph.hangs.on_device import find_on_device
from rootwalk.graph.hangs.quality import find_problems
from rootwalk.graph.hangs.verdict import build_hang_graph, hang_verdict
from rootwalk.graph.import_quality import read_broken_files
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.model import DataQuality, QualityCode, Verdict
from rootwalk.graph.reasons import Reason

__all__ = ["HangCase", "conclude_hang", "read_hang"]


@dataclass(frozen=True, slots=True)
class HangCase:
    """The records of one job, what they say, and what is wrong with them.

    `last_attempt` is the last one with steps, None without any. `has_times` is whether the store has communication of
    it with its times, so that a job in which nothing hangs can be judged as a slow one. `is_counted` is whether counts
    of calls tell it, and no flight recorder. `live` is what the ranks' own reports say, where the verdict is theirs.
    """

    job: str
    attempt: int
    last_attempt: int | None
    records: Sequence[RankRecord]
    quality: tuple[DataQuality, ...]
    hang: Hang
    has_times: bool = False
    is_counted: bool = False
    live: LiveCase | None = None

    @property
    def answers(self) -> bool:
        """Whether it says more of the job than its steps do: an operation hangs, and no later attempt has begun."""
        if self.live is not None:
            return True
        if self.last_attempt is None:
            return bool(self.hang.operations) or not self.has_times
        return bool(self.hang.operations) and self.attempt >= self.last_attempt


# What dumps tell more exactly than reports of the last calls do.
_BY_CALLS: Final = frozenset(
    (Reason.COLLECTIVE_MISMATCH, Reason.COLLECTIVE_DEADLOCK, Reason.GPU_HANG, Reason.GPU_LOST)
)


def read_hang(connection: Any, job: str | None) -> HangCase | None:
    """Return what ranks without progress, flight recorders or counts of NCCL's calls say; None if they say nothing.

    Raises:
        ConfigError: If several jobs have such records and none is named.
    """
    dumps, live = _read_dumps(connection, job), read_live(connection, job)
    if live is None:
        return dumps
    if dumps is None or not dumps.answers or dumps.is_counted or dumps.attempt != live.attempt:
        return _with_own_dumps(connection, live)
    by_dumps = {rank for blame in dumps.hang.blames for rank in blame.ranks}
    by_reports = {rank for blame in live.judgement.hang.blames for rank in blame.ranks}
    if not by_dumps:
        return _of_live(live)
    if not by_reports or by_dumps & by_reports:
        is_exact = any(blame.reason in _BY_CALLS for blame in dumps.hang.blames)
        return dumps if is_exact or not by_reports else _of_live(live)
    text = (
        f"flight recorders name {_list(by_dumps)}, what the ranks report live names {_list(by_reports)}:"
        " the recorders' word is used"
    )
    problem = DataQuality(QualityCode.EVIDENCE_DISAGREES, text, len(by_dumps ^ by_reports))
    return replace(dumps, quality=(*dumps.quality, problem))


def _with_own_dumps(connection: Any, live: LiveCase) -> HangCase:
    """Return what a stuck job's reports say beside the flight recorders that its ranks have sent meanwhile.

    The reports count every call, so they decide where they have counts; where there are stacks alone, the recorders do.
    """
    judgement = live.judgement
    dumps = read_live_dumps(connection, live.job, live.attempt, judgement.evidence.since_ns)
    if not dumps.records:
        return _of_live(live)
    ends = read_process_ends(connection, live.job, live.attempt)
    hang = find_hang(dumps.records, dumps.broken, ends)
    by_dumps = {rank for blame in hang.blames for rank in blame.ranks}
    by_reports = {rank for blame in judgement.hang.blames for rank in blame.ranks}
    if not by_dumps or by_dumps & by_reports:
        return _of_live(live)
    if not by_reports or judgement.basis is Basis.STACKS:
        return HangCase(live.job, live.attempt, None, dumps.records, live.quality, hang)
    text = (
        f"flight recorders name {_list(by_dumps)}, the ranks' counts of their calls {_list(by_reports)}:"
        " the counts decide"
    )
    problem = DataQuality(QualityCode.EVIDENCE_DISAGREES, text, len(by_dumps ^ by_reports))
    return _of_live(replace(live, quality=(*live.quality, problem)))


def _list(ranks: set[int]) -> str:
    listed = ", ".join(map(str, sorted(ranks)[:8]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{', …' if len(ranks) > 8 else ''}"


def _of_live(live: LiveCase) -> HangCase:
    hang = live.judgement.hang
    records = live.judgement.records
    return HangCase(live.job, live.attempt, None, records, live.quality, hang, live=live)


def _read_dumps(connection: Any, job: str | None) -> HangCase | None:
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
    if case.live is not None:
        return conclude_live(store_path, case.live)
    graph, evidence = build_hang_graph(
        case.job, case.hang, case.records, is_counted=case.is_counted
    )
    decide = partial(hang_verdict, case.job, case.attempt, case.hang, case.records, case.quality)
    key = JobKey(case.job, case.attempt, case.hang.world)
    return keep_verdict(store_path, key, graph, evidence, decide)
