"""Who was late in a job with steps whose host is not told when collectives complete: by the device's own durations.

    steps       31   32m  33   34  ...  63   64m  65  ...  96m       m: measured, one in many
    judged           32m                     64m           96m       as if one came after the other

On GPUs, live or in a profile, the time of a call says nothing about arrival, but the device's time in a collective
does: a rank's wait is its own minus the shortest of all members' (method C4). Only some steps are measured
(`timed_collectives`): these are put one after the other, each as long as the steps from it to the next one are in the
mean, and judged as communication records are. Hosts' clocks are not compared.

Collectives that computation hides count one delay again and again: a rank that is 2 ms behind is so in each of thirty
buckets, and the job loses 2 ms. So nobody is named by sums alone. A rank must be late in single collectives too, and
has cost no more than that, or than the job's steps have grown. Nobody is called healthy by it. A profile of a few
steps is judged as well, and what it says is less sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.flows.diagnosis import tell_flow
from rootwalk.graph.flows.graph import FlowStory, build_flow_graph
from rootwalk.graph.flows.judge import FlowJudgement, LateRank
from rootwalk.graph.flows.rows import Collectives, join_members
from rootwalk.graph.flows.store import FlowRecords, make_records
from rootwalk.graph.flows.verdict import flow_verdict
from rootwalk.graph.input_waits import PROFILE_SCOPE
from rootwalk.graph.job_choice import JobKey, read_extent
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.model import Evidence, Finding, Lost, Verdict
from rootwalk.graph.store_columns import NS, floats, integers
from rootwalk.instrumentation.semconv import (
    COLLECTIVE_DEVICE_TIME,
    COLLECTIVE_IS_END_KNOWN,
    TRAINING_DEVICE_BUSY_TIME,
    TRAINING_DEVICE_EXPOSED_TIME,
)

__all__ = ["by_device_times"]

# Steps before the last one that are looked at: of every hundredth, thirty.
MAX_STEPS: Final = 3_000
# Fewer measured steps of a live job are its first ones, or by chance; a profile has as many as somebody asked for.
MIN_MEASURED_STEPS: Final = 20
# Rows of collectives that are read at most, of the last measured steps: some 300 bytes of memory each.
MAX_ROWS: Final = 500_000
# Ranks of which a measured step has all collectives, of those that measure.
MIN_WHOLE_RATIO: Final = 0.9
# Part of what steps have grown that a rank is late in a single collective. The first one after a forward pass, a third
# of the work, shows a third of what a slow rank costs; the next ones show no more than it worked since the one before.
MIN_SINGLE_RATIO: Final = 0.25

_OF_DEVICES: Final = (
    " job = ? AND coalesce(attempt, 0) = ? AND starts_with(name, 'collective.')"
    f" AND contains(attributes, '\"{COLLECTIVE_DEVICE_TIME}\"')"
    f" AND (json_extract_string(attributes, '$.\"{COLLECTIVE_IS_END_KNOWN}\"') = 'false'"
    f" OR scope_name = '{PROFILE_SCOPE}')"
)
# One rank's are enough to see that there are none; the last steps first.
_MEASURED: Final = (
    "SELECT step, count(*), bool_and(scope_name IS NOT DISTINCT FROM ?) FROM span_records"  # noqa: S608  (our own text)
    " WHERE step BETWEEN ? AND ?"
    " AND rank = (SELECT min(rank) FROM ranks WHERE job = ? AND coalesce(attempt, 0) = ?)"
    f" AND {_OF_DEVICES} GROUP BY step ORDER BY step DESC"
)
_COLLECTIVES: Final = (
    "SELECT step, rank, communicator_id, coalesce(communicator_name, communicator_id) AS name, sequence, operation,"  # noqa: S608
    " coalesce(communicator_size, 0) AS size, coalesce(bytes, 0) AS bytes,"
    " coalesce(is_point_to_point, false) AS is_message, CAST(NULL AS BIGINT) AS peer,"
    f" TRY_CAST(attributes ->> '$.\"{COLLECTIVE_DEVICE_TIME}\"' AS DOUBLE) AS device_s"
    f" FROM span_records WHERE step = ANY(?) AND {_OF_DEVICES}"
    " AND rank IS NOT NULL AND communicator_id IS NOT NULL AND sequence IS NOT NULL AND operation IS NOT NULL"
    " ORDER BY step DESC, rank, communicator_id, sequence, span_id LIMIT ?"
)
# What a device did in a step beside its collectives, of profiles.
_COMPUTED: Final = (
    "SELECT rank, avg(computed_s) FROM (SELECT rank, step,"  # noqa: S608
    f" TRY_CAST(attributes ->> '$.\"{TRAINING_DEVICE_BUSY_TIME}\"' AS DOUBLE)"
    f" - TRY_CAST(attributes ->> '$.\"{TRAINING_DEVICE_EXPOSED_TIME}\"' AS DOUBLE) AS computed_s"
    " FROM span_records WHERE job = ? AND coalesce(attempt, 0) = ? AND name = 'training.rank_step'"
    f" AND scope_name = '{PROFILE_SCOPE}' AND step = ANY(?) AND rank IS NOT NULL)"
    " WHERE computed_s IS NOT NULL GROUP BY rank ORDER BY rank"
)
# Times of day are the lowest rank's; how long steps take is the mean of all.
_STEPS: Final = (
    "SELECT step, avg(duration_ns) AS duration_ns, min_by(start_unix_ns, rank) AS start_unix_ns,"
    " min_by(end_unix_ns, rank) AS end_unix_ns FROM steps WHERE job = ? AND coalesce(attempt, 0) = ?"
    " AND is_complete AND duration_ns >= 0 AND step >= ? GROUP BY step ORDER BY step"
)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Records of measured steps on a time of their own, and what tells where that was.

    Attributes:
        records: One step after the other.
        steps: Their numbers.
        ends_ns: Where each ends, on that time.
        bounds_unix_ns: (steps, 2), when each began and ended.
        computed_s: What each rank's device did in a step beside its collectives, mean seconds; of profiles.
    """

    records: FlowRecords
    steps: IntArray
    ends_ns: IntArray
    bounds_unix_ns: IntArray
    computed_s: dict[int, float]


