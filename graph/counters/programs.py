"""Which of the things that a training program tells of itself speak for which reason, as data.

    reason             comes out of         what speaks                                      what it cost
    COMPILE            host, work, all      time in the compiler                             that time
    ALLOCATOR          host, work, all      retries of the allocator of device memory, or    not known;
                                            memory that it gave back, as OBI counts it; or   at most the time
                                            calls for memory (`cuda_calls`)                  of the calls
    UNEVEN_EVAL        host, work           time between model.eval() and model.train()      that time
    EXPERT_IMBALANCE   host, work           bytes of its all-to-alls, more than others'      at most steps, by bytes
    STAGE_IMBALANCE    work                 its messages to other stages, as many as before  not known
    ACCIDENTAL_SYNC    host, work, all      time in calls that wait for the device; how many at most that time;
                                            there were, for as many launches, as OBI counts  not known;
                                            calls that wait (`cuda_calls`)                   at most their time
    LAUNCH_BOUND       host, work, all      time without a kernel while operators run        that time
    OVERLAP_LOST       transfers, the same  time with nothing but collectives' kernels,      that time
                                            which take no longer than before
    PROXY_STARVED      transfers            collectives' threads that wait for a CPU         that time
    TRANSPORT_FALLBACK transfers            TCP bytes between ranks, or what NCCL says that  not known
                                            it sends over, while RDMA ports' bytes stop; or
                                            what NCCL says alone, where no port is counted

What a profile tells needs a profile with enough steps before the onset. "Host" is lost host time, or time that a rank
waited for its device. Source: faults B3 (P09, P10, P14, F01, F02, F03, C03, C08) and B4.
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.counters.cuda_calls import CALLS_FOR_MEMORY, CALLS_THAT_WAIT, MORE_TO_DO
from rootwalk.graph.counters.rule import Counter, CounterRule, Formula, Kind, any_of
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.instrumentation import semconv

__all__ = ["COLLECTIVES_WAITING", "MAIN_WAITING", "PROGRAM_RULES"]

_OWN: Final = frozenset({Reason.WORK_IMBALANCE, Reason.UNKNOWN_HOST, Reason.UNKNOWN_GPU})
_ANY: Final = _OWN | {Reason.GLOBAL_SLOW}
_NETWORK: Final = frozenset({Reason.UNKNOWN_NET})


# What NCCL calls its own two networks: with memory of the GPU, and with buffers that connections share.
_OVER_TCP: Final = ("NET/Socket", "NET/Socket/Shared")
_OVER_RDMA: Final = tuple(
    f"NET/IB{memory}{shared}"
    for memory in ("", "/GDRDMA", "/GDRDMA(PCI)")
    for shared in ("", "/Shared")
)


def _told(signal: Signal, formula: Formula) -> Counter:
    return Counter(signal, "instrumentation", Kind.MORE, formula, is_of_rank=True)


def _called(signal: Signal) -> Counter:
    """Return what OBI counts of a rank's calls to the CUDA library, without their time."""
    return Counter(signal, "instrumentation", Kind.MORE, Formula.NONE, is_of_rank=True)


def _connected(kind: Kind, ways: tuple[str, ...]) -> Counter:
    """Return how many connections over some of its ways a rank's NCCL says that it has set up."""
    where = (any_of(semconv.TRAINING_NCCL_TRANSPORT, *ways),)
    return Counter(Signal.NCCL_CONNECTIONS, "nccl_log", kind, Formula.NONE, where, is_of_rank=True)


def _waiting(role: semconv.TrainingThreadRole) -> Counter:
    """Return the time for which a rank's threads of one role waited for a CPU."""
    return Counter(
        Signal.THREAD_TIME,
        "sched",
        Kind.MORE,
        Formula.SECONDS,
        (
            any_of(semconv.TRAINING_THREAD_ROLE, role.value),
            any_of(semconv.TRAINING_THREAD_STATE, semconv.TrainingThreadState.RUNNABLE.value),
        ),
        is_of_rank=True,
    )


COLLECTIVES_WAITING: Final = _waiting(semconv.TrainingThreadRole.COLLECTIVE)
MAIN_WAITING: Final = _waiting(semconv.TrainingThreadRole.MAIN)


def _rule(
    reason: Reason,
    refines: frozenset[Reason],
    node: str,
    place: str,
    counter: Counter,
    *excluded_by: Reason,
) -> CounterRule:
    others = frozenset(excluded_by)
    return CounterRule(reason, refines, node, place, (counter,), others, stands_out=True)


