"""What the ranks of a running job report once they make no progress; plain data between its reader and the judgement.

    rank   last progress |.... 5 s: first report .... 10 s: second .... 15 s: third        a spell of three moments
                          since                                          until

Times are Unix ns, durations seconds; what is not known is None. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

__all__ = [
    "CommunicatorProgress",
    "LiveEvidence",
    "MainStackGroup",
    "Moment",
    "RankEnd",
    "RankProgress",
    "Spell",
    "StackReader",
    "ThreadStack",
]


@dataclass(frozen=True, slots=True)
class Moment:
    """One report of a rank that makes no progress; counts are since its last progress.

    Attributes:
        told_ns: When it was sent.
        idle_s: Since the last progress.
        stage: `started`, `rendezvous`, `initialised` or `training`.
        state: Of the training thread, as the kernel has it; None where not known.
        cpu_s: CPU time of the process and its children.
        main_cpu_s: CPU time of the training thread.
        wakeups: How often the training thread has gone to sleep of its own accord.
        io_bytes: Bytes read and written.
    """

    told_ns: int
    idle_s: float
    stage: str
    usual_s: float | None = None
    is_compiling: bool = False
    step: int | None = None
    phase: str | None = None
    state: str | None = None
    wait_kind: str | None = None
    system_call: str | None = None
    cpu_s: float | None = None
    main_cpu_s: float | None = None
    wakeups: int | None = None
    io_bytes: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The last reports of one rank in its spell without progress, oldest first, at least one."""

    rank: int
    host: str | None
    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        """The latest report."""
        return self.moments[-1]

    @property
    def since_ns(self) -> int:
        """When the rank last made progress."""
        return self.last.told_ns - round(self.last.idle_s * 1e9)


@dataclass(frozen=True, slots=True)
class Spell:
    """A time without progress of one rank; `resumed_ns` None where no later progress was reported."""

    rank: int
    since_ns: int
    told_ns: int
    resumed_ns: int | None


@dataclass(frozen=True, slots=True)
class CommunicatorProgress:
    """How far one rank has come in one communicator.

    Attributes:
        issued: Number of the last operation that the rank has called.
        ended: Highest number up to which all of its operations have ended.
        operation: Of the last call.
        size_bytes: Of the last call; None where not known.
        pending_s: For how long its oldest unfinished operation has waited; None where all have ended.
    """

    rank: int
    communicator: str
    issued: int
    ended: int
    operation: str
    size_bytes: int | None
    pending_s: float | None
    told_ns: int
    is_message: bool = False
    backend: str | None = None

    @property
    def is_pending(self) -> bool:
        """Whether an operation of the rank has not ended."""
        return self.pending_s is not None and self.issued > self.ended


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of a rank's own process: with an exit code, or by a signal."""

    rank: int
    time_ns: int
    exit_code: int | None
    signal: str | None
    is_for_memory: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether the process ended by a signal or an error."""
        return self.exit_code != 0


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Where one thread of a rank stood at one moment; frames innermost first."""

    rank: int
    thread: int
    role: str
    told_ns: int
    frames: tuple[str, ...]
    system_call: str | None = None


@dataclass(frozen=True, slots=True)
class MainStackGroup:
    """Ranks whose training threads stand at the same place; frames innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]


# Returns the stacks of some ranks since they made no progress, by rank, in the order of time.
StackReader = Callable[[Collection[int]], Mapping[int, tuple[ThreadStack, ...]]]


@dataclass(frozen=True, slots=True)
class LiveEvidence:
    """Everything about one time in which no rank of a job made progress.

    Attributes:
        since_ns: When the last of the ranks made its last progress.
        until_ns: End of the evidence: the last report, or what ended the wait.
        is_open: Whether the job had not gone on by the end of the store.
        world_size: Ranks that the launcher asked for; None where no rank said it.
        ranks: The ranks that report, by number.
        known: Ranks that were ever seen.
        usual_s: Longest usual time between two steps of the job, its first step apart; None without steps.
        last_step: The last step that all ranks have ended; None without one.
        communicators: Rows of the communicators that matter: somebody waits in them.
        members: Known members of those, and whether they are all.
        names: What the job calls them.
        ended_calls: What ranks called under a number in which others still wait, where theirs has ended.
        stack_groups: Training threads by where they stand, the smallest group first.
        ends: Processes of ranks that ended before the wait began to end.
        read_stacks: Reads the stacks of some ranks.
    """

    job: str
    attempt: int
    since_ns: int
    until_ns: int
    is_open: bool
    world_size: int | None
    ranks: Mapping[int, RankProgress]
    known: frozenset[int]
    usual_s: float | None = None
    last_step: int | None = None
    communicators: tuple[CommunicatorProgress, ...] = ()
    members: Mapping[str, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    ended_calls: Mapping[tuple[str, int], Mapping[int, str]] = field(default_factory=dict)
    stack_groups: tuple[MainStackGroup, ...] = ()
    ends: Mapping[int, RankEnd] = field(default_factory=dict)
    read_stacks: StackReader = lambda ranks: {}

    @property
    def idle_s(self) -> float:
        """For how long no rank has made progress at the end of the evidence."""
        return (self.until_ns - self.since_ns) / 1e9
