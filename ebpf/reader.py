"""What a reader is: a sensor that answers one question about this host, and the forms that its answers have.

Owns no reader and knows none; `readers` owns them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.identity import Identity

__all__ = [
    "Cause",
    "CollectiveCall",
    "EventValue",
    "Measurement",
    "Occurrence",
    "Place",
    "Reader",
    "Spell",
]

Value = str | int | float | bool
# What events may carry as well: several of them.
EventValue = Value | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value of one metric: a total since the start, or what is now, as its definition says.

    Attributes:
        metric: A name in `semconv.METRICS`.
        value: In the metric's unit.
        attributes: What tells it from the metric's other values; few.
        slot: The rank that it belongs to; None for the host.
    """

    metric: str
    value: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened at one moment, to be told as a log event.

    Attributes:
        event: A name of `semconv`.
        mono_ns: When, CLOCK_MONOTONIC.
        text: One line for people.
        attributes: By the registry.
        is_bad: Worth a warning.
        slot: The rank that it happened to; None for the host.
    """

    event: str
    mono_ns: int
    text: str
    attributes: Mapping[str, EventValue] = field(default_factory=dict)
    is_bad: bool = True
    slot: int | None = None


class Cause(StrEnum):
    """Why a thread lost time of which the scheduler's states do not tell."""

    INTERRUPT = "interrupt"
    RECLAIM = "reclaim"


class Spell(NamedTuple):
    """An interval in which a rank's first thread lost time for one cause, ns.

    Intervals of one cause and thread do not overlap and come in order. A program that counts many short losses sends
    one for all of them, 10 ms long or so: what it tells is spread evenly over it when only a part is asked for.
    """

    start_ns: int
    end_ns: int
    lost_ns: int
    cause: Cause
    slot: int


class CollectiveCall(NamedTuple):
    """A rank's call of an operation of NCCL, by what all members know it by.

    Attributes:
        slot: The rank.
        start_ns: When it was called, CLOCK_MONOTONIC.
        end_ns: When the call returned, which is not when the device has done it.
        operation: As PyTorch spells it.
        communicator: Id of the communicator.
        members: How many it has; None where not known.
        sequence: Its number there, from 1; sends and receives apart.
        size_bytes: Of what its caller counted; None for an unknown type.
        data_type: As PyTorch names it; None for an unknown one.
        is_p2p: Whether it is a send or a receive.
    """

    slot: int
    start_ns: int
    end_ns: int
    operation: str
    communicator: str
    members: int | None
    sequence: int
    size_bytes: int | None
    data_type: str | None
    is_p2p: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where readers look.

    Attributes:
        root: What /proc and /sys are below.
        targets: What BPF programs watch; None where they cannot be used.
    """

    root: Path = Path("/")
    targets: Targets | None = None

    def need_targets(self) -> Targets:
        """Return the table of watched processes.

        Raises:
            UnavailableError: NO_BPF.
        """
        if self.targets is None:
            raise UnavailableError(
                "cannot load this program: saw no BPF here; needs it",
                reason=Reason.NO_BPF,
                hint=Reason.NO_BPF.hint,
            )
        return self.targets


class Reader:
    """Base of all readers: a sensor that says nothing.

    `sensor` is its name as `--without` takes it, `tier` the privilege that it uses, `backend` what it reads with.
    Opening it is its probe: `__init__` takes a `Place` and raises `UnavailableError` with a `Reason`.
    """

    sensor: str
    tier: int
    backend: str

    # Why it reads less than it could here; None when it reads everything. Set by `__init__`.
    degraded: Reason | None = None
    # Why it reads nothing at the moment, although it is open; None when it does.
    missing: Reason | None = None

    def set_level(self, level: int) -> None:
        """Turn up or down how much is read, 0 to 2; it begins with 1."""

    def meet(self, slot: int, who: Identity) -> None:
        """Learn which rank a slot is; called before its process is watched."""

    def watch(self, pid: int, slot: int) -> None:
        """Follow a rank's process, or a child of it that was there before; called again for one that is followed."""

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""

    def look(self) -> None:
        """Read what is to be read now; called twice a second."""

    def measurements(self) -> Iterable[Measurement]:
        """Return what is known, in sums since the start where the metric is a counter; every 5 s."""
        return ()

    def occurrences(self) -> Iterable[Occurrence]:
        """Return what has happened since the last call, oldest first; twice a second."""
        return ()

    def spells(self) -> Iterable[Spell]:
        """Return what ranks' first threads lost since the last call; twice a second."""
        return ()

    def calls(self) -> Iterable[CollectiveCall]:
        """Return what ranks have called of NCCL since the last call of this; twice a second, at level 2."""
        return ()

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        return {}

    def run_time_ns(self) -> Mapping[str, int]:
        """Return the CPU time spent in each kernel program, ns; nothing where it is not known."""
        return {}

    def helper_cpu_s(self) -> float:
        """Return the CPU time of a process of its own, s."""
        return 0.0

    def close(self) -> None:
        """Stop; safe twice."""
