"""Where ranks may run and where their memory may be: affinity masks, cores that are shared, NUMA nodes, migrations.

What counts, a rank: the CPUs that its first thread may use (mask and cpuset together, as the kernel applies them), and
the fewest that any of its other threads may; the cores these CPUs are hardware threads of, and how many of them another
rank of this host may use too; the NUMA nodes that its CPUs and its memory are spread over; its threads; how often its
first thread was moved to another CPU, and gave its CPU up or lost it. The host: its CPUs, and pages that were allocated
on another NUMA node than was asked for. What does not count: whether neighbours ran at the same time (the scheduler's
sensor tells who ran), CPUs of processes that are no ranks, and threads beyond the 32 that are looked at.

Where: /proc/<pid>/status, sched, task/<tid>/status; /sys/devices/system/{cpu,node}.
Oldest kernel: any; migrations need CONFIG_SCHED_DEBUG, and are absent without it.
Cost: 80 us for each rank, and every 30 s 10 us for each other thread that is looked at. A copy of the files of a
machine with 256 CPUs and 8 ranks of 400 threads, in memory: 3 ms for everything at once.

Source: Documentation/filesystems/proc.rst, section 1.1; Documentation/admin-guide/numastat.rst.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from rootwalk.ebpf.availability import TIER_NONE
from rootwalk.ebpf.host.cpu_topology import CpuTopology
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.pace import Pace
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.kernel_files import parse_list, parse_number, parse_pairs, read_text
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingNumaAllocation as Allocation
from rootwalk.instrumentation.semconv import TrainingNumaPlacement as Placement
from rootwalk.instrumentation.semconv import TrainingThreadRole as Role

__all__ = ["AffinityReader", "choose_threads", "parse_status"]

# Masks are set once, when a thread starts: a sample of them, now and then.
THREADS_INTERVAL_S = 30.0
MAX_THREADS = 32
# Pages on other nodes than asked for pile up in minutes.
NUMA_INTERVAL_S = 10.0
# Machines have up to 16 nodes; one a CPU and a memory device each is still below that.
MAX_NODES = 64
MIGRATIONS = "se.nr_migrations"
SWITCHES = (("voluntary_ctxt_switches", "voluntary"), ("nonvoluntary_ctxt_switches", "involuntary"))


def parse_status(text: str) -> dict[str, str]:
    """Return the fields of a `status` file; a name cannot add one, its line breaks are escaped by the kernel."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def choose_threads(tids: Iterable[str], first: int) -> list[int]:
    """Return at most 32 threads beside the first, evenly over all of them."""
    others = sorted({tid for text in tids if (tid := parse_number(text)) is not None} - {first})
    every = max(1, -(-len(others) // MAX_THREADS))
    return others[::every]


class AffinityReader(Reader):
    """Reads where ranks may run.

    Raises:
        UnavailableError: NO_COUNTERS.
    """

    sensor = "affinity"
    tier = TIER_NONE
    backend = "proc"

    def __init__(self, place: Place) -> None:
        status = Path(place.root, "proc/self/status")
        if "Cpus_allowed_list" not in parse_status(read_text(status)):
            raise missing_file("affinity masks", f'no "Cpus_allowed_list" in "{status}"')
        self._nodes = f"{place.root}/sys/devices/system/node"
        self._topology = CpuTopology.read(place.root)
        self._ranks = RankFolders(place.root)
        self._pace = Pace()
        self._threads_pace = Pace(THREADS_INTERVAL_S)
        self._numa_pace = Pace(NUMA_INTERVAL_S)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's process."""
        self._ranks.watch(pid, slot)

    def forget(self, pid: int) -> None:
        """Stop following a rank."""
        self._ranks.forget(pid)

    def measurements(self) -> Iterable[Measurement]:
        """Return what is allowed now, and counts since each thread began and since boot."""
        return [
            *self._pace.take(self._read_ranks),
            *self._threads_pace.take(self._read_threads),
            *self._numa_pace.take(self._read_nodes),
        ]

    def _read_ranks(self) -> Iterator[Measurement]:
        cores_by_slot: dict[int, frozenset[int]] = {}
        for slot in self._ranks:
            status = parse_status(self._ranks.read(slot, "status"))
            cpus = parse_list(status.get("Cpus_allowed_list", ""))
            if cpus:
                yield _allowed(len(cpus), Role.MAIN, slot)
                cores = self._topology.cores(cpus)
                if cores is not None:
                    cores_by_slot[slot] = cores
            yield from self._placement(slot, cpus, status)
            yield from _counts(slot, status)
            sched = parse_pairs(self._ranks.read(slot, "sched"), ":")
            if MIGRATIONS in sched:
                yield Measurement(
                    semconv.METRIC_TRAINING_THREAD_MIGRATIONS,
                    sched[MIGRATIONS],
                    {semconv.TRAINING_THREAD_ROLE: Role.MAIN.value},
                    slot,
                )
        yield from _cores(cores_by_slot)

    def _placement(
        self, slot: int, cpus: frozenset[int], status: dict[str, str]
    ) -> Iterator[Measurement]:
        memory = parse_list(status.get("Mems_allowed_list", ""))
        for placement, nodes in (
            (Placement.CPU, self._topology.nodes(cpus)),
            (Placement.MEMORY, memory & self._topology.cpus_by_node.keys()),
        ):
            if nodes:
                yield Measurement(
                    semconv.METRIC_TRAINING_NUMA_NODES,
                    len(nodes),
                    {semconv.TRAINING_NUMA_PLACEMENT: placement.value},
                    slot,
                )

    def _read_threads(self) -> Iterator[Measurement]:
        for slot in self._ranks:
            fewest = min(
                (
                    len(cpus)
                    for tid in choose_threads(self._ranks.list(slot, "task"), self._ranks.pid(slot))
                    if (cpus := self._read_mask(slot, tid))
                ),
                default=None,
            )
            if fewest is not None:
                yield _allowed(fewest, Role.OTHER, slot)

    def _read_mask(self, slot: int, tid: int) -> frozenset[int]:
        status = parse_status(self._ranks.read(slot, f"task/{tid}/status"))
        return parse_list(status.get("Cpus_allowed_list", ""))

    def _read_nodes(self) -> Iterator[Measurement]:
        if self._topology.online:
            yield Measurement(semconv.METRIC_SYSTEM_CPU_LOGICAL_COUNT, len(self._topology.online))
        for node in sorted(self._topology.cpus_by_node)[:MAX_NODES]:
            counts = parse_pairs(read_text(f"{self._nodes}/node{node}/numastat"))
            for allocation in Allocation:
                if allocation in counts:
                    yield Measurement(
                        semconv.METRIC_TRAINING_HOST_NUMA_ALLOCATIONS,
                        counts[allocation],
                        {
                            semconv.TRAINING_NUMA_NODE: node,
                            semconv.TRAINING_NUMA_ALLOCATION: allocation.value,
                        },
                    )

    def close(self) -> None:
        """Let go of ranks."""
        self._ranks.close()


def _allowed(cpus: int, role: Role, slot: int) -> Measurement:
    attributes = {semconv.TRAINING_THREAD_ROLE: role.value}
    return Measurement(semconv.METRIC_TRAINING_CPU_ALLOWED, cpus, attributes, slot)


def _counts(slot: int, status: dict[str, str]) -> Iterator[Measurement]:
    threads = parse_number(status.get("Threads", ""))
    if threads is not None:
        yield Measurement(semconv.METRIC_PROCESS_THREAD_COUNT, threads, slot=slot)
    for name, kind in SWITCHES:
        switches = parse_number(status.get(name, ""))
        if switches is not None:
            yield Measurement(
                semconv.METRIC_TRAINING_THREAD_CONTEXT_SWITCHES,
                switches,
                {
                    semconv.TRAINING_THREAD_ROLE: Role.MAIN.value,
                    semconv.PROCESS_CONTEXT_SWITCH_TYPE: kind,
                },
                slot,
            )


def _cores(cores_by_slot: dict[int, frozenset[int]]) -> Iterator[Measurement]:
    ranks_by_core = Counter(core for cores in cores_by_slot.values() for core in cores)
    for slot, cores in cores_by_slot.items():
        yield Measurement(semconv.METRIC_TRAINING_CPU_ALLOWED_CORES, len(cores), slot=slot)
        yield Measurement(
            semconv.METRIC_TRAINING_CPU_ALLOWED_SHARED_CORES,
            sum(ranks_by_core[core] > 1 for core in cores),
            slot=slot,
        )
