"""NVIDIA GPUs by NVML: clocks, power, temperature, throttling, memory errors, links, processes, the driver's errors.

What counts: every GPU that the driver shows, whoever uses it, once a second; what a GPU of a rank says goes with it.
Throttled time is the driver's own sum for power and heat; for settings and the power brake, of which it keeps none, the
time between looks while the bit is set: shorter spells are met by chance. The PCI Express rate is the highest of the
last six looks, because a link that rests goes down. What does not count: parts of a divided GPU (MIG), kernels.
What a GPU or driver does not give is `training.gpu.signal.missing` with NVML's error, and never a zero.

Where: libnvidia-ml.so.1 by nvidia-ml-py, in a process of its own (`worker`). Driver: 450 or newer for most of it.
Cost: `make bench-nvml`, against a stand-in of the library. On a GPU: `make test-gpu`.

Source: NVML API Reference; "Xid Errors", NVIDIA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rootwalk.ebpf.availability import TIER_NONE, Reason
from rootwalk.ebpf.gpu.driver_process import GpuHelper
from rootwalk.ebpf.gpu.nvml import LIBRARY
from rootwalk.ebpf.gpu.owners import Gpu, Started, find_owners
from rootwalk.ebpf.gpu.series import parse_series, series
from rootwalk.ebpf.reader import Measurement, Occurrence, Place, Reader
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.identity import Identity

__all__ = ["NvmlReader", "find_state", "measure_device"]

# What a start waits for the driver; one that takes longer is there later.
FIRST_ANSWER_S = 2.0
VISIBLE = b"CUDA_VISIBLE_DEVICES="
# Told once for a host, not for each rank: who reaches whom is no rank's.
_OF_HOST = frozenset(
    (
        semconv.METRIC_TRAINING_GPU_PEERS,
        semconv.METRIC_TRAINING_GPU_NVLINK_LINKS,
        semconv.METRIC_TRAINING_GPU_NVLINK_ERRORS,
        semconv.METRIC_TRAINING_GPU_NVLINK_IO,
    )
)
_MIG = series(semconv.METRIC_TRAINING_GPU_SETTING, training__gpu__setting="mig")


def find_state(message: Mapping[str, Any]) -> Reason | None:
    """Return why less is read than could be, by what the helper says; None when nothing is in the way."""
    devices = message["devices"]
    if message["silent"] or any(one["is_lost"] for one in devices):
        refused = {name for _, name in message["silent"]}
        return Reason.NO_DEVICE_PERMISSION if refused == {"NO_PERMISSION"} else Reason.DEVICE_LOST
    if any(one["values"].get(_MIG) for one in devices):
        return Reason.MIG
    if any(one["is_vgpu"] for one in devices):
        return Reason.VGPU
    if any("NO_PERMISSION" in one["missing"].values() for one in devices):
        return Reason.NO_DEVICE_PERMISSION
    return None


def measure_device(
    device: Mapping[str, Any],
    driver: str,
    slots: Sequence[int],
    slot_by_pid: Mapping[int, int],
) -> Iterator[Measurement]:
    """Yield what one GPU says.

    Args:
        device: As the helper tells it.
        driver: The driver's version.
        slots: The ranks that use it.
        slot_by_pid: The rank of each process that is followed.
    """
    who = {semconv.HW_ID: device["uuid"]}
    owners: Sequence[int | None] = slots or (None,)
    for name, value in device["values"].items():
        metric, more = parse_series(name)
        attributes = {**who, **dict(more)}
        if metric == semconv.METRIC_TRAINING_GPU_PCIE_WIDTH and device["bus"]:
            attributes[semconv.TRAINING_GPU_PCI_ADDRESS] = pci_address(device["bus"])
        for slot in (None,) if metric in _OF_HOST else owners:
            yield Measurement(metric, value, attributes, slot)
    about = {
        **who,
        semconv.HW_TYPE: "gpu",
        semconv.HW_NAME: device["name"],
        semconv.HW_DRIVER_VERSION: driver,
    }
    for state, is_it in (("ok", not device["is_lost"]), ("failed", device["is_lost"])):
        attributes = {**about, semconv.HW_STATE: state}
        yield Measurement(semconv.METRIC_HW_STATUS, int(is_it), attributes)
    for signal, error in device["missing"].items():
        attributes = {
            **who,
            semconv.TRAINING_GPU_SIGNAL: signal,
            semconv.TRAINING_GPU_SIGNAL_ERROR: error,
        }
        yield Measurement(semconv.METRIC_TRAINING_GPU_SIGNAL_MISSING, 1, attributes)
    if device["processes"] is not None:
        for slot in slots:
            yield from _measure_processes(dict(device["processes"]), who, slot, slot_by_pid)


def _measure_processes(
    memory_by_pid: Mapping[int, int | None],
    who: Mapping[str, str],
    slot: int,
    slot_by_pid: Mapping[int, int],
) -> Iterator[Measurement]:
    """Count a rank and its children as one, and everybody else on its GPU."""
    own = [pid for pid in memory_by_pid if slot_by_pid.get(pid) == slot]
    # The rank's own process is not known where pids are another namespace's; then it is one of the others.
    count = len(memory_by_pid) - max(len(own) - 1, 0)
    yield Measurement(semconv.METRIC_TRAINING_GPU_PROCESSES, count, who, slot)
    taken = [memory_by_pid[pid] for pid in own]
    known = [amount for amount in taken if amount is not None]
    if known and len(known) == len(taken):
        yield Measurement(semconv.METRIC_TRAINING_GPU_PROCESS_MEMORY, sum(known), who, slot)


class NvmlReader(Reader):
    """Reads GPUs through the helper process.

    Raises:
        UnavailableError: NO_DRIVER, and what the helper says when it cannot read anything.
    """

    sensor = "nvml"
    tier = TIER_NONE
    backend = "nvml"

    def __init__(self, place: Place, helper: GpuHelper | None = None) -> None:
        if helper is None and not _has_driver(place.root):
            raise _cannot(Reason.NO_DRIVER, "no NVIDIA driver")
        self._root = place.root
        self._said: dict[str, Any] | None = None
        self._slot_by_pid: dict[int, int] = {}
        self._started: dict[int, Started] = {}
        self._local_ranks: dict[int, int] = {}
        self._errors: list[tuple[str, int, int]] = []
        # The kernel's log has the driver's errors too: where it is read, they are told once.
        self._tells_errors = not os.access(place.root / "dev/kmsg", os.R_OK)
        self._helper = GpuHelper() if helper is None else helper
        for message in self._helper.wait_first(FIRST_ANSWER_S):
            self._take(message)
        if self.missing is not None and self.missing is not Reason.DRIVER_SILENT:
            self._helper.close()
            raise _cannot(self.missing, self._detail)
        self._settle()

    _detail = ""

    def meet(self, slot: int, who: Identity) -> None:
        """Learn a rank's number on its host."""
        self._local_ranks[slot] = who.local_rank

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's process or its child; the first tells what the rank was started with."""
        self._slot_by_pid[pid] = slot
        if slot not in self._started and slot in self._local_ranks:
            self._started[slot] = Started(self._local_ranks[slot], _visible(self._root, pid))

    def forget(self, pid: int) -> None:
        """Stop following a process; a rank without one owns nothing."""
        slot = self._slot_by_pid.pop(pid, None)
        if slot is not None and slot not in self._slot_by_pid.values():
            self._started.pop(slot, None)
            self._local_ranks.pop(slot, None)

    def look(self) -> None:
        """Hear what the helper has said."""
        for message in self._helper.take():
            self._take(message)
        self._settle()

    def measurements(self) -> Iterable[Measurement]:
        """Return what every GPU said last."""
        if self._said is None or self.missing is not None:
            return []
        devices = self._said["devices"]
        gpus = [
            Gpu(
                one["index"],
                one["uuid"],
                None if one["processes"] is None else [pid for pid, _ in one["processes"]],
            )
            for one in devices
        ]
        is_here = {
            pid for gpu in gpus for pid in gpu.pids or () if (self._root / f"proc/{pid}").exists()
        }
        owners = find_owners(gpus, self._slot_by_pid, self._started, is_here)
        return [
            one
            for device in devices
            for one in measure_device(
                device, self._said["driver"], owners.get(device["uuid"], ()), self._slot_by_pid
            )
        ]

    def occurrences(self) -> Iterable[Occurrence]:
        """Return the driver's errors where the kernel's log is not read, as that would tell them."""
        errors, self._errors = self._errors, []
        if not self._tells_errors:
            return []
        return [_occurrence(bus, code, mono_ns) for bus, code, mono_ns in errors]

    def losses(self) -> Mapping[str, int]:
        """Return how often the driver was given up."""
        return {"gpu_driver_silent": self._helper.silences} if self._helper.silences else {}

    def helper_cpu_s(self) -> float:
        """Return the CPU time of the helper process."""
        return self._helper.cpu_s

    def close(self) -> None:
        """End the helper."""
        self._helper.close()

    def _take(self, message: Mapping[str, Any]) -> None:
        if "reason" in message:
            self.missing, self._detail = Reason[message["reason"]], str(message["detail"])
            return
        self._said = dict(message)
        self.missing, self.degraded = None, find_state(message)
        now_ns = time.monotonic_ns()
        self._errors += [(bus, code, now_ns) for _, bus, code in message["errors"]]

    def _settle(self) -> None:
        """Say so when there is nobody who answers."""
        if self._helper.is_silent:
            self.missing = Reason.DRIVER_SILENT
        elif not self._helper.is_talking and self.missing is None:
            self.missing = Reason.READER_FAILED


