"""Write down which counters tell more of a cause that the scheduler's records leave open.

    job -slowed_by-> communicator -transfers_over-> link          lost, congested, gone down, slower
    thread -slowed_by-> hypervisor | clock | swap                 instead of -running-> or -blocked-> host
    job -slowed_by-> hosts -slowed_by-> compiler | allocator      what all ranks have alike

Adds nodes, edges and evidence beside those of the cause; score decides from the stored graph. Take such an edge away,
and the finding falls back to what it refined.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from rootwalk.graph.counters.inclusion import included_ends, together
from rootwalk.graph.counters.movement import Movement, StepSpans, sums
from rootwalk.graph.counters.points import Place, Readings, read_points
from rootwalk.graph.counters.rank_devices import gpu_name
from rootwalk.graph.counters.rule import Counter, CounterRule, Formula, Kind
from rootwalk.graph.counters.rules import COUNTER_RULES
from rootwalk.graph.counters.scene import Scene, find_spans, usual_of
from rootwalk.graph.counters.seen import (
    ALIKE,
    MIN_OVERLAP,
    UNMOVED,
    Movements,
    Seen,
    has_moved,
    is_common,
    look,
    rank_of,
    reason_of,
    seen_beside,
    size_of,
)
from rootwalk.graph.counters.shown import add_row
from rootwalk.graph.counters.starved import (
    is_beside_unseen,
    is_of_peer,
    is_starved,
    refute,
    starved_counters,
    unseen_losses,
)
from rootwalk.graph.counters.weigh import REFINES
from rootwalk.graph.dependencies import DependencyGraph, Edge, node_id
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, Evidence, NodePayload
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.instrumentation import semconv

__all__ = ["refine", "watch_counters"]

# How closely the counter must follow the time of the steps.
MIN_DOSE = 0.3
# What physics allows must be at least this part of the seconds that there are to be explained.
MIN_EXPLAINED = 0.5
# A counter of which nobody knows what one of it costs must move at least so often in a slow step; of what a time is the
# time of there must be so many more.
MIN_UNPRICED = 1.0
# So many calls in a step are one in each: the edges of looks and of steps are not the same.
MIN_EVERY_STEP = 0.5
# So much more in the mean is more, where it is not what a look at each end of the slow steps may have added.
MORE_RATIO, EDGES_S = 0.2, 4.0
# Nor is what such a level allows a bottleneck before it is this much less than before, or a load one before it is this
# much more.
_LEAST = {Kind.FALL: 3.0, Kind.RISE: 0.5, Kind.DROP: 3.0}
# Of what is counted, one more has come once it is nearer to one than to none.
MIN_COME = 0.5
# Who counted where none of our sensors did: it makes no verdict surer that these were there.
OTHERS_SENSOR = "other_producers"
_EVENTS = (Kind.EVENT, Kind.SINCE, Kind.ARISEN)


def refine(
    connection: Any,
    scene: Scene,
    graph: DependencyGraph,
    evidence: tuple[Evidence, ...],
) -> tuple[Evidence, ...]:
    """Add to a graph what counters say of its causes, and return the evidence with theirs.

    Args:
        connection: An open store.
        scene: The window.
        graph: The dependency graph; nodes and edges are added.
        evidence: Its rows.
    """
    wanted = frozenset().union(*(rule.refines for rule in COUNTER_RULES))
    every = [edge for edge in graph.edges() if "cause" in edge.payload.attributes]
    ends = [edge for edge in every if reason_of(edge) in wanted]
    spans = find_spans(scene.clock, scene.question)
    if not ends or spans is None:
        return evidence
    rules = [r for r in COUNTER_RULES if any(reason_of(end) in r.refines for end in ends)]
    ranks = frozenset(rank for end in ends if (rank := rank_of(end)) is not None)
    counters = [counter for rule in rules for counter in rule.all_counters]
    counters += starved_counters(ends)
    watched = _read(connection, scene, spans, counters, scene.hosts(ranks))
    readings, rows = watched.readings, {row.id: row for row in evidence}
    unseen = unseen_losses(scene.data.steps, ends)
    for end in ends:
        if is_starved(watched, end, unseen):
            refute(graph, end)
            continue
        usual = usual_of(scene, rank_of(end))
        asked = [rule for rule in rules if _may_ask(scene, rule, end)]
        seen = {r.reason: look(scene, watched, r, end, usual) for r in asked}
        told = {
            reason: [one for one in found if not _is_charged(one)] for reason, found in seen.items()
        }
        share_s = float(end.payload.attributes["share_s"] or 0.0)
        is_open, is_told = is_beside_unseen(end, unseen), False
        moved = {r for r, found in told.items() if any(_may_be_it(one, share_s) for one in found)}
        for rule in asked:
            found = [one for one in seen[rule.reason] if _speaks(rule, one, share_s)]
            found = [one for one in found if not (is_open and is_of_peer(one))]
            needed = {one.place: _needed(watched, rule, one, share_s) for one in found}
            found = [one for one in found if needed[one.place] is not None]
            waits = {one.place: _waits(watched, rule, one, end) for one in found}
            found = [one for one in found if _is_waited_for(waits[one.place], rule, end)]
            found = [one for one in found if _is_quiet(watched, rule, one, end)]
            found = [one for one in found if not _is_there(readings, spans, rule, one)]
            if found and not moved & rule.excluded_by:
                best = max(found, key=lambda one: _strength(one))
                quiet = [one for other in rule.excluded_by for one in told.get(other, ())]
                quiet = [one for one in quiet if not _is_same(one, best) and one.number is None]
                beside = [*waits[best.place], *(needed[best.place] or ())]
                spoken_of = [end, *included_ends(rule, end, every)]
                _add(scene, graph, rows, spoken_of, rule, [best, *beside], quiet, spans)
                is_told = True
        if is_open and not is_told:
            refute(graph, end)
    return tuple(rows[item] for item in sorted(rows))


def _may_ask(scene: Scene, rule: CounterRule, end: Edge) -> bool:
    """Return whether a rule comes out of a cause; of strangers in all ranks' way no counter of ranks tells more."""
    is_crowd = is_common(end) and reason_of(end) is Reason.CPU_CONTENTION
    is_asked = reason_of(end) in rule.refines and not is_crowd
    return is_asked and not (rule.unless and rule.unless in scene.data.readers(rank_of(end)))


