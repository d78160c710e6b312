"""Signals as things to take in turn, not as interruptions; knows who sent them, and nothing about what they mean.

A handler that runs between any two lines cannot tell a key press, which the whole foreground group gets from the
terminal, from a `kill` meant for this process alone. The kernel can: `signalfd` tells the sender. (Python's own
`sigtimedwait` does too, but returns whatever lay on its stack when it times out after the process was stopped.)
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

__all__ = ["PASSED_ON", "Arrival", "Interrupted", "SignalQueue"]

# What a user, a terminal or a scheduler sends to a job: to end it, or to have it save a checkpoint.
PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
NOT_AN_END: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2})
# si_code of a signal that the kernel made itself, as a terminal's driver does. Source: linux/asm-generic/siginfo.h.
SI_KERNEL: Final = 0x80
# Begin of struct signalfd_siginfo: signal number, error number, si_code. Source: signalfd(2).
SIGNALFD_SIGINFO_BYTES: Final = 128
SIGNALFD_BEGIN: Final = struct.Struct("=Iii")
SIGSET_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Arrival:
    """A signal that came.

    Attributes:
        number: Which.
        is_from_terminal: The whole foreground group has it already, the job's processes among them.
    """

    number: signal.Signals
    is_from_terminal: bool

    @property
    def is_end(self) -> bool:
        """Whether it asks for the end of the job."""
        return self.number not in NOT_AN_END


class Interrupted(Exception):  # noqa: N818  (not an error)
    """A signal asked for the end before there was a job to pass it on to.

    Args:
        number: The signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class SignalQueue:
    """Holds signals back for the length of a block, for the calling thread and all threads that it starts then.

    Signals that were ignored at the beginning, as `nohup` does, stay ignored. What is still waiting at the end of the
    block has had its effect or comes too late, and is dropped.
    """

    def __init__(self) -> None:
        self._mask: set[signal.Signals | int] = set()
        self._held: set[signal.Signals] = set()
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._held = {n for n in PASSED_ON if signal.getsignal(n) != signal.SIG_IGN}
        # Where it is ignored, as some supervisors have it, the kernel keeps no exit codes.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # The end of a child wakes a wait, so that nobody has to look often.
        held = self._held | {signal.SIGCHLD}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
        self._descriptor = _open_signalfd(held)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._read(0.0) is not None:
            pass
        os.close(self._descriptor)
        self.release()

    def release(self) -> None:
        """Let signals through again; also for a child between fork and exec, which would inherit the blockade."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def take(self, timeout_s: float) -> Arrival | None:
        """Return the next signal; None after the timeout, s, or when a child has changed its state."""
        found = self._read(timeout_s)
        if found is None or found[0] == signal.SIGCHLD:
            return None
        return Arrival(signal.Signals(found[0]), found[1] == SI_KERNEL)

    def _read(self, timeout_s: float) -> tuple[int, int] | None:
        """Return number and si_code of the next signal; None after the timeout, s."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return None
        try:
            arrived = os.read(self._descriptor, SIGNALFD_SIGINFO_BYTES)
        except BlockingIOError:  # another thread of this process took it
            return None
        number, _, code = SIGNALFD_BEGIN.unpack_from(arrived)
        return number, code

    def pause(self, timeout_s: float) -> None:
        """Sleep as `take` waits.

        Raises:
            Interrupted: If a signal asks for the end.
        """
        arrival = self.take(timeout_s)
        if arrival is not None and arrival.is_end:
            raise Interrupted(arrival.number)


def _open_signalfd(numbers: Iterable[int]) -> int:
    """Return a descriptor to read these signals from; they must be held back already.

    Source:
        signalfd(2); SFD_CLOEXEC and SFD_NONBLOCK are O_CLOEXEC and O_NONBLOCK.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.create_string_buffer(SIGSET_BYTES)
    libc.sigemptyset(mask)
    for number in numbers:
        libc.sigaddset(mask, number)
    descriptor = int(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor
