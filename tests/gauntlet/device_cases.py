"""Cases of devices that stand-ins play; see `faults/devices.py`. No GPU is there, and every text says so.

slow and said      the rank's device takes longer, and NVML says why      the device's own code
slow and silent    it takes longer, and NVML says nothing                 GPU_SILENT_SLOW
said, not slow     NVML says the same, and nothing takes longer           nobody is accused
said, host slow    NVML says the same, and the rank's host code is slow   the host's code, none of the device's
said, packets late NVML says that links or peers are lost, and real       the network's code, none of the device's
                   packets between two ranks are held back
hangs, said        a call never returns, and NVML says that it is lost    GPU_LOST
hangs, silent      a call never returns, and NVML says nothing            GPU_HANG
said, host hangs   NVML says that it is lost, and the host never calls    NOT_JOINED
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from gauntlet.case import ACCUSE_NOBODY, NO_RANK, RANK, Case, Truth
from gauntlet.faults.devices import GPUS, Devices, HungDevice, SaidBeside, Says, says_nothing
from gauntlet.faults.links import Delay
from gauntlet.faults.transport import Transport
from gauntlet.workloads import DDP_APART, DDP_OF_FOUR, Workload
from support.nvml_standin import GIB, Scenario

__all__ = ["DEVICE_CASES", "without_nvml"]

# Small: four ranks share the cores here, and wait for their devices most of the time.
JOB = Workload(
    "ddp, devices of a stand-in",
    "train_ddp.py",
    ("--workers", "0", "--layers", "1", "--width", "64", "--window", "64", "--batch", "2"),
    ranks=4,
    steps=500,
)
# nvml.h: NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED.
NOT_REACHED = 1
# nvml.h: NVML_ERROR_GPU_IS_LOST.
IS_LOST = 15
# Packets between two ranks take so much longer, each way.
DELAY_S = 0.006
# A process of nobody here.
STRANGER = 1
HEALTHY_MHZ, SLOW_MHZ = 1980, 990
HOST_PASSES = 40
# TCP moves a ninth of what InfiniBand does.
SLOW_TRANSFERS = 9.0


def _clock(scenario: Scenario, gpu: int, at_s: float) -> Scenario:
    return scenario.add(gpu, "set", "clock.1", SLOW_MHZ, at_s)


def too_hot(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Half the clock, throttled for its temperature all of the time."""
    _clock(scenario, gpu, at_s).add(gpu, "rate", "violation.1", 1e9, at_s)


