"""Which rank ended its job, and how: the first one that failed by itself, not those that went because of it.

    rank 1   --- step 99 ---| ValueError                            |code 1
    rank 0   --- step 99 --- waits ---- RuntimeError (connection closed)| code 1
    rank 2   --- step 99 --- waits ------------------------------------------| SIGTERM by the launcher

Where nothing but lost connections, time-outs and signals to all ranks are seen, no rank is named. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rootwalk.graph.ends.departures import (
    CRASH_SIGNALS,
    MAX_ENDING_NS,
    Departure,
    Manner,
    find_departures,
)
from rootwalk.graph.ends.events import LastStep, ProcessEvents, RunEnd

__all__ = ["STILL_NS", "EndKind", "JobFailure", "find_failure", "long_wait_ns"]

# A rank that sees a broken connection and the peer that broke it fail within this of each other, whatever is seen
# first: a process that is gone is noticed once a second, and its exception is sent after a second at most.
YIELD_NS: Final = 5_000_000_000
# Nothing says when the user asked for the end: ranks that failed long before were not ended by that.
UNKNOWN_WISH_NS: Final = 10_000_000_000
# A rank that has completed no step for longer than this, and than three of its steps, waited for something.
STILL_NS: Final = 10_000_000_000
STILL_STEPS: Final = 3
# Processes that were only found missing, once a second, ended in no order that can be trusted.
UNSEEN_END_NS: Final = 1_000_000_000


class EndKind(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    CRASH = "crash"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    RANK_GONE = "rank_gone"
    ABORTED = "aborted"
    COMMAND_KILLED = "command_killed"
    COMMAND_FAILED = "command_failed"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class JobFailure:
    """How a job ended.

    Attributes:
        kind: How.
        culprit: How the rank left that failed first; None where no rank did, or nothing says which.
        rivals: Ranks that failed at the same time, as far as clocks can tell.
        alike: Ranks that failed in the same way at the same place: the program is the cause.
        victims: Ranks that went because of it.
        run: The end of the command, None where nothing is known of it.
        time_ns: When.
    """

    kind: EndKind
    culprit: Departure | None
    rivals: tuple[int, ...]
    alike: tuple[int, ...]
    victims: tuple[int, ...]
    run: RunEnd | None
    time_ns: int


def long_wait_ns(usual_step_ns: float) -> float:
    """Return how long a rank may go without completing a step before it counts as standing still, ns."""
    return max(STILL_STEPS * usual_step_ns, STILL_NS)


def find_failure(
    events: ProcessEvents,
    *,
    usual_step_ns: float,
    uncertainty_ns: float,
    is_aligned: bool,
    last_seen_ns: Mapping[int, int] | None = None,
    world_size: int | None = None,
) -> JobFailure | None:
    """Return how a job ended; None while it goes on, or where nothing is known of its end.

    Args:
        events: What happened to the job's processes.
        usual_step_ns: The length of a step, 0 without steps.
        uncertainty_ns: Of times of different hosts.
        is_aligned: Whether times of different hosts can be compared.
        last_seen_ns: When anything was last sent about each rank: ranks that went silent are gone with their hosts.
        world_size: Number of ranks, None where unknown.
    """
    departures = find_departures(events)
    run = _last_run(events)
    ended = {one.rank for one in departures if one.end is not None}
    is_over = run is not None or _are_all_gone(events, ended, world_size)
    bad = [one for one in departures if one.manner is not Manner.WELL]
    if run is not None and (run.exit_code == 0 or (not bad and _is_well(run))):
        return JobFailure(EndKind.COMPLETED, None, (), (), (), run, run.time_ns)
    if not bad and run is None:
        if not is_over or not departures:
            return None
        return JobFailure(EndKind.COMPLETED, None, (), (), (), None, departures[-1].time_ns)
    gone = _gone(events, departures, last_seen_ns or {}, usual_step_ns)
    own = [*(one for one in bad if one.manner is not Manner.ASKED), *gone]
    own.sort(key=lambda one: (one.time_ns, one.rank))
    if not is_over and not _has_stopped(events, own):
        return None
    if run is None and not _is_known_bad(own, is_over, last_seen_ns or {}, usual_step_ns):
        return None
    wish_ns = _wish_ns(events, run, bad)
    own = [one for one in own if wish_ns is None or one.time_ns < wish_ns]
    if run is not None and run.signal is not None and len(ended | events.last_steps.keys()) > 1:
        # The ranks of a launcher that was killed lose it, and end after it.
        own = [one for one in own if one.time_ns <= run.time_ns]
    culprit = _first(
        *(own, events.last_steps, usual_step_ns), uncertainty_ns if is_aligned else None
    )
    if culprit is None:
        return _nobody(events, run, bad, own)
    rivals, alike = _rivals(own, culprit, uncertainty_ns)
    victims = tuple(sorted({one.rank for one in bad} - {culprit.rank, *rivals, *alike}))
    kind = EndKind.RANK_GONE if culprit in gone else kind_of(culprit)
    return JobFailure(kind, culprit, rivals, alike, victims, run, culprit.time_ns)


def kind_of(departure: Departure) -> EndKind:
    """Return how a rank that failed by itself did."""
    if departure.exception is not None:
        return EndKind.EXCEPTION
    if departure.signal in CRASH_SIGNALS:
        return EndKind.CRASH
    if departure.signal is not None:
        return EndKind.KILLED
    return EndKind.EXIT_CODE if departure.exit_code is not None else EndKind.RANK_GONE


def _is_well(run: RunEnd) -> bool:
    return run.exit_code == 0 and run.signal is None


def _last_run(events: ProcessEvents) -> RunEnd | None:
    """Return the end of the command; of several hosts' commands, the first one that did not end well."""
    bad = [run for run in events.run_ends if not _is_well(run)]
    return bad[0] if bad else events.run_ends[-1] if events.run_ends else None


