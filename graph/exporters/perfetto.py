"""The walked path of a job as a Perfetto trace, and the ranks that it accuses; other ranks on request.

A process a rank, named after its host; under it what it waits for, what it does, its communication and its threads'
times off the CPU. The path has a process of its own, the job's. All times are Unix time on the aligned clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rootwalk.graph.diagnosis import Diagnosis, Investigation
from rootwalk.graph.exporters.perfetto_format import PerfettoFile
from rootwalk.graph.exporters.stored_slices import Place, Recorded, Scope, read_slices
from rootwalk.graph.exporters.timeline import (
    Argument,
    Lane,
    Process,
    Slice,
    Track,
    lanes_of,
    main_track,
)
from rootwalk.graph.exporters.walked_path import PATH_TRACK, Walked, draw_operations, draw_walk
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.operations.arrays import align_operations
from rootwalk.graph.operations.diagnosis import OperationCase
from rootwalk.graph.operations.graph import build_operations
from rootwalk.graph.operations.walk import walk_operations
from rootwalk.graph.passages import JOINT, visible
from rootwalk.graph.render.text import passages
from rootwalk.instrumentation.errors import InsufficientDataError

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["MAX_BYTES", "NEEDS_DIAGNOSIS", "verdict_slices", "write"]

NEEDS_DIAGNOSIS: Final = True
# Below the 50 MB that people open without a thought.
MAX_BYTES: Final = 48_000_000
# Spans that are drawn: of common names they take some 250 bytes each.
MAX_SPANS: Final = 120_000
# Ranks that are drawn because they are accused, or have most of a path that accuses none.
MAX_ACCUSED: Final = 16
MAX_ON_PATH: Final = 4
_NS: Final = 1e9
_VERDICT_TRACK: Final = Track(None, 1, "verdict")
_NOTHING: Final = Walked([], 0, 0)


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write the path and the chosen ranks into a file, and return what is in it and what is not.

    Raises:
        InsufficientDataError: If no span of the job is in the store.
        OSError: As the disk says.
    """
    assert choice.diagnosis is not None  # noqa: S101  (NEEDS_DIAGNOSIS)
    verdict = choice.diagnosis.verdict
    if verdict.job.attempt is None:
        raise _nothing(verdict)
    key = JobKey(verdict.job.id, verdict.job.attempt, verdict.job.world_size)
    walked, offsets = _walk(connection, key, choice.diagnosis)
    places = _read_places(connection, key, offsets)
    accused = [rank for rank in _accused(verdict, walked) if rank in places]
    recorded = _read(connection, choice, verdict, places, accused, key)
    if not recorded.slices and not walked.slices:
        raise _nothing(verdict)
    slices = [*walked.slices, *recorded.slices]
    slices += verdict_slices(verdict, places, min(item.start_ns for item in slices))
    file = PerfettoFile(MAX_BYTES)
    for rank, lanes in _in_order(lanes_of(slices), accused):
        file.add(Process(rank, _name(key, rank, places)), lanes)
    path.write_bytes(file.render())
    return _told(file, recorded, walked)


@dataclass(frozen=True, slots=True)
class _Offsets:
    """Each clock minus the reference clock, seconds: by host, and where ranks have clocks of their own by rank."""

    by_host: dict[str, float]
    by_rank: dict[int, float]


def _walk(connection: Any, key: JobKey, diagnosis: Diagnosis) -> tuple[Walked, _Offsets]:
    """Return the path, empty where nothing was walked, and the clocks that it is on."""
    case = diagnosis.case
    if isinstance(case, Investigation):
        offsets = _Offsets(case.offsets.offset_s_by_host, {})
        return (_NOTHING if case.window is None else draw_walk(*case.window)), offsets
    if not isinstance(case, OperationCase):
        return _NOTHING, _Offsets({}, {})
    aligned, by_rank, sigma_s, _ = align_operations(case.operations)
    graph = build_operations(aligned)
    paths = [found[0] for found in walk_operations(graph, sigma_s)]
    rows = connection.execute(
        "SELECT step, min(start_unix_ns) FROM operations WHERE job = ? AND coalesce(attempt, 0) = ?"
        " AND end_unix_ns >= start_unix_ns GROUP BY step",
        [key.job, key.attempt],
    ).fetchall()
    return draw_operations(graph, paths, dict(rows)), _Offsets({}, by_rank)


def _read_places(connection: Any, key: JobKey, offsets: _Offsets) -> dict[int, Place]:
    rows = connection.execute(
        "SELECT rank, any_value(host_id), coalesce(any_value(host_name), any_value(host_id)), any_value(pid)"
        " FROM ranks WHERE job = ? AND coalesce(attempt, 0) = ? GROUP BY rank ORDER BY rank",
        [key.job, key.attempt],
    ).fetchall()
    return {
        rank: Place(
            host,
            pid,
            round(offsets.by_rank.get(rank, offsets.by_host.get(host_id, 0.0)) * _NS),
        )
        for rank, host_id, host, pid in rows
    }