def _is_charged(seen: Seen) -> bool:
    """Return whether a counter speaks of all ranks' CPUs: what these cost is charged to all, and to no single cause."""
    return seen.counter.signal is Signal.CPU_PROBE and seen.is_alike


def watch_counters(
    connection: Any, scene: Scene, counters: Sequence[Counter], ranks: Collection[int]
) -> Movements | None:
    """Return how some counters moved in a window on some ranks' hosts; None without a history of the job's own."""
    spans = find_spans(scene.clock, scene.question)
    if spans is None:
        return None
    hosts = dict.fromkeys(row.host_id for row in scene.data.ranks if row.rank in ranks)
    return _read(connection, scene, spans, counters, list(hosts))


def _read(
    connection: Any,
    scene: Scene,
    spans: StepSpans,
    counters: Sequence[Counter],
    hosts: Sequence[str],
) -> Movements:
    """Read what some counters, and the numbers that go with them, told."""
    numbers = [one.number for one in counters if one.number is not None]
    names = {str(counter.signal) for counter in (*counters, *numbers)}
    names.add(semconv.METRIC_TRAINING_GPU_PCIE_WIDTH)  # with the address of each GPU
    readings = read_points(
        connection,
        (scene.data.job, scene.data.attempt),
        names,
        hosts,
        scene.unix_span(spans),
        (scene.data.origin_unix_ns, scene.offset_s_by_host),
        scene.data.ranks,
    )
    return Movements(readings, spans)


def _may_be_it(seen: Seen, share_s: float) -> bool:
    """Return whether a counter moved, and by no less than the cause of so many seconds has to explain."""
    seconds = seen.cost.seconds
    return has_moved(seen) and (seconds is None or seconds >= MIN_EXPLAINED * share_s)


def _speaks(rule: CounterRule, seen: Seen, share_s: float) -> bool:
    """Return whether a counter may be called the cause: time, dose, place and seconds agree."""
    is_alike = seen.is_alike and not seen.counter.is_of_move
    if not has_moved(seen) or (rule.stands_out and is_alike):
        return False
    if seen.number is not None and seen.number.movement.growth < MIN_UNPRICED:
        return False
    if seen.counter.kind in UNMOVED:
        return True
    dose = seen.movement.dose
    if seen.counter.kind not in _EVENTS and (dose is None or dose < MIN_DOSE):
        return False
    if seen.cost.seconds is not None:
        return seen.cost.seconds >= MIN_EXPLAINED * share_s
    if seen.counter.formula is not Formula.NONE:
        return False
    if seen.counter.kind in _LEAST:
        return seen.movement.settled >= _LEAST[seen.counter.kind]
    if seen.counter.kind is Kind.COUNT:
        return seen.movement.settled * seen.movement.history >= MIN_COME
    return seen.counter.kind in _EVENTS or seen.movement.growth >= MIN_UNPRICED