def _are_all_gone(events: ProcessEvents, ended: set[int], world_size: int | None) -> bool:
    known = ended | events.last_steps.keys()
    return bool(ended) and ended == known and len(ended) >= (world_size or 0)


def _has_stopped(events: ProcessEvents, own: Sequence[Departure]) -> bool:
    """Return whether no rank began a step after the first one had failed: a job that goes on has not ended by it."""
    return bool(own) and not any(
        step.start_ns > own[0].time_ns for step in events.last_steps.values()
    )


def _is_known_bad(
    own: Sequence[Departure],
    is_over: bool,
    last_seen_ns: Mapping[int, int],
    usual_step_ns: float,
) -> bool:
    """Return whether ends of which only the absence was noticed may have been bad: others went on long after them."""
    if not own or not all(_is_unseen(one) for one in own):
        return True
    latest_ns = max(last_seen_ns.values(), default=0)
    return not is_over and latest_ns - own[0].time_ns > long_wait_ns(usual_step_ns)


def _gone(
    events: ProcessEvents,
    departures: Sequence[Departure],
    last_seen_ns: Mapping[int, int],
    usual_step_ns: float,
) -> list[Departure]:
    """Return the ranks whose telemetry stops, without an end, well before the others' does."""
    known, steps = {one.rank for one in departures}, events.last_steps
    if not known or not last_seen_ns:
        return []
    latest_ns = max(last_seen_ns.values())
    silent = [
        rank
        for rank, seen_ns in last_seen_ns.items()
        if rank not in known and latest_ns - seen_ns > long_wait_ns(usual_step_ns)
    ]
    return [
        Departure(
            *(rank, last_seen_ns[rank], steps[rank].host_id, steps[rank].host_name),
            *(None, Manner.FAILED),
        )
        for rank in sorted(silent)
        if rank in steps
    ]


def _wish_ns(events: ProcessEvents, run: RunEnd | None, bad: Sequence[Departure]) -> int | None:
    """Return when somebody first wanted the job to end, of the minute before its last rank left; None for never."""
    times = [sent.time_ns for sent in events.signals if sent.name in ("SIGINT", "SIGQUIT")]
    times += [one.time_ns for one in bad if one.manner is Manner.ASKED]
    last_ns = max([one.time_ns for one in bad] + ([] if run is None else [run.time_ns]))
    near = [time_ns for time_ns in times if time_ns >= last_ns - MAX_ENDING_NS]
    if near:
        return min(near)
    return None if run is None or run.ended_by == "command" else run.time_ns - UNKNOWN_WISH_NS


