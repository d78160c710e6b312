"""`rootwalk import`: files of other tools into a store."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.importers.formats import FORMATS

if TYPE_CHECKING:
    from rootwalk.graph.importers.formats import BrokenPart
    from rootwalk.graph.importers.importing import ImportSummary

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "put other tools' files into a store"
_FORMATS: Final = "\n".join(f"  {name}: {text}" for name, text in FORMATS.items())
EXAMPLES: Final = f"""formats:
{_FORMATS}

examples:
  rootwalk import otlp traces.jsonl metrics.jsonl --store job.duckdb
  rootwalk import otlp collector/*.json.zst --store job.duckdb --job llama-7b
  rootwalk import kineto profiles/rank*.pt.trace.json.gz --store profile.duckdb
  rootwalk import flight-recorder nccl_trace_rank_* --store hang.duckdb
  rootwalk import oplog trace.parquet --meta meta.yaml --store job.duckdb"""

# A file with this many broken parts is of another kind, or says the same again and again.
MAX_TOLD_PARTS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "format", choices=list(FORMATS), metavar="FORMAT", help=f"one of {', '.join(FORMATS)}"
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="files to read")
    parser.add_argument(
        "--store",
        type=Path,
        required=True,
        metavar="STORE",
        help="DuckDB file to add to, made when there is none; what is in it already is not added again",
    )
    parser.add_argument("--job", metavar="ID", help="job of what names none (default: it has none)")
    parser.add_argument(
        "--meta",
        type=Path,
        metavar="PATH",
        help="for oplog: YAML with the job's trial_name, dp_size, pp_size and world_size",
    )
    parser.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="for kineto: rank of a profile that does not tell it, nor its file name",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first part that cannot be read (default: name it and go on)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Import, and say what came of it; return 1 when a file was broken, but for empty ones beside others."""
    from rootwalk.graph.importers.formats import ImportOptions, load_importer
    from rootwalk.graph.importers.importing import import_files

    options = ImportOptions(tuple(arguments.paths), arguments.meta, arguments.rank)
    progress = _Progress(len(arguments.paths), is_shown=sys.stderr.isatty() and not arguments.quiet)
    try:
        summary = import_files(
            load_importer(arguments.format, options),
            arguments.paths,
            arguments.store,
            job=arguments.job,
            is_strict=arguments.strict,
            on_broken=progress.tell_broken,
            on_progress=progress.show,
        )
    finally:
        progress.clear()
    print(render_summary(summary, arguments.store))
    return 0 if summary.is_whole else 1


def render_summary(summary: ImportSummary, store: Path) -> str:
    """Return what was imported, on one line."""
    from rootwalk.otel_receiver.signals import RECORD_NAMES

    counts = [
        _count(count, RECORD_NAMES[signal].replace("_", " ").removesuffix("s"))
        for signal, count in summary.records.items()
        if count
    ]
    text = f"{_count(summary.files, 'file')} into {store}: {', '.join(counts) or 'nothing new'}"
    if summary.known:
        verb = "was" if summary.known == 1 else "were"
        text += f"; {_count(summary.known, 'record')} {verb} there already"
    if summary.broken_files > summary.empty_files:
        text += f"; {_count(summary.broken_files - summary.empty_files, 'file')} broken"
    if summary.empty_files:
        text += f"; {_count(summary.empty_files, 'file')} empty"
    return text


class _Progress:
    """The line on a terminal that says how far it is, and the lines about what is broken."""

    def __init__(self, total_files: int, *, is_shown: bool) -> None:
        self._total_files = total_files
        self._is_shown = is_shown
        self._broken_path: Path | None = None
        self._told_parts = 0

    def show(self, path: Path, summary: ImportSummary) -> None:
        if not self._is_shown:
            return
        records = sum(summary.records.values()) + summary.known
        read = f", {summary.content_bytes / 1e6:.0f} MB read" if summary.content_bytes else ""
        text = f"file {summary.files + 1} of {self._total_files}, {records} records so far{read}: {path}"
        print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr)
        sys.stderr.flush()

    def tell_broken(self, path: Path, part: BrokenPart) -> None:
        if path != self._broken_path:
            self._broken_path, self._told_parts = path, 0
        self._told_parts += 1
        if self._told_parts > MAX_TOLD_PARTS + 1:
            return
        self.clear()
        if self._told_parts > MAX_TOLD_PARTS:
            print(f'rootwalk import: "{path}": and more that is not told', file=sys.stderr)
            return
        print(f'rootwalk import: "{path}", {part.place}: {part.error}', file=sys.stderr)
        if part.error.hint and self._told_parts == 1:
            print(f"hint: {part.error.hint}", file=sys.stderr)

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
