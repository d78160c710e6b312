"""`rootwalk import`: files of other tools into a store."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.commands.units import parse_ranks
from rootwalk.graph.importers.formats import FORMATS

if TYPE_CHECKING:
    from rootwalk.graph.importers.formats import BrokenPart
    from rootwalk.graph.importers.importing import ImportSummary

__all__ = ["EXAMPLES", "HELP", "Progress", "add_arguments", "run"]

# In place of a format: each file is of what its content says.
AUTO: Final = "auto"
HELP: Final = "put other tools' files into a store"
_FORMATS: Final = "\n".join(f"  {name}: {text}" for name, text in FORMATS.items())
EXAMPLES: Final = f"""formats:
{_FORMATS}

examples:
  rootwalk import otlp traces.jsonl metrics.jsonl --store job.duckdb
  rootwalk import otlp collector/*.json.zst --store job.duckdb --job llama-7b
  rootwalk import kineto profiles/rank*.pt.trace.json.gz --store profile.duckdb
  rootwalk import flight-recorder nccl_trace_rank_* --store hang.duckdb
  rootwalk import watchdog-log stderr.log --store hang.duckdb
  rootwalk import kineto profiles/ --store profile.duckdb
  rootwalk import auto run-17.tar.gz --store job.duckdb
  rootwalk import oplog trace.parquet --meta meta.yaml --store job.duckdb"""

# A file with this many broken parts is of another kind, or says the same again and again.
MAX_TOLD_PARTS: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "format",
        choices=[*FORMATS, AUTO],
        metavar="FORMAT",
        help=f"one of {', '.join(FORMATS)}; {AUTO} finds it by content",
    )
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="files to read, folders, and archives (.zip, .tar.gz and the like) of them",
    )
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
        type=parse_ranks,
        default=(),
        metavar="N,N,…",
        help="for kineto and flight-recorder: ranks of the files in their order, where neither they nor"
        " their names say them",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first part that cannot be read (default: name it and go on)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Import, and say what came of it; return 1 when a file was broken, but for empty ones beside others."""
    from rootwalk.graph.commands.import_paths import ImportSettings, import_paths

    progress = Progress(is_shown=sys.stderr.isatty() and not arguments.quiet)
    try:
        summary = import_paths(
            None if arguments.format == AUTO else arguments.format,
            arguments.paths,
            arguments.store,
            ImportSettings(
                job=arguments.job,
                meta=arguments.meta,
                ranks=arguments.rank,
                is_strict=arguments.strict,
            ),
            progress,
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


class Progress:
    """The line on a terminal that says how far it is, and the lines about what is broken."""

    def __init__(self, *, is_shown: bool) -> None:
        self.total_files = 0
        self._is_shown = is_shown
        self._broken_path: Path | None = None
        self._told_parts = 0

    def show(self, path: Path, summary: ImportSummary) -> None:
        """Show the file in progress, on a terminal."""
        if not self._is_shown:
            return
        records = sum(summary.records.values()) + summary.known
        read = f", {summary.content_bytes / 1e6:.0f} MB read" if summary.content_bytes else ""
        text = f"file {summary.files + 1} of {self.total_files}, {records} records so far{read}: {path}"
        print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr)
        sys.stderr.flush()

    def say(self, text: str) -> None:
        """Print a line about the files as a whole."""
        self.clear()
        print(f"rootwalk import: {text}", file=sys.stderr)

    def tell_broken(self, path: Path, part: BrokenPart) -> None:
        """Print what cannot be read of a file, its first parts only."""
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
        """Remove what is shown."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
