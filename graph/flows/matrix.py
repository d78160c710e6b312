"""Which ends or paths of messages are slow: the matrix of transfers between ranks; pure.

             to 0   1   2   3        a row that is slow: what its sender sends
    from 0        .   .   .          a column: what its receiver takes
         1    .       S   .          one cell: the path between two ranks
         2    .   S       .          all cells between two hosts: the path between them
         3    .   .   .

A cell is the usual transfer of one pair: of a send and its receive the shorter part, since whoever comes first waits.
Pairs are compared with others that move as much, on one host or between hosts as they do; only differences show.

Source:
    Method C6 (C4D's pairwise delay matrix): row, column, cell, block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.detect import MIN_RATIO, robust_sigma
from rootwalk.graph.flows.rows import FlowRows

__all__ = ["SlowPath", "find_slow_paths"]

FLOOR: Final = MIN_RATIO - 1.0
MIN_SIGMAS: Final = 6.0
# Pairs that make a comparison, the slow one included.
MIN_PAIRS: Final = 4
# Cells that make a row, a column or a block.
MIN_CELLS: Final = 2

_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlowPath:
    """What slow cells have in common; seconds are per iteration, of the worst of them.

    `rank` is the end that is slow with all its partners, None for a path; `ranks` are all ends of the slow cells, and
    `hosts` the two hosts of a block.
    """

    rank: int | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    share_s: float
    transfer_s: float
    peers_s: float
    slow: int
    alike: int


@dataclass(frozen=True, slots=True)
class _Cell:
    """One pair's usual transfer of one volume, what is usual for others, and how often it is made in an iteration."""

    pair: _Pair
    transfer_s: float
    peers_s: float
    calls: float
    is_slow: bool
    alike: int


def find_slow_paths(
    rows: FlowRows, iterations: int, floor_s: float, host_of: Mapping[int, str]
) -> tuple[SlowPath, ...]:
    """Return the ends and paths whose messages are slow, the worst first.

    Args:
        rows: Records, of which messages whose other end is known are looked at.
        iterations: How many they are of.
        floor_s: Seconds per iteration below which nothing is claimed.
        host_of: Host of each rank.
    """
    cells = _cells(*_match(rows), iterations, floor_s, host_of)
    left = {cell.pair: cell for cell in cells if cell.is_slow}
    found: list[SlowPath] = []
    for end in (0, 1):
        for rank in sorted({pair[end] for pair in left}):
            own = [cell for cell in cells if cell.pair[end] == rank]
            if len({cell.pair for cell in own}) >= MIN_CELLS and all(cell.is_slow for cell in own):
                found.append(_common(own, rank, ()))
    for item in found:
        left = {pair: cell for pair, cell in left.items() if item.rank not in pair}
    for hosts in sorted({_hosts(pair, host_of) for pair in left}):
        own = [cell for cell in cells if _hosts(cell.pair, host_of) == hosts]
        is_block = len(set(hosts)) == 2 and len({cell.pair for cell in own}) >= MIN_CELLS
        if is_block and all(cell.is_slow for cell in own):
            found.append(_common(own, None, hosts))
            left = {pair: cell for pair, cell in left.items() if _hosts(pair, host_of) != hosts}
    found += [_common([cell], None, ()) for cell in left.values()]
    # An end that is slow both ways is one end.
    ends: dict[object, SlowPath] = {}
    for item in sorted(found, key=lambda item: (-round(item.share_s, 9), item.ranks)):
        ends.setdefault(item.ranks if item.rank is None else item.rank, item)
    return tuple(ends.values())


def _match(rows: FlowRows) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return sender, receiver, bytes and transfer of each message of which both ends have a record."""
    names = rows.operations
    ends = []
    for operation in ("send", "recv"):
        number = names.index(operation) if operation in names else -1
        chosen = np.flatnonzero(rows.is_message & (rows.operation == number) & (rows.peer >= 0))
        rank, peer = rows.rank[chosen], rows.peer[chosen]
        sender, receiver = (rank, peer) if operation == "send" else (peer, rank)
        keys = np.stack([rows.communicator[chosen], sender, receiver], axis=1)
        order = np.lexsort((rows.sequence[chosen], *keys.T[::-1]))
        ends.append((keys[order], chosen[order]))
    whole: dict[tuple[int, ...], list[IntArray]] = {}
    for keys, chosen in ends:
        kinds, starts = np.unique(keys, axis=0, return_index=True)
        for kind, own in zip(kinds.tolist(), np.split(chosen, starts[1:]), strict=False):
            whole.setdefault(tuple(kind), []).append(own)
    # The n-th send between two ranks is the n-th receive; one that is missing shifts all behind it.
    pairs = [both for both in whole.values() if len(both) == 2 and both[0].size == both[1].size]
    nothing = np.zeros(0, dtype=np.int64)
    sent = np.concatenate([nothing, *(both[0] for both in pairs)])
    taken = np.concatenate([nothing, *(both[1] for both in pairs)])
    transfer_s = np.minimum(rows.duration_s[sent], rows.duration_s[taken])
    is_whole = np.isfinite(transfer_s) & (rows.size_bytes[sent] == rows.size_bytes[taken])
    sent, taken = sent[is_whole], taken[is_whole]
    return rows.rank[sent], rows.rank[taken], rows.size_bytes[sent], transfer_s[is_whole]


def _cells(
    sender: IntArray,
    receiver: IntArray,
    size_bytes: IntArray,
    transfer_s: FloatArray,
    iterations: int,
    floor_s: float,
    host_of: Mapping[int, str],
) -> list[_Cell]:
    kinds: dict[tuple[int, bool], dict[_Pair, FloatArray]] = {}
    keys = np.stack([size_bytes, sender, receiver], axis=1)
    order = np.lexsort(keys.T[::-1])
    found, starts = np.unique(keys[order], axis=0, return_index=True)
    for (size, one, other), own in zip(
        found.tolist(), np.split(transfer_s[order], starts[1:]), strict=False
    ):
        is_near = host_of.get(one) == host_of.get(other)
        kinds.setdefault((size, is_near), {})[one, other] = own
    cells = []
    for matrix in kinds.values():
        if len(matrix) < MIN_PAIRS:
            continue
        levels = np.array([float(np.median(own)) for own in matrix.values()])
        for at, (pair, own) in enumerate(matrix.items()):
            others = np.delete(levels, at)
            peers_s, noise_s = float(np.median(others)), robust_sigma(others)
            above_s = float(levels[at]) - peers_s
            calls = own.size / iterations
            is_slow = above_s >= max(FLOOR * peers_s, MIN_SIGMAS * noise_s)
            is_slow = is_slow and above_s * calls >= floor_s
            cells.append(_Cell(pair, float(levels[at]), peers_s, calls, is_slow, len(matrix)))
    return cells


def _common(cells: list[_Cell], rank: int | None, hosts: tuple[str, ...]) -> SlowPath:
    worst = max(cells, key=lambda cell: (cell.transfer_s - cell.peers_s) * cell.calls)
    return SlowPath(
        rank=rank,
        ranks=tuple(sorted({end for cell in cells for end in cell.pair})),
        hosts=hosts,
        share_s=(worst.transfer_s - worst.peers_s) * worst.calls,
        transfer_s=worst.transfer_s * worst.calls,
        peers_s=worst.peers_s * worst.calls,
        slow=len(cells),
        alike=worst.alike,
    )


def _hosts(pair: _Pair, host_of: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(sorted(host_of.get(rank, "") for rank in pair))
