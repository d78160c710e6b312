"""Pressure of a machine made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.host.psi import PsiReader, parse_pressure
from rootwalk.ebpf.reader import Place
from support.fake_cgroups import FakeCgroups
from support.fake_host import told, unhurried, write_files

__all__ = ["unhurried"]

TIME = "training.pressure.time"
FILE = "some avg10=63.01 avg60=51.24 avg300=45.08 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"


def pressure(some_us: int, full_us: int) -> str:
    return FILE.format(some=some_us, full=full_us)


@pytest.fixture
def machine(tmp_path: Path, unhurried: None) -> FakeCgroups:
    made = FakeCgroups(tmp_path, "v2")
    for name, some_us, full_us in (("cpu", 5_000_000, 0), ("io", 3_000_000, 2_000_000)):
        write_files(tmp_path, {f"proc/pressure/{name}": pressure(some_us, full_us)})
    made.group("a", None)
    made.move(100, "/a")
    return made


def set_group(machine: FakeCgroups, name: str, some_us: int, full_us: int) -> None:
    write_files(machine.mount, {f"{name}/cpu.pressure": pressure(some_us, full_us)})


def test_totals() -> None:
    assert parse_pressure(pressure(7, 5)) == {"some": 7, "full": 5}
    assert parse_pressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n") == {"some": 11}
    assert parse_pressure("most total=1\nsome total=x\n\n") == {}


def test_host(machine: FakeCgroups) -> None:
    reader = PsiReader(Place(machine.root))
    # `full` of the CPU is not defined for a whole machine, and memory tells nothing here.
    assert told(reader) == {
        (TIME, ("some", "cpu"), None): 5.0,
        (TIME, ("some", "io"), None): 3.0,
        (TIME, ("full", "io"), None): 2.0,
    }


def test_rank_has_what_its_group_grew_by_since_it_was_seen(machine: FakeCgroups) -> None:
    set_group(machine, "a", 40_000_000, 20_000_000)
    reader = PsiReader(Place(machine.root))
    reader.watch(100, 1)
    assert told(reader)[TIME, ("some", "cpu"), 1] == 0.0
    set_group(machine, "a", 41_700_000, 20_500_000)
    found = told(reader)
    assert found[TIME, ("some", "cpu"), 1] == pytest.approx(1.7)
    assert found[TIME, ("full", "cpu"), 1] == pytest.approx(0.5)
    # Moved into a group with a past of its own.
    set_group(machine, "b", 900_000_000, 0)
    machine.move(100, "/b")
    assert told(reader)[TIME, ("some", "cpu"), 1] == pytest.approx(1.7)
    reader.forget(100)
    assert {slot for _, _, slot in told(reader)} == {None}
    reader.close()


def test_two_ranks_in_one_group_are_told_the_same(machine: FakeCgroups) -> None:
    set_group(machine, "a", 1_000_000, 0)
    machine.move(200, "/a")
    reader = PsiReader(Place(machine.root))
    reader.watch(100, 1)
    reader.watch(200, 2)
    told(reader)
    set_group(machine, "a", 1_300_000, 0)
    found = told(reader)
    assert found[TIME, ("some", "cpu"), 1] == found[TIME, ("some", "cpu"), 2] == pytest.approx(0.3)
    reader.close()


def test_rank_of_the_topmost_group_or_that_is_gone_has_none(machine: FakeCgroups) -> None:
    write_files(machine.mount, {"cpu.pressure": pressure(9, 9)})
    machine.move(300, "/")
    reader = PsiReader(Place(machine.root))
    reader.watch(300, 3)
    reader.watch(100, 1)
    reader.watch(999, 9)
    (machine.root / "proc/100/cgroup").unlink()
    assert {slot for _, _, slot in told(reader)} == {None}
    reader.close()