def by_device_times(
    store_path: Path,
    key: JobKey | None,
    verdict: Verdict,
    asked: tuple[int, int] | None = None,
    since_step: int = 0,
) -> Verdict:
    """Return what the device's durations add to a verdict that names nobody, as where the host saw no ends.

    Args:
        store_path: The store; graph and findings are left in it if they say more.
        key: The job.
        verdict: By steps, phases and threads.
        asked: Steps that the user named: of so few too little is measured, and the verdict stays as it is.
        since_step: The job's steps before this one are not read.
    """
    from rootwalk.otel_receiver import store

    if key is None or verdict.findings or asked is not None:
        return verdict
    with store.reading(store_path) as connection:
        measured = _read(connection, key, since_step)
    if measured is None:
        return verdict
    story = _tell(measured)
    if story is None:
        return verdict
    graph, evidence = build_flow_graph(story)
    decide = partial(_decide, story, measured, verdict)
    if not decide(graph, evidence).findings:
        return verdict
    return keep_verdict(store_path, key, graph, evidence, decide)


def _read(connection: Any, key: JobKey, since_step: int) -> _Measured | None:
    """Return what was measured of a job; None if that is nothing, or too little."""
    owner = [key.job, key.attempt]
    last, ranks = read_extent(connection, key)
    span = [max(last - MAX_STEPS, since_step), last]
    told = connection.execute(_MEASURED, [PROFILE_SCOPE, *span, *owner, *owner]).fetchall()
    rows = np.cumsum([int(count) * ranks for _, count, _ in told])
    chosen = [int(row[0]) for row, sum_ in zip(told, rows, strict=True) if sum_ <= MAX_ROWS]
    is_profile = all(row[2] for row in told)
    fewest = 1 if is_profile else MIN_MEASURED_STEPS
    if len(chosen) < fewest:
        return None
    columns = connection.execute(_COLLECTIVES, [chosen, *owner, MAX_ROWS]).fetchnumpy()
    times = connection.execute(_STEPS, [*owner, chosen[-1]]).fetchnumpy()
    steps = _whole_steps(integers(columns["step"]), integers(columns["rank"]))
    steps = steps[np.isin(steps, integers(times["step"]))]
    if steps.size < fewest:
        return None
    lengths_ns = _lengths_ns(steps, integers(times["step"]), floats(times["duration_ns"]))
    ends_ns = np.cumsum(lengths_ns)
    kept = np.isin(integers(columns["step"]), steps)
    columns = {name: values[kept] for name, values in columns.items()}
    place = np.searchsorted(steps, integers(columns["step"]))
    columns["start_unix_ns"] = (ends_ns - lengths_ns)[place]
    columns["end_unix_ns"] = ends_ns[place]
    columns["is_end_known"] = np.ones(place.size, dtype=np.bool_)  # on this time, where it was put
    at = np.searchsorted(integers(times["step"]), steps)
    bounds = [integers(times[name])[at] for name in ("start_unix_ns", "end_unix_ns")]
    records = make_records(connection, key, columns)
    computed = connection.execute(_COMPUTED, [*owner, steps.tolist()]).fetchall()
    computed_s = {int(rank): float(seconds) for rank, seconds in computed}
    return _Measured(records, steps, ends_ns, np.stack(bounds, axis=1), computed_s)


