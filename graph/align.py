"""Put the clocks of all hosts on one reference, from collectives that end at the same moment.

    host a  |---- all_reduce ----|            both ends are one event,
    host b       |--- all_reduce ---|         so the difference is the clocks'

Owns the offsets only; shifting the telemetry is `columns.shift_clocks`. Operations in which members may leave early
(broadcast, reduce, gather, scatter, point-to-point) are not used.

Source:
    Method C2: least squares over (host, collective) with Huber weights; alternating medians do not converge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, CollectiveRows, FloatArray, IntArray
from rootwalk.graph.model import DataQuality, QualityCode

# Rounds of reweighting; the residual stops changing after five on the traces of method C9.
ROUNDS = 8
# Residuals beyond this many robust sigmas lose weight (Huber's usual tuning constant).
HUBER_SIGMAS = 1.5
# Makes a median absolute deviation comparable with a standard deviation of normal noise.
MAD_TO_SIGMA = 1.4826
# With more clocks, or more cells for every collective and clock, the equations are solved without writing them down.
MAX_DENSE_CLOCKS = 100
MAX_DENSE_CELLS = 2_000_000
# Rounds of conjugate gradients at most, and the residual that is small enough beside the first.
SOLVER_ROUNDS = 500
SOLVER_TOLERANCE = 1e-12
# A single clock needs no reference.
MIN_CLOCKS = 2
_ONE_SIDED = ("broadcast", "gather", "scatter", "send", "recv", "reduce")
_SYMMETRIC = (
    "all_",
    "allreduce",
    "allgather",
    "_allgather",
    "alltoall",
    "reduce_scatter",
    "_reduce_scatter",
    "barrier",
)


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """Offset of each host's clock in seconds, and how far single collectives scatter around the fit."""

    offset_s_by_host: dict[str, float]
    sigma_s: float
    quality: tuple[DataQuality, ...]


@dataclass(frozen=True, slots=True)
class ClockFit:
    """Offset of each clock in seconds against the median clock, 0 for those that are apart from the others."""

    offset_s: FloatArray
    sigma_s: float
    is_apart: BoolArray


# Host id of a rank of which nothing says the host: each has a clock of its own.
UNKNOWN_HOST: Final = "unknown host "


def is_symmetric(operation: str) -> bool:
    """Return whether no member of such a collective can end before the last has arrived."""
    name = operation.lower()
    if name.startswith(_SYMMETRIC):
        return True
    return not name.startswith(_ONE_SIDED)


def usable_rows(collectives: CollectiveRows) -> BoolArray:
    """Return which rows belong to symmetric collectives that every member reported."""
    if collectives.group.size == 0:
        return np.zeros(0, dtype=np.bool_)
    present = np.bincount(collectives.group)[collectives.group]
    symmetric_names = {name: is_symmetric(name) for name in set(collectives.operation)}
    symmetric = np.array([symmetric_names[name] for name in collectives.operation], dtype=np.bool_)
    usable = symmetric & (present == collectives.size) & (collectives.size > 1)
    usable &= collectives.is_end_known
    return np.asarray(usable, dtype=np.bool_)


def _clock_rows(collectives: CollectiveRows) -> BoolArray:
    """Return which rows belong to symmetric collectives that at least two members reported, once each.

    Whoever reported it saw the same end: members whose record is missing change nothing of that.
    """
    if collectives.group.size == 0:
        return np.zeros(0, dtype=np.bool_)
    present = np.bincount(collectives.group)[collectives.group]
    symmetric_names = {name: is_symmetric(name) for name in set(collectives.operation)}
    symmetric = np.array([symmetric_names[name] for name in collectives.operation], dtype=np.bool_)
    usable = symmetric & (present > 1) & (present <= collectives.size) & collectives.is_end_known
    return np.asarray(usable, dtype=np.bool_)


def find_clock_offsets(collectives: CollectiveRows, host_by_rank: dict[int, str]) -> ClockOffsets:
    """Return the offset of every host's clock against the median host.

    Args:
        collectives: Rows on the hosts' own clocks.
        host_by_rank: Host id of every rank.

    Returns:
        0 for a single host, and for hosts that share no collective with the others (then with a
        CLOCK_UNALIGNED entry). `sigma_s` is 0 for a single host.
    """
    hosts = sorted(set(host_by_rank.values()))
    if len(hosts) < MIN_CLOCKS:
        return ClockOffsets(dict.fromkeys(hosts, 0.0), 0.0, ())
    number = {host: index for index, host in enumerate(hosts)}
    rows = _clock_rows(collectives)
    host = np.array([number[host_by_rank[int(r)]] for r in collectives.rank[rows]], dtype=np.int64)
    _, group = np.unique(collectives.group[rows], return_inverse=True)
    fit = fit_clocks(host, group, collectives.end_s[rows], len(hosts))
    quality: tuple[DataQuality, ...] = ()
    if fit.is_apart.any():
        count = int(fit.is_apart.sum())
        text = f"{count} of {len(hosts)} hosts share no collective with the others"
        if all(name.startswith(UNKNOWN_HOST) for name in hosts):
            text = (
                f"clocks of {count} of {len(hosts)} ranks are not aligned: nothing says their hosts, and they"
                " share no collective with the others"
            )
        quality = (DataQuality(QualityCode.CLOCK_UNALIGNED, text, count),)
    by_host = {name: float(fit.offset_s[index]) for name, index in number.items()}
    return ClockOffsets(by_host, fit.sigma_s, quality)


