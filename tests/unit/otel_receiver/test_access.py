from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.access import BearerTokens, TlsFiles


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("first\n\n  second  \n")
    return path


@pytest.mark.parametrize(
    ("authorization", "is_accepted"),
    [
        ("Bearer first", True),
        ("bearer second", True),
        ("Bearer  first ", True),
        (None, False),
        ("", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("Bearer irst", False),
        ("Bearer first second", False),
        ("Basic first", False),
        ("first", False),
        ("Bearer fürst", False),
    ],
)
def test_tokens(token_file: Path, authorization: str | None, is_accepted: bool) -> None:
    assert BearerTokens(token_file).accepts(authorization) is is_accepted


def test_a_changed_file_counts_after_a_second(token_file: Path) -> None:
    clock = Clock()
    tokens = BearerTokens(token_file, clock)
    token_file.write_text("third\n")

    assert tokens.accepts("Bearer first")
    clock.now_s = 1.0
    assert not tokens.accepts("Bearer first")
    assert tokens.accepts("Bearer third")


def test_an_emptied_file_lets_nobody_in(token_file: Path) -> None:
    clock = Clock()
    tokens = BearerTokens(token_file, clock)
    token_file.write_text("")
    clock.now_s = 1.0

    assert not tokens.accepts("Bearer first")


def test_a_file_that_is_gone_leaves_the_tokens_until_it_is_back(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    tokens = BearerTokens(token_file, clock)
    token_file.unlink()
    for clock.now_s in (1.0, 2.0, 3.0):
        assert tokens.accepts("Bearer first")
    token_file.write_text("first\n")
    os.utime(token_file, ns=(1, 1))
    clock.now_s = 4.0

    assert tokens.accepts("Bearer first")
    assert not tokens.accepts("Bearer second")
    assert [r.levelname for r in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(("text", "saw"), [("", "saw none"), ("\n \n", "saw none")])
def test_a_file_without_tokens_is_refused_at_the_start(tmp_path: Path, text: str, saw: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(ConfigError, match=saw):
        BearerTokens(tmp_path / "tokens")


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        BearerTokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("wrong", "saw"),
    [
        ("certificate", "cannot use the certificate"),
        ("key", "cannot use the certificate"),
        ("other key", "key values mismatch"),
        ("client_ca", "for --client-ca"),
        ("no file", "no such file"),
    ],
)
def test_certificates_that_cannot_be_used(tmp_path: Path, wrong: str, saw: str) -> None:
    authority = trustme.CA()
    issued, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    paths = {name: tmp_path / name for name in ("certificate", "key", "client_ca")}
    issued.cert_chain_pems[0].write_to_path(paths["certificate"])
    (other if wrong == "other key" else issued).private_key_pem.write_to_path(paths["key"])
    authority.cert_pem.write_to_path(paths["client_ca"])
    if wrong in paths:
        paths[wrong].write_text("not PEM")
    if wrong == "no file":
        paths["key"].unlink()

    with pytest.raises(ConfigError, match=saw):
        TlsFiles(**paths).server_context()
