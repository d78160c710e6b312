"""Logs with lines of PyTorch's NCCL watchdog into a store: what each rank waited for becomes its flight record.

Most reports of a hang have nothing else. The files of one job belong into one import, a file of all ranks or one a
rank, with whatever else they hold. A dump of the same rank says more: where the store has one, it is used instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.importers.content import open_content, read_lines
from rootwalk.graph.importers.flight_recorder import DEFAULT_JOB, make_request
from rootwalk.graph.importers.formats import BrokenPart, Importer, ImportOptions, Note, ReadSoFar
from rootwalk.graph.importers.rank_names import ranks_of_names
from rootwalk.graph.importers.watchdog_lines import parse_line
from rootwalk.graph.importers.watchdog_records import WatchdogLog
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest

__all__ = ["DEFAULT_JOB", "configure", "read"]

# Of a line; a progress bar writes for hours without ending its line.
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
# What a line must have to be looked at closer.
_WANTED: Final = (
    b"ProcessGroupNCCL",
    b"caught collective operation",
    b"work: ",
    b" from ",
    b"nranks",
    b"orld",
    b"WORLD_SIZE",
)


def read(path: Path, job: str | None) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
    """Yield the records of the ranks of one log, of a job of which there is no other.

    Raises:
        DecodeError: If it has no line of the watchdog.
        OSError: If it cannot be read.
    """
    return configure(ImportOptions((path,))).read(path, job)


def configure(options: ImportOptions) -> Importer:
    """Return the importer of the logs of one job; what cannot be read of them, its `read` will say."""
    ranks = ranks_of_names(options.paths) if len(options.paths) > 1 else {}
    written_ns = max((_written_ns(path) for path in options.paths), default=0)
    log = WatchdogLog(written_ns)
    ranks_of: dict[Path, list[int]] = {}
    seen: set[int] = set()
    for path in options.paths:
        try:
            found = _add_file(log, path, ranks.get(path))
        except (DecodeError, OSError):
            continue
        if found:
            ranks_of[path] = [rank for rank in found if rank not in seen]
            seen.update(found)
    return _Logs(log, log.records(), ranks_of, written_ns)


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _add_file(log: WatchdogLog, path: Path, file_rank: int | None) -> list[int]:
    """Add the lines of a file; return the ranks of the job that they are of."""
    found: dict[int, None] = {}
    with open_content(path) as content:
        for _, line in read_lines(content, MAX_LINE_BYTES):
            # Progress bars go back to the beginning of their line.
            for part in line.split(b"\r") if any(word in line for word in _WANTED) else ():
                for message in parse_line(part.decode("utf-8", "replace").rstrip("\n")):
                    rank = log.add(message, file_rank)
                    if rank is not None:
                        found[rank] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class _Logs:
    log: WatchdogLog
    records: dict[int, RankRecord]
    ranks_of: dict[Path, list[int]]
    written_ns: int

    def read(
        self, path: Path, job: str | None
    ) -> Iterator[ImportRequest | BrokenPart | Note | ReadSoFar]:
        """Yield the records of the ranks of which this file is the first."""
        if path not in self.ranks_of:
            with open_content(path) as content:
                size_bytes = len(content.read(1))
            raise DecodeError(
                f"cannot read the log: saw no whole line of PyTorch's NCCL watchdog in it; needs {_NEEDS}"
                if size_bytes
                else f"cannot read the log: saw nothing in it; needs {_NEEDS}",
                hint=_HINT,
            )
        for rank in self.ranks_of[path]:
            if rank in self.records:
                yield make_request(self.records[rank], job or DEFAULT_JOB, self.written_ns)
        if path == next(iter(self.ranks_of)):
            notes = {
                "world_from_log": 0 if self.log.is_world_known else self.log.world_size,
                "messages_unpaired": self.log.messages,
                "lines_cut": self.log.cut,
                "ranks_ambiguous": self.log.ambiguous,
            }
            yield from (Note(kind, count) for kind, count in notes.items() if count)


_NEEDS: Final = 'stderr with "Watchdog caught collective operation timeout" or "last enqueued work"'
_HINT: Final = "for dumps of the next hang set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1"
