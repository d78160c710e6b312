"""Spans as arrays, and as rows of a store: what a receiver would have made of them, without one.

Owns the columns that every span has. A block of spans is added at once, and a step is written at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

NS = 1_000_000_000
START_UNIX_NS = 1_800_000_000 * NS
HOST_RANKS = 8
AGGRESSOR_PID, AGGRESSOR_NAME = 4411, "node_exporter"
_TEXTS = ("name", "phase", "operation", "communicator_id", "communicator_name", "state")


class SpanRows:
    """Spans of one step while they come, block by block."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []

    def add(self, rank: Integers, begin: Floats, end: Floats, **columns: Any) -> None:
        """Add one span for each rank; a column is an array or the same for all."""
        # The clocks go on after this.
        self.blocks.append({"rank": rank, "begin": begin.copy(), "end": end.copy(), **columns})

    def table(self, step: int, skew_s: Floats) -> pa.Table:
        """Return the rows in order of their ends, as a receiver gets them."""
        sizes = [block["rank"].size for block in self.blocks]
        rank = np.concatenate([block["rank"] for block in self.blocks])
        end = np.concatenate([block["end"] for block in self.blocks])
        begin = np.concatenate([block["begin"] for block in self.blocks])
        order = np.argsort(end, kind="stable")
        skew = skew_s[rank // HOST_RANKS]
        columns: dict[str, Any] = {
            "rank": rank[order],
            "start_unix_ns": START_UNIX_NS + np.rint((begin + skew) * NS).astype(np.int64)[order],
            "end_unix_ns": START_UNIX_NS + np.rint((end + skew) * NS).astype(np.int64)[order],
            "step": np.full(rank.size, step),
        }
        for name in sorted(
            {name for block in self.blocks for name in block} - {"rank", "begin", "end"}
        ):
            parts = [
                _part(block.get(name), size) for block, size in zip(self.blocks, sizes, strict=True)
            ]
            columns[name] = _text(parts, order) if name in _TEXTS else _numbers(parts, order)
        return pa.table(columns)


def _part(value: Any, size: int) -> Any:
    return np.full(size, value) if not isinstance(value, np.ndarray) else value.reshape(-1)


def _numbers(parts: list[Any], order: Integers) -> pa.Array:
    """Return one column of numbers, NULL where a block has none."""
    whole = np.concatenate([part.astype(np.float64) for part in parts])[order]
    return pa.array(np.rint(np.nan_to_num(whole)).astype(np.int64), mask=np.isnan(whole))


def _text(parts: list[Any], order: Integers) -> pa.DictionaryArray:
    """Return one column of text as numbers and words; blocks have one word, or one a row."""
    words: dict[Any, int] = {}
    numbers = []
    for part in parts:
        distinct, inverse = np.unique(part.astype(str), return_inverse=True)
        own = [words.setdefault(word, len(words)) for word in distinct.tolist()]
        numbers.append(np.array(own, dtype=np.int32)[inverse])
    index = np.concatenate(numbers)[order]
    missing = words.get("None", -1)
    return pa.DictionaryArray.from_arrays(pa.array(index, mask=index == missing), list(words))


# What the receiver would have made of the spans; ids are as long and as random as real ones.
_INSERT = f"""
INSERT INTO span_records BY NAME
SELECT * REPLACE (is_point_to_point = 1 AS is_point_to_point),
    printf('%032x', hash(step)) AS trace_id,
    printf('%016x', hash(name, rank, step, start_unix_ns, coalesce(sequence, 0))) AS span_id,
    'INTERNAL' AS kind, 'large' AS job, 0 AS attempt, rank % {HOST_RANKS} AS local_rank, ?::BIGINT AS world_size,
    'host-id-' || (rank // {HOST_RANKS}) AS host_id, 'host-' || (rank // {HOST_RANKS}) AS host_name,
    1000 + rank % {HOST_RANKS} AS pid,
    CASE WHEN name = 'training.rank_step' THEN 'complete' END AS outcome,
    CASE WHEN running_ns IS NOT NULL OR state IS NOT NULL THEN 'core' END AS sensor,
    CASE WHEN state IS NOT NULL THEN 1000 + rank % {HOST_RANKS} END AS thread_id,
    CASE WHEN state IS NOT NULL THEN 'main' END AS role,
    CASE WHEN state IS NOT NULL THEN rank % {HOST_RANKS} END AS cpu,
    CASE WHEN aggressor_ns IS NOT NULL THEN 'process' END AS aggressor_kind,
    CASE WHEN aggressor_ns IS NOT NULL THEN {AGGRESSOR_PID} END AS aggressor_pid,
    CASE WHEN aggressor_ns IS NOT NULL THEN '{AGGRESSOR_NAME}' END AS aggressor_name,
    CASE WHEN running_ns IS NOT NULL THEN '{{"training.step.number":' || step || ',"training.wait.min_time":0.0001}}'
         ELSE '{{"training.step.number":' || step || ',"training.rank":' || rank || '}}' END AS attributes,
    '{{}}' AS resource, '[]' AS links, '[]' AS events, end_unix_ns AS received_unix_ns
FROM step_spans
"""  # noqa: S608  (constants of this module)


def put(connection: Any, table: pa.Table, ranks: int) -> int:
    """Store the spans of one step of a job of so many ranks; return how many there are."""
    if "aggressor_ns" not in table.column_names:
        table = table.append_column("aggressor_ns", pa.nulls(table.num_rows, pa.int64()))
    connection.register("step_spans", table)
    connection.execute(_INSERT, [ranks])
    connection.unregister("step_spans")
    return int(table.num_rows)
