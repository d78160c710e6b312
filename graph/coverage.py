"""Whether a healthy verdict is earned: the steps of all ranks reach to the end of what the store has of the job.

    rank 0   --- step 98 --- step 99 --- step 100 ---|
    rank 1   --- step 98 ---|                             no step since: not healthy, though nothing was slow

Every path to `healthy` goes through here. Pure, on what `ends.case` has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rootwalk.graph.ends.case import EndCase, Reach
from rootwalk.graph.ends.events import LastStep
from rootwalk.graph.ends.failure import EndKind, long_wait_ns
from rootwalk.graph.ends.words import listed
from rootwalk.graph.model import DataQuality, Outcome, QualityCode, Verdict

__all__ = ["check_earned", "find_unearned"]

# Telemetry that is still on its way: agents send ranks' steps once a second, and the receiver stores them in batches;
# a rank's last step may be missing for so long while the job goes on.
IN_FLIGHT_STEPS: Final = 2
IN_FLIGHT_NS: Final = 5_000_000_000
# A job that was ended from outside ends in the middle of a step, which some of its ranks have completed.
CUT_STEPS: Final = 1
_CUT: Final = (EndKind.INTERRUPTED, EndKind.TERMINATED)


def check_earned(
    verdict: Verdict, reach: Reach, case: EndCase | None, window_end: int | None = None
) -> Verdict:
    """Return a verdict that calls a job healthy only where all of its ranks' records reach its end.

    Args:
        verdict: Any verdict, with its job's end.
        reach: How far the records reach.
        case: How the job ended; None while it goes on, or where that is not known.
        window_end: The last step that was asked for; None where the verdict is about the job's last steps.
    """
    if verdict.outcome != Outcome.HEALTHY:
        return verdict
    problems = find_unearned(reach, case, window_end)
    if not problems:
        return verdict
    known = {(item.code, item.text) for item in problems}
    told = [item for item in verdict.data_quality if (item.code, item.text) not in known]
    return replace(
        verdict,
        outcome=Outcome.INSUFFICIENT_EVIDENCE,
        data_quality=(*problems, *told),
    )


def find_unearned(
    reach: Reach, case: EndCase | None, window_end: int | None = None
) -> tuple[DataQuality, ...]:
    """Return what stands against calling a job healthy; empty where nothing does. Arguments as of `check_earned`."""
    problems = [*_missing_ranks(reach), *_cut_ranks(reach, case, window_end)]
    if window_end is None:
        problems += _silent(reach)
        problems += [*_still(reach, case), *_failed(case)]
    return tuple(problems)


def _missing_ranks(reach: Reach) -> list[DataQuality]:
    """Return an item where a job has ranks that never completed a step, or of which nothing was ever sent."""
    steps = reach.events.last_steps
    seen = steps.keys() if steps else {place.rank for place in reach.ranks}
    known = {place.rank for place in reach.ranks} | steps.keys()
    if not known:
        return []
    world = max(reach.key.world_size or 0, max(known) + 1 if reach.key.world_size else 0)
    missing = sorted((known | set(range(world))) - seen)
    if not missing:
        return []
    text = f"no complete step from {len(missing)} of {max(world, len(known))} ranks ({_numbers(missing)})"
    return [DataQuality(QualityCode.RANK_MISSING, text, len(missing))]


def _cut_ranks(reach: Reach, case: EndCase | None, window_end: int | None) -> list[DataQuality]:
    """Return an item where ranks lack steps that others have completed."""
    steps = dict(reach.events.last_steps)
    if not steps:
        return []
    latest = max(step.number for step in steps.values())
    if window_end is not None:
        latest = min(latest, window_end)
    behind = {rank: step for rank, step in steps.items() if step.number < latest}
    late = {
        rank: step
        for rank, step in behind.items()
        if not _is_in_flight(reach, case, steps, step, latest)
    }
    if not late:
        return []
    worst = min(late, key=lambda rank: (late[rank].number, rank))
    last_ns = max(step.end_ns for step in steps.values())
    ago_s = (last_ns - late[worst].end_ns) / 1e9
    text = (
        f"rank {worst} has no step after step {late[worst].number}, {ago_s:.1f} s before the last step of others"
        f" (step {latest})"
    )
    if len(late) > 1:
        others = [rank for rank in sorted(late) if rank != worst]
        text += f"; {listed(others)} lack{'s' * (len(others) == 1)} steps too"
    return [DataQuality(QualityCode.RANK_MISSING, text, len(late))]


def _silent(reach: Reach) -> list[DataQuality]:
    """Return an item where ranks or hosts without known steps went silent long before others did."""
    records = reach.last_records
    if not records:
        return []
    latest_ns = max(record.time_ns for record in records.values())
    flight_ns = 0 if reach.is_imported else IN_FLIGHT_NS
    silent = {
        name: latest_ns - record.time_ns
        for name, record in records.items()
        if latest_ns - record.time_ns > max(IN_FLIGHT_STEPS * record.gap_ns, flight_ns)
    }
    if not silent:
        return []
    worst = max(silent, key=lambda name: (silent[name], name))
    text = f"nothing from {worst} in the last {silent[worst] / 1e9:.1f} s of the job's records"
    if len(silent) > 1:
        text += f"; {len(silent) - 1} more went silent before the others"
    return [DataQuality(QualityCode.RANK_MISSING, text, len(silent))]


def _is_in_flight(
    reach: Reach,
    case: EndCase | None,
    steps: Mapping[int, LastStep],
    step: LastStep,
    latest: int,
) -> bool:
    """Return whether a rank's later steps may be on their way, or were cut off by the end of the job."""
    if case is not None:
        return case.failure.kind in _CUT and latest - step.number <= CUT_STEPS
    if latest - step.number <= IN_FLIGHT_STEPS:
        return True
    if reach.is_imported:
        return False
    last_ns = max(other.end_ns for other in steps.values())
    return last_ns - step.end_ns <= max(IN_FLIGHT_STEPS * reach.usual_step_ns, IN_FLIGHT_NS)


def _still(reach: Reach, case: EndCase | None) -> list[DataQuality]:
    """Return an item where a job made no progress for long before its end, or before the end of its telemetry."""
    steps = reach.events.last_steps
    if not steps:
        return []
    last_ns = max(step.end_ns for step in steps.values())
    if case is None:
        until_ns, of = max(reach.last_seen_ns.values(), default=last_ns), "its telemetry goes on"
    elif case.failure.kind is EndKind.COMPLETED:
        return []
    else:
        until_ns, of = case.failure.time_ns, "it was ended"
    if until_ns - last_ns <= long_wait_ns(reach.usual_step_ns):
        return []
    text = f"no rank completed a step in the last {(until_ns - last_ns) / 1e9:.1f} s, until {of}"
    if case is None:
        text = f"no rank has completed a step for {(until_ns - last_ns) / 1e9:.1f} s, and {of}"
    return [DataQuality(QualityCode.NO_PROGRESS, text, None)]


def _failed(case: EndCase | None) -> list[DataQuality]:
    """Return an item where a job did not end well, and nobody asked for its end at its terminal."""
    if case is None or case.failure.kind in (EndKind.COMPLETED, EndKind.INTERRUPTED):
        return []
    text = "the job did not end well, and no rank is known to have failed first"
    if case.failure.kind is EndKind.TERMINATED:
        text = "the job was ended by a signal to all of it"
    return [DataQuality(QualityCode.JOB_FAILED, text, None)]


def _numbers(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
