"""The kernel's table of watched processes, which all BPF programs share, and how one of them is opened."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.events import EventFlag
from rootwalk.ebpf.libbpf import BpfMap, BpfObject, Program
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingThreadSensor

__all__ = ["CORE", "Configure", "Loader", "Targets", "open_program", "read_losses"]

# Of /proc/<pid>/ns/pid; the kernel gives the first one this number at boot (include/linux/proc_ns.h).
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
KEY = struct.Struct("<I")
TARGET = struct.Struct("<II")
COUNT = struct.Struct("<Q")

# Called with a program before it is loaded.
Configure = Callable[[Program], None]


def open_program(
    name: str,
    configure: Callable[[BpfObject], None] | None = None,
    by_hand: Collection[str] = (),
) -> BpfObject:
    """Load and attach one of the programs that are shipped.

    Args:
        name: Its file without `.bpf.o`.
        configure: Called before it is loaded.
        by_hand: Programs that the caller attaches.

    Raises:
        UnavailableError: NO_LIBBPF, NO_OBJECT, NO_PRIVILEGE, NO_HOOK or LOAD_REFUSED.
    """
    path = Path(str(files("rootwalk.ebpf.programs") / f"{name}.bpf.o"))
    return BpfObject(path, configure, by_hand)


def read_losses(counters: BpfMap, reasons: Sequence[str]) -> dict[str, int]:
    """Return a program's counters of what it could not keep, by `rootwalk.drop.reason`.

    Args:
        counters: An array map of 64-bit counts.
        reasons: One for each of its elements, in their order.
    """
    values = (counters.read(KEY.pack(index)) for index in range(len(reasons)))
    return {
        reason: COUNT.unpack(value)[0] if value else 0
        for reason, value in zip(reasons, values, strict=True)
    }


class Loader(NamedTuple):
    """What loads the programs for threads: its name, a value of `semconv.TrainingThreadSensor`, and how."""

    name: str
    open: Callable[[str, Configure | None], Program]


CORE = Loader(TrainingThreadSensor.CORE.value, open_program)


class Targets:
    """The watched processes; the kernel adds the children that they start from now on, and removes what ends.

    Args:
        root: Where /proc and /sys are.
        loader: What loads the program that does it, and the scheduler's.

    Raises:
        UnavailableError: With a `Reason` when BPF cannot be used here.
    """

    def __init__(self, root: Path = Path("/"), loader: Loader = CORE) -> None:
        if not (root / "sys/kernel/btf/vmlinux").exists():
            raise UnavailableError(
                "cannot load BPF programs: saw no /sys/kernel/btf/vmlinux; needs the kernel's types",
                reason=Reason.NO_BTF,
                hint=Reason.NO_BTF.hint,
            )
        if (root / "proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE:
            raise UnavailableError(
                "cannot match threads: saw a pid namespace; needs the kernel's own process ids",
                reason=Reason.PID_NAMESPACE,
                hint=Reason.PID_NAMESPACE.hint,
            )
        self.loader = loader
        self._object = loader.open("targets", None)
        self.map: BpfMap = self._object.maps["targets"]

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Watch a process, and from now on its children.

        Args:
            pid: Process id.
            slot: Number of its rank, 1 or more.
            is_child: The process is a helper of the rank, not the rank.

        Raises:
            OSError: If 4,096 processes are watched already.
        """
        flags = EventFlag.INHERITED if is_child else 0
        self.map.write(KEY.pack(pid), TARGET.pack(slot, flags))

    def forget(self, pid: int) -> None:
        """Stop watching a process; its children are forgotten when they end. Safe when it is not watched."""
        self.map.delete(KEY.pack(pid))

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice. What shares the map keeps it."""
        self._object.close()
