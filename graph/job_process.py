"""The user's command as a child process, and the signals that are meant for it.

    Ctrl-C once    the job has it; its own end is awaited
    Ctrl-C twice   everything that the command has started: SIGTERM, then SIGKILL
    three times    everything: SIGKILL, and no more waiting

SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on. When the command ends and ranks that it started go on, they
are watched until they end; after a signal or a failure they are ended, since nobody else would. Other processes
that the command leaves behind, such as one that uploads, are the user's and stay.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from rootwalk.graph.own_process import adopt_orphans
from rootwalk.graph.process_tree import find_descendants, reap_orphans, send_signal
from rootwalk.graph.signal_queue import Arrival, SignalQueue
from rootwalk.graph.supervisor import Helper, tell_exit_code
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["JobProcess", "LeaveAtOnce"]

logger = logging.getLogger(__name__)

POLL_S = 0.2
# Ranks that lose their launcher, or have the same signal, end by themselves within this; most do.
ORPHAN_GRACE_S = 2.0
# From SIGTERM to SIGKILL for ranks that nobody else would end: what torchrun and Kubernetes give, for a checkpoint.
SAVE_GRACE_S = 30.0
# The same for a user who has pressed Ctrl-C twice.
INSIST_GRACE_S = 5.0
# A process that SIGKILL has not ended by then waits for a device or a file system that does not answer: no signal
# reaches it, and what was seen of the job must not wait for it too.
UNKILLABLE_S = 10.0
# Processes that a line names.
MAX_LISTED = 8
INSISTS, LEAVES = 2, 3
# `timeout -s INT` signals this process and its group at once: one wish. Key presses count each.
SAME_WISH_S = 0.3


class LeaveAtOnce(Exception):  # noqa: N818  (not an error)
    """The user does not want to wait for anything any more."""


class _Eviction:
    """SIGTERM at one time, SIGKILL at another, each to every process that is there then."""

    def __init__(self, term_s: float, kill_s: float) -> None:
        self._kill_s = kill_s
        self._term_s = term_s
        self._told: set[int] = set()

    def press(self, pids: Sequence[int]) -> None:
        now = time.monotonic()
        if now >= self._kill_s:
            send_signal(pids, signal.SIGKILL)
        elif now >= self._term_s:
            fresh = [pid for pid in pids if pid not in self._told]
            send_signal(fresh, signal.SIGTERM)
            send_signal(fresh, signal.SIGCONT)  # a stopped process would not see it
            self._told.update(fresh)

    @property
    def is_in_vain(self) -> bool:
        """Whether what is still there was killed long ago."""
        return time.monotonic() >= self._kill_s + UNKILLABLE_S


class JobProcess:
    """The command, from its start to the end of its last rank. Use within the block of its signal queue.

    Args:
        command: The command line.
        environment: The command's environment.
        signals: Where signals come from.
        find_ranks: Returns the process ids of the job's ranks that run now.

    Raises:
        ConfigError: If the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        signals: SignalQueue,
        find_ranks: Callable[[], Collection[int]],
    ) -> None:
        self._signals = signals
        self._find_ranks = find_ranks
        self._helpers: Sequence[Helper] = ()
        self._tick: Callable[[], None] = lambda: None
        self._presses = 0
        self._pressed_s = 0.0
        self._was_told_to_end = False
        self._is_over = False
        self._wish = "command"
        self._ended_unix_ns: int | None = None
        self._eviction: _Eviction | None = None
        adopt_orphans()
        try:
            # The same process group: the terminal, its keys and job control are the command's as if we were not there.
            self._process = subprocess.Popen(  # noqa: S603  (the user's command)
                command, env=environment, preexec_fn=signals.release
            )
        except OSError as error:
            raise ConfigError(
                f'cannot run "{command[0]}": {(error.strerror or str(error)).lower()}; needs a program',
                hint="a script without a first line such as #!/bin/sh needs its shell in front",
            ) from error

    @property
    def exit_code(self) -> int:
        """The command's exit code as a shell tells it: 128 + signal when killed, also when that is about to happen."""
        code = self._process.poll()
        if code is None:
            code = -signal.SIGKILL
        return 128 - code if code < 0 else code

    @property
    def return_code(self) -> int:
        """The command's exit code, or minus the number of the signal that killed it or is about to."""
        code = self._process.poll()
        return -signal.SIGKILL if code is None else code

    @property
    def ended_by(self) -> str:
        """Why the command ended: `command` by itself, `user` after Ctrl-C, `signal` after another signal to us."""
        return self._wish

    @property
    def ended_unix_ns(self) -> int | None:
        """When the command itself ended, Unix ns; None while it runs."""
        return self._ended_unix_ns

    def wait(self, helpers: Sequence[Helper], tick: Callable[[], None] = lambda: None) -> int:
        """Wait for the end of the command and its ranks, keeping the helpers alive; return `exit_code`.

        Args:
            helpers: Who works beside the job.
            tick: Is called several times a second.

        Raises:
            LeaveAtOnce: At the third Ctrl-C.
        """
        self._helpers, self._tick = helpers, tick
        while self._process.poll() is None:
            self._turn()
            if self._eviction is not None:
                self._eviction.press(pids := self._descendants())
                if self._eviction.is_in_vain:
                    self._leave_behind(pids)
                    break
        self._ended_unix_ns = time.time_ns()
        code = self._process.returncode
        if code is not None:
            if code != 0:
                logger.warning("the command ended: %s", tell_exit_code(code))
            self._await_ranks()
        self._is_over = True
        return self.exit_code

    def pause(self, timeout_s: float) -> None:
        """Sleep, s, and heed signals; for whoever works after the job's end.

        Raises:
            LeaveAtOnce: At the third Ctrl-C.
        """
        self._heed(self._signals.take(timeout_s))

    def kill(self) -> None:
        """End everything that the command has started and that still runs; after its end, that is not the job's."""
        if self._is_over:
            return
        deadline = time.monotonic() + INSIST_GRACE_S
        while (pids := self._descendants()) and time.monotonic() < deadline:
            send_signal(pids, signal.SIGKILL)
            self._reap()
            time.sleep(0.01)
        self._reap()

    def _turn(self) -> None:
        self._heed(self._signals.take(POLL_S))
        self._reap()
        for helper in self._helpers:
            helper.revive()
            helper.feed(self._descendants)
        self._tick()

    def _reap(self) -> None:
        self._process.poll()
        reap_orphans({self._process.pid, *(helper.process.pid for helper in self._helpers)})

    def _descendants(self) -> list[int]:
        helpers = {helper.process.pid for helper in self._helpers}
        return find_descendants(os.getpid(), without=helpers)

    def _remaining(self) -> list[int]:
        """Return what has to end before this is over, once the command has ended."""
        pids = self._descendants()
        if self._presses >= INSISTS:
            return pids
        ranks = set(self._find_ranks()) if pids else set()
        return [pid for pid in pids if pid in ranks]

    def _await_ranks(self) -> None:
        is_told = False
        while pids := self._remaining():
            if not is_told:
                is_told = True
                logger.warning("the command has ended; still running: %d processes", len(pids))
            must_end = self._was_told_to_end or self._process.returncode != 0
            if self._eviction is None and must_end:
                now = time.monotonic()
                self._eviction = _Eviction(
                    now + ORPHAN_GRACE_S, now + ORPHAN_GRACE_S + SAVE_GRACE_S
                )
            if self._eviction is not None:
                self._eviction.press(pids)
                if self._eviction.is_in_vain:
                    self._leave_behind(pids)
                    return
            self._turn()

    def _leave_behind(self, pids: Sequence[int]) -> None:
        listed = ", ".join(map(str, pids[:MAX_LISTED]))
        logger.warning(
            "left behind: %d processes that SIGKILL does not end (pid %s): a device or a file system does not answer",
            len(pids),
            listed,
        )

    def _heed(self, arrival: Arrival | None) -> None:
        if arrival is None:
            return
        if not arrival.is_from_terminal and not self._is_over:
            is_running = self._process.poll() is None
            send_signal([self._process.pid] if is_running else self._remaining(), arrival.number)
        self._was_told_to_end |= arrival.is_end
        if arrival.is_end and self._wish == "command" and self._process.poll() is None:
            is_key = arrival.number in (signal.SIGINT, signal.SIGQUIT)
            self._wish = "user" if is_key else "signal"
        if arrival.number == signal.SIGINT:
            self._count_press(arrival)

    def _count_press(self, arrival: Arrival) -> None:
        now = time.monotonic()
        is_same = not arrival.is_from_terminal and now - self._pressed_s < SAME_WISH_S
        self._pressed_s = now
        if is_same and self._presses:
            return
        self._presses += 1
        if self._presses >= LEAVES:
            logger.warning("leaving at once: what was received is in the store and its journal")
            raise LeaveAtOnce
        if self._is_over:
            logger.warning("storing what was seen; the third Ctrl-C leaves at once")
        elif self._presses >= INSISTS:
            logger.warning("ending all processes of the command; Ctrl-C again leaves at once")
            self._eviction = _Eviction(now, now + INSIST_GRACE_S)
        else:
            logger.warning("waiting for the command to end by itself; Ctrl-C again ends it")
