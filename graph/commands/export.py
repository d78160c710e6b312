"""`rootwalk export`: what a store holds, in the format of another tool."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.commands.level import parse_ranks
from rootwalk.graph.commands.units import parse_seconds, parse_steps
from rootwalk.graph.commands.urgency import yield_to_receiver
from rootwalk.graph.exporters.formats import FORMATS, Choice, load_exporter
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

if TYPE_CHECKING:
    from rootwalk.graph.handoff import MoveCosts

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "write what a store holds in another tool's format"
_FORMATS: Final = "\n".join(f"  {name}: {text}" for name, text in FORMATS.items())
EXAMPLES: Final = f"""formats:
{_FORMATS}

examples:
  rootwalk export job.duckdb --format perfetto --output job.pftrace
  rootwalk export job.duckdb --format pprof --output slow.pb.gz --ranks 3 --steps 100:159
  rootwalk export shared.duckdb --format pprof --output job.pb.gz --job llama-7b --force
  rootwalk export job.duckdb --format handoff --output job.jsonl --migration-time 20s"""


# What moving a job costs; with the format handoff only.
_MOVING: Final = {
    "restart-time": "from a restart to the next step (default: 390s)",
    "migration-time": "of a live migration (default: there is none)",
    "horizon": "time within which a move has to pay (default: 4h)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="DuckDB file that rootwalk has written"
    )
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        metavar="FORMAT",
        required=True,
        help=f"one of {', '.join(FORMATS)}",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        required=True,
        help="file to write, a new one; parquet: folder",
    )
    parser.add_argument("--job", metavar="ID", help="this job only (default: all)")
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="these ranks, such as 0,3,8-15, or all (default: all; perfetto: those that are accused)",
    )
    parser.add_argument(
        "--steps",
        type=parse_steps,
        metavar="A:B",
        help="first and last step (default: all, and what belongs to none)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    for name, text in _MOVING.items():
        parser.add_argument(f"--{name}", metavar="TIME", help=f"handoff: {text}")


def run(arguments: argparse.Namespace) -> int:
    """Write the file, and say what is in it; returns 0."""
    output: Path = arguments.output
    exporter = load_exporter(arguments.format)
    is_folder = bool(getattr(exporter, "WRITES_FOLDER", False))
    _check_output(output, is_folder=is_folder, may_overwrite=arguments.force)
    is_every_rank = arguments.ranks == "all"
    ranks = None if arguments.ranks is None or is_every_rank else parse_ranks(arguments.ranks)
    choice = Choice(arguments.job, ranks, arguments.steps, is_every_rank)
    choice = replace(choice, moving=_moving(arguments))
    yield_to_receiver(arguments.store)
    if getattr(exporter, "NEEDS_DIAGNOSIS", False):
        from rootwalk.graph.diagnosis import investigate

        found = investigate(arguments.store, job=arguments.job, steps=arguments.steps)
        choice = replace(choice, diagnosis=found)

    from rootwalk.otel_receiver.store import reading
    from rootwalk.otel_receiver.store_file import NO_FILES, FileAccess

    new = output.parent.resolve() / f"{output.name}.{os.getpid()}.writing"
    files = FileAccess(new) if is_folder else NO_FILES
    try:
        with reading(arguments.store, files=files) as connection:
            told = exporter.write(connection, choice, new)
        _put(new, output)
    except OSError as error:
        raise RootwalkError(
            f'cannot write "{output}": {error.strerror}; needs a folder that can be written to'
        ) from error
    finally:
        _remove(new)
    print(f"{told} into {output}")
    return 0


def _moving(arguments: argparse.Namespace) -> MoveCosts | None:
    """Return what it costs to move the job, where an option says it.

    Raises:
        ConfigError: If it is no time above 0, or another format is exported.
    """
    given = {
        name: parse_seconds(text, f"--{name}")
        for name in _MOVING
        if (text := getattr(arguments, name.replace("-", "_"))) is not None
    }
    if not given:
        return None
    if arguments.format != "handoff":
        raise ConfigError(f"cannot use --{next(iter(given))}: saw another format; needs handoff")
    if not all(value > 0 for value in given.values()):
        raise ConfigError("cannot use a time of 0: saw one for what moving a job costs; needs more")
    from rootwalk.graph.handoff import MoveCosts

    usual = MoveCosts()
    return MoveCosts(
        given.get("restart-time", usual.restart_s),
        given.get("migration-time", usual.migration_s),
        given.get("horizon", usual.horizon_s),
    )


def _check_output(output: Path, *, is_folder: bool, may_overwrite: bool) -> None:
    """Refuse to write over what is not an earlier export.

    Raises:
        ConfigError: If something is there, or something else than may be overwritten.
    """
    if not output.exists():
        return
    if output.is_dir() != is_folder or (is_folder and not _is_export(output)):
        seen = "a folder" if output.is_dir() else "a file"
        needs = "a new folder, or that of an earlier export" if is_folder else "a file"
        raise ConfigError(
            f'cannot write "{output}": saw {seen} there; needs {needs}', hint="choose another path"
        )
    if not may_overwrite:
        raise ConfigError(
            f'cannot write "{output}": saw a {"folder" if is_folder else "file"} there; needs a new one',
            hint="choose another path, or overwrite it with --force",
        )


def _is_export(folder: Path) -> bool:
    """Say whether a folder is an earlier export, or empty: nobody's other files may be lost."""
    names = [path.name for path in folder.iterdir()]
    return not names or (
        "rootwalk_schema.parquet" in names and all(name.endswith(".parquet") for name in names)
    )


def _put(new: Path, output: Path) -> None:
    """Put what was written where it belongs, in the place of what is there."""
    if not output.is_dir() and not new.is_dir():
        new.replace(output)
        return
    old = output.with_name(f"{output.name}.{os.getpid()}.old")
    if output.exists():
        output.rename(old)
    new.rename(output)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
