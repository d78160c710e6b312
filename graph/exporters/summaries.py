"""What each rank did, a row for each of its functions, as one Parquet file: what thousands of ranks can be compared by.

The rows are those of `graph.summaries`; steps that are chosen are the window, and what came before them its past. Says
who stands out, and how many bytes a rank's summary has beside those of its records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.graph.summaries.reading import read_summaries
from rootwalk.graph.summaries.table import (
    StandsOut,
    Summaries,
    history_distance,
    peer_distance,
)
from rootwalk.instrumentation.errors import InsufficientDataError

if TYPE_CHECKING:
    from rootwalk.graph.columns import BoolArray, FloatArray
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["write"]

# More lines than this say that the job as a whole is uneven.
MAX_TOLD: Final = 8


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write the summaries of a job's ranks, and return who stands out and what the summaries weigh.

    Raises:
        InsufficientDataError: If the store has nothing of what is chosen.
        ConfigError: If the job cannot be chosen.
        OSError: As the disk says.
    """
    key = choose_job(connection, choice.job)
    found = None if key is None else read_summaries(connection, key, choice.steps)
    chosen = None if found is None else _chosen(found, choice)
    if key is None or found is None or chosen is None or not chosen.any():
        raise InsufficientDataError(
            "cannot export: saw no span of a step and no profile of this job, these ranks and steps; needs one",
            hint="`rootwalk sql STORE 'FROM jobs'` lists what is there",
        )
    peers = peer_distance(found)
    _write_rows(path, key, found, peers, chosen)
    ranks = np.unique(found.rank[chosen]).tolist()
    own_bytes = path.stat().st_size / len(ranks)
    raw_bytes = sum(found.raw_bytes_by_rank[rank] for rank in ranks) / len(ranks)
    lines = _who_stands_out(found, peers, chosen)
    lines.append(
        f"{int(chosen.sum()):,} summaries of {len(ranks):,} ranks, {own_bytes:,.0f} B a rank for {raw_bytes:,.0f} B of"
        f" records ({raw_bytes / own_bytes:,.0f} times less)"
    )
    return "\n".join(lines)


def _chosen(found: Summaries, choice: Choice) -> BoolArray:
    if choice.ranks is None:
        return np.ones(found.rank.size, dtype=np.bool_)
    return np.isin(found.rank, np.array(choice.ranks, dtype=np.int64))


def _who_stands_out(found: Summaries, peers: StandsOut, chosen: BoolArray) -> list[str]:
    """Return a line for each function of a rank that stands out from its peers, the farthest first."""
    rows = np.flatnonzero(peers.is_out & chosen)
    rows = rows[np.argsort(-peers.distance[rows].round(9), kind="stable")]
    lines = [
        f"rank {found.rank[row]} stands out: {found.names[found.function[row]][1]},"
        f" {found.now.share[row]:.1%} of its steps, distance {peers.distance[row]:.2f} to {peers.peers[row]} peers"
        for row in rows[:MAX_TOLD].tolist()
    ]
    if rows.size > MAX_TOLD:
        lines.append(f"{rows.size - MAX_TOLD} more stand out")
    return lines


def _write_rows(
    path: Path, key: JobKey, found: Summaries, peers: StandsOut, chosen: BoolArray
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def numbers(column: FloatArray) -> pa.Array:
        # Float32 tells a distance and a mean well enough, in half the bytes.
        kept = column[chosen]
        return pa.array(kept.astype(np.float32), mask=np.isnan(kept))

    def words(column: list[str]) -> pa.Array:
        return pa.array(column, pa.string()).dictionary_encode()

    names = [found.names[number] for number in found.function[chosen].tolist()]
    stage = found.stage[chosen]
    table = pa.table(
        {
            "job": words([key.job] * len(names)),
            "attempt": pa.array([key.attempt] * len(names), pa.int32()),
            "rank": pa.array(found.rank[chosen], pa.int32()),
            "stage": pa.array(stage, pa.int32(), mask=stage < 0),
            "kind": words([str(kind) for kind, _ in names]),
            "function": words([name for _, name in names]),
            "calls": pa.array(found.calls[chosen], pa.int64()),
            "share": numbers(found.now.share),
            "mean": numbers(found.now.mean),
            "deviation": numbers(found.now.deviation),
            "peers": pa.array(peers.peers[chosen], pa.int32()),
            "peer_distance": numbers(peers.distance),
            "history_distance": numbers(history_distance(found)),
            "stands_out": pa.array(peers.is_out[chosen]),
        }
    )
    parquet.write_table(table, path, compression="zstd", store_schema=False)
