"""Small kernel files: what they hold, and what is no number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.kernel_files import (
    parse_list,
    parse_number,
    parse_pairs,
    read_number,
    read_text,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7\n", 7),
        ("-1", -1),
        (" 0 ", 0),
        ("max\n", None),
        ("", None),
        ("1 2", None),
        ("-", None),
        ("²", None),
    ],
)
def test_number(text: str, number: int | None) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", set()),
        ("\n", set()),
        ("3-1", set()),
        ("0-4000000000", set()),
        ("1,x", set()),
    ],
)
def test_list(text: str, numbers: set[int]) -> None:
    assert parse_list(text) == numbers


def test_pairs_leave_out_what_has_no_number() -> None:
    assert parse_pairs("high 0\nmax 12\noom lots\n\n") == {"high": 0, "max": 12}
    assert parse_pairs("se.nr_migrations   :    7\nname (a:b, #threads: 1)\n", ":") == {
        "se.nr_migrations": 7
    }


@given(st.text())
def test_nothing_that_a_file_holds_raises(text: str) -> None:
    parse_number(text)
    parse_list(text)
    parse_pairs(text)


def test_file_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none") == ""
    assert read_number(tmp_path / "none") is None
    assert read_text(tmp_path) == ""  # a folder opens, and cannot be read


def test_invalid_text_and_beginnings(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff 12345")
    assert read_text(file) == "\ufffd 12345"
    assert read_text(file, most_bytes=4) == "\ufffd 12"


def test_long_file_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x" * 200_001)
    assert len(read_text(file)) == 200_001


def test_file_below_an_open_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("3")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read_text("file", folder=folder) == "3"
    finally:
        os.close(folder)
