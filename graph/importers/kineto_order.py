"""Collectives of profiles that name neither group nor number, matched by their order: the n-th all-reduce of each rank.

    rank 0   ncclKernel_AllReduce ---|  ---|     ---|
    rank 1   ncclKernel_AllReduce  --|   --|      --|       ends at the same times, but for the clocks

PyTorch before 2.2 does not say them. The n-th kernel of a kind is the same call on all ranks if all have equally many,
and if their ends show it: no member of such a collective ends before the last has come. Where they do not (several
groups, another order), nothing is matched. Files are scanned for this before they are read.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from rootwalk.graph.importers.content import open_content
from rootwalk.graph.importers.kineto_collectives import Collective
from rootwalk.instrumentation import ids
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["OrderMatches", "find_order_matches"]

_CHUNK_BYTES: Final = 1024 * 1024
# An event of a kernel with all of its arguments is shorter.
_OVERLAP_BYTES: Final = 16 * 1024
# More kernels of one rank take more than a few seconds, and more memory than a profile is worth here.
MAX_KERNELS: Final = 200_000
# Share of the n-th kernels whose ends must agree, and by how much of the usual time between two of them: groups of
# which not all ranks are members end at other times, as far apart as the calls themselves.
MIN_AGREEING: Final = 0.8
MAX_APART_RATIO: Final = 0.1
# Ends that agree within this always agree: what a clock and a kernel's last channel differ by, us.
MIN_APART_US: Final = 100.0
# With fewer kernels of all kinds chance could do it.
MIN_KERNELS: Final = 3
_ARGUMENTS: Final = re.compile(rb'"Collective name"|"Process Group Name"')
_KERNEL: Final = re.compile(
    rb'"name"\s*:\s*"(?:nccl|rccl)\w*?Kernel_([A-Za-z]+)[^"]*"[^{}]*?"ts"\s*:\s*(\d+(?:\.\d+)?)\s*,'
    rb'\s*"dur"\s*:\s*(\d+(?:\.\d+)?)'
)


@dataclass(frozen=True, slots=True)
class OrderMatches:
    """Profiles whose collectives are matched by order, and how many ranks there are."""

    paths: frozenset[Path] = field(default_factory=frozenset)
    ranks: int = 0

    def has(self, path: Path) -> bool:
        """Return whether the collectives of a profile are matched so."""
        return path in self.paths

    def named(self, path: Path, collectives: list[Collective]) -> list[Collective]:
        """Return the collectives of a profile with a communicator for each kind of operation, if they are matched."""
        if path not in self.paths:
            return collectives
        return [
            dataclasses.replace(
                one,
                communicator_id=ids.communicator_id(f"by order: {one.operation}", ()),
                communicator_name=f"all ranks, {one.operation} by order",
                communicator_size=self.ranks,
            )
            if one.communicator_size is None
            else one
            for one in collectives
        ]


def find_order_matches(paths: Sequence[Path]) -> OrderMatches:
    """Return which profiles have collectives that only their order matches; all of an import, or none."""
    if len(paths) < 2:
        return OrderMatches()
    ends: list[dict[str, np.ndarray]] = []
    for path in paths:
        found = _scan(path)
        if found is None:
            return OrderMatches()
        ends.append(found)
    kinds = {kind: len(times) for kind, times in ends[0].items()}
    is_equal = all({kind: len(t) for kind, t in own.items()} == kinds for own in ends)
    if not is_equal or sum(kinds.values()) < MIN_KERNELS:
        return OrderMatches()
    if not all(_agree([own[kind] for own in ends]) for kind in kinds):
        return OrderMatches()
    return OrderMatches(frozenset(paths), len(paths))


def _scan(path: Path) -> dict[str, np.ndarray] | None:
    """Return when the collectives' kernels ended, us, by kind; None if the profile names their groups, or has none."""
    starts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    count = Counter[str]()
    try:
        with open_content(path) as content:
            rest = b""
            while chunk := content.read(_CHUNK_BYTES):
                text = rest + chunk
                if _ARGUMENTS.search(text) or sum(count.values()) > MAX_KERNELS:
                    return None
                last = 0
                for match in _KERNEL.finditer(text):
                    kind, start_us, duration_us = match.groups()
                    starts[kind.decode()].append((float(start_us), float(duration_us)))
                    count[kind.decode()] += 1
                    last = match.end()
                rest = text[max(last, len(text) - _OVERLAP_BYTES) :]
    except (DecodeError, OSError):
        return None
    if not starts:
        return None
    return {
        kind: np.array([start + duration for start, duration in sorted(times)])
        for kind, times in starts.items()
    }


def _agree(ends: list[np.ndarray]) -> bool:
    """Return whether the n-th ends of all ranks are at one time, but for their clocks."""
    first = ends[0]
    gap_us = float(np.median(np.diff(first))) if len(first) > 1 else 0.0
    apart_us = max(MIN_APART_US, MAX_APART_RATIO * gap_us)
    for other in ends[1:]:
        difference = other - first
        near = np.abs(difference - np.median(difference)) <= apart_us
        if float(np.mean(near)) < MIN_AGREEING:
            return False
    return True