def _needed(watched: Movements, rule: CounterRule, seen: Seen, share_s: float) -> list[Seen] | None:
    """Return what speaks beside a rule's counters; None where what it needs is not there.

    That is as much as the slow steps lost, or what moved with them; where nobody counts it, what stands for it.
    """
    if rule.needs is None:
        return []
    rank = seen.place.rank if rule.needs.is_of_rank else None
    device = seen.place.device if rule.needs.device is not None else None
    place = Place(seen.place.host_id, rank, device)
    if rule.needs_else is not None and place not in watched.readings.of(rule.needs):
        return _instead(watched, rule.needs_else, seen.place)
    needed = watched.of(rule.needs).get(place)
    if needed is None:
        return None
    if rule.needs_alike:
        moved = seen.movement.growth
        is_there = needed.growth >= ALIKE * moved and needed.overlap >= MIN_OVERLAP
        others = [m for where, m in watched.of(rule.needs).items() if where != place]
        return [seen_beside(rule.needs, place, needed, others)] if is_there else None
    if not rule.needs_more:
        is_there = needed.value >= share_s
    elif rule.needs.kind in _LEAST:
        is_there = needed.ratio >= _LEAST[rule.needs.kind] and needed.overlap >= MIN_OVERLAP
    else:
        is_there = needed.growth >= share_s and needed.overlap >= MIN_OVERLAP
    return [] if is_there else None


def _instead(watched: Movements, counter: Counter, place: Place) -> list[Seen] | None:
    """Return what was told of a place before the slow steps and stood still in them; None where nothing was."""
    spans, movements = watched.spans, watched.of(counter)
    told = watched.readings.of(counter).get(place, [])
    first_s = min((float(one.time_s[0]) for one in told if one.time_s.size), default=np.inf)
    if place not in movements or first_s > spans.start_s[spans.quiet]:
        return None
    others = [movement for where, movement in movements.items() if where != place]
    return [seen_beside(counter, place, movements[place], others)]


def _waits(watched: Movements, rule: CounterRule, seen: Seen, end: Edge) -> list[Seen]:
    """Return the times of the calls in which the lost time must have passed, where every slow step makes some.

    Of what all ranks have alike it is the rank whose time grew least, where all of them make such calls.
    """
    found, rank = [], rank_of(end)
    for counter, number in ((one, one.number) for one in rule.waits if one.number is not None):
        times, calls = watched.of(counter), watched.of(number)
        counted = [
            place
            for place in times
            if place in calls and calls[place].value >= MIN_EVERY_STEP and place.rank is not None
        ]
        if is_common(end):
            own = counted if len(counted) == len(times) else []
        else:
            own = [place for place in counted if place == Place(seen.place.host_id, rank)]
        if own:
            least = min(own, key=lambda place: (times[place].growth, str(place)))
            others = [time for where, time in times.items() if where != least]
            found.append(seen_beside(counter, least, times[least], others))
    return found


def _is_waited_for(waits: list[Seen], rule: CounterRule, end: Edge) -> bool:
    """Return whether the lost time may have passed in calls that a rule names.

    A rank that waits for its device in every step waits longer there when the device is slow. One that never does may
    be held up elsewhere, where nobody counts: enough for a rule that has more to say of a device than its silence. One
    that has not needs such calls, and longer ones than those of others, who may wait for this rank there.
    """
    is_needed = reason_of(end) in rule.needs_waits
    least_s = MIN_EXPLAINED * float(end.payload.attributes["share_s"] or 0.0)
    long = [one for one in waits if one.movement.growth >= least_s]
    if is_needed:
        return any(not one.is_alike for one in long)
    return bool(long) or not waits


def _is_quiet(watched: Movements, rule: CounterRule, seen: Seen, end: Edge) -> bool:
    """Return whether nothing moved that the rule wants to stand still, wherever it is counted in the same place."""
    for counter in rule.quiet:
        movements = watched.of(counter)
        for place, movement in movements.items():
            is_here = place.host_id == seen.place.host_id
            is_own = not counter.is_of_rank or place.rank == seen.place.rank
            others = [] if is_common(end) else [m for p, m in movements.items() if p != place]
            has_moved = movement.overlap >= MIN_OVERLAP and size_of(movement) > 0.0
            is_more = _is_more(counter, movement, others, watched.spans)
            if is_here and is_own and (has_moved or is_more):
                return False
    return True


