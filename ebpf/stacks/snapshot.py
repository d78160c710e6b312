"""Where the threads of a rank stand, taken once from outside: kernel, native and Python, without stopping the process.

    take(pid) ──▶ one thread that may wait ──▶ stacks, as far as they are read in time

It needs no BPF and writes nothing. Nothing that is read may hold the agent up: all of it is read by a thread of its
own, whose answer is awaited for `TAKE_S`. While it reads on, other ranks are shown as the kernel shows them; after
`STUCK_S` it is left behind with what it holds, and the file system that it waits for is not read again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Collection
from pathlib import Path

from rootwalk.ebpf.stacks.guarded_memory import SilentMounts
from rootwalk.ebpf.stacks.thread_facts import read_facts
from rootwalk.ebpf.stacks.thread_stacks import (
    ROLE_LOADER_WORKER,
    ROLE_MAIN,
    StackReader,
    ThreadStack,
)

__all__ = ["Snapshots", "ThreadStack"]

# Of one rank: the main thread, some workers, and the threads that run Python.
MAX_STACKS = 16
MAX_WORKERS_FIRST = 7
# The usual snapshot takes some milliseconds, and the first one of large libraries some hundred.
TAKE_S = 2.0
# The symbols of large libraries over a slow network: 40 MB at 10 MB/s.
STUCK_S = 5.0
# A process whose memory could not be read in time may be stuck with its memory locked: for a minute it is left alone.
LEFT_ALONE_S = 60.0
# Readers that wait for ever, with their files; then nothing is read any more.
MAX_LEFT_BEHIND = 4


class _Request:
    """What is asked of the reader's thread, and what it has found so far."""

    def __init__(self, pid: int, children: tuple[int, ...]) -> None:
        self.pid = pid
        self.children = children
        self.since_s = time.monotonic()
        self.stacks: list[ThreadStack] = []
        self.done = threading.Event()

    def is_full(self) -> bool:
        return len(self.stacks) >= MAX_STACKS


class _Worker:
    """A thread with a reader of its own, which nothing else uses."""

    def __init__(self, root: Path, silent: SilentMounts) -> None:
        self._reader = StackReader(root, silent)
        self._requests: queue.SimpleQueue[_Request | int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rootwalk-stacks", daemon=True)
        self._thread.start()

    def ask(self, request: _Request | int | None) -> None:
        """Ask for stacks, or to forget a process by its id, or, with None, to end."""
        self._requests.put(request)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if isinstance(request, int):
                self._reader.forget(request)
                continue
            # Whatever a dying process does to the reader, the next one is served.
            with contextlib.suppress(Exception):
                self._take(request)
            request.done.set()
        self._reader.close()

    def _take(self, request: _Request) -> None:
        reader = self._reader
        reader.begin()
        first = reader.main_stack(request.pid, ROLE_MAIN)
        if first is None:
            return
        request.stacks.append(first)
        early, late = request.children[:MAX_WORKERS_FIRST], request.children[MAX_WORKERS_FIRST:]
        self._take_workers(request, early)
        for stack in reader.other_stacks(request.pid):
            if request.is_full():
                return
            request.stacks.append(stack)
        self._take_workers(request, late)

    def _take_workers(self, request: _Request, children: tuple[int, ...]) -> None:
        for child in children:
            if request.is_full():
                return
            stack = self._reader.main_stack(child, ROLE_LOADER_WORKER)
            if stack is not None:
                request.stacks.append(stack)


class Snapshots:
    """Takes stacks of ranks; its calls never raise and return in time. Not for several threads at once.

    Args:
        root: Folder that holds the processes.
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._silent = SilentMounts()
        self._worker: _Worker | None = None
        self._pending: _Request | None = None
        self._left_behind = 0
        self._left_alone: dict[int, float] = {}

    def take(self, pid: int, children: Collection[int] = ()) -> list[ThreadStack]:
        """Return the stacks of a rank's threads as they are now.

        Args:
            pid: The rank's process.
            children: Its children, such as loader workers, of which the main threads are shown.

        Returns:
            The main thread first, at most `MAX_STACKS`; empty where the process is gone or may not be read. Of a
            process that could not be read in time, what was read of it, at least what its main thread does in the
            kernel.
        """
        now_s = time.monotonic()
        if self._is_reading(now_s) or now_s < self._left_alone.get(pid, 0.0):
            return self._kernel_only(pid)
        self._left_alone.pop(pid, None)
        if self._left_behind >= MAX_LEFT_BEHIND:
            return self._kernel_only(pid)
        request = _Request(pid, tuple(children))
        try:
            if self._worker is None:
                self._worker = _Worker(self._root, self._silent)
            self._worker.ask(request)
        except (OSError, RuntimeError):
            return []  # no thread can be started
        if not request.done.wait(TAKE_S):
            self._pending = request
        return list(request.stacks) or self._kernel_only(pid)

    def forget(self, pid: int) -> None:
        """Let go of a process; safe when it is not known."""
        self._left_alone.pop(pid, None)
        if self._worker is not None:
            self._worker.ask(pid)

    def close(self) -> None:
        """Let go of everything; safe twice."""
        if self._worker is not None:
            self._worker.ask(None)
            self._worker = None

    def _is_reading(self, now_s: float) -> bool:
        """Return whether the reader is still at an earlier request; leave it behind when that has taken too long."""
        request = self._pending
        if request is None:
            return False
        if not request.done.is_set():
            if now_s - request.since_s < STUCK_S:
                return True
            self._silent.silence(self._silent.entered)
            self._left_alone[request.pid] = now_s + LEFT_ALONE_S
            self._left_behind += 1
            self.close()  # it ends when it no longer waits
        self._pending = None
        return False

    def _kernel_only(self, pid: int) -> list[ThreadStack]:
        """Return the main thread as the kernel shows it, for which no memory is read."""
        facts = read_facts(pid, pid, self._root)
        if not facts.kernel and facts.system_call is None:
            return []
        frames = tuple(f"{frame.function} [kernel]" for frame in facts.kernel)
        return [ThreadStack(pid, pid, facts.name, ROLE_MAIN, frames, facts.system_call)]
