"""Which counters speak for which reason: the look-alikes that they come out of, and what each of them counts.

    reason          comes out of        counters (any one of them)                     what it cost
    NET_FLAP        UNKNOWN_NET         changes of a carrier, links gone down          not known
    NET_LOSS        UNKNOWN_NET         TCP segments sent again, drops, errors         at most a time-out each
    NIC_RATE        UNKNOWN_NET         rate of a link below its own                   transfers, by rate
    NET_CONGESTION  UNKNOWN_NET         round trips, pauses, marks; without loss       transfers, by round trip
    CPU_STEAL       WORK_IMBALANCE      time that the hypervisor took                  running time, by its part
    IRQ_SOFTIRQ     WORK_IMBALANCE      interrupts of the host, where none are timed   that time
    CPU_FREQ        WORK_IMBALANCE      clock below its own; work that takes longer    running time, by either
    NUMA_REMOTE     WORK_IMBALANCE      pages allocated on another node than asked for at most, pages read there
    SWAP            UNKNOWN_HOST        pages read from swap                           its waits for pages
                    WORK_IMBALANCE      the rank's faults, as many pages from swap     at most, 10 us a page
    OOM_KILL        UNKNOWN_HOST        a kill of one of its processes                 not known
    CPU_AFFINITY    a queue             CPUs allowed, and CPUs idle elsewhere          its queue

Those of devices are `devices`', those that the program tells itself `programs`'.

Data only. Source: faults B3 (column Tell) and B4.
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.counters.devices import DEVICE_RULES
from rootwalk.graph.counters.programs import PROGRAM_RULES
from rootwalk.graph.counters.rule import Counter, CounterRule, Formula, Kind, any_of
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.instrumentation import semconv

__all__ = ["COUNTER_RULES"]

_INTERFACE = semconv.NETWORK_INTERFACE_NAME
_TO_RANKS = (any_of(semconv.TRAINING_TCP_PEER, semconv.TrainingTcpPeer.RANK.value),)
_LOST_BY_NIC = (
    "rx_discards_phy",
    "tx_discards_phy",
    "rx_total_discard_pkts",
    "tx_total_discard_pkts",
    "rx_out_of_buffer",
    "out_of_buffer",
    "rx_missed_errors",
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "rx_fcs_err_frames",
    "rx_crc_errors.nic",
    "rx_dropped.nic",
)
_LOST_BY_RDMA = (
    "symbol_error",
    "local_link_integrity_errors",
    "port_rcv_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "duplicate_request",
    "rx_icrc_encapsulated",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
)
_MARKED_BY_RDMA = (
    "port_xmit_wait",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "roce_slow_restart",
)
_NETWORK = frozenset({Reason.UNKNOWN_NET})
_BUSY_MODES = ("user", "nice", "system", "interrupt", "softirq", "steal")

HOST_RULES: Final = (
    CounterRule(
        Reason.NET_FLAP,
        _NETWORK,
        "link",
        "{device} of {host}",
        (
            Counter(
                Signal.CARRIER, "nic_counters", Kind.EVENT, Formula.NONE, (), device=_INTERFACE
            ),
            Counter(
                Signal.RDMA_EVENTS,
                "rdma_counters",
                Kind.EVENT,
                Formula.NONE,
                (any_of(semconv.TRAINING_RDMA_EVENT, "link_downed", "link_error_recovery"),),
                device=semconv.HW_ID,
            ),
        ),
    ),
    CounterRule(
        Reason.NET_LOSS,
        _NETWORK,
        "link",
        "{device} of {host}",
        (
            Counter(
                Signal.RETRANSMITTED,
                "tcp",
                Kind.GROWTH,
                Formula.TIMEOUTS,
                _TO_RANKS,
                is_of_rank=True,
            ),
            Counter(
                Signal.DROPPED, "nic_counters", Kind.GROWTH, Formula.TIMEOUTS, device=_INTERFACE
            ),
            Counter(
                Signal.NET_ERRORS, "nic_counters", Kind.GROWTH, Formula.TIMEOUTS, device=_INTERFACE
            ),
            Counter(
                Signal.NIC_EVENTS,
                "nic_counters",
                Kind.GROWTH,
                Formula.TIMEOUTS,
                (any_of(semconv.TRAINING_NIC_EVENT, *_LOST_BY_NIC),),
                device=_INTERFACE,
            ),
            Counter(
                Signal.RDMA_EVENTS,
                "rdma_counters",
                Kind.GROWTH,
                Formula.TIMEOUTS,
                (any_of(semconv.TRAINING_RDMA_EVENT, *_LOST_BY_RDMA),),
                device=semconv.HW_ID,
            ),
        ),
        excluded_by=frozenset({Reason.NET_FLAP}),
    ),
    CounterRule(
        Reason.NIC_RATE,
        _NETWORK,
        "link",
        "{device} of {host}",
        (
            Counter(
                Signal.LINK_RATE,
                "nic_counters",
                Kind.FALL,
                Formula.TRANSFER_BY_LEVEL,
                device=semconv.HW_ID,
            ),
        ),
        stands_out=True,
    ),
    CounterRule(
        Reason.NET_CONGESTION,
        _NETWORK,
        "link",
        "{device} of {host}",
        (
            Counter(
                Signal.ROUND_TRIP,
                "tcp",
                Kind.RISE,
                Formula.TRANSFER_BY_LEVEL,
                _TO_RANKS,
                is_of_rank=True,
            ),
            Counter(Signal.PAUSE, "nic_counters", Kind.GROWTH, Formula.SECONDS, device=_INTERFACE),
            Counter(
                Signal.RDMA_EVENTS,
                "rdma_counters",
                Kind.GROWTH,
                Formula.NONE,
                (any_of(semconv.TRAINING_RDMA_EVENT, *_MARKED_BY_RDMA),),
                device=semconv.HW_ID,
            ),
        ),
        excluded_by=frozenset({Reason.NET_FLAP, Reason.NET_LOSS}),
    ),
    CounterRule(
        Reason.CPU_STEAL,
        frozenset({Reason.WORK_IMBALANCE}),
        "hypervisor",
        "the hypervisor of {host}",
        (
            Counter(
                Signal.STOLEN,
                "cpu",
                Kind.PART,
                Formula.RUNNING_BY_PART,
                (any_of(semconv.CPU_MODE, "steal"),),
                over=(any_of(semconv.CPU_MODE, *_BUSY_MODES),),
            ),
        ),
        stands_out=True,
    ),
    CounterRule(
        Reason.IRQ_SOFTIRQ,
        frozenset({Reason.WORK_IMBALANCE}),
        "interrupts",
        "the interrupts of {host}",
        (
            Counter(
                Signal.STOLEN,
                "cpu",
                Kind.GROWTH,
                Formula.SECONDS,
                (any_of(semconv.CPU_MODE, "interrupt", "softirq"),),
            ),
        ),
        stands_out=True,
        unless="interrupts",
    ),
    CounterRule(
        Reason.CPU_FREQ,
        frozenset({Reason.WORK_IMBALANCE}),
        "clock",
        "the clock of rank {rank}'s CPU",
        (
            Counter(
                Signal.CLOCK,
                "cpu_frequency",
                Kind.FALL,
                Formula.RUNNING_BY_LEVEL,
                is_of_rank=True,
            ),
            Counter(
                Signal.CPU_PROBE,
                "instrumentation",
                Kind.LONGER,
                Formula.RUNNING_BY_LEVEL,
                is_of_rank=True,
            ),
        ),
        # All threads of a slow CPU are slow: who waits behind them waits longer.
        includes_less=frozenset({Reason.THREAD_OVERSUBSCRIPTION}),
        stands_out=True,
    ),
    CounterRule(
        Reason.SWAP,
        frozenset({Reason.UNKNOWN_HOST}),
        "swap",
        "the swap of {host}",
        (
            Counter(
                Signal.SWAPPED_IN,
                "vmstat",
                Kind.GROWTH,
                Formula.PAGE_WAITS,
                (any_of(semconv.SYSTEM_PAGING_DIRECTION, "in"),),
            ),
        ),
        stands_out=True,
        includes=frozenset({Reason.MEM_RECLAIM}),
    ),
    # Swap that is kept in memory, as zram's, has no waits: the kernel unpacks its pages on the rank's own time.
    CounterRule(
        Reason.SWAP,
        frozenset({Reason.WORK_IMBALANCE}),
        "swap",
        "the swap of {host}",
        (
            Counter(
                Signal.MAJOR_FAULTS,
                "paging",
                Kind.GROWTH,
                Formula.SWAPPED_PAGES,
                is_of_rank=True,
            ),
        ),
        stands_out=True,
        # To make room for them it looks for pages to swap out.
        includes=frozenset({Reason.MEM_RECLAIM}),
        # Else its faults read files.
        needs=Counter(
            Signal.SWAPPED_IN,
            "vmstat",
            Kind.GROWTH,
            Formula.NONE,
            (any_of(semconv.SYSTEM_PAGING_DIRECTION, "in"),),
        ),
        needs_alike=True,
    ),
    CounterRule(
        Reason.OOM_KILL,
        frozenset({Reason.UNKNOWN_HOST}),
        "killer",
        "a kill for memory on {host}",
        (
            Counter(Signal.KILLED, "lifecycle", Kind.SINCE, Formula.NONE, is_of_rank=True),
            Counter(
                Signal.GROUP_EVENTS,
                "cgroup_memory",
                Kind.SINCE,
                Formula.NONE,
                (any_of(semconv.TRAINING_CGROUP_MEMORY_EVENT, "oom_kill"),),
                is_of_rank=True,
            ),
        ),
        stands_out=True,
    ),
    CounterRule(
        Reason.NUMA_REMOTE,
        frozenset({Reason.WORK_IMBALANCE}),
        "memory",
        "the NUMA nodes of {host}",
        (
            Counter(
                Signal.FAR_PAGES,
                "affinity",
                Kind.GROWTH,
                Formula.FAR_PAGES,
                (any_of(semconv.TRAINING_NUMA_ALLOCATION, "numa_miss", "other_node"),),
            ),
        ),
        excluded_by=frozenset({Reason.CPU_STEAL, Reason.CPU_FREQ}),
        stands_out=True,
    ),
    CounterRule(
        Reason.CPU_AFFINITY,
        frozenset({Reason.THREAD_OVERSUBSCRIPTION, Reason.CPU_CONTENTION}),
        "affinity",
        "the CPUs that rank {rank} may use",
        (
            Counter(
                Signal.ALLOWED,
                "affinity",
                Kind.FALL,
                Formula.NONE,
                (any_of(semconv.TRAINING_THREAD_ROLE, "main"),),
                is_of_rank=True,
            ),
            Counter(
                Signal.SHARED_CORES,
                "affinity",
                Kind.ARISEN,
                Formula.NONE,
                is_of_rank=True,
                is_of_move=True,
            ),
        ),
        stands_out=True,
        needs=Counter(
            Signal.STOLEN,
            "cpu",
            Kind.GROWTH,
            Formula.NONE,
            (any_of(semconv.CPU_MODE, "idle"),),
        ),
    ),
)
COUNTER_RULES: Final = (*HOST_RULES, *DEVICE_RULES, *PROGRAM_RULES)
