"""Who descends from whom, on a /proc made by hand."""

from __future__ import annotations

from pathlib import Path

from rootwalk.graph.process_tree import find_descendants


def write_process(root: Path, pid: int, parent: int, state: str = "S", name: str = "sh") -> None:
    (root / str(pid)).mkdir()
    (root / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1 0")


def test_descendants_parents_first_without_zombies_and_without_what_is_left_out(
    tmp_path: Path,
) -> None:
    #  1 ─ 10 ─ 11 ─ 12         14 was adopted: its own parent has ended
    #      ├─ 13 (a zombie)
    #      ├─ 14
    #      └─ 20 ─ 21           left out
    write_process(tmp_path, 10, 1)
    write_process(tmp_path, 11, 10, name="a ) S 99 (b")
    write_process(tmp_path, 12, 11, "R")
    write_process(tmp_path, 13, 10, "Z")
    write_process(tmp_path, 14, 10)
    write_process(tmp_path, 20, 10)
    write_process(tmp_path, 21, 20)
    write_process(tmp_path, 30, 1)
    (tmp_path / "meminfo").touch()
    (tmp_path / "40").mkdir()  # ended while it was being read
    assert find_descendants(10, without={20}, root=tmp_path) == [11, 14, 12]
    assert find_descendants(12, root=tmp_path) == []


def test_a_circle_ends(tmp_path: Path) -> None:
    """A tree that changes while it is read can look like one."""
    write_process(tmp_path, 10, 11)
    write_process(tmp_path, 11, 10)
    assert find_descendants(10, root=tmp_path) == [11, 10]
