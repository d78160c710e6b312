"""Disks, from a recorded /proc/diskstats (Linux 6.18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.host.disks import MAX_DISKS, DisksReader, parse_disks
from rootwalk.ebpf.reader import Place
from support.fake_host import told, write_files

RECORDED = Path(__file__).parents[3] / "data/proc_files/diskstats"


def write_disk(root: Path, name: str) -> None:
    (root / "sys/block" / name / "device").mkdir(parents=True)


def test_recorded_file(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/diskstats": RECORDED.read_text()})
    write_disk(tmp_path, "vda")
    (tmp_path / "sys/block/zram0").mkdir()
    assert told(DisksReader(Place(tmp_path))) == {
        ("system.disk.io_time", ("vda",), None): 370.328,
        ("system.disk.operations", ("read", "vda"), None): 1208346,
        ("system.disk.operations", ("write", "vda"), None): 1775590,
        ("system.disk.io", ("read", "vda"), None): 101703866 * 512,
        ("system.disk.io", ("write", "vda"), None): 250117024 * 512,
        ("system.disk.operation_time", ("read", "vda"), None): 892.883,
        ("system.disk.operation_time", ("write", "vda"), None): 806.166,
    }


def test_garbage_is_left_out() -> None:
    assert parse_disks("\n8 0 sda\n8 0 sdb 1 2 3 4 5 6 7 8 9 x\n") == {}


def test_disk_that_comes_later_and_one_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rootwalk.ebpf.host.pace.REST_RATIO", 0)
    line = " 259 0 {} 1 0 8 1 1 0 8 1 0 1 1\n"
    write_files(tmp_path, {"proc/diskstats": line.format("nvme0n1")})
    write_disk(tmp_path, "nvme0n1")
    reader = DisksReader(Place(tmp_path))
    write_disk(tmp_path, "nvme1n1")
    write_files(tmp_path, {"proc/diskstats": line.format("nvme1n1")})
    assert {attributes[-1] for _, attributes, _ in told(reader)} == {"nvme1n1"}


def test_more_disks_than_are_told_of_are_counted(tmp_path: Path) -> None:
    names = [f"sd{number:03}" for number in range(MAX_DISKS + 7)]
    lines = "".join(f" 8 0 {name} 1 0 8 1 1 0 8 1 0 1 1\n" for name in names)
    write_files(tmp_path, {"proc/diskstats": lines})
    for name in names:
        write_disk(tmp_path, name)
    reader = DisksReader(Place(tmp_path))
    assert {attributes[-1] for _, attributes, _ in told(reader)} == set(names[:MAX_DISKS])
    assert reader.losses() == {"device_limit": 7}
