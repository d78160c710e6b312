"""Where ranks may run, on a machine made by hand: 8 hardware threads, 4 cores, 2 NUMA nodes.

cores    0: 0,4    1: 1,5    2: 2,6    3: 3,7
nodes    0: 0-1,4-5          1: 2-3,6-7
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.host.affinity import MAX_THREADS, AffinityReader, choose_threads
from rootwalk.ebpf.reader import Place
from support.fake_host import told, unhurried, write_files

__all__ = ["unhurried"]

# The end of a recorded file (Linux 6.18).
STATUS = """Name:\trank\\nCpus_allowed_list:\t99
Threads:\t{threads}
Cpus_allowed:\tff
Cpus_allowed_list:\t{cpus}
Mems_allowed_list:\t{memory}
voluntary_ctxt_switches:\t101
nonvoluntary_ctxt_switches:\t7
"""
SCHED = "rank (100, #threads: 3)\n-----\nse.exec_start     :   20964234.811704\nse.nr_migrations  :    13\n"
NODE = "numa_hit 327151934\nnuma_miss {}\nnuma_foreign {}\ninterleave_hit 1134\nlocal_node 327151934\nother_node {}\n"


def status(cpus: str, memory: str = "0-1", threads: int = 3) -> str:
    return STATUS.format(cpus=cpus, memory=memory, threads=threads)


@pytest.fixture
def machine(tmp_path: Path, unhurried: None) -> Path:
    files: dict[str, str | int] = {
        "proc/self/status": status("0-7"),
        "sys/devices/system/cpu/online": "0-7\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        "sys/devices/system/node/node0/numastat": NODE.format(2, 3, 5),
        "sys/devices/system/node/node1/numastat": NODE.format(7, 11, 13),
    }
    for cpu in range(8):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology/"
        files[folder + "thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}\n"
    write_files(tmp_path, files)
    return tmp_path


@pytest.fixture
def reader(machine: Path) -> Iterator[AffinityReader]:
    made = AffinityReader(Place(machine))
    yield made
    made.close()


def write_rank(machine: Path, pid: int, text: str) -> None:
    write_files(machine, {f"proc/{pid}/status": text, f"proc/{pid}/sched": SCHED})


def test_host(reader: AffinityReader) -> None:
    metric = "training.host.numa.allocations"
    assert told(reader) == {
        ("system.cpu.logical.count", (), None): 8,
        (metric, ("numa_miss", 0), None): 2,
        (metric, ("numa_foreign", 0), None): 3,
        (metric, ("other_node", 0), None): 5,
        (metric, ("numa_miss", 1), None): 7,
        (metric, ("numa_foreign", 1), None): 11,
        (metric, ("other_node", 1), None): 13,
    }


def test_rank(machine: Path, reader: AffinityReader) -> None:
    write_rank(machine, 100, status("0,4-5", memory="0"))
    reader.watch(100, 1)
    found = {key: value for key, value in told(reader).items() if key[2] == 1}
    assert found == {
        ("training.cpu.allowed", ("main",), 1): 3,
        ("training.cpu.allowed.cores", (), 1): 2,
        ("training.cpu.allowed.shared_cores", (), 1): 0,
        ("training.numa.nodes", ("cpu",), 1): 1,
        ("training.numa.nodes", ("memory",), 1): 1,
        ("process.thread.count", (), 1): 3,
        ("training.thread.migrations", ("main",), 1): 13,
        ("training.thread.context_switches", ("voluntary", "main"), 1): 101,
        ("training.thread.context_switches", ("involuntary", "main"), 1): 7,
    }


def test_ranks_on_the_two_threads_of_a_core_share_it(machine: Path, reader: AffinityReader) -> None:
    for slot, cpus in ((1, "0-1"), (2, "4"), (3, "2-3")):
        write_rank(machine, 100 + slot, status(cpus))
        reader.watch(100 + slot, slot)
    found = told(reader)
    shared = [found["training.cpu.allowed.shared_cores", (), slot] for slot in (1, 2, 3)]
    assert shared == [1, 1, 0]
    assert found["training.numa.nodes", ("cpu",), 3] == 1


def test_thread_that_is_pinned_is_seen(machine: Path, reader: AffinityReader) -> None:
    write_rank(machine, 100, status("0-7"))
    for tid, cpus in ((100, "0-7"), (101, "0-3"), (102, "6"), (103, "")):
        write_files(machine, {f"proc/100/task/{tid}/status": status(cpus)})
    reader.watch(100, 1)
    found = told(reader)
    assert found["training.cpu.allowed", ("main",), 1] == 8
    assert found["training.cpu.allowed", ("other",), 1] == 1


def test_threads_are_sampled_evenly_and_garbage_is_left_out() -> None:
    assert choose_threads(["100", "101", "x", "102"], 100) == [101, 102]
    assert choose_threads([], 100) == []
    chosen = choose_threads([str(tid) for tid in range(100, 10_100)], 100)
    assert len(chosen) <= MAX_THREADS
    assert chosen[0] == 101
    assert chosen[-1] > 9_700


def test_kernel_that_tells_less(machine: Path, reader: AffinityReader) -> None:
    write_files(machine, {"proc/100/status": "Name:\tx\nCpus_allowed_list:\t0-300\n"})
    reader.watch(100, 1)
    found = {key: value for key, value in told(reader).items() if key[2] == 1}
    # More CPUs than the topology knows: no cores. No sched file: no migrations.
    assert found == {
        ("training.cpu.allowed", ("main",), 1): 301,
        ("training.numa.nodes", ("cpu",), 1): 2,
    }