def _first(
    own: Sequence[Departure],
    last_steps: Mapping[int, LastStep],
    usual_step_ns: float,
    uncertainty_ns: float | None,
) -> Departure | None:
    """Return the rank that failed first by itself; None where nothing says which.

    `uncertainty_ns` is None where times of different hosts cannot be compared.
    """
    if not own:
        return None
    strong = [one for one in own if one.manner is Manner.FAILED]
    if uncertainty_ns is None and len({one.host_id for one in own}) > 1:
        # A launcher's kill of a rank that remained looks like one that came first.
        strong = [one for one in strong if not one.is_from_outside]
        return strong[0] if len(strong) == 1 else None
    first = own[0]
    if first.manner is Manner.FAILED:
        return first
    for one in strong:
        # The kernel closes the connections of a killed process at once; a later kill is a launcher's.
        kill_ns = 0.0 if one.host_id == first.host_id else uncertainty_ns or 0.0
        limit_ns = kill_ns if one.is_from_outside else YIELD_NS
        if one.time_ns - first.time_ns <= limit_ns:
            return one
    if _waited(first, last_steps, usual_step_ns):
        return None
    # A lost connection says that another rank was lost, of which nothing is known.
    return None if _is_connection(first) else first


def _is_connection(one: Departure) -> bool:
    """Return whether an exception says by itself, or by where it was raised, that a peer was lost."""
    if one.exception is None:
        return False
    name = one.exception.type_name.rpartition(".")[2]
    in_collective = any("distributed_c10d" in frame for frame in one.exception.frames)
    return name != "RuntimeError" or in_collective


def _waited(one: Departure, last_steps: Mapping[int, LastStep], usual_step_ns: float) -> bool:
    """Return whether a rank had stood still for long before it failed, as one that ran into a time-out."""
    step = last_steps.get(one.rank)
    if step is None or (one.exception is None and one.signal != "SIGABRT"):
        return False
    return one.time_ns - step.end_ns > long_wait_ns(usual_step_ns)


def _rivals(
    own: Sequence[Departure], culprit: Departure, uncertainty_ns: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that failed at the same time, and those of all that failed in the very same way."""
    rivals, alike = set(), set()
    for one in own:
        if one.rank == culprit.rank or one.manner is not culprit.manner:
            continue
        if _is_alike(one, culprit):
            alike.add(one.rank)
            continue
        limit_ns = 0.0 if one.host_id == culprit.host_id else uncertainty_ns
        if _is_unseen(one) or _is_unseen(culprit):
            limit_ns = max(limit_ns, UNSEEN_END_NS)
        if abs(one.time_ns - culprit.time_ns) <= limit_ns:
            rivals.add(one.rank)
    return tuple(sorted(rivals)), tuple(sorted(alike))


def _is_alike(one: Departure, other: Departure) -> bool:
    mine, its = one.exception, other.exception
    return (
        mine is not None
        and its is not None
        and abs(mine.time_ns - its.time_ns) <= YIELD_NS
        and (mine.type_name, mine.frames[:1]) == (its.type_name, its.frames[:1])
    )


def _is_unseen(one: Departure) -> bool:
    """Return whether only the absence of a process was noticed."""
    return one.exception is None and one.exit_code is None and one.signal is None


def _nobody(
    events: ProcessEvents, run: RunEnd | None, bad: Sequence[Departure], own: Sequence[Departure]
) -> JobFailure | None:
    """Return how a job ended that no rank ended by itself."""
    victims = tuple(sorted({one.rank for one in bad}))
    time_ns = run.time_ns if run is not None else bad[0].time_ns
    kind = EndKind.COMMAND_FAILED
    if run is not None and run.ended_by == "user":
        kind = EndKind.INTERRUPTED
    elif run is not None and run.ended_by == "signal":
        kind = EndKind.TERMINATED
    elif run is not None and run.signal is not None:
        kind = EndKind.COMMAND_KILLED
    elif own and any(one.signal == "SIGABRT" or one.exception is not None for one in own):
        kind = EndKind.ABORTED
    elif run is None and not own:
        by_user = any(sent.name == "SIGINT" for sent in events.signals) or any(
            one.exception is not None and one.exception.type_name == "KeyboardInterrupt"
            for one in bad
        )
        kind = EndKind.INTERRUPTED if by_user else EndKind.TERMINATED
    return JobFailure(kind, None, (), (), victims, run, time_ns)
