"""Memory and freezer of control groups made by hand, version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.host.cgroup_memory import CgroupMemoryReader
from rootwalk.ebpf.reader import Place
from support.fake_cgroups import FakeCgroups
from support.fake_host import Key, told, unhurried, write_files

__all__ = ["unhurried"]

GIB = 1 << 30
EVENTS = "low 0\nhigh {}\nmax {}\noom 0\noom_kill {}\noom_group_kill 0\n"
V1_MOUNTS = """30 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 23 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
"""
UNLIMITED = 9_223_372_036_854_771_712  # as version 1 writes it with pages of 4 KiB


def of(metric: str, found: dict[Key, float], slot: int = 1) -> dict[str, float]:
    return {
        str(attributes[0]) if attributes else "": value
        for (name, attributes, one), value in found.items()
        if name == f"training.cgroup.{metric}" and one == slot
    }


@pytest.fixture
def unified(tmp_path: Path, unhurried: None) -> FakeCgroups:
    made = FakeCgroups(tmp_path, "v2")
    write_group(made, "pod", 8 * GIB, "max\n", EVENTS.format(0, 5, 0))
    write_group(made, "pod/rank", GIB, 2 * GIB, EVENTS.format(100, 200, 3))
    made.move(100, "/pod/rank")
    return made


@pytest.fixture
def reader(unified: FakeCgroups) -> Iterator[CgroupMemoryReader]:
    made = CgroupMemoryReader(Place(unified.root))
    made.watch(100, 1)
    yield made
    made.close()


def write_group(
    machine: FakeCgroups, name: str, usage: int, limit: int | str, events: str, frozen: int = 0
) -> None:
    write_files(
        machine.mount / name,
        {
            "memory.current": usage,
            "memory.max": limit,
            "memory.events.local": events,
            "cgroup.events": f"populated 1\nfrozen {frozen}\n",
        },
    )


def test_version_2(unified: FakeCgroups, reader: CgroupMemoryReader) -> None:
    found = told(reader)
    assert of("memory.usage", found) == {"": GIB}
    assert of("memory.limit", found) == {"": 2 * GIB}
    assert of("frozen", found) == {"": 0}
    assert of("memory.under_oom", found) == {}
    assert of("memory.events", found) == {"high": 0, "max": 0, "oom": 0, "oom_kill": 0}
    # Hits of the rank's own limit and of the pod's add up.
    write_group(unified, "pod", 8 * GIB, "max\n", EVENTS.format(0, 6, 0))
    write_group(unified, "pod/rank", GIB, 2 * GIB, EVENTS.format(113, 207, 4), frozen=1)
    found = told(reader)
    assert of("memory.events", found) == {"high": 13, "max": 8, "oom": 0, "oom_kill": 1}
    assert of("frozen", found) == {"": 1}


def test_tightest_limit_on_the_way_up(unified: FakeCgroups, reader: CgroupMemoryReader) -> None:
    write_group(unified, "pod", 8 * GIB, GIB, EVENTS.format(0, 0, 0))
    assert of("memory.limit", told(reader)) == {"": GIB}


def test_without_a_limit_there_is_none(unified: FakeCgroups, reader: CgroupMemoryReader) -> None:
    write_group(unified, "pod/rank", GIB, "max\n", EVENTS.format(0, 0, 0))
    assert of("memory.limit", told(reader)) == {}


def test_rank_that_is_moved_or_gone(unified: FakeCgroups, reader: CgroupMemoryReader) -> None:
    told(reader)
    write_group(unified, "other", 7, "max\n", EVENTS.format(900, 900, 900))
    unified.move(100, "/other")
    found = told(reader)
    assert of("memory.usage", found) == {"": 7}
    assert of("memory.events", found) == {"high": 0, "max": 0, "oom": 0, "oom_kill": 0}
    (unified.root / "proc/100/cgroup").unlink()
    assert told(reader) == {}
    reader.forget(100)
    assert told(reader) == {}


def write_first(
    root: Path, *, limit: int, hits: int, kills: int, under_oom: int, state: str
) -> None:
    write_files(
        root / "sys/fs/cgroup",
        {
            "memory/rank/memory.usage_in_bytes": GIB,
            "memory/rank/memory.limit_in_bytes": limit,
            "memory/rank/memory.failcnt": hits,
            "memory/rank/memory.oom_control": f"oom_kill_disable 0\nunder_oom {under_oom}\noom_kill {kills}\n",
            "freezer/rank/freezer.state": state + "\n",
        },
    )


@pytest.mark.parametrize(("state", "frozen"), [("THAWED", 0), ("FREEZING", 1), ("FROZEN", 1)])
def test_version_1(tmp_path: Path, unhurried: None, state: str, frozen: int) -> None:
    write_files(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/100/cgroup": "6:freezer:/rank\n4:memory:/rank\n0::/\n",
        },
    )
    write_first(tmp_path, limit=UNLIMITED, hits=7, kills=1, under_oom=0, state=state)
    reader = CgroupMemoryReader(Place(tmp_path))
    reader.watch(100, 1)
    found = told(reader)
    assert of("memory.usage", found) == {"": GIB}
    assert of("memory.limit", found) == {}
    assert of("frozen", found) == {"": frozen}
    assert of("memory.under_oom", found) == {"": 0}
    write_first(tmp_path, limit=2 * GIB, hits=18, kills=3, under_oom=1, state=state)
    found = told(reader)
    assert of("memory.limit", found) == {"": 2 * GIB}
    assert of("memory.events", found) == {"max": 11, "oom_kill": 2}
    assert of("memory.under_oom", found) == {"": 1}
    reader.close()
