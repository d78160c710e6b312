"""A terminal that is looked at: a command of its own session in it, and the screen as an emulator has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyte

ROWS, COLUMNS = 12, 72


def set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """What somebody in front of the terminal sees.

    Attributes:
        process: The command, which leads the session.
        written: All that was written to the terminal.
    """

    def __init__(
        self, keys: int, process: subprocess.Popen[bytes], rows: int, columns: int
    ) -> None:
        self.process = process
        self.written = b""
        self._keys = keys
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def rows(self) -> list[str]:
        """The rows that are seen now, from the top."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """Everything: what has scrolled away, then what is seen."""
        past = [
            "".join(row[x].data for x in range(self._screen.columns)).rstrip()
            for row in self._screen.history.top
        ]
        return past + self.rows

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column from 0."""
        return self._screen.cursor.y, self._screen.cursor.x

    def region(self) -> tuple[int, int] | None:
        """First and last row that scroll, from 0; None for all."""
        margins = self._screen.margins
        if margins is None or margins == (0, self._screen.lines - 1):
            return None
        return margins.top, margins.bottom

    def resize(self, rows: int, columns: int) -> None:
        set_size(self._keys, rows, columns)
        self._screen.resize(rows, columns)

    def press(self, key: bytes) -> None:
        os.write(self._keys, key)

    def look(self, until: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Take in what is written until a claim holds."""
        deadline_s = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline_s, "\n".join(self.lines)
            if not self._take(0.05) and self.process.poll() is not None:
                assert until(), "\n".join(self.lines)

    def look_to_the_end(self, timeout_s: float = 60.0) -> int:
        """Take in everything until the command has ended; return its exit code."""
        self.look(lambda: self.process.poll() is not None, timeout_s)
        while self._take(0.1):
            pass
        return self.process.wait()

    def _take(self, timeout_s: float) -> bool:
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return False
        try:
            chunk = os.read(self._keys, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.written += chunk
        self._stream.feed(chunk)
        return True


@contextlib.contextmanager
def open_screen(
    command: Sequence[str],
    cwd: Path,
    *,
    rows: int = ROWS,
    columns: int = COLUMNS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Screen]:
    """Run a command in a terminal for the length of a block; the shell's prompt is in its first row."""
    keys, terminal = pty.openpty()
    set_size(keys, rows, columns)

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | {"TERM": "xterm"} | dict(environment or {}),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    # This end stays open, so that what was written last can be read.
    try:
        yield Screen(keys, process, rows, columns)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)
        os.close(keys)
