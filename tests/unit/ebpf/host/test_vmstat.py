"""Memory events, from lines of a recorded /proc/vmstat (Linux 6.18) with numbers that can be told apart."""

from __future__ import annotations

from pathlib import Path

from rootwalk.ebpf.host.vmstat import VmstatReader
from rootwalk.ebpf.reader import Place
from support.fake_host import told, write_files

LINES = """nr_free_pages 1
pswpin 2
pswpout 3
allocstall_dma 5
allocstall_dma32 7
allocstall_normal 11
allocstall_movable 13
allocstall_device 17
pgfault 1000
pgmajfault 19
pgscan_direct 23
oom_kill 29
compact_stall 31
compact_fail 37
"""


def test_every_event(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/vmstat": LINES})
    assert told(VmstatReader(Place(tmp_path))) == {
        ("system.paging.operations", ("in", "major"), None): 2,
        ("system.paging.operations", ("out", "major"), None): 3,
        ("system.paging.faults", ("major",), None): 19,
        ("system.paging.faults", ("minor",), None): 981,
        ("training.host.memory.stalls", ("reclaim",), None): 5 + 7 + 11 + 13 + 17,
        ("training.host.memory.stalls", ("compaction",), None): 31,
        ("training.host.oom_kills", (), None): 29,
    }


def test_kernel_without_swap_and_compaction_tells_neither(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/vmstat": "pgmajfault 19\nallocstall 3\n"})
    assert told(VmstatReader(Place(tmp_path))) == {
        ("system.paging.faults", ("major",), None): 19,
        ("training.host.memory.stalls", ("reclaim",), None): 3,
    }
