"""Folders and archives as the files in them: every kind, and archives that mean harm."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.importers import sources
from rootwalk.graph.importers.sources import opened_sources
from rootwalk.instrumentation.errors import DecodeError


def make_folder(root: Path) -> Path:
    folder = root / "dumps"
    (folder / "more").mkdir(parents=True)
    for name in ("rank_10", "rank_9", ".hidden", "more/rank_11"):
        (folder / name).write_bytes(name.encode())
    (folder / "link").symlink_to(folder / "rank_9")
    return folder


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink():
                archive.write(file, file.relative_to(folder.parent))
    return path


def tarred(mode: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder.with_suffix(".archive")
        mode_of_file: Any = f"w{mode}"  # its type names each mode
        with tarfile.open(path, mode_of_file) as archive:
            archive.add(folder, folder.name)
        return path

    return make


def contents(path: Path) -> list[tuple[str, bytes]]:
    with opened_sources([path]) as (files, found):
        assert set(files) == found
        return [(file.name, file.read_bytes()) for file in files]


@pytest.mark.parametrize(
    "pack", [lambda folder: folder, zipped, *map(tarred, ("", ":gz", ":xz", ":bz2"))]
)
def test_files_of_folders_and_archives_are_taken_in_natural_order(
    tmp_path: Path, pack: Callable[[Path], Path]
) -> None:
    found = contents(pack(make_folder(tmp_path)))
    assert sorted(found) == [
        ("rank_10", b"rank_10"),
        ("rank_11", b"more/rank_11"),
        ("rank_9", b"rank_9"),
    ]
    assert [name for name, _ in found if name != "rank_11"] == ["rank_9", "rank_10"]


def test_a_file_that_is_given_itself_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "any.bin"
    path.write_bytes(b"PK no archive")
    with opened_sources([path, tmp_path / "missing"]) as (files, found):
        assert files == [path, tmp_path / "missing"]
        assert not found


def test_members_never_leave_the_folder_and_links_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("../../evil", "/etc/evil", "a/../../evil", "C:\\evil"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"ab"))
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "/etc/passwd")):
            member = tarfile.TarInfo("link")
            member.type, member.linkname = kind, target
            archive.addfile(member)
    with opened_sources([path]) as (files, _):
        roots = {os.path.commonpath([file, tmp_path.parent]) for file in files}
        root = os.path.commonpath(files)
        assert len(files) == 4
        assert not any(file.is_symlink() for file in files)
        assert all(file.resolve().is_relative_to(Path(root).resolve()) for file in files)
        assert roots
    assert not (tmp_path.parent / "evil").exists()
    assert not files[0].exists(), "the folder is removed afterwards"


def test_a_bomb_is_refused_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "RATIO_FROM_BYTES", 1_000_000)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 20_000_000)
    with pytest.raises(DecodeError, match="more content than is allowed"), opened_sources([path]):
        pass


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 3)
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5):
            archive.writestr(f"f{number}", b"x")
    with pytest.raises(DecodeError, match="more than 3 files"), opened_sources([path]):
        pass


def test_every_cut_off_archive_is_refused_or_gives_whole_files(tmp_path: Path) -> None:
    for pack in (zipped, tarred(":gz")):
        folder = make_folder(tmp_path / pack.__name__)
        whole = pack(folder).read_bytes()
        for end in range(40, len(whole), 61):
            path = tmp_path / "cut"
            path.write_bytes(whole[:end])
            with contextlib.suppress(DecodeError), opened_sources([path]) as (files, found):
                assert files == [path] or found


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="saw no file in it"), opened_sources([tmp_path]):
        pass
