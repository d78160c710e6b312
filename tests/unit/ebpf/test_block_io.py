"""Sums of block requests as the kernel writes them, from bytes made by hand."""

from __future__ import annotations

from pathlib import Path

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.block_io import KEY, TOTALS, BlockIoReader, BlockTotals, decode_totals
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.readers import probe_readers

NVME_1 = 259 << 20 | 3


def totals(key: tuple[int, int, int], name: bytes) -> BlockTotals:
    return decode_totals(KEY.pack(*key), TOTALS.pack(8192, 70, 700, 5, 4, 3, 2, 1, 0, name))


def test_layouts_are_those_of_the_header() -> None:
    # The static assertions of block_io.h.
    assert (KEY.size, TOTALS.size) == (12, 104)


def test_sums_of_a_rank() -> None:
    assert totals((NVME_1, 7, 1), b"nvme1n1") == BlockTotals(
        "nvme1n1", 7, "write", 8192, 70, 700, (5, 4, 3, 2, 1, 0)
    )


def test_disk_without_a_name_has_its_numbers() -> None:
    assert totals((NVME_1, 0, 0), b"").disk == "259:3"


def test_name_that_is_no_text() -> None:
    assert totals((NVME_1, 0, 0), b"d\xff\0rest").disk == "d\N{REPLACEMENT CHARACTER}"
    assert totals((NVME_1, 0, 0), b"n" * 32).disk == "n" * 32


def test_without_bpf_it_says_so(tmp_path: Path) -> None:
    (sensor,) = probe_readers(Place(tmp_path), kinds=[BlockIoReader])
    assert (sensor.sensor, sensor.status, sensor.reason) == (
        "block_io",
        Status.UNAVAILABLE,
        Reason.NO_BPF,
    )
