"""Import of files, folders and archives: which of their files are of a format, and what the others are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.importers.formats import FORMATS, ImportOptions, load_importer
from rootwalk.graph.importers.importing import ImportSummary, import_files
from rootwalk.graph.importers.recognition import Recognised, recognise
from rootwalk.graph.importers.sources import opened_sources
from rootwalk.instrumentation.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from rootwalk.graph.commands.import_ import Progress

__all__ = ["ImportSettings", "import_paths"]

# Job of files of several formats that name none, so that one verdict rests on all of them.
MIXED_JOB: Final = "imported"
# Files that are named one by one.
MAX_LISTED: Final = 4
# Watchdog lines after dumps: those of ranks with a dump are not used.
_ORDER: Final = tuple(FORMATS)


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """How files are imported.

    Attributes:
        job: Job of what names none; None for the format's own name.
        meta: A file about the job, for `oplog`.
        ranks: One for each file, in their order; empty where the files say it.
        is_strict: Whether the first broken part ends the import.
    """

    job: str | None = None
    meta: Path | None = None
    ranks: tuple[int, ...] = ()
    is_strict: bool = False


def import_paths(
    name: str | None,
    paths: list[Path],
    store: Path,
    settings: ImportSettings,
    progress: Progress,
) -> ImportSummary:
    """Import files, and the files in folders and archives; return what has become of them.

    Args:
        name: The format; None if each file is of what its content says.
        paths: Files, folders and archives. A file that is given itself is always read as the format that is named.
        store: Created if need be.
        settings: How.
        progress: Shows how far it is, and what cannot be read.

    Raises:
        ConfigError: If no file is of a known format, or an option cannot be used.
        DecodeError: If an archive is damaged or too large.
        StoreError: If the store cannot be opened or written.
    """
    try:
        with opened_sources(paths) as (files, found):
            is_one = name is not None and not found
            by_format = {str(name): files} if is_one else _sort(name, files, found, progress)
            return _import(by_format, store, settings, progress)
    except OSError as error:
        place = f'"{error.filename}"' if error.filename else "the files"
        raise DecodeError(
            f"cannot read {place}: {(error.strerror or str(error)).lower()}; needs files"
        ) from error


def _sort(
    name: str | None, files: list[Path], found: set[Path], progress: Progress
) -> dict[str, list[Path]]:
    """Return the files by format, and say which are left out; of the format that is named alone, if one is."""
    by_format: dict[str, list[Path]] = {}
    others: list[tuple[Path, Recognised | None]] = []
    for path in files:
        if name is not None and path not in found:
            by_format.setdefault(name, []).append(path)
            continue
        recognised = _recognise(path)
        kind = recognised.format if recognised is not None else None
        if kind is None or kind not in FORMATS or (name is not None and kind != name):
            others.append((path, recognised))
        else:
            by_format.setdefault(kind, []).append(path)
    if not by_format:
        raise _nothing(name, others)
    for line in _left_out(others):
        progress.say(line)
    return {kind: by_format[kind] for kind in _ORDER if kind in by_format}


def _recognise(path: Path) -> Recognised | None:
    try:
        return recognise(path)
    except OSError:
        return None


def _nothing(name: str | None, others: list[tuple[Path, Recognised | None]]) -> ConfigError:
    known = [(path, found) for path, found in others if found is not None]
    needed = f"files of {name}" if name is not None else f"one of {', '.join(FORMATS)}"
    count = f"{len(others)} file{'' if len(others) == 1 else 's'}"
    if not known:
        names = ", ".join(f'"{path.name}"' for path, _ in others[:MAX_LISTED])
        return ConfigError(
            f"cannot find anything to import: saw {count} of no known format ({names}); needs {needed}"
        )
    path, found = known[0]
    return ConfigError(
        f'cannot find anything to import: saw {count}, and "{path.name}" is {found.what}; needs {needed}',
        hint=f"use {found.advice}",
    )


def _left_out(others: list[tuple[Path, Recognised | None]]) -> Iterable[str]:
    """Yield a line about each kind of file that is not imported."""
    by_kind: dict[str, list[str]] = {}
    for path, found in others:
        text = "of no known format" if found is None else f"{found.what}: use {found.advice}"
        by_kind.setdefault(text, []).append(path.name)
    for text, names in by_kind.items():
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        yield f"left out {', '.join(names[:MAX_LISTED])}{more}: {text}"


def _import(
    by_format: dict[str, list[Path]], store: Path, settings: ImportSettings, progress: Progress
) -> ImportSummary:
    total = ImportSummary()
    progress.total_files = sum(map(len, by_format.values()))
    job = settings.job or (MIXED_JOB if len(by_format) > 1 else None)
    for name, files in by_format.items():
        options = ImportOptions(
            tuple(files),
            settings.meta if name == "oplog" or len(by_format) == 1 else None,
            settings.ranks,
        )
        summary = import_files(
            load_importer(name, options),
            files,
            store,
            job=job,
            is_strict=settings.is_strict,
            on_broken=progress.tell_broken,
            on_progress=progress.show,
        )
        total.add(summary)
    return total