def _cannot(reason: Reason, seen: str) -> UnavailableError:
    return UnavailableError(
        f"cannot read GPUs: saw {seen}; needs NVIDIA's driver, its library and nvidia-ml-py",
        reason=reason,
        hint=reason.hint,
    )


def _has_driver(root: Path) -> bool:
    """Return whether a process to ask is worth its start: a driver is loaded, or its library put before others."""
    # WSL has no driver of its own but the host's behind /dev/dxg.
    if any((root / path).exists() for path in ("proc/driver/nvidia/version", "dev/dxg")):
        return True
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") if root == Path("/") else []
    return any(Path(folder, LIBRARY).exists() for folder in folders if folder)


def _visible(root: Path, pid: int) -> str | None:
    try:
        entries = (root / f"proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [entry for entry in entries if entry.startswith(VISIBLE)]
    return found[0][len(VISIBLE) :].decode("ascii", errors="replace") if found else None


def pci_address(bus: str) -> str:
    """Return a PCI address as NVIDIA's driver logs it, of the one that NVML prints.

    >>> pci_address("00000000:3B:00.0")
    '0000:3b:00'
    """
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def _occurrence(bus: str, code: int, mono_ns: int) -> Occurrence:
    device = pci_address(bus) if bus else "unknown"
    return Occurrence(
        semconv.EVENT_TRAINING_KERNEL_MESSAGE,
        mono_ns,
        f"Xid {code} on GPU {device}",
        {
            semconv.TRAINING_KERNEL_MESSAGE_KIND: semconv.TrainingKernelMessageKind.GPU_ERROR.value,
            semconv.TRAINING_KERNEL_MESSAGE_DEVICE: device,
            semconv.TRAINING_KERNEL_MESSAGE_CODE: code,
        },
    )
