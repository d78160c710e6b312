"""Sockets of other users that answer `rootwalk level` as no agent does."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from rootwalk.ebpf import control
from rootwalk.ebpf.control import ask_agents
from rootwalk.graph.commands.level import _is_whole

GOOD = {
    "pid": 7,
    "host": "h",
    "limits": "",
    "ranks": [{"rank": 0, "job": "j\x1b[2J", "level": 1, "asked": 1}],
}
ANSWERS: tuple[bytes, ...] = (
    json.dumps(GOOD | {"pid": "x"}).encode(),
    json.dumps({"pid": 7}).encode(),
    json.dumps(GOOD | {"ranks": [1]}).encode(),
    json.dumps(GOOD | {"ranks": {"rank": 1}}).encode(),
    b"[" * 60_000,
    b"null",
    b"\xff",
    b"",
)


def _listen(path: Path, answer: bytes | None) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(4)

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10)
                with contextlib.suppress(OSError):
                    while connection.recv(65_536):
                        pass
                if answer is None:
                    time.sleep(2)
                else:
                    with contextlib.suppress(OSError):
                        connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_only_what_an_agent_answers_is_returned_and_it_can_be_printed(tmp_path: Path) -> None:
    bodies = [*ANSWERS, json.dumps(GOOD).encode(), b'{"pid": 9, "error": "\\u001b]0;title\\u0007"}']
    threads = [
        _listen(tmp_path / f"agent-{number}-0.sock", body) for number, body in enumerate(bodies)
    ]
    answers = ask_agents({"level": 1}, [tmp_path])
    for thread in threads:
        thread.join()
    whole = [answer for answer in answers if _is_whole(answer)]
    assert [answer["pid"] for answer in whole] == [7]
    assert "\x1b" not in repr(answers).replace("\\x1b", "\x1b")
    assert [answer["error"] for answer in answers if "error" in answer] == ["?]0;title?"]
    assert whole[0]["ranks"][0]["job"] == "j?[2J"


def test_silent_sockets_are_waited_for_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_S", 0.3)
    threads = [_listen(tmp_path / f"agent-{number}-0.sock", None) for number in range(12)]
    began_s = time.monotonic()
    answers = ask_agents({"level": 1}, [tmp_path])
    took_s = time.monotonic() - began_s
    for thread in threads:
        thread.join()
    assert len(answers) == 12
    assert took_s < 12 * 0.3


def test_a_socket_of_a_third_user_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_may_answer", lambda *_: False)
    thread = _listen(tmp_path / "agent-1-0.sock", json.dumps(GOOD).encode())
    assert ask_agents({"level": 1}, [tmp_path]) == []
    thread.join(timeout=20)
