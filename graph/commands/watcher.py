"""The process that watches a receiver's store: findings as lines on stderr, and as OTLP on stdout for the receiver.

A process of its own: a diagnosis computes for a second, which would stop a thread of the receiver from taking requests,
and if it dies the receiver lives. Standard output carries frames: the signal, a length of four bytes and an OTLP export
request; so they need no address, certificate or token of the receiver, and vanish with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from rootwalk.graph.own_process import (
    follow_parent,
    name_process,
    run_as_others,
    run_when_idle,
)
from rootwalk.otel_receiver.signals import Signal

if TYPE_CHECKING:
    from rootwalk.graph.serve.watching import SignOfLife

__all__ = ["FRAME_HEAD", "FRAME_SIGNALS", "HURRY", "keep_status", "main"]

# Which of `FRAME_SIGNALS`, and the length of the request that follows, network byte order.
FRAME_HEAD: Final = struct.Struct("!BI")
FRAME_SIGNALS: Final = (Signal.TRACES, Signal.METRICS, Signal.LOGS)
# In place of a signal: a slowdown was seen, and the receiver is to store sooner what tells why. Nothing follows.
HURRY: Final = len(FRAME_SIGNALS)


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until SIGTERM, and have one last look then."""
    parser = argparse.ArgumentParser(prog="rootwalk receive --diagnose")
    parser.add_argument("store", type=Path)
    parser.add_argument("--parent", type=int, required=True, help="process to end with")
    parser.add_argument("--profile-on-finding", type=int, default=0, metavar="HZ")
    parser.add_argument("--status-file", type=Path, metavar="PATH")
    parser.add_argument("--status-job", metavar="ID")
    arguments = parser.parse_args(argv)
    name_process("rootwalk-watch")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the receiver's, which ends this one
    signal.signal(signal.SIGTERM, _leave)
    # Where one rank is slow its peers wait, so there is time; where every core stays busy the lines come later, at the
    # latest when the ranks have gone and this process is told to end.
    run_when_idle()
    if not follow_parent(arguments.parent):
        return 0
    logging.basicConfig(level=logging.WARNING, format="rootwalk: %(message)s", stream=sys.stderr)
    status = None
    if arguments.status_file is not None:
        status = partial(keep_status, arguments.status_file, arguments.status_job)
    return _watch(arguments, status)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # A store survives the end of a process at any moment, as it does SIGKILL. An exception would be printed by whatever
    # it passes through: an import, a callback from C.
    os._exit(0)


class _Ending:
    """Whether SIGTERM has come; from then on this process gets its share of the cores again."""

    def __init__(self) -> None:
        self._is_told = False
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._is_told = True
        run_as_others()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until SIGTERM comes; return whether it has."""
        select.select([self._woken], [], [], seconds)
        return self._is_told


def _watch(
    arguments: argparse.Namespace, status: Callable[[SignOfLife, Quiet], None] | None
) -> int:
    from rootwalk.graph.commands.finding_stacks import FindingStacks
    from rootwalk.graph.live.events import build_events
    from rootwalk.graph.live.findings import Exemplar
    from rootwalk.graph.live.marks import Marks
    from rootwalk.graph.live.track import Notice
    from rootwalk.graph.live.watch import Watcher
    from rootwalk.graph.live.words import render_notice
    from rootwalk.graph.serve.watching import SignOfLife

    stacks, marks = FindingStacks(arguments.profile_on_finding), Marks()

    def tell(notice: Notice, exemplar: Exemplar | None) -> None:
        print(f"rootwalk: {render_notice(notice)}", file=sys.stderr, flush=True)
        _send(Signal.LOGS, build_events(notice, exemplar, time.time_ns()).SerializeToString())
        mark = marks.build(notice, exemplar)
        if mark is not None:
            _send(Signal.TRACES, mark.SerializeToString())
        said = stacks.take(notice)
        if said is not None:
            print(f"rootwalk: {said}", file=sys.stderr, flush=True)

    watcher = Watcher(
        arguments.store,
        tell,
        measure=lambda request: _send(Signal.METRICS, request.SerializeToString()),
        hurry=partial(_write_frame, HURRY, b""),
    )
    # A log is to hold what has changed, a person wants to see that it goes on.
    life = SignOfLife(arguments.store)
    ending = _Ending()
    is_told_to_end = False
    while not is_told_to_end:
        watcher.poll()
        if status is not None:
            status(life, watcher.quiet_words)
        elif sys.stderr.isatty() and (words := life.take(time.time_ns())) is not None:
            print(f"rootwalk: {words}", file=sys.stderr, flush=True)
        is_told_to_end = ending.wait(watcher.interval_s)
    if os.getppid() == arguments.parent:  # else there is nobody to tell
        watcher.poll(is_last=True)
    return 0


# Says what is seen of a job in which no rank makes progress, now; None of one that goes on.
Quiet = Callable[[str | None, int], str | None]


def keep_status(path: Path, job: str | None, life: SignOfLife, quiet: Quiet | None = None) -> None:
    """Write how the job does to a file, whole or not at all: somebody reads it at any moment."""
    now_ns = time.time_ns()
    words = None if quiet is None else quiet(job, now_ns)
    if words is not None:
        # The row cuts the second part where it is too long.
        begin, colon, rest = words.partition(":")
        parts: tuple[str, ...] | None = (begin, "", colon + rest, "")
    else:
        parts = life.parts(job, now_ns)
    if parts is None:
        return
    fresh = path.with_name(f"{path.name}.new")
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps(parts), encoding="utf-8")
        fresh.replace(path)


def _send(signal: Signal, body: bytes) -> None:
    _write_frame(FRAME_SIGNALS.index(signal), body)


def _write_frame(number: int, body: bytes) -> None:
    """Write one frame, whole: a pipe takes long ones in pieces."""
    frame = memoryview(FRAME_HEAD.pack(number, len(body)) + body)
    while frame:
        frame = frame[os.write(sys.stdout.fileno(), frame) :]


if __name__ == "__main__":
    raise SystemExit(main())
