"""Sockets of processes, in a /proc made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf import descriptors
from rootwalk.ebpf.descriptors import FULL_LOOKS, Descriptors, read_socket_inode

RANK, CHILD = 100, 101


class Process:
    """One process whose descriptors the test opens and closes."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.folder = proc / str(pid) / "fd"
        self.folder.mkdir(parents=True)

    def open(self, number: int, target: str) -> None:
        (self.folder / str(number)).symlink_to(target)

    def close(self, number: int) -> None:
        (self.folder / str(number)).unlink()


@pytest.fixture
def rank(tmp_path: Path) -> Process:
    made = Process(tmp_path, RANK)
    for number, target in enumerate(("/dev/null", "pipe:[7]", "socket:[11]", "socket:[13]")):
        made.open(number, target)
    return made


@pytest.fixture
def found(tmp_path: Path, rank: Process) -> Descriptors:
    made = Descriptors(tmp_path)
    made.watch(RANK)
    assert made.look() == {RANK: {11, 13}}
    return made


def test_sockets_that_come_and_go(found: Descriptors, rank: Process) -> None:
    rank.open(4, "socket:[17]")
    rank.close(2)
    assert found.look() == {RANK: {13, 17}}


def test_number_that_is_used_again(found: Descriptors, rank: Process) -> None:
    rank.close(2)
    rank.open(2, "socket:[19]")
    assert found.look() == {RANK: {11, 13}}  # nobody has said that 11 is gone
    assert found.look([11]) == {RANK: {13, 19}}


def test_file_that_became_a_socket_is_found_in_half_a_minute(
    found: Descriptors, rank: Process
) -> None:
    rank.close(0)
    rank.open(0, "socket:[23]")
    looks = [found.look()[RANK] for _ in range(FULL_LOOKS)]
    assert looks[0] == {11, 13}
    assert looks[-1] == {11, 13, 23}


def test_process_that_vanishes(found: Descriptors, rank: Process) -> None:
    for number in range(4):
        rank.close(number)
    rank.folder.rmdir()
    assert found.look() == {RANK: set()}
    found.forget(RANK)
    found.forget(RANK)
    assert found.look() == {}


def test_process_that_may_not_be_read_is_counted(
    found: Descriptors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> list[str]:
        raise PermissionError

    monkeypatch.setattr("os.listdir", refuse)
    found.look()
    assert found.unreadable == 1


def test_many_processes_take_turns(
    tmp_path: Path, found: Descriptors, monkeypatch: pytest.MonkeyPatch
) -> None:
    Process(tmp_path, CHILD).open(0, "socket:[29]")
    found.watch(CHILD)
    found.watch(CHILD)
    monkeypatch.setattr(descriptors, "MAX_READS", 1)
    assert found.look() == {CHILD: {29}}  # what is new comes first
    assert found.look() == {RANK: {11, 13}}
    assert found.look() == {CHILD: {29}}


def test_descriptors_beyond_the_bound_are_counted(
    found: Descriptors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "MAX_DESCRIPTORS", 3)
    found.look()
    assert found.dropped == 1


@pytest.mark.parametrize(
    ("target", "inode"),
    [
        ("socket:[31]", 31),
        ("socket:[]", None),
        ("socket:[x]", None),
        ("socket:[\N{SUPERSCRIPT TWO}]", None),
        ("socket:[31", None),
        ("pipe:[31]", None),
        ("/a/socket:[31]", None),
    ],
)
def test_names(tmp_path: Path, target: str, inode: int | None) -> None:
    Process(tmp_path, RANK).open(9, target)
    assert read_socket_inode(RANK, 9, tmp_path) == inode
    assert read_socket_inode(RANK, 10, tmp_path) is None