PROGRAM_RULES: Final = (
    _rule(
        Reason.COMPILE,
        _ANY,
        "compiler",
        "the compiler of rank {rank}",
        _told(Signal.COMPILING, Formula.SECONDS),
    ),
    CounterRule(
        Reason.ALLOCATOR,
        _ANY,
        "allocator",
        "the memory allocator of rank {rank}",
        # It keeps what it has: after warming up it gives nothing back, unless it must ask again.
        (
            _told(Signal.ALLOCATOR_RETRIES, Formula.NONE),
            _called(Signal.DEVICE_FREED),
            *CALLS_FOR_MEMORY,
        ),
        frozenset({Reason.COMPILE, Reason.UNEVEN_EVAL}),
        stands_out=True,
    ),
    _rule(
        Reason.UNEVEN_EVAL,
        _OWN,
        "evaluation",
        "the evaluation of rank {rank}",
        _told(Signal.EVALUATING, Formula.SECONDS),
        Reason.COMPILE,
    ),
    _rule(
        Reason.EXPERT_IMBALANCE,
        _OWN,
        "experts",
        "the experts of rank {rank}",
        _told(Signal.EXPERT_SIZE, Formula.STEP_BY_GROWTH),
        Reason.COMPILE,
        Reason.UNEVEN_EVAL,
    ),
    # Its work is a stage's where it talks to others by messages alone: nobody else has its part of the model, so no
    # peer shows that the same work takes others less. Its host is not the cause where nothing of it speaks.
    CounterRule(
        Reason.STAGE_IMBALANCE,
        frozenset({Reason.WORK_IMBALANCE}),
        "stage",
        "the pipeline stage of rank {rank}",
        (
            Counter(
                Signal.STAGE_MESSAGES, "instrumentation", Kind.EVEN, Formula.NONE, is_of_rank=True
            ),
        ),
        excluded_by=frozenset(
            {
                Reason.COMPILE,
                Reason.ALLOCATOR,
                Reason.UNEVEN_EVAL,
                Reason.CPU_STEAL,
                Reason.CPU_FREQ,
                Reason.NUMA_REMOTE,
            }
        ),
        absent=(
            Counter(
                Signal.COLLECTIVES, "instrumentation", Kind.GROWTH, Formula.NONE, is_of_rank=True
            ),
        ),
    ),
    CounterRule(
        Reason.ACCIDENTAL_SYNC,
        _ANY,
        "synchronization",
        "the synchronising calls of rank {rank}",
        (
            _told(Signal.SYNCHRONIZING, Formula.SECONDS_BOUND),
            _called(Signal.SYNC_CALLS),
            *CALLS_THAT_WAIT,
        ),
        frozenset({Reason.COMPILE, Reason.ALLOCATOR}),
        stands_out=True,
        # With more launches or more input as well, the rank has more to do.
        quiet=(_called(Signal.LAUNCH_CALLS), *MORE_TO_DO),
    ),
    _rule(
        Reason.LAUNCH_BOUND,
        _ANY,
        "launches",
        "the launches of rank {rank}",
        _told(Signal.LAUNCH_GAP, Formula.SECONDS),
        Reason.COMPILE,
        Reason.ALLOCATOR,
        Reason.ACCIDENTAL_SYNC,
    ),
    CounterRule(
        Reason.OVERLAP_LOST,
        _ANY,
        "overlap",
        "the transfers of rank {rank}",
        (_told(Signal.EXPOSED, Formula.SECONDS),),
        frozenset({Reason.COMPILE, Reason.LAUNCH_BOUND, Reason.ACCIDENTAL_SYNC}),
        stands_out=True,
        quiet=(_told(Signal.COMMUNICATING, Formula.NONE),),
    ),
    CounterRule(
        Reason.PROXY_STARVED,
        _NETWORK,
        "proxy",
        "the collectives' threads of rank {rank}",
        (COLLECTIVES_WAITING,),
        excluded_by=frozenset({Reason.NET_FLAP, Reason.NET_LOSS}),
        stands_out=True,
    ),
    CounterRule(
        Reason.TRANSPORT_FALLBACK,
        _NETWORK,
        "transport",
        "TCP between ranks, of {host}",
        (
            Counter(
                Signal.NETWORK_IO,
                "tcp",
                Kind.GROWTH,
                Formula.NONE,
                (
                    any_of(semconv.TRAINING_TCP_PEER, semconv.TrainingTcpPeer.RANK.value),
                    any_of(semconv.NETWORK_IO_DIRECTION, "transmit"),
                ),
                is_of_rank=True,
            ),
            _connected(Kind.SINCE, _OVER_TCP),
        ),
        excluded_by=frozenset({Reason.NET_FLAP}),
        needs=Counter(
            Signal.PORT_IO,
            "rdma_counters",
            Kind.DROP,
            Formula.NONE,
            (any_of(semconv.NETWORK_IO_DIRECTION, "transmit"),),
        ),
        needs_more=True,
        needs_else=_connected(Kind.STEADY, _OVER_RDMA),
    ),
)
