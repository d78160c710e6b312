"""Logs of NCCL Inspector of a job whose ranks send to their neighbours: a ring, then one all-reduce of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.inspector_logs import START_US, line

TRANSFER_US = 8_000
ITERATION_US = 100_000


def ring_lines(
    ranks: int,
    slow: Mapping[tuple[int, int], float],
    *,
    iterations: int = 40,
    per_host: int = 1,
    seed: int = 1,
) -> dict[int, list[dict[str, Any]]]:
    """Return each rank's lines: messages both ways around; `slow` multiplies transfers of (sender, receiver)."""
    draw = np.random.default_rng(seed)
    lines: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
    counts = dict.fromkeys(range(ranks), 0)

    def add(rank: int, at: int, exec_us: int, **fields: Any) -> None:
        item = line(
            rank=rank,
            size=ranks,
            host=f"node{rank // per_host}",
            pid=100 + rank,
            exec_us=exec_us,
            written_us=at + 20,
            times=(at - exec_us, at),
            **fields,
        )
        lines[rank].append(item)

    for k in range(iterations):
        base = START_US + k * ITERATION_US
        for turn, step in enumerate((1, -1)):
            end = base + 40_000 + turn * 45_000
            for sender in range(ranks):
                receiver = (sender + step) % ranks
                ratio = slow.get((sender, receiver), 1.0)
                part = round(TRANSFER_US * ratio * abs(draw.normal(1.0, 0.02)))
                # Whoever comes first waits for the other.
                early = round(float(draw.uniform(0, 3_000)))
                waits = (early, 0) if draw.integers(2) else (0, early)
                for rank, peer, name, wait in (
                    (sender, receiver, "Send", waits[0]),
                    (receiver, sender, "Recv", waits[1]),
                ):
                    counts[rank] += 1
                    add(rank, end, part + wait, coll=name, peer=peer, sequence=counts[rank])
        for rank in range(ranks):
            add(rank, base + 95_000, 1_000 + int(draw.integers(50)), coll="AllReduce", sequence=k)
    return lines
