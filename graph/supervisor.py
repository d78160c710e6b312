"""Child processes of `rootwalk run`: the receiver and the agent around a job.

A helper that dies is started again at the same address, a few times; what it had not sent or stored is still in the
rings and in the journal. Neither can hold the job up, and neither outlives this process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rootwalk.graph.own_process import LOWEST_PRIORITY, follow_parent, set_niceness
from rootwalk.graph.rations import Rations
from rootwalk.instrumentation.errors import RootwalkError

__all__ = ["Helper", "Pause", "start_helper", "tell_exit_code"]

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 20.0
POLL_S = 0.02
# A helper that dies more often than this has a reason that starting it again does not remove.
MAX_RESTARTS = 3
# Helpers yield to the job where they share a core with it: at 19 they get 1.4 % of a contended core, and all of an
# idle one, which is when ranks wait for each other. At 5 the agent cost the other rank 9 ms a step of 310 ms. Their
# sessions yield too: many kernels share a core between sessions first, and there a niceness of the process alone let
# each flush of the receiver lengthen one or two steps of 190 ms by 25 to 100 ms. Before the job begins and after it has
# ended they do not yield: on a busy machine their last flush took more than a minute. Nor do they starve: `rations`.
NICENESS = LOWEST_PRIORITY
# Shells report a child that a signal has killed as 128 plus its number.
SHELL_SIGNAL_BASE = 128

Pause = Callable[[float], object]


@dataclass(slots=True)
class Helper:
    """One process that works beside the job.

    Attributes:
        name: For messages.
        command: Arguments after `rootwalk`.
        ready_file: Where it says that it is ready.
        process: The running process.
        ready: What it said, as JSON.
        restarts: How often it was started again.
        niceness: How much it yields, also when it is started again; None for as much as this process.
        rations: Lends it a share of the cores while it yields and gets none.
    """

    name: str
    command: list[str]
    ready_file: Path
    process: subprocess.Popen[bytes]
    ready: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    niceness: int | None = None
    rations: Rations | None = None

    def give_way(self) -> None:
        """Let the job go first from now on."""
        self._set_niceness(NICENESS)

    def feed(self, find_job: Callable[[], Iterable[int]]) -> None:
        """See to it that it gets something of cores that are too full; to be called several times a second.

        Args:
            find_job: Returns the processes of the job.
        """
        if self.niceness is None or self.process.poll() is not None:
            return
        if self.rations is None:
            self.rations = Rations(self.niceness, os.getpriority(os.PRIO_PROCESS, 0), find_job)
        self.rations.feed(self.process.pid)

    def _set_niceness(self, niceness: int | None) -> None:
        self.niceness = niceness
        if self.process.poll() is None:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            set_niceness(self.process.pid, own if niceness is None else niceness)

    def revive(self) -> None:
        """Start the process again when it has died, at most `MAX_RESTARTS` times."""
        if self.process.poll() is None or self.restarts > MAX_RESTARTS:
            return
        self.restarts += 1
        code = tell_exit_code(self.process.returncode)
        if self.restarts > MAX_RESTARTS:
            logger.warning("the %s ended again (%s): going on without it", self.name, code)
            return
        logger.warning("the %s ended (%s): starting it again", self.name, code)
        self.ready_file.unlink(missing_ok=True)
        self.process = _spawn(self.command, self.niceness)

    def await_ready(self, timeout_s: float, pause: Pause = time.sleep) -> bool:
        """Wait until it says that it is ready; return False when it ends or the time is over, s."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.ready_file.exists():
                try:
                    self.ready = json.loads(self.ready_file.read_text(encoding="utf-8"))
                except ValueError:
                    pass  # it is being written
                else:
                    return True
            if self.process.poll() is not None:
                return False
            pause(POLL_S)
        return False

    def stop(self, timeout_s: float, pause: Pause = time.sleep) -> None:
        """Ask it to finish what it has; end it when it does not within the time.

        One that has died since the last look is started again: what it had not sent would be lost. One that is still
        starting would end at once and do nothing, so it is asked when it is ready.

        Args:
            timeout_s: How long it may take, s.
            pause: Sleeps some seconds; what it raises comes through.
        """
        self._set_niceness(None)
        self.revive()
        self.await_ready(READY_TIMEOUT_S, pause)
        if self.process.poll() is None:
            self.process.terminate()
            deadline = time.monotonic() + timeout_s
            while self.process.poll() is None and time.monotonic() < deadline:
                pause(POLL_S)
            if self.process.poll() is None:
                logger.warning("the %s did not finish within %g s: ending it", self.name, timeout_s)
        self.end()

    def end(self) -> None:
        """End it now."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.ready_file.unlink(missing_ok=True)


def tell_exit_code(code: int) -> str:
    """Return an exit code in words."""
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    if SHELL_SIGNAL_BASE < code <= SHELL_SIGNAL_BASE + signal.NSIG:
        return f"exit code {code}, which means {_signal_name(code - SHELL_SIGNAL_BASE)}"
    return f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _spawn(command: Sequence[str], niceness: int | None = None) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def begin() -> None:
        if niceness is not None:
            set_niceness(os.getpid(), niceness)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if not follow_parent(parent):
            os._exit(0)

    # A session of its own: Ctrl-C is for the job; helpers stop when the job has.
    return subprocess.Popen(  # noqa: S603  (our own command)
        [sys.executable, "-m", "rootwalk.graph", *command, "--exit-with-parent", "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=begin,
    )


def start_helper(
    name: str, command: list[str], ready_file: Path, pause: Pause = time.sleep
) -> Helper:
    """Start a helper and wait until it says that it is ready.

    Raises:
        RootwalkError: If it ends or says nothing within 20 s; what it printed is on stderr already.
    """
    ready_file.unlink(missing_ok=True)
    command = [*command, "--ready-file", str(ready_file)]
    helper = Helper(name, command, ready_file, _spawn(command))
    try:
        if helper.await_ready(READY_TIMEOUT_S, pause):
            return helper
        code = helper.process.poll()
    except BaseException:
        helper.end()
        raise
    helper.end()
    if code is None:
        raise RootwalkError(f"cannot start the {name}: not ready after {READY_TIMEOUT_S:g} s")
    saw = tell_exit_code(code)
    raise RootwalkError(f"cannot start the {name}: saw {saw}; its own message is above")
