"""Network namespaces of watched processes: each is entered once, by a thread of its own that ends at once.

What is opened there stays there: the sockets ask about that namespace for as long as they live, from any thread. They
also keep the namespace alive, so they are closed when the last watched process has left it. Entering needs
CAP_SYS_ADMIN; without it only the agent's own namespace is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rootwalk.ebpf.inet_diag import Connection
from rootwalk.ebpf.sock_diag import DiagSocket, EndedSocket
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["NetNamespace", "can_enter", "read_in_namespace", "read_namespace_number"]

Result = TypeVar("Result")

CLONE_NEWNET = 0x40000000
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# A range that was widened to low numbers would take services for clients; hardly one listens above this.
MIN_DYNAMIC_PORT = 10_000
# The kernel's own choice, where the range cannot be read.
USUAL_DYNAMIC_PORT = 32_768


def read_namespace_number(pid: int | str, proc: Path = Path("/proc")) -> int | None:
    """Return the number of a process's network namespace; None when it is gone or not for us to see."""
    try:
        return (proc / str(pid) / "ns/net").stat().st_ino
    except OSError:
        return None


def read_in_namespace(file: Path, read: Callable[[], Result]) -> Result:
    """Return what a function returns inside a network namespace.

    Args:
        file: The namespace, as /proc/<pid>/ns/net names it.
        read: Called in a thread that has entered it.

    Raises:
        OSError: If it cannot be entered, or what the function raises.
        UnavailableError: What the function raises.
    """
    results: list[Result] = []
    errors: list[OSError | UnavailableError] = []

    def enter() -> None:
        try:
            _set_namespace(file)
            results.append(read())
        except (OSError, UnavailableError) as error:
            errors.append(error)

    thread = threading.Thread(target=enter, name="rootwalk-setns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def can_enter(proc: Path = Path("/proc")) -> bool:
    """Return whether this process may enter network namespaces; tried with its own."""
    try:
        return read_in_namespace(proc / "self/ns/net", lambda: True)
    except OSError:
        return False


def _set_namespace(file: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if library.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", str(file))
    finally:
        os.close(descriptor)


def read_dynamic_port() -> int:
    """Return the lowest port that the kernel gives to clients in this thread's namespace, 10,000 at least."""
    try:
        low = int(PORT_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_DYNAMIC_PORT
    return max(low, MIN_DYNAMIC_PORT)


class NetNamespace:
    """One network namespace that watched processes are in.

    Attributes:
        number: Its inode.
        diag: Asks for its connections.
        dynamic_port: The lowest port that is nobody's service there.

    Args:
        number: Its inode.
        file: /proc/<pid>/ns/net of a process in it; None for the agent's own.

    Raises:
        OSError: If it cannot be entered.
        UnavailableError: NO_INET_DIAG.
    """

    def __init__(self, number: int, file: Path | None) -> None:
        self.number = number
        self._ended: EndedSocket | None = None
        if file is None:
            self.diag, self.dynamic_port = self._open()
        else:
            self.diag, self.dynamic_port = read_in_namespace(file, self._open)

    @property
    def malformed(self) -> int:
        """Return how many messages could not be read."""
        return self.diag.malformed + (self._ended.malformed if self._ended is not None else 0)

    def read_ended(self) -> list[Connection]:
        """Return connections that have ended since the last call, with their last values, as far as they were heard."""
        if self._ended is None:
            return []
        try:
            return self._ended.read()
        except OSError:
            self._ended.close()
            self._ended = None
            return []

    def close(self) -> None:
        """Close its sockets; safe twice."""
        self.diag.close()
        if self._ended is not None:
            self._ended.close()

    def _open(self) -> tuple[DiagSocket, int]:
        diag = DiagSocket()
        with contextlib.suppress(OSError):
            self._ended = EndedSocket()
        return diag, read_dynamic_port()
