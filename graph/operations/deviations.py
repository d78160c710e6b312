"""How far a worker stands out: from the other workers, and from how much its own operations vary.

Sequences of different length make a worker look slow for a step; neither its peers nor itself are even then.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rootwalk.graph.align import MAD_TO_SIGMA
from rootwalk.graph.columns import FloatArray
from rootwalk.graph.operations.arrays import Operations
from rootwalk.graph.operations.contrasts import Parts
from rootwalk.graph.series import robust_z

__all__ = ["own_sigmas", "peer_sigmas"]

# Fewer operations of a type do not tell how much they vary.
MIN_OPERATIONS: Final = 3
# Standard error of a median over that of a mean, for normal noise.
MEDIAN_ERROR: Final = 1.2533
# Clocks resolve no less.
MIN_ERROR_S: Final = 1e-6


def peer_sigmas(operations: Operations, parts: Parts, rank: int) -> float | None:
    """Return by how many robust sigmas of the other workers' deviations a worker deviates; None with few others.

    A worker's deviation is what it takes longer than those that do the same, as a part of what they take.
    """
    chosen = ~operations.is_communication
    ranks, number = np.unique(operations.rank[chosen], return_inverse=True)
    above_s = np.bincount(number, parts.worker_s[chosen])
    usual_s = np.bincount(number, (parts.reference_s + parts.stage_s)[chosen])
    ratio = np.divide(above_s, usual_s, out=np.zeros_like(above_s), where=usual_s > 0.0)
    mine = ranks == rank
    return robust_z(float(ratio[mine][0]), ratio[~mine]) if mine.any() else None


def own_sigmas(operations: Operations, work_s: FloatArray, parts: Parts, rank: int) -> float | None:
    """Return by how many standard errors a worker's usual operations lie above its peers'; None for few operations.

    Args:
        operations: Of the window.
        work_s: Seconds of each, (operations,).
        parts: Their contrasts.
        rank: The worker.
    """
    above_s = variance = 0.0
    is_told = False
    mine = (operations.rank == rank) & ~operations.is_communication
    for kind in np.unique(operations.type[mine]).tolist():
        chosen = mine & (operations.type == kind)
        count = int(chosen.sum())
        if count < MIN_OPERATIONS:
            continue
        is_told = True
        seconds = work_s[chosen]
        sigma_s = MAD_TO_SIGMA * float(np.median(np.abs(seconds - np.median(seconds))))
        above_s += float(parts.worker_s[chosen].sum())
        variance += count * (MEDIAN_ERROR * sigma_s) ** 2
    return above_s / max(math.sqrt(variance), MIN_ERROR_S) if is_told else None
