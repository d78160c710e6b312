"""Which counters speak for which reason about a GPU, as data.

    reason          comes out of    counters                                              what it cost
    GPU_THERMAL     host or work    clock below its own, and as much time throttled more  at most steps, by clock
    GPU_POWER       host or work    the same, held back for power                         at most steps, by clock
    GPU_CLOCK_PIN   host or work    the same, held back by a setting                      at most steps, by clock
    GPU_ECC         host or work    memory errors, or the driver's word (Xid)             not known
    GPU_LOST        host or work    the driver's word that it does not answer (Xid)       not known
    GPU_COTENANT    host, work, all one more process on it                                not known
    PCIE_DEGRADED   host or work    what its link to the host can carry, a fourth or less not known
    GPU_SILENT_SLOW waits for it    its clock, which is what it was, and nothing else     not known
    UNKNOWN_GPU     host or work    longer waits for it, as many, where NVML is silent    at most that time
    P2P_OFF         transfers       GPUs that it reaches directly, a fourth or less       not known
    NVLINK          transfers       links that are up; the driver's word (Xid, SXid)      transfers, by links
    both            host or work    the same of its own GPU, a fourth or less             not known

Packets take no NVLink: of transfers that the network's counters account for, no GPU is the cause.

A rank waits for its device blocked or spinning: as lost host time or as work of its own. Where its calls of CUDA are
counted and each step has some that wait, the lost time must have passed in such calls: a hot GPU of a rank whose host
code is slow is not the cause. The bit that a power limit holds the clock is common under load, so nothing speaks
without a clock that fell below its own and below those of others. Source: faults B2, B3 (G01 to G15, C01) and B4;
NVIDIA, "XID Errors".
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.counters.cuda_calls import AS_MANY_CALLS, LONGER_CALLS, TIME_FOR_DEVICE
from rootwalk.graph.counters.rule import Counter, CounterRule, Formula, Kind, any_of
from rootwalk.graph.reasons import Reason, Signal
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingGpuThrottleReason as Throttle
from rootwalk.instrumentation.semconv import TrainingKernelMessageKind as Message

__all__ = ["DEVICE_RULES", "XID_LOST"]

# What a wait for a device is taken for where nobody sees that it is one.
_OF_HOST: Final = frozenset({Reason.UNKNOWN_HOST, Reason.WORK_IMBALANCE})
_WAITING: Final = _OF_HOST | {Reason.UNKNOWN_GPU}
_NETWORK: Final = frozenset({Reason.UNKNOWN_NET})
_OF_NETWORK: Final = frozenset(
    {Reason.NET_FLAP, Reason.NET_LOSS, Reason.NIC_RATE, Reason.NET_CONGESTION}
)
_PLACE: Final = "GPU {device} of {host}"
# Of memory: double-bit error, page retired or row remapped, remapping failed, contained and uncontained error.
_XID_ECC: Final = ("48", "63", "64", "94", "95")
# Fallen off the bus; its system processor does not answer.
XID_LOST: Final = ("79", "119", "120")
_XID_NVLINK: Final = ("74", "145", "149")


def _level(signal: Signal, kind: Kind, formula: Formula, is_of_rank: bool = True) -> Counter:
    return Counter(signal, "nvml", kind, formula, (), semconv.HW_ID, is_of_rank)


def _clock(reason: Reason, *throttles: Throttle) -> CounterRule:
    """Return the rule of a reason for which the clock of the multiprocessors is held down."""
    clock = Counter(
        Signal.GPU_CLOCK,
        "nvml",
        Kind.FALL,
        Formula.STEP_BY_LEVEL,
        (any_of(semconv.TRAINING_GPU_CLOCK, semconv.TrainingGpuClock.SM),),
        semconv.HW_ID,
        is_of_rank=True,
    )
    held = Counter(
        Signal.GPU_THROTTLED,
        "nvml",
        Kind.GROWTH,
        Formula.SECONDS,
        (any_of(semconv.TRAINING_GPU_THROTTLE_REASON, *throttles),),
        semconv.HW_ID,
        is_of_rank=True,
    )
    return CounterRule(
        reason,
        _WAITING,
        "gpu",
        _PLACE,
        (clock,),
        stands_out=True,
        needs=held,
        needs_more=True,
        waits=TIME_FOR_DEVICE,
    )


def _said(*codes: str, kind: Message = Message.GPU_ERROR) -> Counter:
    """Return the kernel's lines about a device with one of some codes."""
    about = any_of(semconv.TRAINING_KERNEL_MESSAGE_KIND, kind)
    numbered = (any_of(semconv.TRAINING_KERNEL_MESSAGE_CODE, *codes),) if codes else ()
    device = semconv.TRAINING_KERNEL_MESSAGE_DEVICE
    where = (about, *numbered)
    return Counter(Signal.KERNEL_MESSAGE, "kernel_log", Kind.SINCE, Formula.NONE, where, device)


