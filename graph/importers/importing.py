"""Files into a store: one after the other, in batches, each request once.

    file -> importer -> ImportRequest ... -> batch -> one transaction
                     -> BrokenPart    ... -> told, and the rest goes on

A broken file ends nothing but itself. Whatever ends an import, a kill included, the next one stores what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rootwalk.graph.importers.formats import BrokenPart, Importer
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest, save_import
from rootwalk.otel_receiver.signals import Signal

__all__ = ["ImportSummary", "import_files"]

# What is broken where no part of a file is.
WHOLE_FILE: Final = "the whole file"
# Bytes of requests in one transaction: some 50,000 spans. Their rows take a few times as much.
BATCH_BYTES: Final = 16 * 1024 * 1024
# Requests without a record take no bytes to speak of.
BATCH_REQUESTS: Final = 10_000


@dataclass(slots=True)
class ImportSummary:
    """What has become of some files.

    Attributes:
        files: Files that were read to their end.
        broken_files: Files of which a part, or all, could not be read.
        records: Records that are new in the store, by signal.
        known: Records that were in the store already.
    """

    files: int = 0
    broken_files: int = 0
    records: dict[Signal, int] = field(default_factory=lambda: dict.fromkeys(Signal, 0))
    known: int = 0


def import_files(
    importer: Importer,
    paths: list[Path],
    store: Path,
    *,
    job: str | None,
    is_strict: bool,
    on_broken: Callable[[Path, BrokenPart], None],
    on_progress: Callable[[Path, ImportSummary], None],
) -> ImportSummary:
    """Import files in their order; return what has become of them.

    Args:
        importer: Which reads their format.
        paths: The files.
        store: Created if need be.
        job: The job of what names none.
        is_strict: Whether the first broken part ends the import.
        on_broken: Told each part that cannot be read, before what follows it is read.
        on_progress: Told the file in progress, before each batch.

    Raises:
        StoreError: If the store cannot be opened or written; what was stored is kept.
    """
    summary = ImportSummary()
    for path in paths:
        on_progress(path, summary)
        is_broken = False
        batch: list[ImportRequest] = []
        size_bytes = 0
        for part in _read(importer, path, job):
            if isinstance(part, BrokenPart):
                is_broken = True
                on_broken(path, part)
                if is_strict:
                    break
                continue
            batch.append(part)
            size_bytes += len(part.body)
            if size_bytes >= BATCH_BYTES or len(batch) >= BATCH_REQUESTS:
                _save(batch, store, summary)
                batch, size_bytes = [], 0
                on_progress(path, summary)
        _save(batch, store, summary)
        summary.files += 1
        summary.broken_files += is_broken
        if is_broken and is_strict:
            break
    return summary


def _read(importer: Importer, path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart]:
    """Yield what an importer reads, and what ends it as a broken part at the end."""
    is_nothing = True
    try:
        size_bytes = path.stat().st_size
        if size_bytes:
            for part in importer.read(path, job):
                is_nothing = False
                yield part
    except DecodeError as error:
        yield BrokenPart(WHOLE_FILE, error)
        return
    except OSError as error:
        text = f"cannot read the file: {(error.strerror or str(error)).lower()}; needs a file"
        yield BrokenPart(WHOLE_FILE, DecodeError(text))
        return
    if is_nothing:
        text = f"cannot read the file: saw {size_bytes} bytes with nothing in them; needs the format that was named"
        yield BrokenPart(WHOLE_FILE, DecodeError(text))


def _save(batch: list[ImportRequest], store: Path, summary: ImportSummary) -> None:
    if not batch:
        return
    saved = save_import(store, batch)
    for signal, count in saved.records.items():
        summary.records[signal] += count
    summary.known += saved.known
