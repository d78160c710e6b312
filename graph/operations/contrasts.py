"""Split what every operation took above its reference into parts that add up: stage, worker, data, transfer.

    computation     = reference of its type + stage + worker + data + jitter
    communication   = median of its type    + transfer

A worker is compared with those that do the same: its stage in other replicas. What all stages of a replica have alike
is their data's, since they compute the same samples; so is what all do alike with one micro-batch. Owns the arithmetic
of references; knows nothing of the graph.

Source:
    Method C5, nested contrasts. Medians, because one bad worker must not raise what its peers are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.operations.arrays import NOT_KNOWN, Operations, medians_by, numbered

__all__ = ["Parts", "published_reference_s", "split"]

# With fewer peers the median lies between bad and good ones, so that half of the effect is lost (C9, pitfall 4).
MIN_PEERS = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of every operation, (operations,) each: its reference and what lies above it, by where it comes from."""

    reference_s: FloatArray
    stage_s: FloatArray
    worker_s: FloatArray
    data_s: FloatArray
    jitter_s: FloatArray
    transfer_s: FloatArray


def split(operations: Operations, work_s: FloatArray) -> Parts:
    """Return the parts of the work of every operation.

    Args:
        operations: Of the window.
        work_s: Seconds of each computation, and of each communication after its last member came.
    """
    zero = np.zeros_like(work_s)
    is_compute = ~operations.is_communication
    reference_s = medians_by(operations.type, work_s)[operations.type] if work_s.size else zero
    transfer_s = np.where(is_compute, 0.0, work_s - reference_s)
    parts = Parts(reference_s, zero.copy(), zero.copy(), zero.copy(), zero.copy(), transfer_s)
    chosen = np.flatnonzero(is_compute)
    if chosen.size:
        _split_computations(operations, work_s, chosen, parts)
    return parts


def _split_computations(
    operations: Operations, work_s: FloatArray, chosen: IntArray, parts: Parts
) -> None:
    """Fill in the parts of computations, in place."""
    kind, stage = operations.type[chosen], operations.stage[chosen]
    rank, replica = operations.rank[chosen], operations.replica[chosen]
    seconds = work_s[chosen]
    workers, worker = numbered(kind, stage, rank)
    usual_s = medians_by(worker, seconds)
    roles, role = numbered(kind[workers], stage[workers])
    role_s = _peer_reference(role, usual_s)
    _, first = numbered(kind[workers][roles])
    type_s = np.bincount(first, role_s) / np.bincount(first)
    has_data = operations.micro_batch[chosen] != NOT_KNOWN
    expected_s = role_s[role][worker]
    alike = has_data & (replica != NOT_KNOWN)
    expected_s[alike] *= _shared_factor(
        replica[alike], stage[alike], usual_s[worker][alike], expected_s[alike]
    )
    micro = _micro_batch_factor(operations, chosen, seconds, usual_s[worker])
    at_role, at_type = role_s[role][worker], type_s[first][role][worker]
    parts.reference_s[chosen] = at_type
    parts.stage_s[chosen] = at_role - at_type
    parts.worker_s[chosen] = usual_s[worker] - expected_s
    of_micro_batch_s = usual_s[worker] * (micro - 1.0)
    parts.data_s[chosen] = expected_s - at_role + of_micro_batch_s
    parts.jitter_s[chosen] = seconds - usual_s[worker] - of_micro_batch_s


def _peer_reference(role: IntArray, usual_s: FloatArray) -> FloatArray:
    """Return what a worker of each role takes: the middle of its peers, of few the quickest."""
    lowest = np.full(int(role.max()) + 1, np.inf)
    np.minimum.at(lowest, role, usual_s)
    return np.where(np.bincount(role) >= MIN_PEERS, medians_by(role, usual_s), lowest)


def _micro_batch_factor(
    operations: Operations, chosen: IntArray, seconds: FloatArray, usual_s: FloatArray
) -> FloatArray:
    """Return how much longer than usual all stages took for the same micro-batch of the same replica."""
    micro_batch, replica = operations.micro_batch[chosen], operations.replica[chosen]
    known = np.flatnonzero((micro_batch != NOT_KNOWN) & (replica != NOT_KNOWN))
    result = np.ones_like(seconds)
    if known.size:
        _, key = numbered(operations.step[chosen][known], replica[known], micro_batch[known])
        stage = operations.stage[chosen][known]
        # Without a pipeline, forward and backward pass have to agree.
        part = stage if np.unique(stage).size > 1 else operations.type[chosen][known]
        result[known] = _shared_factor(key, part, seconds[known], usual_s[known])
    return result


def _shared_factor(
    key: IntArray, part: IntArray, seconds: FloatArray, reference_s: FloatArray
) -> FloatArray:
    """Return for each row by how much most parts of its key differ from the reference alike: the middle of the parts.

    Of an even number the middle one that differs less, and 1 where the two differ in opposite ways: what half of the
    parts have is not shared, but that of two bad workers. Of a single one 1.

    Args:
        key: What may be shared, (rows,).
        part: Stage, or what else should agree, (rows,).
        seconds: What each took, (rows,).
        reference_s: What is usual, (rows,).
    """
    if not key.size:
        return np.ones(0)
    pairs, pair = numbered(key, part)
    total_s, usual_s = np.bincount(pair, seconds), np.bincount(pair, reference_s)
    ratio = np.divide(total_s, usual_s, out=np.ones_like(total_s), where=usual_s > 0.0)
    _, owner = numbered(key[pairs])
    parts = np.bincount(owner)
    ordered = ratio[np.lexsort((ratio, owner))]
    first = np.cumsum(parts) - parts
    low, high = ordered[first + (parts - 1) // 2], ordered[first + parts // 2]
    factor = np.where(low > 1.0, low, np.where(high < 1.0, high, 1.0))
    factor[parts < 2] = 1.0
    return np.asarray(factor[owner][pair], dtype=np.float64)


def published_reference_s(operations: Operations, work_s: FloatArray) -> FloatArray:
    """Return StragglerAnalysis's references: mean of a computation's type, median of a communication's.

    Source:
        StragglerAnalysis, analyzer/analysis_util.py, `simulation_analysis_reduce_dim_v4`.
    """
    total = np.bincount(operations.type, work_s, len(operations.types))
    count = np.bincount(operations.type, minlength=len(operations.types))
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    middle = medians_by(operations.type, work_s)
    return np.where(operations.is_communication, middle[operations.type], mean[operations.type])