def too_little_power(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Half the clock, held back for power all of the time."""
    _clock(scenario, gpu, at_s).add(gpu, "rate", "violation.0", 1e9, at_s)


def pinned(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Half the clock, by a setting."""
    _clock(scenario, gpu, at_s).add(gpu, "set", "reasons", 0x2, at_s)


def shared(scenario: Scenario, gpu: int, at_s: float) -> None:
    """One more process computes on it."""
    scenario.add(gpu, "process", STRANGER, GIB, at_s)


def narrow(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Its link to the host is of the first generation."""
    scenario.add(gpu, "set", "pcie_generation", 1, at_s)


def failing(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Its memory has errors, corrected."""
    scenario.add(gpu, "rate", "ecc_volatile.0", 200.0, at_s)


def lost(scenario: Scenario, gpu: int, at_s: float) -> None:
    """It no longer answers: every call about it is refused (NVML_ERROR_GPU_IS_LOST)."""
    scenario.add(gpu, "fail", "all", IS_LOST, at_s)


def links_down(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Two of its eighteen NVLinks are left."""
    for link in range(16):
        scenario.add(gpu, "set", f"nvlink_state.{link}", 0, at_s)


def peers_lost(scenario: Scenario, gpu: int, at_s: float) -> None:
    """It reaches no other GPU directly."""
    for other in range(GPUS):
        if other != gpu:
            scenario.add(gpu, "set", f"peer.{other}", NOT_REACHED, at_s)


@dataclass(frozen=True, slots=True)
class Played:
    """What is said of a device, and what it does then."""

    reason: str
    says: Says
    words: str
    kernels: float = 2.0
    copies: float = 1.0
    transfers: float | None = None


PLAYED = {
    "too_hot": Played("GPU_THERMAL", too_hot, "half the clock, for its temperature"),
    "too_little_power": Played("GPU_POWER", too_little_power, "half the clock, for power"),
    "pinned": Played("GPU_CLOCK_PIN", pinned, "half the clock, by a setting"),
    "shared": Played("GPU_COTENANT", shared, "one more process on it"),
    "narrow": Played("PCIE_DEGRADED", narrow, "a link of generation 1", kernels=1.0, copies=9.0),
    "nvlinks": Played(
        "NVLINK", links_down, "two of eighteen NVLinks are left", kernels=1.0, transfers=9.0
    ),
    "alone": Played(
        "P2P_OFF", peers_lost, "no other GPU is reached directly", kernels=1.0, transfers=9.0
    ),
    "failing": Played("GPU_ECC", failing, "memory errors"),
}


def _beside_packets(says: Says) -> SaidBeside:
    return SaidBeside(Delay(0.0, DELAY_S, least_s=1.0), says)


def _cases() -> dict[str, Case]:
    cases = {
        "silent": Case(
            "stand-in: a rank's device takes twice as long, and NVML says nothing of it",
            Truth(RANK, ("GPU_SILENT_SLOW",), ("device",)),
            partial(Devices, says_nothing, kernels=2.0),
            workload=JOB,
        ),
        "healthy": Case(
            "stand-in: four devices, nothing is done",
            ACCUSE_NOBODY,
            Devices,
            looks_like="any fault that noise looks like",
            workload=JOB,
        ),
    }
    for name, one in PLAYED.items():
        usual = None if one.transfers is None else 1.0
        cases[name] = Case(
            f"stand-in: a rank's device is slow; NVML says {one.words}",
            Truth(RANK, (one.reason,), ("device",)),
            partial(
                Devices,
                one.says,
                kernels=one.kernels,
                copies=one.copies,
                transfers=one.transfers,
            ),
            looks_like="host code that is slow",
            workload=JOB,
        )
        cases[f"near_{name}"] = Case(
            f"stand-in: NVML says of a rank's device: {one.words}; it is as fast as before",
            ACCUSE_NOBODY,
            partial(Devices, one.says, transfers=usual),
            looks_like=one.reason,
            workload=JOB,
        )
        cases[f"host_{name}"] = Case(
            f"stand-in: NVML says of a rank's device: {one.words}; the rank's own code is slow",
            Truth(RANK, ("WORK_IMBALANCE",), ("application",)),
            partial(Devices, one.says, transfers=usual, host_passes=HOST_PASSES),
            looks_like=one.reason,
            workload=JOB,
        )
        if one.transfers is not None:
            cases[f"packets_{name}"] = Case(
                f"stand-in: NVML says of a GPU: {one.words}; packets between two ranks are late",
                Truth(NO_RANK, ("NET_CONGESTION", "UNKNOWN_NET"), ("network",)),
                partial(_beside_packets, one.says),
                looks_like=one.reason,
                workload=DDP_APART,
            )
    cases |= _hangs() | _transports()
    return {f"device_{name}": case for name, case in cases.items()}


def _transports() -> dict[str, Case]:
    slow = "transfers take longer since all ranks made their communicators anew"
    says = "NCCL says that it sends over TCP, no longer over InfiniBand"
    vague = Truth(NO_RANK, ("UNKNOWN_NET",), ("network",))
    return {
        "transport": Case(
            f"stand-in: {slow}; {says}",
            Truth(NO_RANK, ("TRANSPORT_FALLBACK",), ("collective",)),
            partial(Transport, transfers=SLOW_TRANSFERS),
            looks_like="a network that is slow",
            workload=JOB,
        ),
        "transport_silent": Case(
            f"stand-in: {slow}; NCCL says that it sends over InfiniBand as before",
            vague,
            partial(Transport, sockets=False, transfers=SLOW_TRANSFERS),
            looks_like="TRANSPORT_FALLBACK",
            workload=JOB,
        ),
        "transport_unlogged": Case(
            f"stand-in: {slow}, over TCP; NCCL writes no debug file",
            vague,
            partial(Transport, transfers=SLOW_TRANSFERS, log=False),
            looks_like="TRANSPORT_FALLBACK",
            workload=JOB,
        ),
        "near_transport": Case(
            f"stand-in: {says}; transfers take as long as before",
            ACCUSE_NOBODY,
            Transport,
            looks_like="TRANSPORT_FALLBACK",
            workload=JOB,
        ),
        "host_transport": Case(
            f"stand-in: {says}; a rank's own code is slow",
            Truth(RANK, ("WORK_IMBALANCE",), ("application",)),
            partial(Transport, host_passes=HOST_PASSES),
            looks_like="TRANSPORT_FALLBACK",
            workload=JOB,
        ),
    }


def _hangs() -> dict[str, Case]:
    never = "a wait for a rank's device never ends"
    return {
        "hangs": _hang(f"{never}; NVML says nothing", "GPU_HANG", says_nothing),
        "lost": _hang(f"{never}; NVML says that the device is lost", "GPU_LOST", lost),
        "host_lost": replace(
            _hang("NVML says that a rank's device is lost, and its host never calls", "", lost),
            truth=Truth(RANK, ("NOT_JOINED",), ("application",), kind="hang"),
            hang="swallow",
            looks_like="GPU_LOST",
        ),
        "near_lost": Case(
            "stand-in: NVML says that a rank's device is lost, and it is as fast as before",
            ACCUSE_NOBODY,
            partial(Devices, lost),
            looks_like="GPU_LOST",
            workload=JOB,
        ),
    }


def _hang(text: str, reason: str, says: Says) -> Case:
    return Case(
        f"stand-in: {text}",
        Truth(RANK, (reason,), ("device",), kind="hang"),
        partial(HungDevice, says),
        looks_like="a host that did not join",
        workload=DDP_OF_FOUR,
        hang="wait_for_device",
        profile_hz=19,
    )


def without_nvml(case: Case) -> Case | None:
    """Return what a case comes to where nobody reads NVML; None where the device does nothing that it could tell."""
    if case.truth.layers != ("device",):
        return None
    if case.truth.kind == "hang":
        return replace(case, truth=replace(case.truth, reasons=("GPU_HANG",)))
    return replace(case, truth=Truth(RANK, ("SLOW_COMPUTE", "UNKNOWN_GPU"), ("device",)))


DEVICE_CASES = _cases()
