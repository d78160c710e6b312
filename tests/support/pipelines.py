"""A made-up job of data and pipeline parallelism, as an operation trace whose times follow from a few numbers.

    stage 0   |F0|F1|            |B0|B1|reduce|clip|opt|
    stage 1      |F0|F1|B0|B1|         |reduce|clip|opt|

All forward passes, then all backward passes; the trace's columns are StragglerAnalysis's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

Row = dict[str, int | float | str]


@dataclass
class PipelineJob:
    """Degrees, seconds of each operation, and what is wrong.

    Attributes:
        slow: Factor on the computations of a worker, by (replica, stage).
        stage_factor: Factor on the computations of all workers of a stage.
        data_factor: Factor on all stages' computations of one micro-batch, from (step, replica, micro-batch).
        late_s: Seconds by which a worker begins its last backward pass late, by (replica, stage).
        skew_s: What a rank's clock is ahead, by rank.
        rank_of: Rank of a worker, from (replica, stage).
    """

    replicas: int = 4
    stages: int = 2
    micro_batches: int = 4
    steps: int = 3
    forward_s: float = 0.1
    backward_s: float = 0.2
    send_s: float = 0.001
    reduce_s: float = 0.05
    clip_s: float = 0.01
    optimizer_s: float = 0.02
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    stage_factor: dict[int, float] = field(default_factory=dict)
    data_factor: Callable[[int, int, int], float] = lambda step, replica, micro_batch: 1.0
    late_s: dict[tuple[int, int], float] = field(default_factory=dict)
    skew_s: dict[int, float] = field(default_factory=dict)
    rank_of: Callable[[int, int], int] | None = None

    def rank(self, replica: int, stage: int) -> int:
        """Return the rank of a worker."""
        if self.rank_of is not None:
            return self.rank_of(replica, stage)
        return stage * self.replicas + replica

    def rows(self) -> list[Row]:
        """Return the operations of all steps."""
        return [row for rows in self.rows_by_step() for row in rows]

    def rows_by_step(self) -> Iterator[list[Row]]:
        """Yield the operations of one step after the other: of a large job they are many."""
        return (self._step(step) for step in range(self.steps))

    def write(self, folder: Path, rows: list[Row] | None = None) -> tuple[Path, Path]:
        """Write trace and meta file; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        trace, meta = folder / "trace.parquet", folder / "meta.yaml"
        parquet.write_table(pa.Table.from_pylist(rows or self.rows()), trace)
        workers = self.replicas * self.stages
        meta.write_text(
            f"trial_name: made-up\ndp_size: {self.replicas}\npp_size: {self.stages}\nworld_size: {workers}\n"
        )
        return trace, meta

    def _seconds(self, base_s: float, step: int, replica: int, stage: int, batch: int) -> float:
        factor = self.slow.get((replica, stage), 1.0) * self.stage_factor.get(stage, 1.0)
        return base_s * factor * self.data_factor(step, replica, batch)

    def _step(self, step: int) -> list[Row]:
        rows: list[Row] = []

        def add(
            place: tuple[int, int], kind: str, start: float, end: float, sequence: int, batch: int
        ) -> None:
            rank = self.rank(*place)
            moved = start + self.skew_s.get(rank, 0.0) + 1.0
            rows.append(
                {
                    "dp_rank": place[0],
                    "stage": place[1],
                    "rank": rank,
                    "step": step,
                    "optype": kind,
                    "start_ts": moved,
                    "duration": end - start,
                    "seq_id": sequence,
                    "mc": 0,
                    "mb_id": batch,
                    "gmc": place[1],
                }
            )

        done: dict[tuple[int, int], float] = {}
        for replica in range(self.replicas):
            free = dict.fromkeys(range(self.stages), 0.0)
            for phase, base_s in (("forward", self.forward_s), ("backward", self.backward_s)):
                order = list(range(self.stages))[:: 1 if phase == "forward" else -1]
                for batch in range(self.micro_batches):
                    sent = None
                    for position, stage in enumerate(order):
                        place, start = (replica, stage), free[stage]
                        if sent is not None:
                            end = max(sent, start) + self.send_s
                            before = (replica, order[position - 1])
                            add(before, f"{phase}-send", sent, end, batch, -1)
                            add(place, f"{phase}-recv", start, end, batch, -1)
                            start = end
                        if phase == "backward" and batch == self.micro_batches - 1:
                            start += self.late_s.get(place, 0.0)
                        end = start + self._seconds(base_s, step, replica, stage, batch)
                        add(place, f"{phase}-compute", start, end, batch, batch)
                        sent = free[stage] = end
            done |= {(replica, stage): end for stage, end in free.items()}
        for stage in range(self.stages):
            last = max(done[replica, stage] for replica in range(self.replicas)) + self.reduce_s
            for replica in range(self.replicas):
                place = (replica, stage)
                add(place, "grads-reduce-scatter", done[place], last, 0, -1)
                done[place] = last
        last = max(done.values()) + self.clip_s
        for place, start in done.items():
            add(place, "optimizer-clip-main-grad", start, last, 0, -1)
            add(place, "optimizer", last, last + self.optimizer_s, 0, -1)
        return rows
