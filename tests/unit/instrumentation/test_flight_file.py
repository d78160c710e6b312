"""A dump beside a ring: whole or not at all, read once, and only from a file of the ring's owner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rootwalk.instrumentation.flight_file import (
    MAX_FLIGHT_BYTES,
    flight_path,
    take_flight,
    write_flight,
)

OWN = os.getuid()


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    return tmp_path / "12-ab.ring"


def test_what_is_written_is_read_once(ring: Path) -> None:
    write_flight(ring, '{"entries": ["é"]}')
    assert take_flight(ring, OWN) == '{"entries": ["é"]}'
    assert take_flight(ring, OWN) is None
    assert list(ring.parent.iterdir()) == []


def test_a_newer_dump_replaces_an_older_one(ring: Path) -> None:
    write_flight(ring, "old")
    write_flight(ring, "new")
    assert take_flight(ring, OWN) == "new"


def test_its_bytes_take_no_system_calls(ring: Path) -> None:
    """What a rank writes by system calls would look like work of a rank that makes no progress."""

    def written() -> int:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    text = "x" * 500_000
    before = written()
    write_flight(ring, text)
    assert written() - before < 100_000
    assert take_flight(ring, OWN) == text


def test_a_file_of_another_user_is_left(ring: Path) -> None:
    write_flight(ring, "text")
    assert take_flight(ring, OWN + 1) is None
    assert flight_path(ring).exists()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large"])
def test_what_is_no_dump_is_not_read(ring: Path, kind: str, tmp_path: Path) -> None:
    path = flight_path(ring)
    if kind == "link":
        (tmp_path / "other").write_text("secret", encoding="utf-8")
        path.symlink_to(tmp_path / "other")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(MAX_FLIGHT_BYTES + 1)
    assert take_flight(ring, OWN) is None