def _accused(verdict: Verdict, walked: Walked) -> list[int]:
    """Return the ranks that findings name, the first finding's first; else those that the path was longest in."""
    named: dict[int, None] = {}
    for finding in verdict.findings:
        first = [] if finding.subject.rank is None else [finding.subject.rank]
        named |= dict.fromkeys([*first, *finding.subject.ranks])
    if named:
        return list(named)[:MAX_ACCUSED]
    on_path: dict[int, int] = {}
    for item in walked.slices:
        if item.track == PATH_TRACK:
            rank = int(dict(item.arguments)["rank"])
            on_path[rank] = on_path.get(rank, 0) + item.stop_ns - item.start_ns
    return sorted(on_path, key=lambda rank: (-on_path[rank], rank))[:MAX_ON_PATH]


def _read(
    connection: Any,
    choice: Choice,
    verdict: Verdict,
    places: dict[int, Place],
    accused: list[int],
    key: JobKey,
) -> Recorded:
    """Return the spans of the ranks that were asked for, of the accused without a wish, of all where none is."""
    ranks: Sequence[int] = accused or list(places)
    if choice.is_every_rank:
        ranks = list(dict.fromkeys([*accused, *places]))
    elif choice.ranks is not None:
        ranks = [rank for rank in choice.ranks if rank in places]
    first, last = verdict.window.first_step, verdict.window.last_step
    steps = choice.steps
    if steps is None and first is not None and last is not None:
        steps = first, last
    return read_slices(connection, Scope(key, ranks, steps), places, MAX_SPANS)


def verdict_slices(verdict: Verdict, places: dict[int, Place], first_ns: int) -> list[Slice]:
    """Return an instant for each finding, or for what is said without one, on its culprit's track.

    Args:
        verdict: What is said.
        places: The ranks of the job.
        first_ns: When it begins, for what has no onset.
    """
    slices = []
    for index, passage in enumerate(passages(verdict)):
        finding = verdict.findings[index] if index < len(verdict.findings) else None
        rank = finding.subject.rank if finding is not None else None
        time_ns = verdict.window.start_unix_ns
        if finding is not None and finding.onset is not None:
            time_ns = finding.onset.unix_ns or time_ns
        slices.append(
            Slice(
                main_track(rank) if rank in places and rank is not None else _VERDICT_TRACK,
                max(time_ns or 0, first_ns),
                None,
                visible(passage.headline).replace(JOINT, " "),
                "verdict",
                _numbers(verdict, finding),
            )
        )
    return slices


def _numbers(verdict: Verdict, finding: Finding | None) -> tuple[tuple[str, Argument], ...]:
    values: dict[str, Argument | None] = {
        "outcome": str(verdict.outcome),
        "step_s": verdict.step_s,
        "healthy_step_s": verdict.healthy_step_s,
        "unexplained_s": verdict.unexplained_s,
    }
    if finding is not None:
        values |= {
            "finding_id": finding.id,
            "reason": finding.reason,
            "share_s": finding.seconds.share,
            "remove_s": finding.seconds.remove,
            "add_s": finding.seconds.add,
            "predicted_step_s": finding.predicted_step_s,
            "victim_ranks": finding.victims.count,
            "victims_waited_s": finding.victims.waited_s,
            "confidence": finding.confidence.band,
            "owner": finding.owner,
            "action": finding.action,
        }
    return tuple((key, value) for key, value in values.items() if value is not None)


def _in_order(lanes: list[Lane], accused: list[int]) -> list[tuple[int | None, list[Lane]]]:
    """Return the lanes of each process: the job's, the accused ranks', the others'."""
    by_rank: dict[int | None, list[Lane]] = {}
    for lane in lanes:
        by_rank.setdefault(lane.track.rank, []).append(lane)
    order = {rank: place for place, rank in enumerate([None, *accused])}
    return sorted(by_rank.items(), key=lambda item: (order.get(item[0], len(order)), item[0] or 0))


def _name(key: JobKey, rank: int | None, places: dict[int, Place]) -> str:
    if rank is None:
        return visible(f"job {key.job}")
    place = places.get(rank)
    where = [] if place is None or place.host is None else [place.host]
    where += [] if place is None or place.pid is None else [f"pid {place.pid}"]
    return visible(f"rank {rank} ({', '.join(where)})" if where else f"rank {rank}")


def _told(file: PerfettoFile, recorded: Recorded, walked: Walked) -> str:
    steps = ""
    if recorded.steps is not None:
        steps = f" in steps {recorded.steps[0]} to {recorded.steps[1]}"
    left_out = recorded.left_out + walked.left_out + file.left_out
    missing = f", left out {left_out:,} more (--steps and --ranks choose)" if left_out else ""
    return f"{file.slices:,} slices, {walked.arrows:,} arrows, {recorded.ranks:,} ranks{steps}{missing}"


def _nothing(verdict: Verdict) -> InsufficientDataError:
    if verdict.hang is not None or verdict.kind == "hang":
        return InsufficientDataError(
            "cannot export: saw a hang that is told by dumps alone; needs recorded spans to draw",
            hint="`rootwalk diagnose STORE` says which ranks wait for which",
        )
    return InsufficientDataError(
        "cannot export: saw no step, operation or collective of these ranks and steps; needs one",
        hint="`rootwalk sql STORE 'FROM ranks'` lists what is there",
    )
