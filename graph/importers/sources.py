"""Files of an import: folders and archives as the files in them.

    folder          every file below it, in natural order, without hidden ones and links
    .zip, .tar, .tar.gz, .tgz, .tar.zst, .tar.xz    unpacked into a folder that is removed afterwards

Archives come from anywhere: names never leave the folder, links and devices are left out, and sizes are bounded while
they are unpacked. An archive in an archive is not opened.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from rootwalk.graph.importers.content import is_compressed, open_content
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["is_archive", "natural_key", "opened_sources"]

# Files of one folder or archive; a job of 10,000 ranks has that many times a few.
MAX_FILES: Final = 200_000
# Unpacked bytes of one archive, and how many times its own size: profiles shrink to a fiftieth, an archive that holds
# thousand times its size is made to fill disks.
MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024 * 1024
MAX_RATIO: Final = 300
# Below this the ratio says nothing.
RATIO_FROM_BYTES: Final = 256 * 1024 * 1024
# Of the free space of the temporary folder.
MAX_SPACE_SHARE: Final = 0.5
MAX_DEPTH: Final = 32
_MAX_NAME: Final = 200
_COPY_BYTES: Final = 1024 * 1024
_DIGITS: Final = re.compile(r"(\d+)")
_UNSAFE: Final = re.compile(r"[^\w.\-+=@# ,()\[\]]")
_TAR_MAGIC_AT: Final = 257


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Return what paths are ordered by, so that `rank_9` comes before `rank_10`."""
    return [
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(str(path))
    ]


@contextlib.contextmanager
def opened_sources(paths: list[Path]) -> Iterator[tuple[list[Path], set[Path]]]:
    """Give the files of some paths, in order, and those of them that were found in a folder or an archive.

    Raises:
        DecodeError: If an archive is damaged, or larger than allowed.
        OSError: If something cannot be read or the temporary folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        files: list[Path] = []
        found: set[Path] = set()
        for path in paths:
            root: Path | None = path if path.is_dir() else None
            if root is None and path.is_file() and (unpack := _unpacker(path)) is not None:
                root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rootwalk-")))
                unpack(path, root)
            if root is None:
                files.append(path)
                continue
            below = _files_below(root)
            if not below:
                raise DecodeError(f'cannot read "{path}": saw no file in it; needs files of a job')
            files += below
            found.update(below)
        yield files, found


def _files_below(root: Path) -> list[Path]:
    """Return the files of a folder and of those in it; no hidden ones, and no links."""
    found: list[Path] = []
    for place, folders, names in os.walk(root):
        folder = Path(place)
        folders[:] = [name for name in folders if not name.startswith(".")]
        if len(folder.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()
        for name in names:
            path = folder / name
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                found.append(path)
        if len(found) > MAX_FILES:
            raise DecodeError(
                f'cannot read "{root}": saw more than {MAX_FILES} files; needs the folder of one job'
            )
    return sorted(found, key=natural_key)


_Unpack = Callable[[Path, Path], None]


def _unpacker(path: Path) -> _Unpack | None:
    """Return what unpacks a file; None if it is no archive, by content."""
    with path.open("rb") as file:
        head = file.read(_TAR_MAGIC_AT + 5)
    if head.startswith(b"PK\x03\x04"):
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            # A checkpoint of PyTorch and an Office document are such archives as well.
            names = archive.namelist()
            is_other = any(n.endswith("data.pkl") or n == "[Content_Types].xml" for n in names)
            return None if is_other else _unzip
        raise DecodeError(f'cannot read "{path}": saw a damaged zip archive; needs a whole one')
    if head[_TAR_MAGIC_AT:].startswith(b"ustar") or head.startswith((b"\xfd7zXZ\x00", b"BZh")):
        return _untar
    if is_compressed(path):
        with contextlib.suppress(DecodeError), open_content(path) as content:
            inner = content.read(_TAR_MAGIC_AT + 5)
            return _untar if inner[_TAR_MAGIC_AT:].startswith(b"ustar") else None
    return None


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive, by content; a damaged one is.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        return _unpacker(path) is not None
    except DecodeError:
        return True


class _Target:
    """A folder that an archive is unpacked into, and how much may still be."""

    def __init__(self, archive: Path, root: Path) -> None:
        self._archive = archive
        self._root = root
        size_bytes = archive.stat().st_size
        free = int(shutil.disk_usage(root).free * MAX_SPACE_SHARE)
        self._left = min(MAX_UNPACKED_BYTES, free, max(RATIO_FROM_BYTES, size_bytes * MAX_RATIO))
        self._files = 0

    def add(self, name: str, content: IO[bytes], written_s: float) -> None:
        """Write one member, under a name that stays inside, as of a time (Unix, s).

        Raises:
            DecodeError: If the archive becomes larger than allowed.
        """
        self._files += 1
        if self._files > MAX_FILES:
            raise self._too_large(f"more than {MAX_FILES} files")
        path = self._place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            while part := content.read(_COPY_BYTES):
                self._left -= len(part)
                if self._left < 0:
                    raise self._too_large(
                        "more content than is allowed for its size or the free space"
                    )
                target.write(part)
        with contextlib.suppress(OSError, OverflowError, ValueError):
            os.utime(path, (written_s, written_s))

    def _place(self, name: str) -> Path:
        parts = [
            _UNSAFE.sub("_", part)[:_MAX_NAME]
            for part in re.split(r"[/\\]", name)
            if part not in ("", ".", "..")
        ]
        path = self._root.joinpath(*(parts[-MAX_DEPTH:] or ["unnamed"]))
        for number in itertools.count(2):
            # A member whose name is there already, or a folder's, goes beside it.
            blocked = path.exists() or any(
                parent.is_file() for parent in path.parents if parent != self._root
            )
            if not blocked:
                return path
            path = self._root / f"again {number}" / path.name
        raise AssertionError

    def _too_large(self, saw: str) -> DecodeError:
        return DecodeError(
            f'cannot unpack "{self._archive}": saw {saw}; needs an archive of one job\'s files',
            hint="unpack it yourself and import the folder",
        )


def _unzip(path: Path, root: Path) -> None:
    target = _Target(path, root)
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # The upper half of the attributes is the mode: links are not followed.
                is_link = member.external_attr >> 28 == 0o12
                if not member.is_dir() and not is_link and not _is_hidden(member.filename):
                    with archive.open(member) as content:
                        target.add(member.filename, content, _written_s(member))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise _damaged(path, error) from error
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _damaged(path, error) from error


def _written_s(member: zipfile.ZipInfo) -> float:
    """Return when a member was written; zip archives say it in local time, taken for UTC."""
    try:
        return dt.datetime(*member.date_time, tzinfo=dt.UTC).timestamp()
    except ValueError:
        return 0.0


def _untar(path: Path, root: Path) -> None:
    target = _Target(path, root)
    is_own = is_compressed(path)
    try:
        with (
            open_content(path) as file,
            tarfile.open(fileobj=file, mode="r|" if is_own else "r|*") as archive,
        ):
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and not _is_hidden(member.name):
                    target.add(member.name, content, float(member.mtime))
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, error) from error


def _is_hidden(name: str) -> bool:
    """Return whether a member is one of those that macOS and others add."""
    parts = re.split(r"[/\\]", name)
    return "__MACOSX" in parts or parts[-1].startswith(".")


def _damaged(path: Path, error: Exception) -> DecodeError:
    return DecodeError(f'cannot unpack "{path}": saw {error}; needs a whole archive, not encrypted')
