"""The format of operation traces: Parquet files with StragglerAnalysis's columns, and the job's degrees in YAML.

One row is one operation of one worker in one step. Owns what columns and types mean and which rows cannot be; makes no
spans.

Source: https://github.com/ByteDance-Seed/StragglerAnalysis, readme.md and analyzer/metatypes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from rootwalk.instrumentation.errors import ConfigError, DecodeError

__all__ = ["TYPES", "Degrees", "OperationType", "Row", "Scope", "read_degrees", "read_rows"]

COLUMNS: Final = (
    *("dp_rank", "stage", "rank", "step", "optype"),
    *("start_ts", "duration", "seq_id", "mb_id"),
)
# Rows that are held at once.
BATCH_ROWS: Final = 8192
# A file of this size has nothing but a job's degrees.
MAX_META_BYTES: Final = 65_536
# Steps have an hour each where the file does not say when they were: the last that 63 bits of ns have room for.
MAX_STEP: Final = 2_000_000
_MAX_NUMBER: Final = 1 << 31


class Scope(StrEnum):
    """Which workers take part in an operation."""

    OWN = "own"
    STAGE = "stage"
    ENDS = "ends"
    ALL = "all"
    NEXT = "next"
    PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class OperationType:
    """What a type does: the collective it is, None for a computation; with whom; in which phase of the step."""

    collective: str | None
    scope: Scope
    phase: str | None


# A type that is not here is the worker's own work.
TYPES: Final[dict[str, OperationType]] = {
    "forward-compute": OperationType(None, Scope.OWN, "forward"),
    "backward-compute": OperationType(None, Scope.OWN, "backward"),
    "forward-send": OperationType("send", Scope.NEXT, "forward"),
    "forward-recv": OperationType("recv", Scope.PREVIOUS, "forward"),
    "backward-send": OperationType("send", Scope.PREVIOUS, "backward"),
    "backward-recv": OperationType("recv", Scope.NEXT, "backward"),
    "params-all-gather": OperationType("all_gather", Scope.STAGE, None),
    "grads-reduce-scatter": OperationType("reduce_scatter", Scope.STAGE, None),
    "separate-grads-all-reduce": OperationType("all_reduce", Scope.STAGE, None),
    # Among the tensor-parallel ranks of one worker, of which the trace has one.
    "layernorm-grads-all-reduce": OperationType("all_reduce", Scope.OWN, None),
    "embedding-grads-all-reduce": OperationType("all_reduce", Scope.ENDS, None),
    "optimizer-clip-main-grad": OperationType("all_reduce", Scope.ALL, "optimizer"),
    "optimizer": OperationType(None, Scope.OWN, "optimizer"),
}


@dataclass(frozen=True, slots=True)
class Degrees:
    """A job and how it is split: replicas (`dp_size`), stages (`pp_size`), and ranks in all."""

    job: str
    replicas: int
    stages: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Row:
    """One operation; `number` counts the rows of the file from 0, times are seconds as the file has them."""

    number: int
    replica: int
    stage: int
    rank: int
    step: int
    type: str
    start_s: float
    duration_s: float
    sequence: int
    micro_batch: int


def read_degrees(path: Path) -> Degrees:
    """Return what a meta.yaml says: one `key: value` a line.

    Raises:
        ConfigError: If it cannot be read, or lacks a degree.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_META_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8"
        raise ConfigError(f'cannot read "{path}": saw {reason.lower()}; needs YAML') from error
    lines = (line.split("#")[0].partition(":") for line in text.splitlines())
    found = {key.strip(): value.strip().strip("\"'") for key, _, value in lines if value.strip()}
    sizes = {}
    for name in ("dp_size", "pp_size", "world_size"):
        value = found.get(name, "")
        if not value.isdecimal() or not 0 < int(value) < _MAX_NUMBER:
            saw = f'"{value[:40]}"' if value else "none"
            raise ConfigError(
                f'cannot use "{path}": saw {saw} for {name}; needs a positive whole number',
                hint="a meta.yaml has trial_name, dp_size, pp_size and world_size, one a line",
            )
        sizes[name] = int(value)
    job = found.get("trial_name") or path.stem
    return Degrees(job, sizes["dp_size"], sizes["pp_size"], sizes["world_size"])


def read_rows(path: Path, degrees: Degrees) -> Iterator[list[Row | tuple[int, str]]]:
    """Yield the rows of a file batch by batch; in place of a broken one its number and what is wrong with it.

    Raises:
        DecodeError: If nothing more of it can be read.
        OSError: As the disk says.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise DecodeError(
                    f"cannot read operations: saw no column {', '.join(missing)}; needs StragglerAnalysis's columns"
                )
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(COLUMNS)):
                columns = {name: batch.column(name).to_pylist() for name in COLUMNS}
                yield [
                    _row(number + index, values, degrees)
                    for index, values in enumerate(
                        zip(*(columns[name] for name in COLUMNS), strict=True)
                    )
                ]
                number += batch.num_rows
    except (pa.ArrowException, UnicodeDecodeError) as error:
        text = str(error).splitlines()[0][:200]
        raise DecodeError(
            f"cannot read operations: saw {text}; needs a whole Parquet file"
        ) from error


def _row(number: int, values: tuple[Any, ...], degrees: Degrees) -> Row | tuple[int, str]:
    replica, stage, rank, step, kind, start_s, duration_s, sequence, micro_batch = values
    # Operations without a micro-batch have -1 there, or nothing.
    row = (replica, stage, rank, step, sequence)
    if not all(isinstance(value, int) and 0 <= value < _MAX_NUMBER for value in row):
        return number, "saw no number, or a negative one; needs dp_rank, stage, rank, step, seq_id"
    if not isinstance(kind, str) or not kind:
        return number, "saw no optype; needs one"
    times = (start_s, duration_s)
    if not all(isinstance(time, int | float) and np.isfinite(time) for time in times):
        return number, "saw no time; needs start_ts and duration in seconds"
    if duration_s < 0.0 or not 0.0 <= start_s < 1e10 or duration_s > 1e6:
        return number, f"saw {duration_s:g} s from {start_s:g} s; needs times that can be"
    if replica >= degrees.replicas or stage >= degrees.stages:
        return number, (
            f"saw dp_rank {replica} and stage {stage}; "
            f"needs less than the {degrees.replicas} and {degrees.stages} of the meta file"
        )
    if rank >= degrees.world_size:
        return number, f"saw rank {rank}; needs less than the {degrees.world_size} of the meta file"
    if step >= MAX_STEP:
        return number, f"saw step {step}; needs less than {MAX_STEP}"
    batch = micro_batch if isinstance(micro_batch, int) and micro_batch >= 0 else -1
    return Row(
        *(number, replica, stage, rank, step, kind),
        *(float(start_s), float(duration_s), sequence, batch),
    )
