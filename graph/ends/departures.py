"""How each rank left its job, from the events of its processes: by itself, because it was asked to, or after others.

    failed    an exception, an exit code, a crash, a kill: something of its own
    weak      what a lost peer looks like as well: exit code 1, RuntimeError, a broken connection, SIGABRT
    asked     somebody wanted it to end: Ctrl-C, a scheduler's SIGTERM
    well      exit code 0

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rootwalk.graph.ends.events import ProcessEvents, RankEnd, RankException, SentSignal

__all__ = ["CRASH_SIGNALS", "MAX_ENDING_NS", "Departure", "Manner", "find_departures"]

# From the error to the end of a Python process: its exit hooks, its threads, its GPU's memory. What ends later than a
# batch system waits after its first signal has another reason.
MAX_ENDING_NS: Final = 60_000_000_000
# Signals that a process gets for what it did itself.
CRASH_SIGNALS: Final = frozenset(
    {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
)
# A user's or a terminal's way of asking for an end.
_OF_USERS: Final = frozenset({"SIGHUP", "SIGINT", "SIGQUIT", "SIGXCPU"})
# Exceptions that a rank sees when a peer, its store or the network is lost (torch.distributed, Python's sockets).
# RuntimeError is the type that gloo raises for "Connection closed by peer", but also that of most errors of PyTorch.
_OF_CONNECTIONS: Final = frozenset(
    {
        "BrokenPipeError",
        "ConnectionAbortedError",
        "ConnectionError",
        "ConnectionResetError",
        "DistBackendError",
        "DistError",
        "DistNetworkError",
        "DistStoreError",
        "EOFError",
        "RuntimeError",
    }
)
# torchrun's ranks raise it when their launcher passes a signal on.
_ASKING_EXCEPTIONS: Final = frozenset({"KeyboardInterrupt", "SignalException"})
# What Python returns after an exception, and most programs after any failure.
_USUAL_CODE: Final = 1
_SIGNAL_BASE: Final = 128
_TERM_CODE: Final = _SIGNAL_BASE + 15
_INTERRUPT_CODE: Final = _SIGNAL_BASE + 2


class Manner(StrEnum):
    """How a rank left."""

    FAILED = "failed"
    WEAK = "weak"
    ASKED = "asked"
    WELL = "well"


@dataclass(frozen=True, slots=True)
class Departure:
    """The way in which one rank left, and when that began: the exception, else the end of its process."""

    rank: int
    time_ns: int
    host_id: str
    host_name: str
    pid: int | None
    manner: Manner
    end: RankEnd | None = None
    exception: RankException | None = None
    sent: SentSignal | None = None

    @property
    def signal(self) -> str | None:
        """The signal that ended the process."""
        return None if self.end is None else self.end.signal

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process."""
        return None if self.end is None else self.end.exit_code

    @property
    def is_from_outside(self) -> bool:
        """Whether a signal of another process ended it."""
        return (
            self.signal is not None
            and self.signal not in CRASH_SIGNALS
            and (self.sent is None or self.sent.sender_pid != self.pid or self.pid is None)
        )


def find_departures(events: ProcessEvents) -> tuple[Departure, ...]:
    """Return one departure for each rank of which an end or an exception is known, in the order of time."""
    ends: dict[int, RankEnd] = {}
    for end in events.ends:
        ends.setdefault(end.rank, end)
    exceptions: dict[int, RankException] = {}
    for exception in events.exceptions:
        exceptions.setdefault(exception.rank, exception)
    found = [
        _departure(events, rank, ends.get(rank), exceptions.get(rank))
        for rank in sorted(ends.keys() | exceptions.keys())
    ]
    return tuple(sorted(found, key=lambda one: (one.time_ns, one.rank)))


