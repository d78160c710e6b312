"""A training host of the largest kind as files: hundreds of CPUs, dozens of disks, interfaces and RDMA ports."""

from __future__ import annotations

from pathlib import Path

from rootwalk.ebpf.host.rdma_counters import BYTES, EVENTS, PACKETS
from support.fake_host import write_files

CPUS, NODES, DISKS, INTERFACES, PORTS = 256, 8, 32, 32, 32
RANKS, THREADS = 8, 400
FIRST_PID = 1000
GROUP = "/kubepods/pod1/job"
STATUS = """Name:\tpython\nThreads:\t{threads}\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-7
voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t5\n"""
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"


def write_large_host(root: Path) -> None:
    """Write it below a folder."""
    for write in (_write_cpus, _write_memory, _write_devices, _write_ranks):
        write(root)


def _write_cpus(root: Path) -> None:
    folder = root / "sys/devices/system"
    each, cores = CPUS // NODES, CPUS // 2
    for cpu in range(CPUS):
        core = cpu % cores
        write_files(
            folder / f"cpu/cpu{cpu}",
            {
                "topology/thread_siblings_list": f"{core},{core + cores}\n",
                "topology/physical_package_id": core * 2 // cores,
                "cpufreq/scaling_cur_freq": 2_000_000,
                "cpufreq/cpuinfo_max_freq": 3_000_000,
                **{
                    f"thermal_throttle/{part}_throttle_{name}": 0
                    for part in ("core", "package")
                    for name in ("count", "total_time_ms")
                },
            },
        )
    write_files(folder, {"cpu/online": f"0-{CPUS - 1}\n", "node/online": f"0-{NODES - 1}\n"})
    for node in range(NODES):
        write_files(
            folder / f"node/node{node}",
            {
                "cpulist": f"{node * each}-{(node + 1) * each - 1}\n",
                "numastat": "numa_hit 7\nnuma_miss 5\nnuma_foreign 3\nother_node 2\n",
            },
        )
    times = " 1234567" * 10
    write_files(
        root / "proc",
        {
            "stat": f"cpu {times}\n" + "".join(f"cpu{cpu}{times}\n" for cpu in range(CPUS)),
            **{f"pressure/{name}": PRESSURE for name in ("cpu", "io", "memory")},
        },
    )


def _write_memory(root: Path) -> None:
    names = [f"nr_counter_{number}" for number in range(180)]
    names += ["pswpin", "pswpout", "pgfault", "pgmajfault", "allocstall_normal", "compact_stall"]
    write_files(
        root, {"proc/vmstat": "".join(f"{name} 1234567\n" for name in [*names, "oom_kill"])}
    )


def _write_devices(root: Path) -> None:
    disks = []
    for number in range(DISKS):
        name = f"nvme{number}n1"
        (root / "sys/block" / name / "device").mkdir(parents=True)
        disks += [
            f" 259 {number} {name}{part}" + " 1234567" * 17 + "\n" for part in ("", "p1", "p2")
        ]
    interfaces = ["Inter-|   Receive\n", " face |bytes\n", "    lo:" + " 1" * 16 + "\n"]
    for number in range(INTERFACES):
        name = f"eth{number}"
        folder = root / "sys/class/net" / name
        (folder / "device").mkdir(parents=True)
        files: dict[str, str | int] = {"operstate": "up\n", "speed": 400_000, "carrier_changes": 2}
        write_files(folder, {**files, "statistics/rx_missed_errors": 0})
        interfaces.append(f"  {name}:" + " 1234567" * 16 + "\n")
    write_files(root, {"proc/diskstats": "".join(disks), "proc/net/dev": "".join(interfaces)})
    counters = {name: 1_234_567 for name, *_ in (*BYTES[:2], *PACKETS[:2])}
    counters |= dict.fromkeys(EVENTS, 0)
    for number in range(PORTS):
        folder = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        write_files(folder, {"state": "4: ACTIVE\n", "rate": "400 Gb/sec (4X NDR)\n", **counters})


def _write_ranks(root: Path) -> None:
    top = root / "sys/fs/cgroup"
    groups = GROUP.split("/")
    for depth in range(1, len(groups) + 1):
        files: dict[str, str | int] = {
            "memory.current": 1 << 30,
            "memory.max": "max\n",
            "memory.events.local": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
            "cgroup.events": "populated 1\nfrozen 0\n",
            **{f"{name}.pressure": PRESSURE for name in ("cpu", "io", "memory")},
        }
        write_files(top / "/".join(groups[1:depth]), files)
    own = {"self/status": STATUS.format(threads=1, cpus=f"0-{CPUS - 1}"), "self/ns/net": ""}
    mounts = "31 24 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
    write_files(root / "proc", {**own, "self/mountinfo": mounts})
    write_files(top, {"cgroup.controllers": "cpu io memory\n"})
    each = CPUS // RANKS
    for rank in range(RANKS):
        pid = FIRST_PID * (rank + 1)
        status = STATUS.format(threads=THREADS, cpus=f"{rank * each}-{(rank + 1) * each - 1}")
        # Of /proc/<pid>/stat, the 39th number is the CPU.
        stat = f"{pid} (python) S " + " ".join(["1"] * 35) + f" {rank * each} 0 0\n"
        files = {"status": status, "cgroup": f"0::{GROUP}\n", "sched": "se.nr_migrations : 7\n"}
        files |= {f"task/{pid + n}/status": status for n in range(THREADS)}
        write_files(root / f"proc/{pid}", {**files, f"task/{pid}/stat": stat})


def list_ranks() -> list[int]:
    """Return the process of each rank."""
    return [FIRST_PID * (rank + 1) for rank in range(RANKS)]
