"""A process that does one thing each time it is told to, so that a test can begin to watch it first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# `turn` of the given code is called for each line; what it returns comes back. It ends when its input does.
LOOP = "\nimport sys\nprint('ready', flush=True)\nfor _ in sys.stdin: print(turn(), flush=True)\n"


class Puppet:
    """The process; `pid` is its id."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def turn(self) -> str:
        """Let it do its thing once, wait for that, and return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return line.strip()

    def wait_until_ready(self) -> None:
        """Wait until it has loaded what it needs."""
        assert self._answer() == "ready"


@contextmanager
def puppet(code: str) -> Iterator[Puppet]:
    """Run code that defines `turn` for the length of a block."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code + LOOP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            made = Puppet(process)
            made.wait_until_ready()
            yield made
        finally:
            process.kill()
