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

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.import_quality import forget_broken_files
from rootwalk.graph.importers.formats import BrokenPart, Importer, Note, ReadSoFar
from rootwalk.graph.importers.recognition import name_other_format
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import LOCK_TIMEOUT_S, ImportRequest, save_import
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import writing

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
        empty_files: Of them, those without a byte, where the format has such.
        records: Records that are new in the store, by signal.
        known: Records that were in the store already.
        content_bytes: Of the file in progress, where its importer says how far it is; 0 where not.
    """

    files: int = 0
    broken_files: int = 0
    empty_files: int = 0
    records: dict[Signal, int] = field(default_factory=lambda: dict.fromkeys(Signal, 0))
    known: int = 0
    content_bytes: int = 0

    def add(self, other: ImportSummary) -> None:
        """Add what has become of other files."""
        self.files += other.files
        self.broken_files += other.broken_files
        self.empty_files += other.empty_files
        self.known += other.known
        for signal, count in other.records.items():
            self.records[signal] += count

    @property
    def is_whole(self) -> bool:
        """Whether everything could be read, empty files beside others with content left aside."""
        return self.broken_files == self.empty_files and (
            self.empty_files == 0 or self.empty_files < self.files
        )


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
        on_progress: Told the file in progress, before each batch and as its importer goes on.

    Raises:
        StoreError: If the store cannot be opened or written; what was stored is kept.
    """
    summary = ImportSummary()
    whole: list[str] = []
    for path in paths:
        summary.content_bytes = 0
        on_progress(path, summary)
        broken: BrokenPart | None = None
        batch: list[ImportRequest] = []
        size_bytes = 0
        for part in _read(importer, path, job):
            if isinstance(part, BrokenPart):
                broken = broken or part
                on_broken(path, part)
                if is_strict:
                    break
                continue
            if isinstance(part, Note):
                _save_note(path, part, job or getattr(importer, "DEFAULT_JOB", None), store)
                continue
            if isinstance(part, ReadSoFar):
                summary.content_bytes = part.content_bytes
                on_progress(path, summary)
                continue
            batch.append(part)
            size_bytes += len(part.body)
            if size_bytes >= BATCH_BYTES or len(batch) >= BATCH_REQUESTS:
                _save(batch, store, summary)
                batch, size_bytes = [], 0
                on_progress(path, summary)
        _save(batch, store, summary)
        summary.files += 1
        if broken is None:
            whole.append(path.name)
            continue
        summary.broken_files += 1
        summary.empty_files += (
            not is_strict and getattr(importer, "MAY_BE_EMPTY", False) and _is_empty(path)
        )
        _tell_broken(path, broken, job or getattr(importer, "DEFAULT_JOB", None), store)
        if is_strict:
            break
    if whole:
        with writing(store, timeout_s=LOCK_TIMEOUT_S) as connection:
            forget_broken_files(connection, whole)
    return summary


def _tell_broken(path: Path, part: BrokenPart, job: str | None, store: Path) -> None:
    """Store an event that says that a file is broken; of no job if it is not known whose it is."""
    text = f"{part.place}: {part.error}"
    save_import(store, [_event(path, job, semconv.EVENT_ROOTWALK_IMPORT_BROKEN_FILE, text)])


def _save_note(path: Path, note: Note, job: str | None, store: Path) -> None:
    """Store what had to be assumed about a file or was left out of it; nothing for a count of 0."""
    if note.count > 0:
        name = semconv.EVENT_ROOTWALK_IMPORT_NOTE
        save_import(store, [_event(path, job, name, "", note)])


def _event(
    path: Path, job: str | None, name: str, text: str, note: Note | None = None
) -> ImportRequest:
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    if job is not None:
        logs.resource.attributes.add(key=semconv.TRAINING_JOB_ID).value.string_value = job
    event = logs.scope_logs.add().log_records.add()
    event.event_name = name
    event.attributes.add(
        key=semconv.ROOTWALK_IMPORT_FILE_NAME
    ).value.string_value = path.name.encode("utf-8", "replace").decode()
    if note is not None:
        event.attributes.add(key=semconv.ROOTWALK_IMPORT_NOTE_KIND).value.string_value = note.kind
        event.attributes.add(key=semconv.ROOTWALK_IMPORT_NOTE_COUNT).value.int_value = note.count
    event.body.string_value = text
    return ImportRequest(Signal.LOGS, request.SerializeToString(deterministic=True), 1)


def _read(
    importer: Importer, path: Path, job: str | None
) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    """Yield what an importer reads, and what ends it as a broken part at the end."""
    is_nothing = True
    try:
        size_bytes = path.stat().st_size
        if size_bytes:
            for part in importer.read(path, job):
                is_nothing = False
                yield part
    except DecodeError as error:
        yield BrokenPart(WHOLE_FILE, name_other_format(path, importer, error))
        return
    except OSError as error:
        text = f"cannot read the file: {(error.strerror or str(error)).lower()}; needs a file"
        yield BrokenPart(WHOLE_FILE, DecodeError(text))
        return
    if is_nothing:
        text = f"cannot read the file: saw {size_bytes} bytes with nothing in them; needs the format that was named"
        yield BrokenPart(WHOLE_FILE, DecodeError(text))


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _save(batch: list[ImportRequest], store: Path, summary: ImportSummary) -> None:
    if not batch:
        return
    saved = save_import(store, batch)
    for signal, count in saved.records.items():
        summary.records[signal] += count
    summary.known += saved.known
