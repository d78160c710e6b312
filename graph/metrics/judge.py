"""Judge a job by metrics alone: did the work fall or differ, what else stands out, what is nearest.

Correlation only. Nobody is accused without a symptom, nor for what more than a third of all places have alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray
from rootwalk.graph.dependencies import node_id
from rootwalk.graph.metrics.rules import RULES, MetricRule, Role
from rootwalk.graph.metrics.scores import (
    MIN_PLACES,
    Z_LIMIT,
    Episode,
    Score,
    find_episode,
    middle,
    score,
)
from rootwalk.graph.metrics.table import MetricCase, Place, Quantity
from rootwalk.graph.metrics.walk import component_node, walk_scores

__all__ = ["COMPONENTS", "Cause", "MetricJudgement", "Reading", "judge"]

COMPONENTS: Final = ("gpu", "cpu", "memory", "disk", "nic")
# Below this nothing computes there: a device that no job uses.
MIN_LOAD: Final = 0.05
# A bin in which so little of the most is done is before or after the job.
MIN_ACTIVE_RATIO: Final = 0.1
# Nothing is said of less than so many bins; to call a job healthy takes a past as long as the steps' (detect).
MIN_BINS: Final = 8
MIN_HEALTHY_BINS: Final = 20
# What more than one of so many places have alike sets none of them apart.
ALIKE_OF: Final = 3
MAX_CAUSES: Final = 3
# A further cause is found at least half as often as the first.
MIN_RANK_RATIO: Final = 0.5
# What is shown beside a cause stands out half as much as a cause must.
CONTEXT_Z: Final = 3.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One quantity at one place in the window; None where it cannot be known. `of` is how many places tell it."""

    rule: str
    metric: str
    place: Place
    part: str
    value: float
    peers: float | None
    history: float | None
    z: float
    of: int


@dataclass(frozen=True, slots=True)
class Cause:
    """One component that stands out, the reading that names its reason first; `share` is its part of the walk."""

    node: str
    host: str
    device: str | None
    readings: tuple[Reading, ...]
    share: float


@dataclass(frozen=True, slots=True)
class MetricJudgement:
    """What metrics say; bins count from the case's start, `stop` exclusive.

    `symptoms` are where the work fell or differs, `standing` what stands out though the work does not show it.
    """

    start: int
    stop: int
    episode: Episode | None
    symptoms: tuple[Reading, ...]
    causes: tuple[Cause, ...]
    standing: tuple[Reading, ...]
    alike: tuple[tuple[str, int, int], ...]
    is_measured: bool
    is_enough: bool


def judge(case: MetricCase) -> MetricJudgement | None:
    """Return what metrics say of a job; None if there are too few of them."""
    bounds = _active(case)
    if bounds is None or bounds[1] - bounds[0] < MIN_BINS:
        return None
    first, last = bounds
    quantities = {
        name: replace(q, values=q.values[:, first:last])
        for name, q in _at_work(case.quantities, slice(first, last)).items()
    }
    work = [q for name, q in quantities.items() if RULES[name].role is Role.WORK]
    fallen = _find_fall(work)
    span = last - first
    episode = None if fallen is None else fallen[1]
    begin, end, past = 0, span, None
    if episode is not None:
        begin, end = episode.start, span if episode.stop is None else episode.stop
        past = slice(0, begin)
    window = slice(begin, end)
    scores = {
        name: score(q.values, RULES[name].sign, RULES[name].scatter, window, past)
        for name, q in quantities.items()
    }
    symptoms = _symptoms(work, scores, fallen)
    load = next((n for n in ("gpu_active", "gpu_busy") if n in quantities), None)
    flagged: list[Reading] = []
    alike: list[tuple[str, int, int]] = []
    for name, quantity in quantities.items():
        if RULES[name].role is not Role.CONDITION:
            continue
        is_loaded = None if load is None else _loaded(quantities[load], scores[load])
        chosen = _standing_out(RULES[name], quantity, scores[name], is_loaded, past is not None)
        told = int(np.isfinite(scores[name].value).sum())
        if _are_alike(len(chosen), told):
            alike.append((name, len(chosen), told))
        else:
            flagged += chosen
    near = flagged
    if episode is None:
        hosts = {item.place.host for item in symptoms}
        near = [item for item in flagged if item.place.host in hosts]
    causes = _walk(case.key.job, quantities, scores, symptoms, episode, near) if symptoms else ()
    named = {reading for cause in causes for reading in cause.readings}
    widest = max((int(np.isfinite(scores[q.rule].value).sum()) for q in work), default=0)
    has_conditions = any(RULES[name].role is Role.CONDITION for name in quantities)
    return MetricJudgement(
        start=first + begin,
        stop=first + end,
        episode=episode,
        symptoms=symptoms,
        causes=causes,
        standing=tuple(item for item in flagged if item not in named) if not causes else (),
        alike=tuple(alike),
        is_measured=bool(work),
        is_enough=span >= MIN_HEALTHY_BINS and widest >= MIN_PLACES and has_conditions,
    )


