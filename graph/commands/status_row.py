"""The bottom row of the terminal that `run` shares with the job: how it does, while the job's lines scroll above.

As apt does for its bar, the terminal is told to scroll all rows but the last (DECSTBM). Each drawing saves the cursor,
writes the row and puts the cursor back, in one write, so that nothing of the job comes between. Knows nothing of
stores: the words are in a file that the watcher of the receiver renews.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from rootwalk.graph.passages import visible
from rootwalk.graph.render.cells import fit, width

__all__ = ["StatusRow", "arrange", "can_show_row", "read_words", "status_row", "usable_size"]

REDRAW_S: Final = 1.0
# Below this the job's own lines need every row and column.
MIN_ROWS: Final = 6
MIN_COLUMNS: Final = 20
# The watcher works when nobody else wants the CPU: what is older than this says so.
OLD_S: Final = 30.0
# Save the cursor with its attributes, put it back; index, which scrolls at the last row as a line end does, and keeps
# the column. Source: DECSC, DECRC, IND and DECSTBM in DEC's VT510 manual.
SAVE: Final = "\x1b7"
RESTORE: Final = "\x1b8"
INDEX: Final = "\x1bD"
UP: Final = "\x1b[1A"
WHOLE_SCREEN: Final = "\x1b[r"
CLEAR_LINE: Final = "\x1b[2K"
CLEAR_BELOW: Final = "\x1b[J"
REVERSE: Final = "\x1b[0;7m"
PLAIN: Final = "\x1b[0m"


class StatusRow:
    """A row below everything; use as a context, and `tick` several times a second.

    Args:
        descriptor: The terminal.
        words: What to show now in so many cells.
        now_s: A clock for pauses.
    """

    def __init__(
        self,
        descriptor: int,
        words: Callable[[int], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._descriptor = descriptor
        self._words = words
        self._now_s = now_s
        self._reserved: os.terminal_size | None = None
        self._drawn_s = 0.0
        self._is_gone = False
        self._stops = False
        self._is_resized = False

    def __enter__(self) -> Self:
        # Who has switched stopping off, as a shell without job control, keeps it so.
        self._stops = signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
        if self._stops:
            signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGWINCH, self._notice_size)
        self.tick()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        self._release()

    def tick(self) -> None:
        """Draw where that is due; begin anew where the terminal has another size or is ours again."""
        size = None if self._is_gone else usable_size(self._descriptor)
        if size is None:
            self._release()
            return
        if size != self._reserved or self._is_resized:
            self._is_resized = False
            self._reserve(size)
        elif self._now_s() - self._drawn_s < REDRAW_S:
            return
        self._draw(size)

    def _reserve(self, size: os.terminal_size) -> None:
        self._release()
        region = f"{SAVE}\x1b[1;{size.lines - 1}r{RESTORE}"
        # One row down and up again: a cursor in the last row would be left below the region.
        if self._write(f"{INDEX}{UP}{region}"):
            self._reserved = size

    def _release(self) -> None:
        """Give all rows back, and leave the cursor where the job's output has ended."""
        if self._reserved is None:
            return
        row, self._reserved = self._reserved.lines, None
        if not _is_ours(self._descriptor):
            return  # the shell writes there now, or nobody
        is_same = False
        with contextlib.suppress(OSError):
            is_same = os.get_terminal_size(self._descriptor).lines == row
        # After a change of size nobody knows where the row is, but that it is below the cursor.
        clear = f"\x1b[{row};1H{PLAIN}{CLEAR_LINE}{RESTORE}" if is_same else RESTORE + CLEAR_BELOW
        self._write(f"{SAVE}{WHOLE_SCREEN}{clear}", must_go=True)

    def _draw(self, size: os.terminal_size) -> None:
        # A letter in the last column would leave some terminals about to wrap.
        text = self._words(size.columns - 1)
        row = f"\x1b[{size.lines};1H{PLAIN}{CLEAR_LINE}{REVERSE}{text}{PLAIN}"
        if self._write(f"{SAVE}{row}{RESTORE}"):
            self._drawn_s = self._now_s()

    def _write(self, text: str, *, must_go: bool = False) -> bool:
        """Write everything at once; return False where the terminal takes nothing now, as after Ctrl-S."""
        try:
            if not must_go and not select.select([], [self._descriptor], [], 0.0)[1]:
                return False
            os.write(self._descriptor, text.encode())
        except OSError:
            self._is_gone = True
            return False
        return True

    def _notice_size(self, number: int, frame: FrameType | None) -> None:
        # A terminal forgets the region, also when it has its old size again before the next look.
        self._is_resized = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back for as long as this process is stopped; the next tick takes it again."""
        self._release()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)


def usable_size(descriptor: int) -> os.terminal_size | None:
    """Return a terminal's size; None where it is too small, gone, or another job's of the shell."""
    if not _is_ours(descriptor):
        return None
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return size if size.lines >= MIN_ROWS and size.columns >= MIN_COLUMNS else None


def _is_ours(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def read_words(path: Path, now_unix_s: float) -> tuple[str, ...]:
    """Return the pieces of what the watcher says: step and rate, seconds of a step, what is found, for how long.

    Args:
        path: The watcher's file; not there before its first look.
        now_unix_s: Now, as files have it.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        age_s = now_unix_s - path.stat().st_mtime
    except (OSError, ValueError):
        return "no complete step yet", "", "", ""
    begin, pace, finding, age = (visible(str(part)).replace("\n", " ") for part in told)
    old = f" (as of {age_s:.0f} s ago)" if age_s > OLD_S else ""
    return begin, pace, finding, age + old


def arrange(clock_s: float, parts: tuple[str, ...], cells: int) -> str:
    """Return the row: where it is too long the seconds of a step go first, then the end of the finding.

    Args:
        clock_s: For how long the job has run, s.
        parts: As `read_words` gives them.
        cells: Cells of the row.
    """
    whole = int(clock_s)
    clock = f"{whole // 60 % 60}:{whole % 60:02d}"
    if whole >= 3600:
        clock = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    begin, pace, finding, age = parts
    begin = f" rootwalk {clock} | {begin}"
    if width(begin + pace + finding + age) > cells:
        pace = ""
    room = cells - width(begin + age)
    if room < width(finding):
        cut = fit(finding, room).rstrip(" …") if room > 0 else ""
        finding = cut.rstrip(" ,;:(") + "…" if cut else ""
    return fit(begin + pace + finding + age, cells)


@contextlib.contextmanager
def status_row(path: Path | None) -> Iterator[Callable[[], None]]:
    """Show a row while the block runs; gives what to call several times a second.

    Args:
        path: The watcher's file; None for no row.
    """
    if path is None:
        yield lambda: None
        return
    began_s = time.monotonic()

    def words(cells: int) -> str:
        return arrange(time.monotonic() - began_s, read_words(path, time.time()), cells)

    with StatusRow(sys.stderr.fileno(), words) as row:
        yield row.tick


def can_show_row(environment: Mapping[str, str]) -> bool:
    """Return whether progress goes to a terminal that is ours, large enough, and can scroll a part of itself."""
    if environment.get("TERM", "") in ("", "dumb") or not sys.stderr.isatty():
        return False
    return usable_size(sys.stderr.fileno()) is not None