def _whole_steps(step: IntArray, rank: IntArray) -> IntArray:
    """Return the steps in which nearly every rank has as many measured collectives as it mostly has.

    Args:
        step: Of each measured collective.
        rank: Of each measured collective.
    """
    steps, at = np.unique(step, return_inverse=True)
    ranks, who = np.unique(rank, return_inverse=True)
    counts = np.bincount(
        who.reshape(-1) * steps.size + at.reshape(-1), None, ranks.size * steps.size
    )
    counts = counts.reshape(ranks.size, steps.size)
    usual = [int(np.bincount(own[own > 0]).argmax()) for own in counts]
    is_whole = counts == np.array(usual, dtype=np.int64)[:, None]
    return np.asarray(steps[is_whole.mean(axis=0) >= MIN_WHOLE_RATIO], dtype=np.int64)


def _lengths_ns(steps: IntArray, numbers: IntArray, durations_ns: FloatArray) -> IntArray:
    """Return the mean length of the job's steps from each measured one to the next.

    A host that enqueues ahead of its device sees single steps too short, and those too long in which it waits for it.

    Args:
        steps: The measured ones, in order.
        numbers: Of all steps, in order.
        durations_ns: Of all steps.
    """
    bounds = np.searchsorted(numbers, [*steps.tolist(), int(numbers[-1]) + 1])
    return np.array(
        [
            max(round(float(durations_ns[first:stop].mean())), 1)
            for first, stop in pairwise(bounds.tolist())
        ],
        dtype=np.int64,
    )


def _tell(measured: _Measured) -> FlowStory | None:
    """Return what measured steps say, with those ranks only of which it is sure; None if that is nothing.

    Messages wait for their other end wherever that is in its work: of ranks that send them nothing is said.
    """
    lengths_s = np.diff(measured.ends_ns, prepend=0) / NS
    story = tell_flow(measured.records, measured.steps.size, lengths_s)
    judgement = story.judgement
    if judgement is None or not story.is_sound or story.has_messages:
        return None
    collectives = join_members(measured.records.rows)
    late = tuple(
        bounded
        for one in judgement.late
        if (bounded := _bounded(one, judgement, measured, collectives)) is not None
    )
    # Where a rank may be late and is not told, transfers are not what is left; nor is one group's against another's.
    if not late and (judgement.late or not judgement.transfers):
        return None
    transfers = tuple(
        replace(one, share_s=min(one.share_s, judgement.iteration_s - judgement.healthy_s))
        for one in judgement.transfers
        if judgement.healthy_s is not None
    )
    if len(transfers) < len(judgement.transfers):
        return None
    bounds = measured.bounds_unix_ns
    return replace(
        story,
        judgement=replace(judgement, late=late, transfers=transfers),
        bounds_unix_ns=(int(bounds[judgement.first, 0]), int(bounds[judgement.stop - 1, 1])),
        is_measured=True,
        device_excess_s=_device_excess_s(measured.computed_s, late),
    )


