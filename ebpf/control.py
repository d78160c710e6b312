"""A running agent's ear: a socket in the folder of rings, through which `rootwalk level` asks for another level.

    rootwalk level ──{"level": 0, "ranks": [3], "for_s": 60}──▶ agent-<pid>-<time>.sock
                   ◀──{"pid": 7, "job": null, "ranks": [{"rank": 3, …}]}──

Same user or root only: by the folder, by the socket's mode, and by what the kernel says who is asking. A socket whose
agent has died refuses connections; whoever finds it so removes it. Must not know: what a level means.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any

from rootwalk.ebpf.ring_files import find_folders
from rootwalk.ebpf.ring_owners import printable
from rootwalk.instrumentation.own_folder import make_own_folder
from rootwalk.instrumentation.shared_ring import is_directory_chosen, ring_directory

__all__ = ["ControlSocket", "ask_agents"]

logger = logging.getLogger(__name__)

SUFFIX = ".sock"
MAX_BYTES = 65_536
# The asker has sent everything before it waits; an agent waits no longer for one that does not.
PATIENCE_S = 0.1
# An agent listens at least twice a second, unless a request to its endpoint hangs (2 s).
ANSWER_S = 5.0
MAX_ASKED_AT_ONCE = 16
# In one folder: a user has an agent for each job that runs.
MAX_SOCKETS = 64
# struct ucred of unix(7): pid, uid, gid.
CREDENTIALS = struct.Struct("3i")

Answerer = Callable[[dict[str, Any]], dict[str, Any]]


class ControlSocket:
    """Listens. Where it cannot be made, there is none: the agent's work goes on.

    Args:
        folder: Where; None for this user's folder of rings.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._socket: socket.socket | None = None
        where = ring_directory() if folder is None else folder
        self.path = where / f"agent-{os.getpid()}-{time.monotonic_ns():x}{SUFFIX}"
        try:
            make_own_folder(where, is_chosen=folder is not None or is_directory_chosen())
            _remove_dead(where)
            self._socket = self._listen()
        except OSError as error:
            logger.warning("cannot listen for `rootwalk level`: %s", error)

    def _listen(self) -> socket.socket:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            opened.bind(str(self.path))
            self.path.chmod(0o600)
            opened.listen(16)
            opened.setblocking(False)
        except OSError:
            opened.close()
            self.path.unlink(missing_ok=True)
            raise
        return opened

    def serve(self, answer: Answerer) -> None:
        """Answer whoever has asked since the last call."""
        while self._socket is not None:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # nobody is waiting
            with contextlib.closing(connection), contextlib.suppress(OSError):
                connection.settimeout(PATIENCE_S)
                if not _may_ask(connection):
                    continue
                connection.sendall(json.dumps(_answer(connection, answer)).encode())

    def close(self) -> None:
        """Stop listening; safe twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.path.unlink(missing_ok=True)


def _may_ask(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(raw)[1]
    return user in (0, os.geteuid())


def _answer(connection: socket.socket, answer: Answerer) -> dict[str, Any]:
    try:
        request = json.loads(_read_all(connection, 2 * PATIENCE_S))
        return answer(dict(request))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return {"error": f"cannot read the request: saw {error}"}


def _read_all(connection: socket.socket, within_s: float) -> bytes:
    parts = b""
    deadline = time.monotonic() + within_s
    while len(parts) <= MAX_BYTES:
        if time.monotonic() > deadline:
            raise ValueError("a request that does not end")
        part = connection.recv(MAX_BYTES)
        if not part:
            return parts
        parts += part
    raise ValueError(f"more than {MAX_BYTES} bytes")


def _ask(path: Path, request: bytes) -> dict[str, Any] | None:
    """Return one agent's answer, also that it did not answer in time; None when it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(path))
            if not _may_answer(connection, path):
                return None
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            found = json.loads(_read_all(connection, ANSWER_S) or b"null")
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()  # its agent was killed
            return None
        except TimeoutError:
            return _silent(path)
        except (OSError, ValueError, RecursionError):
            return None
    return _checked(found)


def _may_answer(connection: socket.socket, path: Path) -> bool:
    """Return whether who listens is root, this user, or the user whose folder it is."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    user: int = CREDENTIALS.unpack(raw)[1]
    return user in (0, os.geteuid(), path.parent.lstat().st_uid)


def _checked(found: Any) -> dict[str, Any] | None:
    """Return an answer of which everything can be printed; None for what no agent answers."""
    if not isinstance(found, dict) or type(found.get("pid")) not in (int, NoneType):
        return None
    return {printable(str(key)): _printable_value(value) for key, value in found.items()}


def _printable_value(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): _printable_value(one) for key, one in value.items()}
    return [_printable_value(one) for one in value] if isinstance(value, list) else value


def _silent(path: Path) -> dict[str, Any]:
    """Return what stands for the answer of an agent that lives and gives none: its machine has no CPU for it."""
    pid = path.name.removeprefix("agent-").partition("-")[0]
    error = f"agent {pid} runs, but has not answered for {ANSWER_S:g} s"
    return {"pid": int(pid) if pid.isdecimal() else None, "error": error}


def _list_sockets(folders: Sequence[Path]) -> list[Path]:
    found = []
    for folder in folders:
        found += sorted(folder.glob(f"agent-*{SUFFIX}"))[:MAX_SOCKETS]
    return sorted(found)


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of agents that were killed."""
    for path in _list_sockets([folder]):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        ):
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def ask_agents(
    request: dict[str, Any], folders: Sequence[Path] | None = None
) -> list[dict[str, Any]]:
    """Return what every running agent answers that this user may ask, by process id.

    An agent that could not answer has `error` in place of anything but its `pid`.

    Args:
        request: One JSON object.
        folders: Where their sockets lie; None for this user's folder, and every user's when root.
    """
    body = json.dumps(request).encode()
    paths = _list_sockets(find_folders() if folders is None else folders)
    # Side by side: one that does not answer costs its patience once, not once for each.
    with ThreadPoolExecutor(MAX_ASKED_AT_ONCE) as pool:
        answers = list(pool.map(lambda path: _ask(path, body), paths))
    return sorted(
        (answer for answer in answers if answer is not None),
        key=lambda answer: int(answer.get("pid") or 0),
    )