def fit_clocks(clock: IntArray, group: IntArray, end_s: FloatArray, clock_count: int) -> ClockFit:
    """Return the offset of every clock, from ends of collectives that are one event for all members.

    Args:
        clock: Which clock each end was read from, (ends,).
        group: Which collective ended, (ends,); numbered from 0.
        end_s: The readings, (ends,).
        clock_count: How many clocks there are.
    """
    numbered = group.astype(np.int64)
    offsets, sigma_s = _fit(clock, numbered, end_s, clock_count)
    is_apart = _unconnected(clock, numbered, clock_count)
    offsets[is_apart] = 0.0
    return ClockFit(offsets, sigma_s, is_apart)


def _fit(
    host: IntArray, group: IntArray, end_s: FloatArray, host_count: int
) -> tuple[FloatArray, float]:
    """Return offsets and scatter in seconds; collectives' own times are eliminated from the equations."""
    offsets = np.zeros(host_count)
    if end_s.size == 0:
        return offsets, 0.0
    group_count = int(group.max()) + 1
    weight = np.ones_like(end_s)
    sigma_s = 0.0
    is_dense = host_count <= MAX_DENSE_CLOCKS and group_count * host_count <= MAX_DENSE_CELLS
    for _ in range(ROUNDS):
        if not is_dense:
            offsets = _solve(host, group, weight, end_s, host_count)
            total = np.bincount(group, weight, group_count)
        else:
            by_group = np.zeros((group_count, host_count))
            np.add.at(by_group, (group, host), weight)
            total = by_group.sum(axis=1)
            mean_s = np.bincount(group, weight * end_s, group_count) / total
            laplacian = np.diag(by_group.sum(axis=0)) - by_group.T @ (by_group / total[:, None])
            target = np.bincount(host, weight * (end_s - mean_s[group]), host_count)
            offsets = np.linalg.pinv(laplacian, rcond=1e-9) @ target
        centre_s = np.bincount(group, weight * (end_s - offsets[host]), group_count) / total
        residual = np.abs(end_s - centre_s[group] - offsets[host])
        sigma_s = MAD_TO_SIGMA * float(np.median(residual))
        weight = 1.0 / np.maximum(1.0, residual / max(HUBER_SIGMAS * sigma_s, 1e-9))
    return offsets - float(np.median(offsets)), sigma_s


def _solve(
    host: IntArray, group: IntArray, weight: FloatArray, end_s: FloatArray, host_count: int
) -> FloatArray:
    """Return the offsets that meet the equations of `_fit`, by conjugate gradients scaled by each clock's weight."""
    total: FloatArray = np.bincount(group, weight).astype(np.float64)
    mean_s = np.bincount(group, weight * end_s) / total
    target: FloatArray = np.bincount(host, weight * (end_s - mean_s[group]), host_count).astype(
        np.float64
    )
    degree = np.bincount(host, weight, target.size)
    scale = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0.0)

    def apply(offsets: FloatArray) -> FloatArray:
        mean = np.bincount(group, weight * offsets[host], total.size) / total
        return np.asarray(
            degree * offsets - np.bincount(host, weight * mean[group], target.size),
            dtype=np.float64,
        )

    offsets = np.zeros_like(target)
    residual = target.copy()
    direction = scale * residual
    product = first = float(residual @ direction)
    for _ in range(SOLVER_ROUNDS):
        if product <= SOLVER_TOLERANCE**2 * first or first <= 0.0:
            break
        image = apply(direction)
        step = product / float(direction @ image)
        offsets += step * direction
        residual -= step * image
        scaled = scale * residual
        product, before = float(residual @ scaled), product
        direction = scaled + product / before * direction
    return offsets


def _unconnected(host: IntArray, group: IntArray, host_count: int) -> BoolArray:
    """Return the hosts outside the largest set that is joined by collectives."""
    label = np.arange(host_count)
    order = np.argsort(group, kind="stable")
    joined = np.diff(group[order]) == 0
    pairs = np.stack([host[order[:-1]][joined], host[order[1:]][joined]], axis=1)
    for left, right in np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0).tolist():
        a, b = label[left], label[right]
        if a != b:
            label[label == b] = a
    largest = np.bincount(label, minlength=host_count).argmax()
    return np.asarray(label != largest, dtype=np.bool_)
