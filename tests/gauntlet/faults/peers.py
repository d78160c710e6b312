"""Slow ends outside the job: somebody who reads what is logged, or answers what is asked."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from pathlib import Path

from gauntlet.faults.training import TrainingBug

CHUNK_BYTES = 65_536
POLL_S = 0.05


class SlowReader(TrainingBug):
    """A rank logs to a pipe or to a socket; somebody reads 64 KiB of it at a time, with pauses.

    Args:
        over: `pipe` or `socket`.
        pause_s: Between two reads.
        chunks: Of 64 KiB that the rank writes in a step.
        who: As for all bugs.
        least_s: As for all bugs.
    """

    def __init__(
        self, over: str, pause_s: float, chunks: int, *, who: str = "rank", least_s: float = 0.5
    ) -> None:
        super().__init__("log", who=who, least_s=least_s, chunks=chunks, over=over)
        self._over_what, self._pause_s = over, pause_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the pipe or the socket, and begin to read."""
        super().prepare(rank, folder)
        path = folder / "log-to"
        self.settings["path"] = str(path)
        if self._over_what == "socket":
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self._listener.settimeout(POLL_S)
        else:
            os.mkfifo(path)
        self._thread = threading.Thread(target=self._read, args=(path,))
        self._thread.start()

    def _open(self, path: Path) -> int | None:
        """Return what to read from, once somebody writes; None when it is over before."""
        if self._listener is None:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.setblocking(False)
            return connection.detach()
        return None

    def _read(self, path: Path) -> None:
        descriptor = self._open(path)
        if descriptor is None:
            return
        while not self._over.wait(self._pause_s):
            # Asleep until there is something: to ask again and again would take a rank's core now and then.
            readable, _, _ = select.select([descriptor], [], [], POLL_S)
            if readable and not os.read(descriptor, CHUNK_BYTES):
                self._over.wait(POLL_S)  # nobody has it open
        os.close(descriptor)

    def stop(self) -> None:
        """Read no more."""
        super().stop()
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class SlowService(TrainingBug):
    """A rank asks a service outside the job and waits for the answer.

    Args:
        delay_s: Until it answers.
        who: As for all bugs.
        least_s: As for all bugs.
    """

    def __init__(self, delay_s: float, *, who: str = "rank", least_s: float = 0.5) -> None:
        super().__init__("ask", who=who, least_s=least_s)
        self._delay_s = delay_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    def prepare(self, rank: int, folder: Path) -> None:
        """Begin to serve."""
        super().prepare(rank, folder)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(POLL_S)
        host, port = self._listener.getsockname()
        self.settings |= {"host": host, "port": port}
        self._thread = threading.Thread(target=self._serve, args=(self._listener,))
        self._thread.start()

    def _serve(self, listener: socket.socket) -> None:
        while not self._over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.recv(1)
                time.sleep(self._delay_s)
                connection.sendall(b"!")

    def stop(self) -> None:
        """Serve no more."""
        super().stop()
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
