"""Control groups and their limits on machines made by hand: version 1, version 2, both, and inside a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.cgroups import (
    CgroupReader,
    LevelCounts,
    Limit,
    find_tightest,
    read_counts,
    stood_ns,
)
from support.fake_cgroups import FakeCgroups

MS = 1_000_000
VERSIONS = ("v1", "v2", "hybrid")


def names(machine: FakeCgroups, reader: CgroupReader, pid: int) -> list[str] | None:
    levels = reader.levels(pid)
    if levels is None:
        return None
    return [str(Path(level.folder).relative_to(machine.mount)) for level in levels]


@pytest.mark.parametrize("version", VERSIONS)
def test_group_and_ancestors_innermost_first(tmp_path: Path, version: str) -> None:
    machine = FakeCgroups(tmp_path, version)
    machine.group("pod", 150_000)
    machine.group("pod/rank0", None, counts=(7, 3, 250))
    machine.move(100, "/pod/rank0")
    reader = CgroupReader(tmp_path)
    levels = reader.levels(100)
    assert names(machine, reader, 100) == ["pod/rank0", "pod", "."]
    assert levels is not None
    assert read_counts(levels[0]) == LevelCounts(7, 3, 250_000)
    assert reader.backend == ("cgroup2" if version == "v2" else "cgroup1")


@pytest.mark.parametrize("version", VERSIONS)
def test_tightest_limit_of_all_levels_decides(tmp_path: Path, version: str) -> None:
    machine = FakeCgroups(tmp_path, version)
    machine.group("pod", 50_000)
    machine.group("pod/rank0", 200_000)
    machine.group("free", None)
    reader = CgroupReader(tmp_path)
    machine.move(100, "/pod/rank0")
    assert find_tightest(reader.levels(100) or []) == Limit(50 * MS, 100 * MS)
    machine.move(100, "/free")
    assert find_tightest(reader.levels(100) or []) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_container_sees_its_own_part_of_the_tree(tmp_path: Path, version: str) -> None:
    # Mounted is /docker/abc; the rank is in a group of it, another process is not.
    machine = FakeCgroups(tmp_path, version, top="/docker/abc")
    machine.group("rank0", 50_000)
    machine.move(100, "/docker/abc/rank0")
    machine.move(101, "/docker/abcdef")
    machine.move(102, "/docker/abc/../other")
    reader = CgroupReader(tmp_path)
    assert names(machine, reader, 100) == ["rank0", "."]
    assert reader.levels(101) is None
    assert reader.levels(102) is None


def test_process_or_group_that_is_gone_is_not_known(tmp_path: Path) -> None:
    machine = FakeCgroups(tmp_path, "v2")
    reader = CgroupReader(tmp_path)
    assert reader.levels(100) is None
    machine.move(100, "/gone")
    levels = reader.levels(100)
    assert levels is not None
    assert read_counts(levels[0]) is None


def test_topmost_group_of_version_2_is_never_limited(tmp_path: Path) -> None:
    machine = FakeCgroups(tmp_path, "v2")
    machine.move(100, "/")
    levels = CgroupReader(tmp_path).levels(100)
    assert levels is not None
    assert [read_counts(level) for level in levels] == [None]


@pytest.mark.parametrize(
    ("cpus", "summed_ms", "expected_ms"),
    [
        # Ten periods of 100 ms with a quota of 50 ms, used up on n CPUs at once: each runs 50 / n ms, then stands.
        (1, 10 * 50, 10 * 50),
        (2, 10 * 2 * 75, 10 * 75),
        (5, 10 * 5 * 90, 10 * 90),
        # One CPU, and rests in between: only 10 ms of each period were missing.
        (1, 10 * 10, 10 * 10),
    ],
)
def test_time_summed_over_cpus_becomes_time_of_the_clock(
    cpus: int, summed_ms: int, expected_ms: int
) -> None:
    grown = LevelCounts(10, 10, summed_ms * MS)
    assert stood_ns(grown, Limit(50 * MS, 100 * MS)) == expected_ms * MS, f"{cpus} CPUs"


def test_without_the_limit_the_sum_is_all_that_is_known() -> None:
    assert stood_ns(LevelCounts(1, 1, 150 * MS), None) == 150 * MS
    assert stood_ns(LevelCounts(1, 0, 0), Limit(1, 2)) == 0
