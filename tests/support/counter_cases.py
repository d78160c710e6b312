"""Counters that tell a reason, beside the fault that each goes with, and what the verdict says without them.

steps   200 of 120 ms | 200 of 180 ms        the fault costs 60 ms a step, from 24 s on
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from support.counters import Told, growing, level
from support.jobs import HEALTHY_STEP_S, Fault

FAULT_S, STEPS, ONSET = 0.060, 400, 200
ONSET_S = ONSET * HEALTHY_STEP_S
LENGTH_S = ONSET_S + (STEPS - ONSET) * (HEALTHY_STEP_S + FAULT_S)
HEALTHY_S = STEPS * HEALTHY_STEP_S
HOSTS = (0, 1)

TRANSFER = Fault("transfer_foreign", -1, FAULT_S, ONSET)  # nobody stands in anybody's way
WORK = Fault("work", 1, FAULT_S, ONSET)
PAGES = Fault("page_fault", 1, FAULT_S, ONSET)
QUEUE = Fault("own", 1, FAULT_S, ONSET)
# Ten steps of 2.12 s, which is 21 s.
STALLS = (replace(TRANSFER, seconds=2.0, last_step=ONSET + 9),)
# A counter by host, and how much it moves: 1 as much as the fault costs, 0 not at all.
Tell = Callable[[int, float, float], tuple[Told, ...]]


def count(name: str, rate: float, attributes: dict[str, str], of_rank: bool = False) -> Tell:
    """A sum that moves by `rate` a second from some time on."""

    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        rank = host if of_rank else None
        return (Told(name, growing(rate * much, begin_s), host, rank, attributes),)

    return tell


def gauge(
    name: str, before: float, after: float, attributes: dict[str, str], of_rank: bool = False
) -> Tell:
    """A level that changes at some time."""

    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        rank = host if of_rank else None
        value = level(before, before + much * (after - before), begin_s)
        return (Told(name, value, host, rank, attributes),)

    return tell


def steal(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
    # Half of what the host ran: a third of its busy time, and of 175 ms running the 60 ms.
    user = Told("system.cpu.time", growing(1.0, -70.0), host, None, {"cpu.mode": "user"})
    stolen = growing(0.5 * much, begin_s)
    return (user, Told("system.cpu.time", stolen, host, None, {"cpu.mode": "steal"}))


def kill(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
    """One kill in the rank's control group, which is all it takes: whole or not at all."""
    attributes = {"training.cgroup.memory.event": "oom_kill"}
    killed = level(0.0, float(much >= 1.0), begin_s)
    return (Told("training.cgroup.memory.events", killed, host, host, attributes),)


def swapped(faults: float, pages: float) -> Tell:
    """So many major faults of the rank a second, and so many pages that its host reads from swap."""

    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        read = {"system.paging.direction": "in"}
        return (
            Told("training.memory.major_faults", growing(faults * much, begin_s), host, host, {}),
            Told("system.paging.operations", growing(pages * much, begin_s), host, None, read),
        )

    return tell


