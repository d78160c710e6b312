"""Who may ask the live page: names, tokens and sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.serve.admission import MAX_SESSIONS, SESSION_S, Sessions, allowed_host
from rootwalk.otel_receiver.access import BearerTokens


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8787", "localhost:1", "LOCALHOST", "[::1]:8787", "10.0.0.5:8787", "head-node:8787"],
)  # fmt: skip
def test_addresses_and_known_names_are_answered(host: str) -> None:
    assert allowed_host(host, ("head-node",))


@pytest.mark.parametrize(
    "host",
    [None, "", "evil.example", "evil.example:8787", "127.0.0.1.evil.example", "localhost.evil.example",
     "127.0.0.1:8787@evil.example", "[::1", "[evil]:1", "127.0.0.1:x", "localhost evil.example"],
)  # fmt: skip
def test_names_that_lead_here_from_elsewhere_are_not(host: str | None) -> None:
    # "[::1" lacks its end, yet its number is a numeric address: no name server can give it.
    assert allowed_host(host, ("head-node",)) == (host == "[::1")


def test_a_session_lives_as_long_as_its_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("one\ntwo\n")
    now = [0.0]
    tokens = BearerTokens(path, clock=lambda: now[0])
    sessions = Sessions(tokens, now_s=lambda: now[0])

    session = sessions.begin("one")

    assert session is not None
    assert sessions.begin("three") is None
    assert sessions.admits(None, session)
    assert sessions.admits("Bearer two", None)
    assert not sessions.admits("Bearer three", "guess")
    assert not sessions.admits(None, None)
    path.write_text("two\n")
    now[0] = 2.0
    assert not sessions.admits(None, session), "its token was taken back"
    later = sessions.begin("two")
    now[0] += SESSION_S
    assert not sessions.admits(None, later), "it is old"


def test_sessions_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("one\n")
    sessions = Sessions(BearerTokens(path))
    first = sessions.begin("one")
    last = None
    for _ in range(MAX_SESSIONS):
        last = sessions.begin("one")
    assert not sessions.admits(None, first)
    assert sessions.admits(None, last)
