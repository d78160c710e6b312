"""The formats that can be imported, and what an importer is.

An importer yields OTLP requests, whatever its format, so that what is imported goes the way of what is received.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from rootwalk.instrumentation.errors import ConfigError, RootwalkError

if TYPE_CHECKING:
    from rootwalk.otel_receiver.imports import ImportRequest

__all__ = [
    "FORMATS",
    "BrokenPart",
    "ImportOptions",
    "Importer",
    "Note",
    "ReadSoFar",
    "load_importer",
]

# Format and what its files are, for the help: 80 columns with the name.
FORMATS: Final = {
    "flight-recorder": "PyTorch's dumps, one a rank, pickle or JSON",
    "oplog": "operations of every worker, in StragglerAnalysis's columns, Parquet",
    "nccl-inspector": "NCCL Inspector's JSON lines, all files of a job at once",
    "watchdog-log": "stderr of a job with the lines of PyTorch's NCCL watchdog",
    "kineto": "PyTorch profiles (torch.profiler, Kineto), JSON, one a rank",
    "otlp": "OTLP in protobuf or JSON: requests, JSON lines, Collector's files",
}
# Formats with one rank a file, which its content may not say.
_WITH_RANKS: Final = ("kineto", "flight-recorder")


@dataclass(frozen=True, slots=True)
class BrokenPart:
    """A part of a file that cannot be read; what comes after it may be.

    Attributes:
        place: Where it is, such as `line 17` or `byte 4096`.
        error: What is wrong with it.
    """

    place: str
    error: RootwalkError


@dataclass(frozen=True, slots=True)
class Note:
    """What an importer had to assume about a file or left out of it, kept in the store for verdicts.

    Attributes:
        kind: A key of `import_quality.NOTES`.
        count: Items that it concerns; 0 says nothing.
    """

    kind: str
    count: int


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """How far a file is read that gives its requests at its end; for who waits.

    Attributes:
        content_bytes: Of its content, decompressed.
    """

    content_bytes: int


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What is said of the files of one import.

    Attributes:
        paths: All of them.
        meta: A file about their job.
        ranks: One for each file, in their order, for files that do not say it.
    """

    paths: tuple[Path, ...] = ()
    meta: Path | None = None
    ranks: tuple[int, ...] = ()


class Importer(Protocol):
    """A module of this package, named like its format with `_` for `-`.

    It may have a `DEFAULT_JOB`, the job of files that name none, and `MAY_BE_EMPTY`, true where whoever writes the
    format leaves files without a byte.
    """

    def read(
        self, path: Path, job: str | None
    ) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
        """Yield what is in a file, holding little of it at once; the same requests for the same file every time.

        Args:
            path: The file, which is not empty.
            job: The job of what names none.

        Raises:
            DecodeError: If nothing more of it can be read.
            OSError: As the disk says.
        """


def load_importer(name: str, options: ImportOptions) -> Importer:
    """Return the importer of a format.

    A module that has to know more than a file at a time has a function `configure`, which makes its importer.

    Raises:
        ConfigError: If an option is not the format's, is missing, or cannot be used.
    """
    if options.meta is not None and name != "oplog":
        raise ConfigError(f"cannot use --meta: saw the format {name}; needs oplog")
    if options.ranks:
        _check_ranks(name, options)
    module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    configure = getattr(module, "configure", None)
    return cast("Importer", module if configure is None else configure(options))


def _check_ranks(name: str, options: ImportOptions) -> None:
    listed = ",".join(map(str, options.ranks))
    if name not in _WITH_RANKS:
        raise ConfigError(
            f"cannot use --rank {listed}: saw the format {name}; needs {' or '.join(_WITH_RANKS)}"
        )
    if len(options.ranks) != len(options.paths) or len(set(options.ranks)) < len(options.ranks):
        count = len(options.paths)
        raise ConfigError(
            f"cannot use --rank {listed}: saw {count} file{'' if count == 1 else 's'} of {name};"
            " needs one rank for each file, none twice",
            hint="ranks are given in the order of the files, such as --rank 0,1,2,3",
        )
