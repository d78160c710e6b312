"""What a rank does while others wait for it: stopped, gone, asleep, in a lock, at a file, spinning, or at work.

    state, system call, wait kind         how the kernel sees its training thread
    CPU, wake-ups, bytes between reports  whether anything moves
    stacks at several moments             where it stands, and whether it stands still

Work that moves is never a hang: `is_moving`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rootwalk.graph.ends.departures import CRASH_SIGNALS
from rootwalk.graph.hangs import frames as of
from rootwalk.graph.hangs.forked import is_in_inherited_lock
from rootwalk.graph.hangs.live_evidence import RankEnd, RankProgress, ThreadStack
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation.semconv import (
    TrainingProcessState,
    TrainingThreadRole,
    TrainingWaitKind,
)

__all__ = ["Doing", "Occupation", "is_receiving", "is_transferring"]
__all__ += ["occupation_of", "reason_of_end"]

# All of these are priors, but for two: no public set of labelled hangs is large enough to fit any.
# Share of one core, s/s: a thread that does nothing else than run takes all of it, of a shared core perhaps half.
SPIN_RATIO: Final = 0.5
# Share of one core, s/s: less than this is housekeeping of a process whose thread waits.
WORK_RATIO: Final = 0.2
# Share of one core, s/s: one gloo process that waited used 0.02 s in 10 s; what receives and adds up uses far more.
TRANSFER_RATIO: Final = 0.05
# Share of one core, s/s, and seconds of it between two sleeps, of the training thread: work in small pieces. Measured
# on one host: loops that only ask again used 0.001 to 0.015 at 0.02 to 0.1 ms, asking a server ten times a second 0.007
# at 0.4 ms, the evaluation of a small model with pauses of 20 ms 0.02 at 0.4 ms. Fitted on these, one run each.
PIECES_RATIO: Final = 0.01
MIN_PIECE_S: Final = 2e-4
# Bytes a second: a slow download or a crawling disk moves more, logs and heartbeats less.
MOVING_BYTES_PER_S: Final = 16_384.0
# Seconds: a write or a sync that the kernel works off moves no bytes that a process could count meanwhile.
WRITE_PATIENCE_S: Final = 60.0
# Seconds: time in a library that computes is work; longer than the longest evaluation that has no phase of its own.
COMPUTE_PATIENCE_S: Final = 120.0
# Moments with the same stack from which on a running thread counts as standing still: 10, 13 and 16 s.
MIN_ALIKE: Final = 2
# Seconds between the first and the last of these.
MIN_ALIKE_SPAN_S: Final = 2.5
# How surely each kind of proof says what a rank does.
SEEN_BY_KERNEL: Final = 0.95
SEEN_BY_STACK: Final = 0.9
GUESSED: Final = 0.75

_WORK_PHASES: Final = frozenset(("checkpoint", "evaluation"))
_WRITES: Final = frozenset((TrainingWaitKind.FILE_SYNC, TrainingWaitKind.FILE_WRITE))
_FILES: Final = frozenset((TrainingWaitKind.FILE_READ, TrainingWaitKind.FILE_METADATA))
_SOCKETS: Final = frozenset((TrainingWaitKind.SOCKET_READ, TrainingWaitKind.SOCKET_WRITE))
_PIPES: Final = frozenset((TrainingWaitKind.PIPE_READ, TrainingWaitKind.PIPE_WRITE))
_SLEEP_CALLS: Final = frozenset(("nanosleep", "clock_nanosleep"))
_LOCK_CALLS: Final = frozenset(("futex", "futex_wait", "futex_waitv", "futex_wait_bitset"))
_POLL_CALLS: Final = frozenset(
    ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2")
)
_CHILD_CALLS: Final = frozenset(("wait4", "waitid", "waitpid"))
_READ_CALLS: Final = frozenset(
    ("read", "pread64", "readv", "preadv", "openat", "newfstatat", "statx")
)
_SOCKET_CALLS: Final = frozenset(
    ("recvfrom", "recvmsg", "recv", "sendto", "sendmsg", "connect", "accept4")
)


class Doing(StrEnum):
    """What a rank does instead of what the others wait for."""

    STOPPED = "stopped"
    TRACED = "traced"
    FROZEN = "frozen"
    GONE = "gone"
    NEVER_STARTED = "never_started"
    ASLEEP = "asleep"
    LOCK = "lock"
    INTERPRETER_LOCK = "interpreter_lock"
    CHILD_LOCK = "child_lock"
    FILE = "file"
    PIPE = "pipe"
    INPUT = "input"
    DEBUGGER = "debugger"
    SOCKET = "socket"
    POLL = "poll"
    CHILD = "child"
    DEVICE = "device"
    DISK = "disk"
    SPINNING = "spinning"
    COMPILING = "compiling"
    WORKING = "working"
    WRITING = "writing"
    RECEIVING = "receiving"
    IN_COLLECTIVE = "in_collective"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Occupation:
    """What one rank does.

    Attributes:
        reason: Better than "has not joined", where there is one; None else.
        where: The innermost frame of the user's program; None without a stack.
        text: In words, such as `asleep in sleep_forever (train.py:57)`.
        is_moving: Whether it is at work, so that the others wait for work and the job does not hang.
        certainty: 0 to 1.
        frames: The training thread's last stack, innermost first.
    """

    rank: int
    doing: Doing
    text: str
    reason: Reason | None = None
    where: str | None = None
    is_moving: bool = False
    certainty: float = GUESSED
    frames: tuple[str, ...] = ()


def reason_of_end(end: RankEnd) -> Reason:
    """Return the reason code of a rank whose process has ended while others wait for it."""
    if end.is_for_memory:
        return Reason.OOM_KILL
    if end.signal is not None:
        return Reason.RANK_CRASHED if end.signal in CRASH_SIGNALS else Reason.RANK_KILLED
    # A rank that ends well while others wait for it has left them.
    return Reason.RANK_CRASHED if end.exit_code else Reason.RANK_GONE


def occupation_of(
    rank: int,
    progress: RankProgress | None,
    stacks: Sequence[ThreadStack] = (),
    end: RankEnd | None = None,
) -> Occupation:
    """Return what a rank does.

    Args:
        rank: Its number.
        progress: Its reports; None where it sent none.
        stacks: Of its threads and of its loader workers, in the order of time.
        end: Of its process; None while it lives.
    """
    if end is not None:
        return Occupation(
            rank, Doing.GONE, _words_of_end(end), reason_of_end(end), certainty=SEEN_BY_KERNEL
        )
    main = [stack for stack in stacks if stack.role == TrainingThreadRole.MAIN]
    frames = main[-1].frames if main else ()
    where = of.user_frame(frames)
    if progress is None:
        return Occupation(
            rank, Doing.UNKNOWN, "sends no reports any more", where=where, frames=frames
        )
    found = _by_state(progress) or _at_work(progress, main) or _waiting(progress, main, stacks)
    doing, text, reason, is_moving, certainty = found
    if where is not None:
        text = f"{text} in {where}"
    elif frames and doing not in _STATES:
        text = f"{text} in {frames[0]}"
    return Occupation(rank, doing, text, reason, where, is_moving, certainty, frames)


def is_receiving(progress: RankProgress) -> bool:
    """Return whether bytes of a rank have moved between its last reports."""
    return (_rate(progress, "io_bytes") or 0.0) >= MOVING_BYTES_PER_S


def is_transferring(progress: RankProgress) -> bool:
    """Return whether a rank that waits by its host uses CPU: receiving and adding up data does, waiting does not."""
    return is_receiving(progress) or (_rate(progress, "cpu_s") or 0.0) >= TRANSFER_RATIO


_Found = tuple[Doing, str, Reason | None, bool, float]
_STATES: Final = frozenset((Doing.STOPPED, Doing.TRACED, Doing.FROZEN, Doing.GONE))


def _words_of_end(end: RankEnd) -> str:
    if end.is_for_memory:
        return "its process was killed for memory"
    if end.signal is not None:
        return f"its process was ended by {end.signal}"
    if end.exit_code is not None:
        return f"its process has ended with code {end.exit_code}"
    return "its process has ended"


def _by_state(progress: RankProgress) -> _Found | None:
    """Return what the kernel says of a thread that somebody outside holds."""
    match progress.last.state:
        case TrainingProcessState.STOPPED:
            text, doing = "stopped by a signal", Doing.STOPPED
        case TrainingProcessState.TRACED:
            text, doing = "stopped by a debugger", Doing.TRACED
        case TrainingProcessState.FROZEN:
            text, doing = "frozen with its control group", Doing.FROZEN
        case TrainingProcessState.ZOMBIE:
            return Doing.GONE, "its process has ended", Reason.RANK_GONE, False, SEEN_BY_KERNEL
        case _:
            return None
    return doing, text, Reason.PROCESS_SUSPENDED, False, SEEN_BY_KERNEL


def _rate(progress: RankProgress, name: str) -> float | None:
    """Return how fast a count has grown between the last reports, per second; None where not known."""
    told = [m for m in progress.moments if getattr(m, name) is not None]
    if not told:
        return None
    last = told[-1]
    if len(told) == 1:
        return float(getattr(last, name)) / last.idle_s if last.idle_s > 0 else None
    before = told[-2]
    span_s = (last.told_ns - before.told_ns) / 1e9
    if span_s <= 0:
        return None
    return float(getattr(last, name) - getattr(before, name)) / span_s


def _at_work(progress: RankProgress, main: Sequence[ThreadStack]) -> _Found | None:
    """Return what a rank does that is not still: it computes, compiles, writes, or receives data."""
    last = progress.last
    if last.is_compiling:
        return Doing.COMPILING, "compiles a part of the model", None, True, GUESSED
    byte_rate = _rate(progress, "io_bytes") or 0.0
    main_rate = _rate(progress, "main_cpu_s") or 0.0
    all_rate = max(_rate(progress, "cpu_s") or 0.0, main_rate)
    phase = f"is in its {last.phase}" if last.phase in _WORK_PHASES else "works"
    if byte_rate >= MOVING_BYTES_PER_S:
        amount = f"{(last.io_bytes or 0) / 1e6:.0f} MB so far"
        return Doing.RECEIVING, f"{phase}, its data grows ({amount}),", None, True, GUESSED
    is_writing = last.wait_kind in _WRITES or (
        last.state == TrainingProcessState.DISK
        and last.wait_kind not in _FILES
        and bool(last.io_bytes)
    )
    if is_writing and last.idle_s < WRITE_PATIENCE_S:
        return Doing.WRITING, f"{phase}, waits for the disk", None, True, GUESSED
    if last.phase in _WORK_PHASES and all_rate >= WORK_RATIO:
        return Doing.WORKING, phase, None, True, GUESSED
    if main_rate >= SPIN_RATIO or last.state == TrainingProcessState.RUNNING:
        return _running(progress, main, main_rate)
    is_asleep = last.wait_kind == TrainingWaitKind.SLEEP or last.system_call in _SLEEP_CALLS
    if all_rate >= WORK_RATIO and not is_asleep:
        return (
            Doing.WORKING,
            "waits for its other threads or processes, which work,",
            None,
            True,
            GUESSED,
        )
    wakeup_rate = _rate(progress, "wakeups")
    is_in_pieces = (
        wakeup_rate is not None
        and main_rate >= PIECES_RATIO
        and main_rate >= MIN_PIECE_S * wakeup_rate
    )
    if is_in_pieces and last.idle_s < COMPUTE_PATIENCE_S:
        return Doing.WORKING, f"{phase}, with pauses,", None, True, GUESSED
    return None


def _running(
    progress: RankProgress, main: Sequence[ThreadStack], main_rate: float
) -> _Found | None:
    """Return what a thread does that runs: it spins where it stands at the same place at every moment."""
    last = progress.last
    if of.is_in_library_work(main[-1].frames if main else ()) and last.idle_s < COMPUTE_PATIENCE_S:
        return Doing.WORKING, "computes", None, True, GUESSED
    if len({of.shape_of(stack.frames) for stack in main}) > 1:
        return Doing.WORKING, "runs, at another place each time,", None, True, GUESSED
    span_s = (main[-1].told_ns - main[0].told_ns) / 1e9 if main else 0.0
    if len(main) >= MIN_ALIKE and span_s >= MIN_ALIKE_SPAN_S:
        text = f"runs at the same place all the time ({min(main_rate, 1.0):.0%} of a core),"
        return Doing.SPINNING, text, None, False, SEEN_BY_STACK
    if main_rate >= WORK_RATIO:
        return Doing.WORKING, "runs", None, not main or last.idle_s < COMPUTE_PATIENCE_S, GUESSED
    return None


def _waiting(
    progress: RankProgress, main: Sequence[ThreadStack], stacks: Sequence[ThreadStack]
) -> _Found:
    """Return what a rank waits for that stands still."""
    last = progress.last
    frames = main[-1].frames if main else ()
    call = (main[-1].system_call if main else None) or last.system_call
    kind = last.wait_kind
    if any(
        stack.role == TrainingThreadRole.LOADER_WORKER
        and is_in_inherited_lock([of.function_of(frame) for frame in reversed(stack.frames)])
        for stack in stacks
    ):
        text = "waits for a child, which waits for a lock that was copied, held, by fork,"
        return Doing.CHILD_LOCK, text, Reason.FORK_DEADLOCK, False, SEEN_BY_STACK
    if of.is_in_debugger(frames):
        return Doing.DEBUGGER, "in a debugger", None, False, SEEN_BY_STACK
    if of.is_in_input(frames):
        return Doing.INPUT, "waits for input", None, False, SEEN_BY_STACK
    if of.is_in_file_system_in_user_space(frames):
        return Doing.FILE, "waits for a FUSE file system to answer", None, False, SEEN_BY_STACK
    if call in _SLEEP_CALLS or kind == TrainingWaitKind.SLEEP or of.is_in_sleep(frames):
        return Doing.ASLEEP, "asleep", None, False, SEEN_BY_KERNEL
    if of.is_in_collective(frames) or of.is_in_rendezvous(frames):
        return Doing.IN_COLLECTIVE, "waits for other ranks", None, False, SEEN_BY_STACK
    if kind == TrainingWaitKind.INTERPRETER_LOCK or of.is_in_interpreter_lock(frames):
        return Doing.INTERPRETER_LOCK, "waits for the interpreter lock", None, False, SEEN_BY_STACK
    if kind in _FILES:
        return Doing.FILE, "waits for a file", None, False, SEEN_BY_KERNEL
    if kind in _PIPES:
        return Doing.PIPE, "waits for a pipe", None, False, SEEN_BY_KERNEL
    if kind in _SOCKETS or call in _SOCKET_CALLS:
        return Doing.SOCKET, "waits for a connection", None, False, SEEN_BY_KERNEL
    if kind == TrainingWaitKind.DEVICE:
        return Doing.DEVICE, "waits for its device", None, False, SEEN_BY_KERNEL
    if kind == TrainingWaitKind.CHILD or call in _CHILD_CALLS:
        return Doing.CHILD, "waits for a child process", None, False, SEEN_BY_KERNEL
    if call in _LOCK_CALLS or kind == TrainingWaitKind.LOCK or of.is_in_lock(frames):
        return Doing.LOCK, "waits for a lock", None, False, SEEN_BY_STACK
    if call in _POLL_CALLS or kind == TrainingWaitKind.POLL:
        return Doing.POLL, "waits for something to arrive", None, False, GUESSED
    if call in _READ_CALLS:
        return Doing.FILE, f"waits in {call}", None, False, GUESSED
    if last.state == TrainingProcessState.DISK:
        return Doing.DISK, "waits in the kernel, where no signal reaches it,", None, False, GUESSED
    what = f"waits in the system call {call}" if call else "makes no progress"
    return Doing.UNKNOWN, what, None, False, GUESSED
