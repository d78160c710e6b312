"""Whether a job ended because a process of it was killed for memory.

    rank 1, worker   ---- killed for memory
    rank 1           --- step 81 ---|  error |ended with code 1
    rank 0           --- step 81, waits for rank 1 ---------------------- | SIGTERM by the launcher

A kill alone says little: workers are replaced, and helpers may go. It ended the job where the rank whose process was
killed

- began no step after it that it completed;
- ended soon after it, badly, and before any other rank ended, well or badly;
- had been asked to end by nobody: no signal from another process or a terminal;

and where no rank began a step after that end: a job that goes on without one of its ranks has not ended by it.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rootwalk.graph.ends.events import Kill, LastStep, ProcessEvents, RankEnd

__all__ = ["JobEnd", "find_end"]

# From the error to the end of a Python process: its exit hooks, its threads, its GPU's memory. What ends later than a
# batch system waits after its first signal has another reason.
MAX_ENDING_NS: Final = 60_000_000_000
# Stop and go on; they end nothing.
_PASSING: Final = frozenset({"SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"})
# What the kernel sends for a terminal, or at a limit of time.
_OF_TERMINALS: Final = frozenset({"SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGXCPU"})


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The kill, the end of the rank, and the last step that the rank completed, None where it completed none."""

    kill: Kill
    end: RankEnd
    last_step: LastStep | None

    @property
    def is_own(self) -> bool:
        """Whether the rank's own process was killed, and not a child of it."""
        return self.kill.pid is not None and self.kill.pid == self.end.pid

    @property
    def delay_ns(self) -> int:
        """From the kill to the end."""
        return self.end.time_ns - self.kill.time_ns


def find_end(events: ProcessEvents, *, is_aligned: bool) -> JobEnd | None:
    """Return the kill for memory by which a job ended; None where it did not, or nobody can tell.

    Args:
        events: What was done to the job's processes.
        is_aligned: Whether times of different hosts can be compared.
    """
    if not events.ends or not (is_aligned or len({end.host_id for end in events.ends}) == 1):
        return None
    first = min(events.ends, key=lambda end: (end.time_ns, end.rank))
    earliest_ns = first.time_ns - MAX_ENDING_NS
    kills = [
        kill
        for kill in events.kills
        if kill.rank == first.rank and earliest_ns <= kill.time_ns <= first.time_ns
    ]
    if not kills or first.exit_code == 0 or _was_asked(events, first, earliest_ns):
        return None
    found = JobEnd(kills[-1], first, events.last_steps.get(first.rank))
    if not found.is_own and found.last_step and found.last_step.start_ns > found.kill.time_ns:
        return None
    if any(step.start_ns > first.time_ns for step in events.last_steps.values()):
        return None
    return found


def _was_asked(events: ProcessEvents, end: RankEnd, since_ns: int) -> bool:
    """Return whether somebody wanted a rank to end in the time before it did."""
    for sent in events.signals:
        if sent.rank != end.rank or not since_ns <= sent.time_ns <= end.time_ns:
            continue
        is_sent = sent.sender_pid is not None and sent.sender_pid != end.pid
        if sent.name in _OF_TERMINALS and sent.sender_pid is None:
            return True
        if is_sent and sent.name not in _PASSING:
            return True
    return False
