"""Who all others wait for, and which transfers are slow, in a job of which there are only communication records; pure.

A rank is late when it communicates less than its peers do, by more than a tenth of an iteration, in most iterations,
far outside of what peers differ by, and most waits of its collectives are waits for it. Where peers are late by
degrees, the last one is late by what it leaves to the next, if that is as much and as steady. Transfers are slow when
the shortest part of a communicator's collectives has grown against its own history, or, where there is none, is longer
than in other groups that move as much between as many hosts. What cannot be told apart accuses nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray, IntArray
from rootwalk.graph.detect import (
    MIN_HISTORY_STEPS,
    MIN_RATIO,
    cold_steps,
    find_episodes,
    robust_sigma,
)
from rootwalk.graph.flows.matrix import SlowPath
from rootwalk.graph.flows.series import FlowSeries

__all__ = ["FlowJudgement", "LateRank", "SlowTransfer", "judge"]

# Below this part of a healthy iteration nothing is claimed (method C3).
FLOOR: Final = MIN_RATIO - 1.0
# Distance from what peers, or healthy iterations, differ by.
MIN_SIGMAS: Final = 6.0
# Fewer iterations say who is late with less confidence (`flows.verdict`), and nothing of transfers.
MIN_LATE_ITERATIONS: Final = 1
# Part of the iterations in which it shows.
MIN_PERSISTENCE: Final = 0.7
# Part of the waits in a rank's collectives that are for it or for another late one, behind which it may hide.
MIN_BLAMED: Final = 1 / 3
# Of fewer peers nobody can say that they are late by degrees.
MIN_BY_DEGREES: Final = 3
# More late ranks than this part of all are no stragglers but another way to work.
MAX_LATE: Final = 0.25
# Groups of the same volume that make a comparison, the slow one included.
MIN_GROUPS: Final = 4


@dataclass(frozen=True, slots=True)
class LateRank:
    """One rank that its peers wait for; seconds are means per iteration, `history_s` None without a history."""

    rank: int
    share_s: float
    remove_s: float
    spent_s: float
    peers_s: float
    history_s: float | None
    communicator: int
    victims: tuple[int, ...]
    persistence: float


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """Transfers of one communicator that are slow, the worst of `slow` of the `alike` that move as much."""

    communicator: int
    share_s: float
    transfer_s: float
    peers_s: float | None
    history_s: float | None
    slow: int
    alike: int
    persistence: float


@dataclass(frozen=True, slots=True)
class FlowJudgement:
    """What the series say; seconds are means per iteration.

    Attributes:
        first: Position of the window's first iteration, `stop` one past its last.
        is_open: Whether the job was still slow when the records end.
        has_history: Whether the window is an episode that is compared with what was before it.
        is_enough: Whether there were iterations enough to call the job healthy.
        iteration_s: Mean of the window; `healthy_s` the history's median, None without one.
        ambiguous: Ranks that are late together, so that nobody can say for which.
        paths: Slow ends and paths of messages, over all iterations.
    """

    first: int
    stop: int
    is_open: bool
    has_history: bool
    is_enough: bool
    iteration_s: float
    healthy_s: float | None
    late: tuple[LateRank, ...]
    transfers: tuple[SlowTransfer, ...]
    ambiguous: tuple[int, ...]
    paths: tuple[SlowPath, ...] = ()

    @property
    def floor_s(self) -> float:
        """Seconds per iteration below which nothing is claimed."""
        return FLOOR * (self.iteration_s if self.healthy_s is None else self.healthy_s)

    @property
    def is_quiet(self) -> bool:
        """Whether no rank is late and no transfer slow."""
        return not (self.late or self.transfers or self.ambiguous or self.paths)


@dataclass(frozen=True, slots=True)
class _Window:
    """Positions of the iterations in question, of those in it that are slow, and of the history; the claim's floor."""

    all: IntArray
    slow: IntArray
    history: IntArray
    floor_s: float


