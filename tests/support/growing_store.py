"""A store that grows as a running job's does: steps come in batches, at the time at which they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rootwalk.graph.live.findings import Exemplar
from rootwalk.graph.live.track import Notice
from rootwalk.graph.live.watch import Watcher
from rootwalk.otel_receiver import store
from support.jobs import NS, Job, simulate, write_rows


class GrowingStore:
    """Writes a simulated job step by step; its clock stands at the end of the last step written.

    Args:
        path: The store; created.
        jobs: The jobs, on one clock.
    """

    def __init__(self, path: Path, *jobs: Job) -> None:
        self.path = path
        store.create_store(path)
        rows = [row for job in jobs for row in simulate(job)]
        self._rows_by_step: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            self._rows_by_step.setdefault(int(row["step"]), []).append(row)
        self.next_step = 0
        self.now_unix_ns = 0
        self.ended_unix_ns: dict[int, int] = {}

    def grow(self, steps: int) -> None:
        """Write so many more steps in one batch."""
        batch: list[dict[str, Any]] = []
        for _ in range(steps):
            rows = self._rows_by_step[self.next_step]
            self.now_unix_ns = max(self.now_unix_ns, *(int(row["end_unix_ns"]) for row in rows))
            self.ended_unix_ns[self.next_step] = self.now_unix_ns
            batch += rows
            self.next_step += 1
        write_rows(self.path, [row | {"received_unix_ns": self.now_unix_ns} for row in batch])


class Watched:
    """A watcher on a growing store, on the store's clock, and what it told."""

    def __init__(self, growing: GrowingStore) -> None:
        self.growing = growing
        self.told: list[tuple[int, Notice]] = []
        self.exemplars: list[Exemplar | None] = []
        self.hurried: list[int] = []
        self.watcher = Watcher(
            growing.path,
            self._hear,
            hurry=lambda: self.hurried.append(growing.next_step - 1),
            now_unix_ns=lambda: growing.now_unix_ns,
            now_s=lambda: growing.now_unix_ns / NS,
        )
        self.watcher.poll()

    def run(self, until_step: int, every: int = 1) -> None:
        """Let the job run, looking after every so many steps; the first fifty, healthy everywhere, are one batch."""
        if self.growing.next_step == 0:
            self.growing.grow(50)
            self.watcher.poll()
        while self.growing.next_step < until_step:
            self.growing.grow(min(every, until_step - self.growing.next_step))
            self.watcher.poll()

    def _hear(self, notice: Notice, exemplar: Exemplar | None) -> None:
        self.told.append((self.growing.next_step - 1, notice))
        self.exemplars.append(exemplar)

    def summary(self) -> list[tuple[str, str, int | None]]:
        """What was told: change, reason and rank."""
        return [(n.change.value, n.finding.reason, n.finding.rank) for _, n in self.told]
