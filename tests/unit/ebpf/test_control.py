"""The socket through which a running agent is asked."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf import control
from rootwalk.ebpf.control import ControlSocket, ask_agents


def echo(request: dict[str, Any]) -> dict[str, Any]:
    if request.get("level") == 9:
        raise ValueError("level 9")
    return {"pid": os.getpid(), "saw": request}


@contextmanager
def listening(folder: Path) -> Iterator[ControlSocket]:
    """Serve in a thread, as an agent does between its rounds."""
    opened = ControlSocket(folder)
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            opened.serve(echo)
            time.sleep(0.005)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield opened
    finally:
        is_over.set()
        thread.join()
        opened.close()


def test_every_agent_answers(tmp_path: Path) -> None:
    with listening(tmp_path), listening(tmp_path):
        answers = ask_agents({"level": 2, "ranks": [3]}, [tmp_path])
    assert answers == [{"pid": os.getpid(), "saw": {"level": 2, "ranks": [3]}}] * 2


def test_only_its_owner_can_reach_it(tmp_path: Path) -> None:
    with listening(tmp_path) as opened:
        assert stat.S_IMODE(opened.path.stat().st_mode) == 0o600


def test_who_may_ask_is_said_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert control._may_ask(ours) == (os.getuid() == 0)


def test_a_request_that_is_none_is_answered_with_what_is_wrong(tmp_path: Path) -> None:
    with listening(tmp_path) as opened:
        assert ask_agents({"level": 9}, [tmp_path])[0]["error"].endswith("saw level 9")
        for raw in (b"", b"\xff{", b"[1", b"7"):
            answer = control._ask(opened.path, raw)
            assert answer is not None
            assert answer["error"].startswith("cannot read the request")


def test_an_asker_that_says_nothing_holds_nobody_up(tmp_path: Path) -> None:
    with listening(tmp_path) as opened, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(opened.path))
        assert len(ask_agents({}, [tmp_path])) == 1


def test_the_socket_of_an_agent_that_was_killed_is_removed(tmp_path: Path) -> None:
    dead = tmp_path / "agent-1-a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    assert ask_agents({}, [tmp_path]) == []
    assert not dead.exists()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    with listening(tmp_path) as opened:
        assert sorted(tmp_path.iterdir()) == [opened.path]


def test_an_agent_without_a_cpu_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_S", 0.05)
    busy = ControlSocket(tmp_path)
    (answer,) = ask_agents({}, [tmp_path])
    busy.close()
    wanted = f"agent {os.getpid()} runs, but has not answered for 0.05 s"
    assert answer == {"pid": os.getpid(), "error": wanted}


def test_where_no_socket_can_be_made_the_agent_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = ControlSocket(tmp_path / "file")
    opened.serve(echo)
    opened.close()