def _departure(
    events: ProcessEvents, rank: int, end: RankEnd | None, exception: RankException | None
) -> Departure:
    if exception is not None and end is not None and end.exit_code == 0:
        exception = None  # it was seen, and the program ended well all the same
    known = exception or end
    assert known is not None  # noqa: S101  (one of the two is why the rank is here)
    sent = _killing_signal(events.signals, rank, end)
    manner = _manner(events, rank, end, exception, sent, known.time_ns)
    return Departure(
        rank=rank,
        time_ns=known.time_ns,
        host_id=known.host_id,
        host_name=known.host_name,
        pid=known.pid if end is None or end.pid is None else end.pid,
        manner=manner,
        end=end,
        exception=exception,
        sent=sent,
    )


def _manner(
    events: ProcessEvents,
    rank: int,
    end: RankEnd | None,
    exception: RankException | None,
    sent: SentSignal | None,
    time_ns: int,
) -> Manner:
    if end is not None and end.exit_code == 0:
        return Manner.WELL
    if exception is not None and exception.type_name.rpartition(".")[2] in _ASKING_EXCEPTIONS:
        return Manner.ASKED
    if _was_asked(events, rank, end, exception, time_ns):
        return Manner.ASKED
    if exception is not None:
        name = exception.type_name.rpartition(".")[2]
        return Manner.WEAK if name in _OF_CONNECTIONS else Manner.FAILED
    if end is None or (end.signal is None and end.exit_code in (None, _USUAL_CODE)):
        return Manner.WEAK
    if end.signal == "SIGABRT" and (sent is None or sent.sender_pid in (None, end.pid)):
        return Manner.WEAK
    return Manner.FAILED


def _killing_signal(
    signals: Sequence[SentSignal], rank: int, end: RankEnd | None
) -> SentSignal | None:
    """Return the last signal of the kind that ended a rank, sent before it ended."""
    if end is None or end.signal is None:
        return None
    fitting = [
        sent
        for sent in signals
        if sent.rank == rank
        and sent.name == end.signal
        and end.time_ns - MAX_ENDING_NS <= sent.time_ns <= end.time_ns
    ]
    return fitting[-1] if fitting else None


def _was_asked(
    events: ProcessEvents,
    rank: int,
    end: RankEnd | None,
    exception: RankException | None,
    time_ns: int,
) -> bool:
    """Return whether a user, a launcher or a scheduler wanted this rank to end, as far as anything says."""
    wishes = [
        sent
        for sent in events.signals
        if sent.rank == rank
        and sent.name in (*_OF_USERS, "SIGTERM")
        and time_ns - MAX_ENDING_NS <= sent.time_ns <= time_ns
        and (end is None or sent.sender_pid is None or sent.sender_pid != end.pid)
    ]
    for sent in wishes:
        if sent.name in _OF_USERS or sent.sender_pid is None or _is_for_many(events, sent):
            return True
    if wishes or exception is not None or end is None:
        return False
    # Without the signals themselves nothing says who sent them.
    return (end.signal in (*_OF_USERS, "SIGTERM")) or end.exit_code in (_TERM_CODE, _INTERRUPT_CODE)


def _is_for_many(events: ProcessEvents, sent: SentSignal) -> bool:
    """Return whether who sent this signal sent it to other ranks too, or to the only rank that there is."""
    ranks = {end.rank for end in events.ends} | events.last_steps.keys()
    if len(ranks) <= 1:
        return True
    return any(
        other.rank != sent.rank
        and other.name == sent.name
        and (other.sender_pid, other.sender_name) == (sent.sender_pid, sent.sender_name)
        for other in events.signals
    ) or _is_for_each_host(events, sent)


def _is_for_each_host(events: ProcessEvents, sent: SentSignal) -> bool:
    """Return whether programs of one name sent this signal on several hosts, as the daemons of a scheduler do."""
    hosts = {end.rank: end.host_id for end in events.ends}
    return sent.sender_name is not None and any(
        other.name == sent.name
        and other.sender_name == sent.sender_name
        and hosts.get(other.rank) != hosts.get(sent.rank)
        for other in events.signals
        if other.rank in hosts and sent.rank in hosts
    )