def _own_transfers(reason: Reason, signal: Signal) -> CounterRule:
    """Return the rule of a reason for which a rank waits for transfers of its own GPU."""
    fallen = _level(signal, Kind.FALL, Formula.NONE, is_of_rank=False)
    return CounterRule(
        reason,
        _WAITING,
        "gpu",
        _PLACE,
        (fallen,),
        stands_out=True,
        waits=TIME_FOR_DEVICE,
        needs_waits=_OF_HOST,
    )


# What else the sensors of a device would have seen; or it stands still for want of memory, kernels or transfers, or has
# more to do.
_OTHERWISE: Final = frozenset(
    {
        Reason.GPU_THERMAL,
        Reason.GPU_POWER,
        Reason.GPU_CLOCK_PIN,
        Reason.GPU_ECC,
        Reason.GPU_LOST,
        Reason.GPU_COTENANT,
        Reason.PCIE_DEGRADED,
        Reason.P2P_OFF,
        Reason.NVLINK,
        Reason.ALLOCATOR,
        Reason.COMPILE,
        Reason.EXPERT_IMBALANCE,
        Reason.LAUNCH_BOUND,
        Reason.UNEVEN_EVAL,
    }
)

DEVICE_RULES: Final = (
    _clock(Reason.GPU_THERMAL, Throttle.THERMAL),
    _clock(Reason.GPU_POWER, Throttle.POWER, Throttle.POWER_BRAKE),
    _clock(Reason.GPU_CLOCK_PIN, Throttle.SETTING),
    CounterRule(
        Reason.GPU_ECC,
        _WAITING,
        "gpu",
        _PLACE,
        (
            Counter(
                Signal.DEVICE_ERRORS,
                "nvml",
                Kind.GROWTH,
                Formula.NONE,
                (any_of(semconv.HW_TYPE, "gpu"),),
                semconv.HW_ID,
                is_of_rank=True,
            ),
            _said(*_XID_ECC),
        ),
        excluded_by=frozenset({Reason.GPU_LOST}),
        stands_out=True,
        waits=TIME_FOR_DEVICE,
    ),
    CounterRule(Reason.GPU_LOST, _WAITING, "gpu", _PLACE, (_said(*XID_LOST),), stands_out=True),
    CounterRule(
        Reason.GPU_COTENANT,
        _WAITING
        | {
            Reason.GLOBAL_SLOW
        },  # of all ranks where they share a GPU, or each has one more beside it
        "gpu",
        _PLACE,
        (_level(Signal.GPU_PROCESSES, Kind.COUNT, Formula.NONE),),
        stands_out=True,
        waits=TIME_FOR_DEVICE,
    ),
    CounterRule(
        Reason.PCIE_DEGRADED,
        _WAITING,
        "gpu",
        _PLACE,
        (_level(Signal.PCIE_RATE, Kind.FALL, Formula.NONE),),
        stands_out=True,
        waits=TIME_FOR_DEVICE,
    ),
    CounterRule(
        Reason.GPU_SILENT_SLOW,
        _WAITING,
        "gpu",
        _PLACE,
        (
            Counter(
                Signal.GPU_CLOCK,
                "nvml",
                Kind.STEADY,
                Formula.NONE,
                (any_of(semconv.TRAINING_GPU_CLOCK, semconv.TrainingGpuClock.SM),),
                semconv.HW_ID,
                is_of_rank=True,
            ),
        ),
        excluded_by=_OTHERWISE,
        quiet=AS_MANY_CALLS,
        waits=TIME_FOR_DEVICE,
        # Work or lost time may be the host's: only a wait for the device says that the device takes longer.
        needs_waits=_OF_HOST,
    ),
    CounterRule(
        Reason.UNKNOWN_GPU,
        _OF_HOST,
        "gpu",
        "the GPU of rank {rank}",
        LONGER_CALLS,
        excluded_by=_OTHERWISE | {Reason.GPU_SILENT_SLOW},
        stands_out=True,
        quiet=AS_MANY_CALLS,
    ),
    # What a rank sends to other GPUs itself, and waits for.
    _own_transfers(Reason.P2P_OFF, Signal.GPU_PEERS),
    _own_transfers(Reason.NVLINK, Signal.NVLINKS),
    CounterRule(
        Reason.P2P_OFF,
        _NETWORK,
        "gpu",
        _PLACE,
        (_level(Signal.GPU_PEERS, Kind.FALL, Formula.NONE, is_of_rank=False),),
        excluded_by=_OF_NETWORK,
    ),
    CounterRule(
        Reason.NVLINK,
        _NETWORK,
        "gpu",
        _PLACE,
        (
            _level(Signal.NVLINKS, Kind.FALL, Formula.TRANSFER_BY_LEVEL, is_of_rank=False),
            _said(*_XID_NVLINK),
            _said(kind=Message.NVLINK_ERROR),
        ),
        excluded_by=_OF_NETWORK,
        stands_out=True,
    ),
)
