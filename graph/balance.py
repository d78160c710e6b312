"""Who was late where no host tells when collectives complete, or of any: by what each rank waited for, in sums.

    rank 0   |== own ==|------- waits -------|      waits longer than before, by what steps have grown
    rank 1   |======== own ========|- waits -|      waits no longer: the others wait for it

Steps of a job end together, so a step that takes longer is, on each rank, more of its own doing or more waiting. A host
waits blocked, or in calls of CUDA that wait for the device: there it spins, and counts as running. Where one rank waits
no longer and all others do by half of what was lost at least, they wait for that rank, and what it did longer itself
is the cause. Where all wait longer for their devices, they have something in common: who was late is not known then,
so that counts only as far as counters of every rank's device name it (`counters.refine`).

A rank is late only where its waits would be seen: its calls are counted, or it blocks as the others do. Where all
ranks spin, what it ran longer is its own doing only as far as it calls its last collective later in its steps: one that
polls runs longer as well, after that call.

Hooks in PyTorch before 2.15 tell no collectives at all: then steps of all ranks end together all the same, and ranks
that block show it.

Not told apart: a slow device of one rank, for which NCCL's kernels on the others wait as well. Nobody is named by that.
Seen on an H200 with two ranks: one late by 0.030 s a step, the calls of the other took 0.031 s longer, its own 0.004 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph.accuse import MIN_LISTED_SHARE, build_dependencies
from rootwalk.graph.analysis import Analysis
from rootwalk.graph.casefile import rounded
from rootwalk.graph.causes import CauseKey
from rootwalk.graph.columns import ThreadState
from rootwalk.graph.counters.cuda_calls import CALLS_FOR_MEMORY, LONGER_CALLS, WAITING_CALLS
from rootwalk.graph.counters.points import Place
from rootwalk.graph.counters.refine import watch_counters
from rootwalk.graph.counters.rule import Counter
from rootwalk.graph.counters.scene import Scene
from rootwalk.graph.counters.seen import Movements
from rootwalk.graph.counters.shown import points_query
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.model import Evidence
from rootwalk.graph.reasons import Reason
from rootwalk.graph.replay import Counterfactual
from rootwalk.graph.score import ScoredFinding
from rootwalk.graph.walk import Waits

__all__ = ["Balance", "weigh"]

# Of any kind: a call that cannot go on waits as well.
_ALL_CALLS: Final = tuple(replace(one, where=one.where[:1]) for one in LONGER_CALLS)
_COMPARED: Final = [ThreadState.RUNNING, ThreadState.BLOCKED]

# Parts of what steps have grown: a rank that waits longer by less is late, all others wait by more, and what a late
# rank did longer is known as far as this.
MAX_LATE_RATIO: Final = 0.25
MIN_WAIT_RATIO: Final = 0.5
MIN_KNOWN_RATIO: Final = 0.5
# So many times more calls that wait in a step, and one at least, are the rank's own doing and no longer wait; of what
# lies between the two ratios nothing is known.
MORE_CALLS: Final = 1.0
AS_MANY_RATIO: Final = 0.5
MORE_CALLS_RATIO: Final = 4.0
# A rank blocks as others do from this part of what they do, in healthy steps.
MIN_BLOCKED_RATIO: Final = 0.25
# Part of the collectives whose end is not known.
MIN_UNKNOWN_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Balance:
    """Who was late, by sums.

    Attributes:
        analysis: The window's, with what the late ranks did longer as its causes.
        is_common: No rank is late: all wait longer for their devices.
        graph: The dependency graph of that.
        evidence: Its rows.
    """

    analysis: Analysis
    is_common: bool
    graph: DependencyGraph
    evidence: tuple[Evidence, ...]

    def that_stand(self, scored: tuple[ScoredFinding, ...]) -> tuple[ScoredFinding, ...]:
        """Return the findings that say enough: that all wait for their devices says who was late only where why is."""
        if not self.is_common:
            return scored
        return tuple(one for one in scored if one.finding.reason != Reason.GLOBAL_SLOW)


def weigh(connection: Any, scene: Scene) -> Balance | None:
    """Return who was late in a window, and by what; None where sums do not tell.

    Args:
        connection: An open store.
        scene: The window; its analysis knows no waits.
    """
    ranks = sorted({int(rank) for rank in scene.data.steps.rank})
    counters = (*LONGER_CALLS, *_ALL_CALLS, *WAITING_CALLS, *CALLS_FOR_MEMORY)
    watched = watch_counters(connection, scene, counters, frozenset(ranks))
    is_known = scene.data.collectives.is_end_known
    is_told = is_known.size > 0 and np.mean(~is_known) < MIN_UNKNOWN_RATIO
    if watched is None or len(ranks) < 2 or is_told:
        return None
    window = [scene.clock.numbers[i] for i in range(scene.question.start, scene.question.stop)]
    history = [scene.clock.numbers[i] for i in scene.question.history]
    step_s = float(scene.clock.step_s[scene.question.start : scene.question.stop].mean())
    lost_s = step_s - float(np.median(scene.clock.step_s[list(scene.question.history)]))
    spent = {rank: _spent(scene, watched, rank, window, history) for rank in ranks}
    told = {rank: one for rank, one in spent.items() if one is not None}
    if lost_s <= 0.0 or len(told) < len(ranks):
        return None
    late = [rank for rank in ranks if told[rank].waits_s <= MAX_LATE_RATIO * lost_s]
    waiting = [rank for rank in ranks if told[rank].waits_s >= MIN_WAIT_RATIO * lost_s]
    if len(late) + len(waiting) < len(ranks) or 2 * len(late) > len(ranks):
        return None
    if not late:
        if min(told[rank].device_s for rank in ranks) < MIN_WAIT_RATIO * lost_s:
            return None
        common = {CauseKey(Reason.GLOBAL_SLOW, None, None): lost_s}
        return _balance(scene, _as_causes(scene.analysis, common, step_s, len(ranks)), {})
    usual_s = float(np.median([told[rank].usual_blocked_s for rank in waiting]))
    keys: dict[CauseKey, float] = {}
    for rank in late:
        blocks = told[rank].usual_blocked_s >= MIN_BLOCKED_RATIO * usual_s > 0.0
        own = _own_doing(scene, rank, told[rank].own_s, lost_s)
        if not (blocks or told[rank].is_counted) or sum(own.values()) < MIN_KNOWN_RATIO * lost_s:
            return None
        keys |= {key: seconds / len(late) for key, seconds in own.items()}
    waits = {rank: row for rank in late if (row := _row(scene, watched, rank)) is not None}
    return _balance(scene, _as_causes(scene.analysis, keys, step_s, 1, late), waits)


def _balance(scene: Scene, analysis: Analysis, waits: dict[int, Evidence]) -> Balance:
    """Write down what sums say."""
    graph, evidence = build_dependencies(scene.data, scene.clock, scene.question, analysis)
    _cite(graph, waits)
    is_common = all(key.rank is None for key in analysis.causes)
    return Balance(analysis, is_common, graph, (*evidence, *waits.values()))


def _cite(graph: DependencyGraph, waits: dict[int, Evidence]) -> None:
    """Let the causes of a graph cite how long their ranks waited."""
    for edge in list(graph.edges()):
        rank = edge.payload.attributes.get("rank")
        row = None if rank is None else waits.get(int(rank))
        if row is not None and "cause" in edge.payload.attributes:
            cited = (*edge.payload.evidence_ids, row.id)
            graph.add_edge(edge.source, edge.target, replace(edge.payload, evidence_ids=cited))


def _row(scene: Scene, watched: Movements, rank: int) -> Evidence | None:
    """Return how long a rank waits in calls of CUDA, beside the others; None where that is not counted."""
    for counter in LONGER_CALLS:
        times = watched.of(counter)
        place = _place(scene, rank)
        if place in times and len(times) > 1:
            others = [time.value for where, time in times.items() if where != place]
            span = scene.unix_span(watched.spans)
            return Evidence(
                id=f"{counter.signal}/rank{rank}/waits",
                signal=str(counter.signal),
                value=rounded(times[place].value),
                unit="s",
                peers=rounded(float(np.median(others))),
                history=rounded(times[place].history),
                z=rounded(times[place].z),
                trace_id=None,
                span_id=None,
                query=points_query(scene, counter, place, span),
                attributes={},
            )
    return None


def _place(scene: Scene, rank: int) -> Place:
    row = scene.data.host_of(rank)
    return Place("" if row is None else row.host_id, rank)


@dataclass(frozen=True, slots=True)
class _Spent:
    """How much longer a rank did something in a slow step than in a healthy one, seconds.

    Attributes:
        waits_s: Waited, blocked or in calls of CUDA.
        device_s: Waited in calls of CUDA.
        own_s: Ran otherwise, as far as it called its last collective later.
        usual_blocked_s: Was blocked in a healthy step.
        is_counted: Its calls of CUDA are counted, wherever those of others are.
    """

    waits_s: float
    device_s: float
    own_s: float
    usual_blocked_s: float
    is_counted: bool


def _spent(
    scene: Scene, watched: Movements, rank: int, window: list[int], history: list[int]
) -> _Spent | None:
    """Return what a rank did longer; None where that is not known."""
    steps, device_s = scene.data.steps, _device_s(scene, watched, rank)
    mine = (steps.rank == rank) & ~np.isnan(steps.states[:, ThreadState.RUNNING])
    now, before = (
        steps.states[mine & np.isin(steps.step, chosen)][:, _COMPARED]
        for chosen in (window, history)
    )
    if device_s is None or not now.size or not before.size:
        return None
    running_s, blocked_s = (now.mean(axis=0) - before.mean(axis=0)).tolist()
    place = _place(scene, rank)
    layers = [times for one in LONGER_CALLS if (times := watched.of(one))]
    return _Spent(
        waits_s=max(blocked_s, device_s),
        device_s=device_s,
        own_s=min(running_s - device_s, _later_s(scene, rank, window, history)),
        usual_blocked_s=float(before[:, 1].mean()),
        is_counted=bool(layers) and all(place in times for times in layers),
    )


def _later_s(scene: Scene, rank: int, window: list[int], history: list[int]) -> float:
    """Return how much later in its own steps a rank calls the last collective; 0 where it has none, though others do.

    Of a job whose collectives nobody tells there is no limit.
    """
    rows, steps = scene.data.collectives, scene.data.steps
    if not rows.rank.size:
        return float("inf")
    mine = rows.rank == rank
    begin_s = dict(
        zip(steps.step[steps.rank == rank].tolist(), steps.start_s[steps.rank == rank], strict=True)
    )
    last_s: dict[int, float] = {}
    for step, start_s in zip(rows.step[mine].tolist(), rows.start_s[mine].tolist(), strict=True):
        if step in begin_s:
            last_s[step] = max(last_s.get(step, 0.0), start_s - float(begin_s[step]))
    now, before = (
        [last_s[step] for step in chosen if step in last_s] for chosen in (window, history)
    )
    return float(np.mean(now) - np.mean(before)) if now and before else 0.0


def _device_s(scene: Scene, watched: Movements, rank: int) -> float | None:
    """Return how much longer a step a rank was in as many calls of CUDA; 0 where they are not counted.

    None where there are more of those that wait, but not so many that they are its own doing. Time in many more calls
    for memory is its own doing as well.
    """
    place, grown = _place(scene, rank), [0.0]
    for counter, calls, memory in zip(_ALL_CALLS, WAITING_CALLS, CALLS_FOR_MEMORY, strict=True):
        time, number = watched.of(counter).get(place), watched.of(calls).get(place)
        if time is None or number is None:
            continue
        if number.growth < MORE_CALLS or number.ratio < AS_MANY_RATIO:
            grown.append(time.growth - _asked_s(watched, memory, place))
        elif number.ratio < MORE_CALLS_RATIO:
            return None
    return max(grown)


def _asked_s(watched: Movements, memory: Counter, place: Place) -> float:
    """Return how much longer a step a rank was in calls for memory, where it makes many more of them than before."""
    time = watched.of(memory).get(place)
    number = None if memory.number is None else watched.of(memory.number).get(place)
    if time is None or number is None or number.growth < MORE_CALLS:
        return 0.0
    return time.growth if number.value >= MORE_CALLS_RATIO * number.history else 0.0


def _own_doing(scene: Scene, rank: int, running_s: float, lost_s: float) -> dict[CauseKey, float]:
    """Return what a late rank did longer itself, seconds a step, no more together than was lost.

    Args:
        scene: The window.
        rank: The late one.
        running_s: How much longer it ran in a step by its own doing.
        lost_s: What a step lost.
    """
    amounts, count = scene.analysis.amounts, len(scene.analysis.window.step_numbers)
    known = {
        key: amounts.total_s(key) / count
        for key in amounts.values
        if key.rank == rank and key.reason not in (Reason.UNKNOWN_NET, Reason.UNKNOWN_HOST)
    }
    found: dict[CauseKey, float] = {}
    left_s = lost_s
    for key in sorted(known, key=lambda key: (-known[key], key.sort_key())):
        if min(known[key], left_s) >= MIN_LISTED_SHARE * lost_s:
            found[key] = min(known[key], left_s)
            left_s -= found[key]
    if sum(found.values()) < MIN_KNOWN_RATIO * lost_s <= running_s:
        # The others spin while they wait, and it looks as if all ranks worked more.
        key = CauseKey(Reason.WORK_IMBALANCE, rank, None)
        found[key] = found.get(key, 0.0) + min(running_s, left_s)
    return found


def _as_causes(
    analysis: Analysis,
    seconds: dict[CauseKey, float],
    step_s: float,
    ranks: int,
    late: Sequence[int] = (),
) -> Analysis:
    """Return an analysis with causes of known cost.

    Args:
        analysis: The window's.
        seconds: What each cause cost a step.
        step_s: Of the window.
        ranks: How many a cause is of.
        late: The late ranks: with one of several gone, steps take as long.
    """
    keys = sorted(seconds, key=lambda key: (-seconds[key], key.sort_key()))
    shares = tuple(seconds[key] for key in keys)
    told = (*shares, 0.0)  # nothing is left over
    removed = told if len(late) < 2 else (0.0,) * len(told)
    return replace(
        analysis,
        waits=Waits({}, {}),
        history_waits=None,
        causes=tuple(keys),
        cause_s=tuple(share * ranks for share in shares),
        cause_path_s=shares,
        counterfactual=Counterfactual(step_s, step_s - sum(shares), told, removed, told),
        slack_s=0.0,
    )
