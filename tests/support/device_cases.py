"""Counters of GPUs that tell a reason, as `counter_cases` has them of hosts. They are generated: no GPU was there."""

from __future__ import annotations

from support.counter_cases import FAULT_S, ONSET, PAGES, TRANSFER, WORK, Case, Tell
from support.counters import Told, growing, level
from support.jobs import Fault

GPU = "GPU-5a1c0000-0000-0000-0000-00000000000"
DEVICE = Fault("device", 1, FAULT_S, ONSET, phase="forward")


def attributes(host: int, **more: str) -> dict[str, str]:
    """The GPU of a host."""
    return {
        "hw.id": f"{GPU}{host}",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def clock(reason: str) -> Tell:
    """A clock that falls from 1.98 GHz to 1.32, all of the time for a reason: 120 ms at most become 180."""

    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        falls = level(1.98e9, 1.98e9 - much * 0.66e9, begin_s)
        held = growing(much, begin_s)
        sm = attributes(host, training_gpu_clock="sm")
        why = {**attributes(host), "training.gpu.throttle.reason": reason}
        return (
            Told("training.gpu.frequency", falls, host, host, sm),
            Told("training.gpu.throttled.time", held, host, host, why),
        )

    return tell


def of_gpu(name: str, before: float, after: float, of_rank: bool = True) -> Tell:
    """A level of a host's GPU that changes."""

    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        rank = host if of_rank else None
        value = level(before, before + much * (after - before), begin_s)
        return (Told(name, value, host, rank, attributes(host)),)

    return tell


def errors(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
    """36 corrected errors a slow step."""
    about = {**attributes(host), "hw.type": "gpu", "error.type": "corrected"}
    return (Told("hw.errors", growing(200.0 * much, begin_s), host, host, about),)


def case(
    reason: str, without: str, fault: Fault, tell: Tell, *, is_alike_silent: bool = True
) -> Case:
    rank = "" if fault is TRANSFER else "/1"
    return Case(reason, without, fault, tell, "nvml", f"gpu:host-1/{GPU}1{rank}", is_alike_silent)


DEVICE_CASES = {
    "hot gpu": case("GPU_THERMAL", "UNKNOWN_HOST", PAGES, clock("thermal")),
    "hot gpu, spinning": case("GPU_THERMAL", "WORK_IMBALANCE", WORK, clock("thermal")),
    "power": case("GPU_POWER", "UNKNOWN_HOST", PAGES, clock("power")),
    "power brake": case("GPU_POWER", "WORK_IMBALANCE", WORK, clock("power_brake")),
    "pinned": case("GPU_CLOCK_PIN", "UNKNOWN_HOST", PAGES, clock("setting")),
    "memory errors": case("GPU_ECC", "UNKNOWN_HOST", PAGES, errors),
    "co-tenant": case(
        "GPU_COTENANT", "UNKNOWN_HOST", PAGES, of_gpu("training.gpu.processes", 1, 2)
    ),
    "narrow link": case(
        "PCIE_DEGRADED",
        "UNKNOWN_HOST",
        PAGES,
        # generation 4 and 16 lanes, then generation 1 and 16
        of_gpu("training.gpu.pcie.bandwidth.limit", 32e9, 4e9),
    ),
    "peers": case(
        "P2P_OFF",
        "UNKNOWN_NET",
        TRANSFER,
        of_gpu("training.gpu.peers", 8, 1, of_rank=False),
        is_alike_silent=False,
    ),
    "nvlinks": case(
        "NVLINK",
        "UNKNOWN_NET",
        TRANSFER,
        # 10 ms of transfers take 70: two of fourteen links
        of_gpu("training.gpu.nvlink.links", 14, 2, of_rank=False),
    ),
}