def _device_excess_s(computed_s: dict[int, float], late: tuple[LateRank, ...]) -> dict[int, float]:
    """Return how much longer the devices of late ranks computed in a step than those of the others, seconds."""
    names = {one.rank for one in late}
    others = [seconds for rank, seconds in computed_s.items() if rank not in names]
    if not others:
        return {}
    usual_s = float(np.median(others))
    return {rank: computed_s[rank] - usual_s for rank in sorted(names & computed_s.keys())}


def _bounded(
    late: LateRank, judgement: FlowJudgement, measured: _Measured, collectives: Collectives
) -> LateRank | None:
    """Return a late rank with what it can have cost at most; None if no single collective shows it."""
    single_s = _single_s(late.rank, judgement, measured, collectives)
    most_s = single_s
    if judgement.healthy_s is not None:
        most_s = judgement.iteration_s - judgement.healthy_s
        is_shown = single_s >= MIN_SINGLE_RATIO * most_s
    else:
        is_shown = single_s >= judgement.floor_s
    if not is_shown or most_s <= 0.0:
        return None
    return replace(late, share_s=min(late.share_s, most_s), remove_s=min(late.remove_s, most_s))


def _single_s(
    rank: int, judgement: FlowJudgement, measured: _Measured, collectives: Collectives
) -> float:
    """Return how long the others wait for a rank in the one collective of a step in which it is latest; the median."""
    own = collectives.member_rank == rank
    of = collectives.member_of[own]
    member_s = collectives.member_s[own]
    members = np.bincount(collectives.member_of)[of]
    total_s = np.bincount(collectives.member_of, collectives.member_s)[of]
    behind_s = (total_s - member_s) / np.maximum(members - 1, 1) - member_s
    end_ns = np.round(collectives.end_s[of] * NS).astype(np.int64)
    place = np.searchsorted(measured.ends_ns, end_ns + measured.records.rows.origin_unix_ns)
    worst_s = np.zeros(measured.steps.size)
    np.maximum.at(worst_s, place, behind_s)
    return float(np.median(worst_s[judgement.first : judgement.stop]))


def _decide(
    story: FlowStory,
    measured: _Measured,
    before: Verdict,
    graph: DependencyGraph,
    evidence: Sequence[Evidence],
) -> Verdict:
    """Return the verdict before with the findings by device times, where there are some."""
    found = flow_verdict(story, graph, evidence)
    judgement = story.judgement
    if judgement is None or not found.findings:
        return before
    first = int(measured.steps[judgement.first])
    last = int(measured.steps[judgement.stop - 1])
    world = before.job.world_size or len(measured.records.ranks)
    told = {(item.code, item.text) for item in before.data_quality}
    added = tuple(item for item in found.data_quality if (item.code, item.text) not in told)
    return replace(
        found,
        window=replace(found.window, first_step=first, last_step=last),
        findings=tuple(_of_steps(finding, first, last, world) for finding in found.findings),
        missing_sensors=before.missing_sensors,
        data_quality=(*before.data_quality, *added),
    )


def _of_steps(finding: Finding, first: int, last: int, world: int) -> Finding:
    """Return a finding of the window's steps: what was lost is of those between the measured ones too."""
    count = last - first + 1
    lost_s = (finding.seconds.share or 0.0) * count
    onset = finding.onset
    if onset is not None and onset.unix_ns is not None:
        onset = replace(onset, step=first)
    lost = Lost(count, round(lost_s, 9), round(lost_s * world, 9), None)
    return replace(finding, onset=onset, lost=lost)