def _is_more(
    counter: Counter, movement: Movement, others: list[Movement], spans: StepSpans
) -> bool:
    """Return whether slow steps have more of what looks count, in the mean: too little for each step to show it.

    What others have more of as well, looks have counted alike: it sets nobody apart.
    """
    if counter.kind is not Kind.LOOKS:
        return False
    slow_s = float(spans.step_s[spans.quiet :].sum())
    alike = max(float(np.median([one.ratio for one in others])), 0.0) if others else 0.0
    return movement.ratio - alike >= max(MORE_RATIO, EDGES_S / slow_s)


def _is_there(readings: Readings, spans: StepSpans, rule: CounterRule, seen: Seen) -> bool:
    """Return whether there is any of what the rule wants nothing of, in the same place."""
    for counter in rule.absent:
        rank = seen.place.rank if counter.is_of_rank else None
        amount = sums(readings.of(counter).get(Place(seen.place.host_id, rank), []), spans)
        if amount is not None and float(amount.sum()) > 0.0:
            return True
    return False


def _is_same(one: Seen, best: Seen) -> bool:
    """Return whether two rules look at the same numbers: what speaks is the evidence then."""
    return (one.counter.signal, one.place) == (best.counter.signal, best.place)


def _strength(seen: Seen) -> tuple[float, float, str]:
    return seen.cost.seconds or 0.0, seen.movement.overlap, str(seen.counter.signal)


def _add(
    scene: Scene,
    graph: DependencyGraph,
    rows: dict[str, Evidence],
    ends: Sequence[Edge],
    rule: CounterRule,
    speaking: list[Seen],
    quiet: list[Seen],
    spans: StepSpans,
) -> None:
    """Add node, edge and evidence of one counter for a cause and those that it includes, with what is shown beside."""
    best, end = speaking[0], ends[0]
    target, payload = _node(scene, rule, best, end)
    graph.add_node(target, payload)
    host_node = node_id("host", scene.host_name(best.place.host_id))
    if not best.is_alike and not is_common(end) and graph.node(host_node) is not None:
        graph.add_edge(target, host_node, EdgePayload(EdgeKind.RUNS_ON, None, (), {}))
    spoken = [*speaking, *([] if best.number is None else [best.number])]
    cited = [add_row(scene, rows, rule, one, spans) for one in spoken]
    cited += [item for one in ends for item in one.payload.evidence_ids]
    # Look-alikes that the same sensors would have shown: they are quiet.
    cited += [add_row(scene, rows, rule, one, spans) for one in quiet]
    attributes: Attributes = {
        **end.payload.attributes,
        "reason": str(rule.reason),
        "subject": target,
        "magnitude": str(best.counter.signal),
        "sensor": best.counter.sensor if best.other is None else OTHERS_SENSOR,
        "parallel": 1,
        REFINES: str(reason_of(end)),
        "refined_magnitude": end.payload.attributes.get("magnitude"),
        "needed": str(rule.needs.signal) if rule.needs and rule.needs_alike else None,
        **together(scene.analysis.counterfactual, ends),
    }
    if RULES[rule.reason].layer == "collective":
        attributes["pattern"] = ""  # it is one host's or one rank's, though no rank is late
    is_network = reason_of(end) is Reason.UNKNOWN_NET
    kind = EdgeKind.TRANSFERS_OVER if is_network else EdgeKind.SLOWED_BY
    is_at_target = is_network or is_common(end) or end.payload.kind == EdgeKind.CONTENDS_WITH
    source = end.target if is_at_target else end.source
    found = EdgePayload(kind, end.payload.seconds, tuple(dict.fromkeys(cited)), attributes)
    graph.add_edge(source, target, found)


def _node(scene: Scene, rule: CounterRule, seen: Seen, end: Edge) -> tuple[str, NodePayload]:
    if is_common(end):
        what = "the GPUs" if rule.node == "gpu" else rule.place.partition(" of ")[0]
        label = f"{what} of all ranks"
        return node_id(rule.node, scene.data.job), NodePayload(rule.node, label, {})
    rank = rank_of(end)
    host, device = scene.host_name(seen.place.host_id), seen.place.device
    if rank is None and seen.is_alike:
        return node_id("fabric", scene.data.job), NodePayload("fabric", "all of its links", {})
    parts = [part for part in (device, seen.place.rank) if part is not None]
    label = rule.place.format(device=device, host=host, rank=seen.place.rank)
    attributes: Attributes = {"host": host}
    if rule.node == "gpu" and (seen.counter.device == semconv.HW_ID or gpu_name(device)):
        attributes["device"] = device
    return node_id(rule.node, host, *parts), NodePayload(rule.node, label, attributes)