def _active(case: MetricCase) -> tuple[int, int] | None:
    """Return the bins in which the job ran, as far as something tells; the ragged ones at its ends are left out."""
    if not case.quantities:
        return None
    bins = next(iter(case.quantities.values())).values.shape[1]
    for name in ("steps", "gpu_active", "gpu_busy", "network"):
        quantity = case.quantities.get(name)
        if quantity is None:
            continue
        most = _most(quantity.values)
        if not np.isfinite(most).any() or float(np.nanmax(most)) <= 0.0:
            continue
        on = np.flatnonzero(most >= MIN_ACTIVE_RATIO * float(np.nanmax(most)))
        first, last = int(on[0]), int(on[-1]) + 1
        known = np.flatnonzero(np.isfinite(most))
        first += 1 if first > known[0] else 0
        last -= 1 if last <= known[-1] else 0
        return first, max(first, last)
    return 0, bins


def _most(values: FloatArray) -> FloatArray:
    """Return the largest number of each bin, NaN where nothing is known."""
    known = np.isfinite(values)
    most = np.where(known, values, -np.inf).max(axis=0)
    return np.where(known.any(axis=0), most, np.nan)


def _at_work(quantities: dict[str, Quantity], bins: slice) -> dict[str, Quantity]:
    """Return quantities without the devices, and hosts, that do nothing for any job."""
    load = quantities.get("gpu_active") or quantities.get("gpu_busy")
    if load is None:
        return quantities
    high = np.array(
        [np.nanmax(row) if np.isfinite(row).any() else 0.0 for row in load.values[:, bins]]
    )
    idle = {place for place, most in zip(load.places, high, strict=True) if most < MIN_LOAD}
    hosts = {place.host for place in load.places if place not in idle}
    kept = {}
    for name, q in quantities.items():
        keep = [i for i, p in enumerate(q.places) if p not in idle and p.host in hosts]
        if keep:
            places, parts = tuple(q.places[i] for i in keep), tuple(q.parts[i] for i in keep)
            kept[name] = replace(q, places=places, parts=parts, values=q.values[keep])
    return kept


def _find_fall(work: list[Quantity]) -> tuple[str, Episode] | None:
    """Return the first quantity of work that fell, at most places or at one, and when.

    Where steps are counted nothing else says whether the job became slower.
    """
    counted = [q for q in work if q.rule == "steps"]
    for quantity in counted or work:
        lowest = -_most(-quantity.values)
        for curve in (middle(quantity.values, 0), lowest):
            episode = find_episode(curve)
            if episode is not None:
                return quantity.rule, episode
    return None


def _symptoms(
    work: list[Quantity], scores: dict[str, Score], fallen: tuple[str, Episode] | None
) -> tuple[Reading, ...]:
    """Return where the work fell, or where it is done otherwise than by peers."""
    found = []
    for quantity in work:
        told = scores[quantity.rule]
        if fallen is None:
            bad = np.abs(told.z) >= Z_LIMIT
        elif quantity.rule == fallen[0]:
            bad = told.value < told.history
        else:
            continue
        places = np.flatnonzero(bad)
        known = int(np.isfinite(told.value).sum())
        if fallen is None and _are_alike(places.size, known):
            continue
        found += [_reading(quantity, told, int(i)) for i in places]
    return tuple(found)


def _are_alike(places: int, of: int) -> bool:
    return places > 1 and places * ALIKE_OF > of