def mask(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
    """A mask of 8 CPUs that is narrowed to 1, where 7 CPUs of the host are idle."""
    main = {"training.thread.role": "main"}
    allowed = level(8.0, 8.0 - 7.0 * (much >= 1.0), begin_s)
    idle = Told("system.cpu.time", growing(7.0, -70.0), host, None, {"cpu.mode": "idle"})
    return (idle, Told("training.cpu.allowed", allowed, host, host, main))


def fallback(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
    """Ranks send to each other over TCP, and the host's RDMA port as much less."""
    sent = {**TO_RANKS, "network.io.direction": "transmit", "network.transport": "tcp"}
    port = {"hw.id": "mlx5_0:1", "network.io.direction": "transmit"}
    left = 1.0 - min(much, 1.0)

    def passed(now: float) -> float:
        return 1e9 * (min(now + 70.0, begin_s + 70.0) + left * max(now - begin_s, 0.0))

    return (
        Told("process.network.io", growing(1e9 * much, begin_s), host, host, sent),
        Told("hw.network.io", passed, host, None, port),
    )


TO_RANKS = {"training.tcp.peer": "rank", "training.tcp.peer.rank": "0"}
ETH0 = {"network.interface.name": "eth0"}
SENT_AGAIN = count("training.tcp.retransmitted.segments", 5.0, TO_RANKS, of_rank=True)
ROUND_TRIP = gauge("training.tcp.rtt.mean", 0.0002, 0.0016, TO_RANKS, of_rank=True)


@dataclass(frozen=True)
class Case:
    """A counter that tells a reason, the fault that it goes with, and what the verdict says without it."""

    reason: str
    without: str
    fault: Fault
    tell: Tell
    sensor: str
    subject: str
    is_alike_silent: bool = True
    # Whether TCP, which is not read here, would have to say that nothing was lost.
    needs_tcp: bool = False


def net(
    reason: str,
    tell: Tell,
    sensor: str,
    device: str,
    *,
    is_alike_silent: bool = False,
    needs_tcp: bool = False,
) -> Case:
    subject = f"link:host-1/{device}"
    return Case(reason, "UNKNOWN_NET", TRANSFER, tell, sensor, subject, is_alike_silent, needs_tcp)


HOST_CASES = {
    "retransmissions": net("NET_LOSS", SENT_AGAIN, "tcp", "connections"),
    "drops": net(
        "NET_LOSS",
        count("system.network.packet.dropped", 5.0, {**ETH0, "network.io.direction": "receive"}),
        "nic_counters",
        "eth0",
    ),
    "crc errors": net(
        "NET_LOSS",
        count("training.nic.events", 5.0, {**ETH0, "training.nic.event": "rx_crc_errors_phy"}),
        "nic_counters",
        "eth0",
    ),
    "out of sequence": net(
        "NET_LOSS",
        count(
            "training.rdma.events",
            5.0,
            {"hw.id": "mlx5_0/1", "training.rdma.event": "out_of_sequence"},
        ),
        "rdma_counters",
        "mlx5_0/1",
    ),
    "round trips": net("NET_CONGESTION", ROUND_TRIP, "tcp", "connections"),
    "pauses": net(
        "NET_CONGESTION",
        # 60 ms of each 180 ms
        count("training.nic.pause.time", 1 / 3, {**ETH0, "network.io.direction": "transmit"}),
        "nic_counters",
        "eth0",
        needs_tcp=True,
    ),
    "marks": net(
        "NET_CONGESTION",
        count(
            "training.rdma.events",
            100.0,
            {"hw.id": "mlx5_0/1", "training.rdma.event": "np_cnp_sent"},
        ),
        "rdma_counters",
        "mlx5_0/1",
        needs_tcp=True,
    ),
    "rate": net(
        "NIC_RATE",
        # 10 ms of transfers take 70: a seventh of the rate
        gauge("hw.network.bandwidth.limit", 1.25e9, 1.25e9 / 7, {"hw.id": "eth0"}),
        "nic_counters",
        "eth0",
        is_alike_silent=True,
    ),
    "proxy": Case(
        "PROXY_STARVED",
        "UNKNOWN_NET",
        TRANSFER,
        # 60 ms of each 180 ms
        count(
            "training.thread.time",
            1 / 3,
            {"training.thread.role": "collective", "training.thread.state": "runnable"},
            of_rank=True,
        ),
        "sched",
        "proxy:host-1/1",
    ),
    "fallback": Case(
        "TRANSPORT_FALLBACK",
        "UNKNOWN_NET",
        TRANSFER,
        fallback,
        "tcp",
        "transport:host-1/connections",
        is_alike_silent=False,
    ),
    "steal": Case("CPU_STEAL", "WORK_IMBALANCE", WORK, steal, "cpu", "hypervisor:host-1"),
    # One core's third, as the kernel counts it for the whole host.
    "interrupts": Case(
        "IRQ_SOFTIRQ",
        "WORK_IMBALANCE",
        WORK,
        count("system.cpu.time", 1 / 3, {"cpu.mode": "softirq"}),
        "cpu",
        "interrupts:host-1",
    ),
    "clock": Case(
        "CPU_FREQ",
        "WORK_IMBALANCE",
        WORK,
        # 115 ms at 3 GHz are 175 ms at 1.97 GHz
        gauge("training.cpu.frequency", 3e9, 1.97e9, {}, of_rank=True),
        "cpu_frequency",
        "clock:host-1/1",
    ),
    "swap": Case(
        "SWAP",
        "UNKNOWN_HOST",
        PAGES,
        count("system.paging.operations", 500.0, {"system.paging.direction": "in"}),
        "vmstat",
        "swap:host-1",
    ),
    # 33,000 pages a second are 6,000 a step; at 10 us each the kernel takes the 60 ms for them.
    "swap in memory": Case(
        "SWAP", "WORK_IMBALANCE", WORK, swapped(33_000.0, 33_000.0), "paging", "swap:host-1/1"
    ),
    "kill": Case("OOM_KILL", "UNKNOWN_HOST", PAGES, kill, "cgroup_memory", "killer:host-1/1"),
    "far pages": Case(
        "NUMA_REMOTE",
        "WORK_IMBALANCE",
        WORK,
        # 3,600 pages a step, read up to a hundred times; the work may take twice as long
        count(
            "training.host.numa.allocations",
            20_000.0,
            {"training.numa.node": "1", "training.numa.allocation": "other_node"},
        ),
        "affinity",
        "memory:host-1",
    ),
    "mask": Case(
        "CPU_AFFINITY", "THREAD_OVERSUBSCRIPTION", QUEUE, mask, "affinity", "affinity:host-1/1"
    ),
}