def judge(
    series: FlowSeries, members: dict[int, IntArray], hosts: dict[int, int]
) -> FlowJudgement | None:
    """Return what a job's series say; None where the time of its iterations is not known.

    Args:
        series: As built.
        members: Ranks of each communicator.
        hosts: On how many hosts each communicator is.
    """
    if series.iteration_s is None:
        return None
    seconds = series.iteration_s
    episodes = find_episodes(seconds)
    cold = cold_steps(seconds)
    healthy_s: float | None = None
    if episodes:
        episode = episodes[-1]
        stop = seconds.size if episode.stop is None else episode.stop
        inside = np.arange(episode.start, stop)
        slow = inside[seconds[inside] > episode.limit_s]
        history = np.array(episode.history, dtype=np.int64)
        healthy_s = float(np.median(seconds[history]))
        # Of an intermittent slowdown the quiet iterations say nothing of its cause.
        shown = slow if episode.is_intermittent else inside
        window = _Window(inside, shown, history, FLOOR * healthy_s)
        is_open = episode.stop is None
    else:
        inside = np.arange(min(cold, seconds.size - 1), seconds.size)
        slow = inside[:0]
        window = _Window(inside, inside, slow, FLOOR * float(np.median(seconds[inside])))
        is_open = True
    late, ambiguous = _find_late(series, window, members)
    transfers = _find_transfers(series, window, hosts)
    return FlowJudgement(
        first=int(inside[0]),
        stop=int(inside[-1]) + 1,
        is_open=is_open,
        has_history=bool(episodes),
        is_enough=inside.size >= MIN_HISTORY_STEPS,
        iteration_s=float(seconds[inside].mean()),
        healthy_s=healthy_s,
        late=late if inside.size >= MIN_LATE_ITERATIONS or episodes else (),
        transfers=transfers if inside.size >= MIN_HISTORY_STEPS or episodes else (),
        ambiguous=ambiguous,
    )


def _find_late(
    series: FlowSeries, window: _Window, members: dict[int, IntArray]
) -> tuple[tuple[LateRank, ...], tuple[int, ...]]:
    late = series.late_s[:, window.slow]
    usual = np.zeros(series.ranks.size)
    if window.history.size:
        usual = np.median(series.late_s[:, window.history], axis=1)
    above = late - usual[:, None]
    level = np.median(above, axis=1)
    persistence = (above > np.maximum(level, window.floor_s)[:, None] / 2).mean(axis=1)
    apart = [
        rank
        for rank in np.flatnonzero(level >= window.floor_s).tolist()
        if persistence[rank] >= MIN_PERSISTENCE
        and level[rank] >= MIN_SIGMAS * _noise(series, level, above, rank)
    ]
    last = _last_of_all(series, above, window.floor_s) if not apart else None
    if last is not None:
        apart = [last]
    candidates = [r for r in apart if _blamed(series, window, members, r, apart) >= MIN_BLAMED]
    found = tuple(int(series.ranks[rank]) for rank in candidates)
    if len(candidates) > max(1, int(MAX_LATE * series.ranks.size)) or _are_joined(
        found, members, series.ranks.size
    ):
        return (), found
    whole = series.late_s[:, window.all] - usual[:, None]
    counted = whole[candidates] if last is None else _leads(series, whole, last)[None, :]
    shares = _share_out(np.maximum(counted, 0.0))
    made = [
        _late_rank(series, window, members, whole, rank, (share_s, float(persistence[rank])))
        for rank, share_s in zip(candidates, shares, strict=True)
    ]
    return tuple(sorted(made, key=lambda item: (-round(item.share_s, 9), item.rank))), ()


def _leads(series: FlowSeries, late: FloatArray, rank: int) -> FloatArray:
    """Return how much later a rank is than the next of its peers, (iterations,), seconds."""
    others = (series.peers == series.peers[rank]) & (np.arange(series.ranks.size) != rank)
    return np.asarray(late[rank] - late[others].max(axis=0), dtype=np.float64)


def _last_of_all(series: FlowSeries, above: FloatArray, floor_s: float) -> int | None:
    """Return the rank that comes last by the floor, steadily, where peers are late by degrees; None for no rank."""
    for rank in np.argsort(-np.nan_to_num(np.median(above, axis=1), nan=-np.inf)).tolist():
        if (series.peers == series.peers[rank]).sum() < MIN_BY_DEGREES:
            continue
        lead_s = _leads(series, above, rank)
        level_s = float(np.median(lead_s))
        noise_s = robust_sigma(lead_s) / np.sqrt(lead_s.size)
        is_steady = float((lead_s > level_s / 2).mean()) >= MIN_PERSISTENCE
        if level_s >= max(floor_s, MIN_SIGMAS * noise_s) and is_steady:
            return int(rank)
    return None


def _share_out(late: FloatArray) -> list[float]:
    """Return each late rank's fair share of what the latest costs, mean per iteration.

    Args:
        late: (ranks, iterations), seconds from 0.

    Source:
        The Shapley value of a maximum: what the first of n is late they share, and so on with those that are later.
    """
    shares = np.zeros_like(late)
    for column in range(late.shape[1]):
        order = np.argsort(late[:, column], kind="stable")
        steps = np.diff(late[order, column], prepend=0.0)
        shares[order, column] = np.cumsum(steps / np.arange(order.size, 0, -1))
    return [float(share) for share in shares.mean(axis=1)]


