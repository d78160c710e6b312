"""Where the host of a rank that did not join a collective stands; plain data between what finds it and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostWait", "Word"]


@dataclass(frozen=True, slots=True)
class Word:
    """That a rank's GPU no longer answers: its UUID, None if unknown; what says so, the SQL for it, how surely."""

    device: str | None
    signal: str
    query: str
    certainty: float


@dataclass(frozen=True, slots=True)
class HostWait:
    """Where a rank that did not join stands: its child in a lock that it inherited, or itself in a wait for its device.

    Attributes:
        function: The function, or what there is of it, in which it waits.
        waited_ns: Since the others wait, as far as profiles tell.
        query: The SQL that shows it.
        is_asleep: Whether it stands there off the CPU; else it spins.
        lost: Who says that its GPU no longer answers; None where nobody does.
        device_answers: Whether NVML has had answers of its GPU meanwhile.
    """

    function: str
    waited_ns: int
    query: str
    is_asleep: bool = True
    lost: Word | None = None
    device_answers: bool = False
