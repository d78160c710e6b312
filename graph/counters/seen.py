"""What each counter of a rule did at the place that a cause is at, beside what it did elsewhere.

Pure. Whether that makes it the cause is `refine`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rootwalk.graph.causes import MOVED
from rootwalk.graph.counters.formulas import Cost, Usual, cost_of
from rootwalk.graph.counters.movement import (
    LOOK_S,
    Movement,
    Points,
    StepSpans,
    arisen,
    levels,
    met_onset,
    reached,
    since_nothing,
    sums,
    watch,
)
from rootwalk.graph.counters.points import Place, Readings
from rootwalk.graph.counters.rule import Counter, CounterRule, Kind
from rootwalk.graph.counters.scene import MIN_QUIET_STEPS, Scene
from rootwalk.graph.dependencies import Edge
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv

__all__ = ["ALIKE", "MIN_OVERLAP", "UNMOVED", "Movements", "Seen", "has_moved", "is_common", "look"]
__all__ += ["rank_of", "reason_of", "seen_beside", "size_of"]

# Of the time that was lost, so much must lie in steps in which the counter moved, it must have moved in at most so many
# of the healthy steps, and have begun no more than one look after the slow steps did.
MIN_OVERLAP = 0.5
MAX_OUTSIDE = 0.25
# NVML is asked for some things every 5 s only, and the rate of a GPU's link is the best of as many seconds: it falls at
# rest. To look where threads may run takes half a millisecond with few ranks, and rests for 5 s after it.
LOOKS_S: Final = {"nvml": LOOK_S + 5.0, "affinity": LOOK_S + 5.0}
# Others that move at least this part as much have it alike.
ALIKE = 0.5
# So many times as many calls as before, and more, are others than those before.
MANY_TIMES = 100.0
# What TCP tells is told for ranks, and no rank's alone: connections of a host.
CONNECTIONS, POOLED = "connections", "tcp"
# A sensor that begins when a rank has loaded a library, or when its level rises.
BEGINS_LATE = "cuda"
# Sensors that tell a way, or a kind of call, only when it is taken or made: until then there was nothing of it, once
# another has been told. What stood still since long before is told again in the minute before the steps, which is read.
TELLS_WHAT_COMES = ("nccl_log", BEGINS_LATE)
# What costs next to nothing by itself, so that only its being there says something.
UNMOVED: Final = (Kind.STEADY, Kind.EVEN)
_LEVELS: Final = (Kind.RISE, Kind.COUNT, Kind.LONGER, Kind.FALL, Kind.STEADY)


@dataclass(frozen=True, slots=True)
class Seen:
    """One counter at one place; `peers` is the median of the same counter at the others.

    `is_alike` says that others' moved as much, `number` how many there were of what it counts.
    """

    counter: Counter
    place: Place
    movement: Movement
    cost: Cost
    peers: float | None
    is_alike: bool
    # Of another producer: the time between two points, its own name and the query that shows it.
    gap_s: float = 0.0
    other: tuple[str, str] | None = None
    number: Seen | None = None


def reason_of(edge: Edge) -> Reason:
    """Return the reason at the end of a chain."""
    return Reason(str(edge.payload.attributes["reason"]))


def rank_of(edge: Edge) -> int | None:
    """Return the rank that a cause is of; None for all of them, or a network."""
    rank = edge.payload.attributes["rank"]
    return None if rank is None else int(rank)


def is_common(end: Edge) -> bool:
    """Return whether a cause is what all ranks have alike, and no transfer."""
    return rank_of(end) is None and reason_of(end) is not Reason.UNKNOWN_NET


class Movements:
    """How counters moved at each place; worked out once for each, however many rules ask.

    Attributes:
        readings: What was read.
        spans: The healthy steps and the slow ones.
    """

    def __init__(self, readings: Readings, spans: StepSpans) -> None:
        self.readings, self.spans = readings, spans
        self._known: dict[tuple[Counter, bool], dict[Place, Movement]] = {}

    def of(self, counter: Counter, is_network: bool = False) -> dict[Place, Movement]:
        """Return how one counter moved at each place; of a network, connections of a host are one."""
        key = counter, is_network
        if key not in self._known:
            self._known[key] = self._watch(counter, is_network)
        return self._known[key]

    def _watch(self, counter: Counter, is_network: bool) -> dict[Place, Movement]:
        readings, spans = self.readings, self.spans
        series, over = readings.of(counter), readings.over(counter)
        if readings.gap_s(counter) > LOOK_S:
            # What came between two points may have come at any time between them.
            spans = spans.guarded(readings.gap_s(counter))
            if spans.quiet < MIN_QUIET_STEPS:
                return {}
        if is_network and counter.is_of_rank and counter.sensor == POOLED:
            merged: dict[Place, list[Points]] = {}
            for place, points in series.items():
                merged.setdefault(Place(place.host_id, None, CONNECTIONS), []).extend(points)
            series = merged
        as_levels = dict.fromkeys(_LEVELS, levels)
        take = {**as_levels, Kind.SINCE: reached}.get(counter.kind, sums)
        if counter.sensor in TELLS_WHAT_COMES:
            told = readings.anything(counter)
            series = {place: since_nothing(points, told[place]) for place, points in series.items()}
        begun = readings.anything(counter) if counter.sensor == BEGINS_LATE else {}
        result = {}
        for place, points in series.items():
            anything = sums(begun.get(place, []), spans)
            here = spans if anything is None else spans.chosen(anything > 0.0)
            if here.quiet < min(MIN_QUIET_STEPS, spans.quiet):
                continue
            if counter.kind is Kind.ARISEN:
                if (found := arisen(points, here)) is not None:
                    result[place] = found
                continue
            if take is sums:
                here = here.told(points)
            amount = take(points, here)
            total = sums(over.get(place, []), here) if counter.over else None
            if amount is None or (counter.over and total is None):
                continue
            known_until_s = met_onset(points, here) if take is sums else np.inf
            movement = watch(counter.kind, amount, here, total, known_until_s)
            if movement is not None:
                result[place] = movement
        return result


def look(
    scene: Scene, watched: Movements, rule: CounterRule, end: Edge, usual: Usual
) -> list[Seen]:
    """Return each counter of a rule where it moved most: at the rank's own place, of a network at any.

    Of what all ranks have alike it is the rank in the middle, where every rank's counter moved. Who moved most, and
    whether others moved alike, is told by how many there were, where that is counted.
    """
    found, rank, readings = [], rank_of(end), watched.readings
    has_come = end.payload.attributes.get("place") == MOVED
    for counter in (one for one in rule.counters if has_come or not one.is_of_move):
        movements = watched.of(counter, rank is None)
        numbers = movements
        if counter.number is not None:
            numbers = watched.of(counter.number, rank is None)
            movements = {place: movements[place] for place in numbers if place in movements}
        # More of what every step has is one unit for all; levels and parts are held against what each place had.
        is_one_unit = counter.number is not None or counter.kind is Kind.LOOKS
        size = _more if is_one_unit else size_of
        near = [place for place in movements if _is_near(scene, readings, place, counter, rank)]
        own = max(sorted(near, key=str), key=lambda p: size(numbers[p]), default=None)
        if own is None:
            continue
        if is_common(end):
            order = sorted(near, key=lambda place: (size(numbers[place]), str(place)))
            ranks = {place.rank for place in movements}
            if not ranks >= {row.rank for row in scene.data.ranks}:
                continue
            if size(numbers[order[0]]) < ALIKE * size(numbers[own]):
                continue
            own = order[len(order) // 2]
            movements, numbers = {own: movements[own]}, {own: numbers[own]}
        sizes = [size(other) for place, other in numbers.items() if place != own]
        is_alike = bool(sizes) and float(np.median(sizes)) >= ALIKE * size(numbers[own])
        movement = movements[own]
        if counter.number is not None:
            movement = replace(movement, growth=_grown(movement, numbers[own]))
        cost = cost_of(counter.formula, movement.growth, movement.ratio, usual)
        peers, told = (
            _peers(movements, own),
            (readings.gap_s(counter), readings.other(counter, own)),
        )
        number = None
        if counter.number is not None:
            others = _peers(numbers, own)
            number = Seen(counter.number, own, numbers[own], Cost(None), others, is_alike)
            # When there were more of them says when; how long they took says how much.
            when = numbers[own]
            movement = replace(
                movement, overlap=when.overlap, outside=when.outside, late_s=when.late_s
            )
        found.append(Seen(counter, own, movement, cost, peers, is_alike, *told, number))
    return found


def _grown(time: Movement, number: Movement) -> float:
    """Return how much time calls took more: of many times as many, what the new ones took.

    What the few before took may be over by then, as a wait for a device that the new ones have waited for already.
    """
    if number.ratio < MANY_TIMES:
        return time.growth
    return max(time.growth, time.value * number.growth / number.value)


def _peers(movements: dict[Place, Movement], own: Place) -> float | None:
    others = [movement.value for place, movement in movements.items() if place != own]
    return float(np.median(others)) if others else None


def seen_beside(counter: Counter, place: Place, movement: Movement, others: list[Movement]) -> Seen:
    """Return what a counter did at a place, beside what it did at others."""
    sizes = [_more(other) for other in others]
    is_alike = bool(sizes) and float(np.median(sizes)) >= ALIKE * _more(movement)
    peers = float(np.median([other.value for other in others])) if others else None
    return Seen(counter, place, movement, Cost(None), peers, is_alike)


def _is_near(
    scene: Scene, readings: Readings, place: Place, counter: Counter, rank: int | None
) -> bool:
    """Return whether what is counted at a place can slow a rank down; a network any of them."""
    if rank is None:
        return True
    row = scene.data.host_of(rank)
    if row is None or row.host_id != place.host_id:
        return False
    own = readings.devices_of(rank)
    if counter.device == semconv.HW_ID and not counter.is_of_rank:
        # Told for the host's GPUs, and other ranks' are not its own.
        return place.device in own
    if own and place.device in readings.gpus.values() and place.device not in own:
        return False
    return place.rank == (rank if counter.is_of_rank else None)


def size_of(movement: Movement) -> float:
    """Return by how much a counter moved, to compare places: a level's ratio, else its growth."""
    return max(movement.ratio or movement.growth, 0.0)


def _more(movement: Movement) -> float:
    return max(movement.growth, 0.0)


def has_moved(seen: Seen) -> bool:
    """Return whether a counter moved with the slow steps, and so did the number of what it counts."""
    movement = seen.movement
    if seen.counter.kind in UNMOVED:
        return True
    is_up = movement.growth > 0.0 or movement.ratio > 0.0
    latest_s = max(LOOKS_S.get(seen.counter.sensor, LOOK_S), seen.gap_s)
    is_in_time = movement.late_s <= latest_s and movement.outside <= MAX_OUTSIDE
    is_so = is_up and is_in_time and movement.overlap >= MIN_OVERLAP
    return is_so and (seen.number is None or has_moved(seen.number))
