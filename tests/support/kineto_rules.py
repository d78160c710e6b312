"""Rules that people use on the profile of one rank, to stand beside the verdict: each names a part of it, or nobody.

    input    what the data loader's iterator takes
    device   kernels and copies
    host     operators

They see the same events. Rules about several ranks have nothing to say of one.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.trace_rules import SIGMAS

PARTS = {"kernel": "device", "gpu_memcpy": "device", "gpu_memset": "device", "cpu_op": "host"}


@dataclass(frozen=True)
class Piece:
    """One event of a profile: where it belongs, in which step it begins (None before the first), and its seconds."""

    part: str
    step: int | None
    seconds: float


def read_pieces(path: Path) -> list[Piece]:
    """Return what a profile's steps consist of."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e]
    spans = [e for e in events if e.get("ph") == "X"]
    begins = sorted(float(e["ts"]) for e in spans if e["name"].startswith("ProfilerStep#"))
    pieces = []
    for event in spans:
        is_loader = event["name"].startswith("enumerate(DataLoader)")
        part = "input" if is_loader else PARTS.get(str(event.get("cat", "")).lower())
        if part is not None:
            step = bisect.bisect_right(begins, float(event["ts"])) - 1
            seconds = float(event["dur"]) / 1e6
            pieces.append(Piece(part, step if step >= 0 else None, seconds))
    return pieces


def largest_sum(pieces: list[Piece]) -> str | None:
    """Name the part that takes longest in all."""
    total: dict[str, float] = {}
    for piece in pieces:
        total[piece.part] = total.get(piece.part, 0.0) + piece.seconds
    return max(total, key=lambda part: (total[part], part), default=None)


def longest_event(pieces: list[Piece]) -> str | None:
    """Name the part of the longest event."""
    return max(pieces, key=lambda p: p.seconds).part if pieces else None


def deviant_part(pieces: list[Piece]) -> str | None:
    """Name the part of which one step deviates most from the others, from 3 sigma on."""
    best, found = SIGMAS, None
    steps = sorted({piece.step for piece in pieces if piece.step is not None})
    for part in sorted({piece.part for piece in pieces}):
        total = np.zeros(len(steps))
        for piece in pieces:
            if piece.part == part and piece.step is not None:
                total[steps.index(piece.step)] += piece.seconds
        sigma = 1.4826 * float(np.median(np.abs(total - np.median(total))))
        z = float((total - np.median(total)).max()) / sigma if sigma > 0.0 else 0.0
        if z > best:
            best, found = z, part
    return found


PROFILE_RULES: dict[str, Callable[[list[Piece]], str | None]] = {
    "slowest rank": largest_sum,
    "longest span": longest_event,
    "N-sigma": deviant_part,
}