def _noise(series: FlowSeries, level: FloatArray, above: FloatArray, rank: int) -> float:
    """Return what ranks differ by that do the same, as a standard deviation; of few, what one differs by in time."""
    others = np.flatnonzero((series.peers == series.peers[rank]) & (np.arange(level.size) != rank))
    spread = robust_sigma(level[others]) if others.size >= 3 else 0.0
    in_time = robust_sigma(above[rank]) / np.sqrt(above.shape[1])
    return max(float(spread), float(in_time))


def _blamed(
    series: FlowSeries,
    window: _Window,
    members: dict[int, IntArray],
    rank: int,
    late: list[int],
) -> float:
    """Return which part of the waits in a rank's collectives were for late ranks of them."""
    own = [
        at
        for at, one in enumerate(series.communicators.tolist())
        if series.ranks[rank] in members[one]
    ]
    near = np.unique(np.concatenate([members[int(series.communicators[at])] for at in own]))
    blamed = [other for other in late if series.ranks[other] in near]
    total = float(series.wait_s[own][:, window.slow].sum())
    for_them = float(series.blamed_s[blamed][:, window.slow].sum())
    return for_them / total if total > 0.0 else 0.0


def _are_joined(ranks: tuple[int, ...], members: dict[int, IntArray], everybody: int) -> bool:
    """Return whether late ranks share a communicator that others are not in: one may be late for the other."""
    return any(
        own.size < everybody and np.isin(np.array(ranks), own).sum() > 1 for own in members.values()
    )


def _late_rank(
    series: FlowSeries,
    window: _Window,
    members: dict[int, IntArray],
    late: FloatArray,
    rank: int,
    found: tuple[float, float],
) -> LateRank:
    others = np.delete(late, rank, axis=0)
    next_s = np.where(np.isfinite(others), others, 0.0).max(axis=0, initial=0.0)
    name = int(series.ranks[rank])
    own = [one for one in series.communicators.tolist() if name in members[one]]
    largest = max(own, key=lambda one: (members[one].size, -one))
    peers = (series.peers == series.peers[rank]) & (series.ranks != name)
    history = series.spent_s[rank, window.history]
    return LateRank(
        rank=name,
        share_s=found[0],
        remove_s=max(float((late[rank] - next_s).mean()), 0.0),
        spent_s=float(series.spent_s[rank, window.all].mean()),
        peers_s=float(np.median(series.spent_s[np.ix_(peers, window.all)].mean(axis=1))),
        history_s=float(np.median(history)) if history.size else None,
        communicator=int(largest),
        victims=tuple(int(r) for r in series.ranks[peers]),
        persistence=found[1],
    )


def _find_transfers(
    series: FlowSeries, window: _Window, hosts: dict[int, int]
) -> tuple[SlowTransfer, ...]:
    now = series.transfer_s[:, window.slow]
    places = np.array([hosts[one] for one in series.communicators.tolist()], dtype=np.int64)
    found: list[SlowTransfer] = []
    for kind in np.unique(series.volumes):
        alike: BoolArray = series.volumes == kind
        own = np.flatnonzero(alike)
        slow = []
        for one in own.tolist():
            base, noise, is_fair = _reference(series, window, alike & (places == places[one]), one)
            above = now[one] - base
            level = float(np.median(above))
            if not is_fair or level < max(window.floor_s, FLOOR * base, MIN_SIGMAS * noise):
                continue
            persistence = float((above > level / 2).mean())
            if persistence >= MIN_PERSISTENCE:
                share_s = float((series.transfer_s[one, window.all] - base).mean())
                slow.append((share_s, -one, base, persistence))
        if slow:
            share_s, negative, base, persistence = max(slow)
            one = -negative
            has_history = bool(window.history.size)
            found.append(
                SlowTransfer(
                    communicator=int(series.communicators[one]),
                    share_s=share_s,
                    transfer_s=float(series.transfer_s[one, window.all].mean()),
                    peers_s=None if has_history else base,
                    history_s=base if has_history else None,
                    slow=len(slow),
                    alike=own.size,
                    persistence=persistence,
                )
            )
    return tuple(sorted(found, key=lambda item: -round(item.share_s, 9)))


def _reference(
    series: FlowSeries, window: _Window, alike: BoolArray, one: int
) -> tuple[float, float, bool]:
    """Return the usual transfer of a communicator, its noise, and whether there is something to compare with."""
    if window.history.size:
        before = series.transfer_s[one, window.history]
        return float(np.median(before)), robust_sigma(before), True
    others = np.flatnonzero(alike & (np.arange(alike.size) != one))
    if others.size < MIN_GROUPS - 1:
        return 0.0, 0.0, False
    levels = np.median(series.transfer_s[np.ix_(others, window.all)], axis=1)
    return float(np.median(levels)), robust_sigma(levels), True
