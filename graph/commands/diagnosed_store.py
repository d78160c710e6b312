"""The store that `rootwalk diagnose` reads: the one that was named, or one made of files of other tools."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["opened_store"]

# Bytes 8 to 11 of a DuckDB file.
_MAGIC: Final = b"DUCK"


@contextlib.contextmanager
def opened_store(
    paths: list[Path], kept: Path | None, job: str | None, ranks: tuple[int, ...]
) -> Iterator[Path]:
    """Give the store of some paths: one path that is a store, else what is imported from them.

    Args:
        paths: What the user named.
        kept: Where to import to; None for a file that is removed afterwards.
        job: Job of what names none.
        ranks: Of the files, in their order.

    Raises:
        ConfigError: If there is nothing to import, or there are several stores.
        DecodeError: If an archive is damaged.
        StoreError: If the store cannot be written.
    """
    stores = [path for path in paths if _is_store(path)]
    # A path that does not exist and a file of an unknown format are reported by whoever opens them.
    if len(paths) == 1 and (stores or not paths[0].exists() or _is_unknown(paths[0])):
        if kept is not None or ranks:
            raise ConfigError(
                f'cannot import "{paths[0]}": saw --store or --rank with a store; needs files of other tools'
            )
        yield paths[0]
        return
    if stores:
        raise ConfigError(
            f"cannot diagnose {len(paths)} paths together: saw a store among them; needs one store, or files to import",
            hint=f'import the others into it: rootwalk import auto PATH… --store "{stores[0]}"',
        )
    with contextlib.ExitStack() as stack:
        if kept is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rootwalk-"))
            store = Path(folder) / "imported.duckdb"
        else:
            store = kept
        _import(paths, store, job, ranks)
        yield store


def _import(paths: list[Path], store: Path, job: str | None, ranks: tuple[int, ...]) -> None:
    from rootwalk.graph.commands.import_ import Progress, render_summary
    from rootwalk.graph.commands.import_paths import ImportSettings, import_paths

    progress = Progress(is_shown=sys.stderr.isatty())
    try:
        summary = import_paths(None, paths, store, ImportSettings(job=job, ranks=ranks), progress)
    finally:
        progress.clear()
    print(render_summary(summary, store), file=sys.stderr)


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == _MAGIC
    except OSError:
        return False


def _is_unknown(path: Path) -> bool:
    """Return whether a path is a file of which nothing is known."""
    from rootwalk.graph.importers.recognition import recognise
    from rootwalk.graph.importers.sources import is_archive

    try:
        return path.is_file() and not is_archive(path) and recognise(path) is None
    except OSError:
        return True
