"""The formats that can be imported, and what an importer is.

An importer yields OTLP requests, whatever its format, so that what is imported goes the way of what is received.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from rootwalk.instrumentation.errors import RootwalkError

if TYPE_CHECKING:
    from rootwalk.otel_receiver.imports import ImportRequest

__all__ = ["FORMATS", "BrokenPart", "Importer", "load_importer"]

# Format and what its files are, for the help: 80 columns with the name.
FORMATS: Final = {
    "flight-recorder": "PyTorch's dumps, one a rank, pickle or JSON",
    "otlp": "OTLP in protobuf or JSON: requests, JSON lines, Collector's files",
}


@dataclass(frozen=True, slots=True)
class BrokenPart:
    """A part of a file that cannot be read; what comes after it may be.

    Attributes:
        place: Where it is, such as `line 17` or `byte 4096`.
        error: What is wrong with it.
    """

    place: str
    error: RootwalkError


class Importer(Protocol):
    """A module of this package, named like its format with `_` for `-`."""

    def read(self, path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
        """Yield what is in a file, holding little of it at once; the same requests for the same file every time.

        Args:
            path: The file, which is not empty.
            job: The job of what names none.

        Raises:
            DecodeError: If nothing more of it can be read.
            OSError: As the disk says.
        """


def load_importer(name: str) -> Importer:
    """Return the importer of a format."""
    module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    return cast("Importer", module)
