"""The formats that can be exported, and what an exporter is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from rootwalk.graph.diagnosis import Diagnosis
    from rootwalk.graph.handoff import MoveCosts

__all__ = ["FORMATS", "Choice", "Exporter", "load_exporter"]

# Format and what it is for, for the help: 80 columns with the name.
FORMATS: Final = {
    "dot": "the verdict's dependency graph, for Graphviz",
    "handoff": "a finding a line: who, where, what it costs, move or not",
    "otlp": "spans, metrics, logs, profiles as JSON lines, for Collectors",
    "parquet": "every public view as a file of a folder, for pandas and DuckDB",
    "perfetto": "the walked path and the accused ranks, for ui.perfetto.dev",
    "pprof": "profiles, as `go tool pprof` and most flame graphs read them",
    "summaries": "each rank's time by function, and how far from its peers",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a store is exported.

    Attributes:
        job: This job; None for all.
        ranks: These ranks; None for all, and what belongs to none.
        steps: First and last step; None for all, and what belongs to none.
        is_every_rank: Whether all ranks were asked for by that word; then `ranks` is None.
        diagnosis: Of the job, for formats that need it.
        moving: What it costs to move the job; None for the defaults.
    """

    job: str | None = None
    ranks: Sequence[int] | None = None
    steps: tuple[int, int] | None = None
    is_every_rank: bool = False
    diagnosis: Diagnosis | None = None
    moving: MoveCosts | None = None


class Exporter(Protocol):
    """A module of this package, named like its format.

    It may say `NEEDS_DIAGNOSIS = True`, for a choice with a diagnosis, and `WRITES_FOLDER = True`.
    """

    def write(self, connection: Any, choice: Choice, path: Path) -> str:
        """Write what is chosen into a file, and return what it was, for people.

        Args:
            connection: To the store.
            choice: What of it.
            path: The file, which is not there.

        Raises:
            InsufficientDataError: If the store has nothing of it.
            OSError: As the disk says.
        """


def load_exporter(name: str) -> Exporter:
    """Return the exporter of a format."""
    return cast("Exporter", importlib.import_module(f"{__package__}.{name}"))
