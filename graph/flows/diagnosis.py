"""Diagnose a job without steps by its communication records: read, find iterations, judge, store the graph, decide."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.flows.gaps import find_whole_iterations
from rootwalk.graph.flows.graph import FlowStory, build_flow_graph
from rootwalk.graph.flows.iterations import count_iterations, find_rhythm
from rootwalk.graph.flows.judge import FlowJudgement, judge
from rootwalk.graph.flows.matrix import find_slow_paths
from rootwalk.graph.flows.rows import Collectives, join_members
from rootwalk.graph.flows.series import build_series
from rootwalk.graph.flows.store import FlowRecords, find_flow_job, read_flow
from rootwalk.graph.flows.verdict import flow_verdict
from rootwalk.graph.import_quality import read_broken_files
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.model import DataQuality, QualityCode, Verdict

__all__ = ["conclude_flow", "read_flow_records", "tell_flow"]

# Of the collectives, so many may lack a member: the last ones of a log do.
MAX_UNEQUAL_RATIO: Final = 0.1


def read_flow_records(connection: Any, job: str | None) -> FlowRecords | None:
    """Return the communication records of a job that has no steps; None if it has some, or no such record.

    Raises:
        ConfigError: If the job cannot be chosen.
    """
    key = find_flow_job(connection, job)
    if key is None:
        return None
    return read_flow(connection, key).with_quality(read_broken_files(connection, key.job))


def conclude_flow(store_path: Path, records: FlowRecords) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    story = tell_flow(records)
    graph, evidence = build_flow_graph(story)
    return keep_verdict(store_path, records.key, graph, evidence, partial(flow_verdict, story))


def tell_flow(
    records: FlowRecords, told: int | None = None, lengths_s: FloatArray | None = None
) -> FlowStory:
    """Return what communication records say.

    Args:
        records: As read.
        told: How many iterations they are of, where something else says it.
        lengths_s: How long each of them took, likewise.
    """
    rows = records.rows
    collectives = join_members(rows)
    quality = [*records.quality, *_quality(records, collectives)]
    whole_only = None
    if told is None and collectives.unequal and count_iterations(collectives) is None:
        whole_only = find_whole_iterations(rows)
    if whole_only is not None:
        rows, told = whole_only.rows, whole_only.kept
        records = replace(records, rows=rows)
        collectives = join_members(rows)
        text = f"{whole_only.left_out} of {whole_only.left_out + told} iterations lack records: left out"
        quality.append(DataQuality(QualityCode.DROPPED, text, whole_only.left_out))
    has_messages = bool(rows.is_message.any())
    lacking = collectives.unequal + collectives.doubled
    whole = collectives.end_s.size
    is_sound = bool(whole) and lacking <= MAX_UNEQUAL_RATIO * (whole + lacking)
    is_sound &= not records.doubled
    judgement: FlowJudgement | None = None
    iterations = count_iterations(collectives) if told is None or not whole else told
    bounds = (0.0, float(rows.end_s.max())) if rows.end_s.size else None
    if iterations is None or iterations < (2 if lengths_s is None else 1):
        text = "no pattern of collectives repeats: iterations cannot be told"
        quality.append(DataQuality(QualityCode.MISSING_EDGE, text, None))
    else:
        series = build_series(rows, collectives, iterations)
        if lengths_s is not None and lengths_s.size == iterations:
            series = replace(series, iteration_s=lengths_s, is_timed=True)
        if told is None and collectives.member_rank.size < 2 * series.ranks.size * iterations:
            # One collective an iteration: what repeats may be the times between them.
            rhythm = 1 if series.iteration_s is None else find_rhythm(series.iteration_s[1:])
            if rhythm > 1:
                iterations //= rhythm
                series = build_series(rows, collectives, iterations)
        lonely = int(np.isnan(series.late_s).all(axis=1).sum())
        if lonely:
            text = f"{lonely} ranks have no peer that does the same: whether they come late is not known"
            quality.append(DataQuality(QualityCode.MISSING_EDGE, text, lonely))
        members = _members(collectives)
        judgement = judge(series, members, _hosts(records, members))
        if judgement is None:
            text = (
                "how long iterations take is not known: records were written at the end and do not say when"
                " operations ended (NCCL_INSPECTOR_DUMP_VERBOSE=1)"
            )
            quality.append(DataQuality(QualityCode.MISSING_EDGE, text, None))
        else:
            bounds = _bounds(collectives, judgement, iterations)
            if has_messages and judgement.is_enough:
                host_of = {row.rank: row.host_id for row in records.ranks}
                paths = find_slow_paths(rows, iterations, judgement.floor_s, host_of)
                judgement = replace(judgement, paths=paths)
            if judgement.ambiguous:
                text = (
                    f"{len(judgement.ambiguous)} ranks come late together"
                    f" ({_listed(judgement.ambiguous)}): one may be late for another"
                )
                item = DataQuality(QualityCode.MISSING_EDGE, text, len(judgement.ambiguous))
                quality.append(item)
    unix_ns = None
    if bounds is not None:
        origin = rows.origin_unix_ns
        unix_ns = (origin + round(bounds[0] * 1e9), origin + round(bounds[1] * 1e9))
    return FlowStory(records, judgement, tuple(quality), unix_ns, is_sound, has_messages)


def _quality(records: FlowRecords, collectives: Collectives) -> list[DataQuality]:
    found = []
    if collectives.unequal:
        text = f"{collectives.unequal} collectives lack a member's record"
        found.append(DataQuality(QualityCode.UNEQUAL_MEMBERS, text, collectives.unequal))
    if collectives.doubled:
        text = f"{collectives.doubled} collectives have several records of one rank"
        found.append(DataQuality(QualityCode.DUPLICATE_RANK, text, collectives.doubled))
    world = records.key.world_size
    if world is not None:
        seen = {row.rank for row in records.ranks}
        missing = [rank for rank in range(world) if rank not in seen]
        if missing:
            text = f"no record from {len(missing)} of {world} ranks ({_listed(missing)})"
            found.append(DataQuality(QualityCode.RANK_MISSING, text, len(missing)))
    return found


def _members(collectives: Collectives) -> dict[int, IntArray]:
    """Return the ranks of each communicator."""
    pairs = np.unique(
        np.stack(
            [collectives.communicator[collectives.member_of], collectives.member_rank], axis=1
        ),
        axis=0,
    )
    starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    return {int(own[0, 0]): own[:, 1] for own in np.split(pairs, starts[1:])}


def _hosts(records: FlowRecords, members: dict[int, IntArray]) -> dict[int, int]:
    """Return on how many hosts each communicator is."""
    host_of = {row.rank: row.host_id for row in records.ranks}
    return {one: len({host_of.get(int(r)) for r in own}) for one, own in members.items()}


def _bounds(
    collectives: Collectives, judgement: FlowJudgement, iterations: int
) -> tuple[float, float]:
    """Return when the window begins and ends, by the collectives' place among all; seconds since the origin."""
    count = collectives.end_s.size
    first = min(judgement.first * count // iterations, count - 1)
    last = min(judgement.stop * count // iterations, count) - 1
    return float(collectives.end_s[first]), float(collectives.end_s[max(last, first)])


def _listed(ranks: tuple[int, ...] | list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:8]) + (", …" if len(ranks) > 8 else "")