def _loaded(load: Quantity, told: Score) -> dict[Place, bool]:
    """Return of each device whether it is at least half as busy as the median one."""
    usual = float(np.nanmedian(told.value))
    return {p: bool(v >= 0.5 * usual) for p, v in zip(load.places, told.value, strict=True)}


def _standing_out(
    rule: MetricRule,
    quantity: Quantity,
    told: Score,
    is_loaded: dict[Place, bool] | None,
    has_past: bool,
) -> list[Reading]:
    if rule.needs_past and not has_past:
        return []
    bad: BoolArray = told.z >= Z_LIMIT
    if rule.least is not None:
        bad &= rule.sign * told.value >= rule.sign * rule.least
    found = []
    for index in np.flatnonzero(bad):
        place = quantity.places[index]
        if rule.needs_load and not (is_loaded is not None and is_loaded.get(place, False)):
            continue
        found.append(_reading(quantity, told, int(index)))
    return found


def _reading(quantity: Quantity, told: Score, index: int) -> Reading:
    def known(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    return Reading(
        quantity.rule,
        quantity.metric,
        quantity.places[index],
        quantity.parts[index],
        float(told.value[index]),
        known(told.peers[index]),
        known(told.history[index]),
        known(told.z[index]) or 0.0,
        int(np.isfinite(told.value).sum()),
    )


def _node(rule: MetricRule, place: Place, part: str) -> str:
    return component_node(rule.component, place.host, place.device or part)


def _walk(
    job: str,
    quantities: dict[str, Quantity],
    scores: dict[str, Score],
    symptoms: tuple[Reading, ...],
    episode: Episode | None,
    flagged: list[Reading],
) -> tuple[Cause, ...]:
    """Return the components that stand out, by how often a walker from the symptoms is found there."""
    if not flagged:
        return ()
    bad: dict[tuple[str, str], float] = {}
    for name, quantity in quantities.items():
        rule = RULES[name]
        is_condition = rule.role is Role.CONDITION
        if not is_condition and rule.component != "gpu":
            continue
        for place, part, z in zip(quantity.places, quantity.parts, scores[name].z, strict=True):
            end = (node_id("host", place.host), _node(rule, place, part))
            value = float(z) if is_condition and np.isfinite(z) else 0.0
            bad[end] = max(bad.get(end, 0.0), value)
    restart: dict[str, float] = {}
    for item in symptoms:
        node = _node(RULES[item.rule], item.place, item.part)
        if RULES[item.rule].component == "host":
            node = node_id("host", item.place.host)
        weight = min(abs(item.z), Z_LIMIT) / Z_LIMIT / len(symptoms)
        restart[node] = restart.get(node, 0.0) + weight
    known = {node for end in bad for node in end}
    restart = {node: weight for node, weight in restart.items() if node in known and weight > 0.0}
    job_node = node_id("job", job)
    if episode is not None or not restart:
        restart[job_node] = 1.0
    found = walk_scores(job_node, bad, restart)
    by_node: dict[str, list[Reading]] = {}
    for item in flagged:
        by_node.setdefault(_node(RULES[item.rule], item.place, item.part), []).append(item)
    total = sum(found[node] for node in by_node)
    order = sorted(by_node, key=lambda node: (-round(found[node], 9), node))
    causes = []
    for node in order[:MAX_CAUSES]:
        if found[node] < MIN_RANK_RATIO * found[order[0]]:
            break
        own = sorted(by_node[node], key=lambda r: (RULES[r.rule].order, -r.z, r.rule))
        place, rule = own[0].place, RULES[own[0].rule]
        shown = (*own, *_beside(quantities, scores, rule.component, place))
        device = place.device or own[0].part if rule.component in ("gpu", "disk", "nic") else None
        causes.append(Cause(node, place.host, device or None, shown, found[node] / total))
    return tuple(causes)


def _beside(
    quantities: dict[str, Quantity], scores: dict[str, Score], component: str, place: Place
) -> list[Reading]:
    """Return what else stands out there that slows nobody by itself."""
    found = []
    for name, quantity in quantities.items():
        rule = RULES[name]
        if rule.role is not Role.CONTEXT or rule.component != component:
            continue
        if place in quantity.places:
            item = _reading(quantity, scores[name], quantity.places.index(place))
            found += [item] if item.z >= CONTEXT_Z else []
    return found
