"""Folders of ranks: whose they are, and that they are let go of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.host.rank_folders import RankFolders
from support.fake_host import write_files


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[RankFolders]:
    write_files(tmp_path, {"proc/100/status": "rank", "proc/101/status": "child"})
    made = RankFolders(tmp_path)
    yield made
    made.close()


def count_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_first_process_of_a_slot_is_the_rank(folders: RankFolders) -> None:
    folders.watch(100, 1)
    folders.watch(101, 1)
    folders.watch(100, 1)
    assert [(slot, folders.pid(slot), folders.read(slot, "status")) for slot in folders] == [
        (1, 100, "rank")
    ]
    assert folders.forget(101) == []
    assert list(folders) == [1]
    assert folders.forget(100) == [1]
    assert list(folders) == []


def test_process_that_is_gone_when_it_is_told_of_leaves_its_children_alone(
    folders: RankFolders,
) -> None:
    folders.watch(99, 1)
    folders.watch(101, 1)
    assert list(folders) == []
    assert folders.forget(99) == [1]


def test_another_process_with_the_same_number_is_not_read(
    folders: RankFolders, tmp_path: Path
) -> None:
    folders.watch(100, 1)
    shutil.rmtree(tmp_path / "proc/100")
    write_files(tmp_path, {"proc/100/status": "stranger", "proc/100/task/100/status": "stranger"})
    assert folders.read(1, "status") == ""
    assert folders.list(1, "task") == []


def test_names_in_a_folder(folders: RankFolders, tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/100/task/100/status": "", "proc/100/task/105/status": ""})
    folders.watch(100, 1)
    assert sorted(folders.list(1, "task")) == ["100", "105"]
    assert folders.list(1, "none") == []


def test_nothing_stays_open(tmp_path: Path) -> None:
    write_files(tmp_path, {f"proc/{pid}/status": "" for pid in range(100, 110)})
    before = count_open()
    folders = RankFolders(tmp_path)
    for slot, pid in enumerate(range(100, 110)):
        folders.watch(pid, slot)
        folders.read(slot, "status")
        folders.list(slot, "task")
    assert count_open() == before + 10
    folders.forget(104)
    assert count_open() == before + 9
    folders.close()
    folders.close()
    assert count_open() == before
