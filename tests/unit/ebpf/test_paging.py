"""Major faults of ranks, in a /proc made by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.paging import PagingReader
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.readers import probe_readers

SLOT = 2
RANK, CHILD = 100, 101


def write(
    root: Path, pid: int, own: int, of_children: int = 0, start: int = 500, name: str = "python"
) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    # After the name: state, parent and six others, minor faults of both kinds beside the major ones, eight more.
    fields = ["S", "1", *["0"] * 5, "7", "8", str(own), str(of_children), *["0"] * 8, str(start)]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)} 0 0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, RANK, 12)
    shutil.copytree(tmp_path / "proc" / str(RANK), tmp_path / "proc/self")
    return tmp_path


@pytest.fixture
def reader(root: Path) -> PagingReader:
    opened = PagingReader(Place(root))
    opened.watch(RANK, SLOT)
    return opened


def faults(reader: PagingReader) -> dict[int | None, float]:
    return {one.slot: one.value for one in reader.measurements()}


def test_child_counts_once_whatever_becomes_of_it(root: Path, reader: PagingReader) -> None:
    write(root, CHILD, 5)
    reader.watch(CHILD, SLOT)
    assert faults(reader) == {SLOT: 17}
    # It has ended: nobody has its counter until its parent waits for it.
    shutil.rmtree(root / "proc" / str(CHILD))
    assert faults(reader) == {SLOT: 17}
    reader.forget(CHILD)
    write(root, RANK, 12, of_children=5)
    assert faults(reader) == {SLOT: 17}
    write(root, RANK, 15, of_children=5)
    assert faults(reader) == {SLOT: 20}


def test_ranks_have_their_own(root: Path, reader: PagingReader) -> None:
    write(root, CHILD, 5)
    reader.watch(CHILD, SLOT + 1)
    assert faults(reader) == {SLOT: 12, SLOT + 1: 5}


def test_names_that_look_like_fields(root: Path, reader: PagingReader) -> None:
    write(root, RANK, 13, name="a) R 9 9\n(")
    assert faults(reader) == {SLOT: 13}


def test_other_process_with_the_same_id_does_not_count(root: Path, reader: PagingReader) -> None:
    write(root, RANK, 1000, start=900)
    assert faults(reader) == {}


def test_process_that_is_gone(root: Path, reader: PagingReader) -> None:
    shutil.rmtree(root / "proc" / str(RANK))
    assert faults(reader) == {}
    reader.watch(RANK, SLOT)
    reader.forget(RANK)
    reader.forget(RANK)


def test_slot_that_is_forgotten_begins_anew(root: Path, reader: PagingReader) -> None:
    assert faults(reader) == {SLOT: 12}
    reader.forget(RANK)
    assert faults(reader) == {}
    write(root, CHILD, 3)
    reader.watch(CHILD, SLOT)
    assert faults(reader) == {SLOT: 3}


def test_without_proc_it_says_so(tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[PagingReader])
    assert (sensor.sensor, sensor.status, sensor.reason) == (
        "paging",
        Status.UNAVAILABLE,
        Reason.NO_PROCFS,
    )
