"""A terminal with somebody at its keys, who outlives the command that runs in it."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Leads the session, as a shell does, with the command in a process group of its own, and stays when that has ended.
LEADER = """
import fcntl, os, signal, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU):
    signal.signal(number, signal.SIG_IGN)
def begin():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_DFL)
def resume(*_):
    os.tcsetpgrp(0, process.pid)
    os.killpg(process.pid, signal.SIGCONT)
signal.signal(signal.SIGUSR1, resume)
out, err = open(sys.argv[1], "wb"), open(sys.argv[2], "wb")
process = subprocess.Popen(sys.argv[3:], stdout=out, stderr=err, process_group=0, preexec_fn=begin)
os.tcsetpgrp(0, process.pid)
print(process.pid, flush=True)
while True:
    _, status = os.waitpid(process.pid, os.WUNTRACED | os.WCONTINUED)
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        break
    print("stopped" if os.WIFSTOPPED(status) else "continued", flush=True)
print(os.waitstatus_to_exitcode(status), flush=True)
signal.pause()
"""
CTRL_C, CTRL_Z = b"\x03", b"\x1a"


class Terminal:
    """One command in a terminal.

    Attributes:
        pid: The command's process id.
    """

    def __init__(self, leader: subprocess.Popen[str], keys: int) -> None:
        self._leader = leader
        self._keys = keys
        self.pid = int(self.read_line())

    @property
    def leader_pid(self) -> int:
        return self._leader.pid

    def read_line(self) -> str:
        """Return the leader's next word: the exit code, or that the command was stopped or continued."""
        assert self._leader.stdout is not None
        return self._leader.stdout.readline().strip()

    def press(self, key: bytes) -> None:
        os.write(self._keys, key)

    def close(self) -> None:
        """Close the window: the kernel hangs up on everybody in it."""
        if self._keys >= 0:
            os.close(self._keys)
        self._keys = -1

    def resume(self) -> None:
        """Type `fg`, after `read_line` has told that the command is stopped."""
        self._leader.send_signal(signal.SIGUSR1)

    def wait(self, timeout_s: float) -> int:
        """Return the command's exit code, negative for a signal; the leader and the session stay."""
        deadline = time.monotonic() + timeout_s
        while Path(f"/proc/{self.pid}").exists():
            assert time.monotonic() < deadline, f"the command goes on after {timeout_s:g} s"
            time.sleep(0.02)
        while (word := self.read_line()) in ("stopped", "continued"):
            pass
        return int(word)


@contextlib.contextmanager
def open_terminal(
    command: Sequence[str],
    *,
    cwd: Path,
    stdout: Path,
    stderr: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """Run a command in a terminal of its own for the length of a block."""
    keys, screen = pty.openpty()
    leader = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", LEADER, str(stdout), str(stderr), *command],
        cwd=cwd,
        env=os.environ | dict(environment or {}),
        stdin=screen,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(screen)
    terminal = None
    try:
        terminal = Terminal(leader, keys)
        yield terminal
    finally:
        leader.kill()
        leader.communicate()
        if terminal is not None:
            terminal.close()
