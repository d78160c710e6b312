"""Pickles of plain data are read; nothing in a pickle is ever run."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph.importers.plain_pickle import load_plain
from rootwalk.instrumentation.errors import DecodeError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text(), inner)
    ),
    max_leaves=20,
)


class Malicious:
    """Runs a command when Python reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@given(value=PLAIN, protocol=st.sampled_from((2, 3, 4, 5)))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_a_command_runs_nothing(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"version": Malicious(tmp_path / "ran")}, protocol)
    with pytest.raises(DecodeError, match=r"at byte \d+; needs one that makes a plain value"):
        load_plain(data)
    assert not (tmp_path / "ran").exists()
    pickle.loads(data)  # noqa: S301  (the command is ours)
    assert (tmp_path / "ran").exists()


def test_a_cut_off_pickle_is_an_error_at_every_byte() -> None:
    data = pickle.dumps({"version": "2.9", "entries": [1, 2**40, 0.5, (None, True)]}, 2)
    for end in range(len(data)):
        with pytest.raises(DecodeError, match=rf"its end at byte {end} "):
            load_plain(data[:end])


@pytest.mark.parametrize(
    ("data", "byte"),
    [
        (b"\x80\x02u.", 2),  # pairs without a beginning
        (b"\x80\x02]K\x01K\x02s.", 7),  # a pair for a list
        (b"\x80\x02h\x05.", 2),  # an earlier value that there is not
        (b"\x80\x02}))s.", 5),  # a tuple as a key
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", 2),  # an integer of two gigabytes
        (b"\x80\x02X\x02\x00\x00\x00\xff\xfe.", 2),  # no UTF-8
    ],
)
def test_nonsense_is_an_error_that_names_the_byte(data: bytes, byte: int) -> None:
    with pytest.raises(DecodeError, match=rf"at byte {byte};"):
        load_plain(data)


def test_a_huge_number_of_an_earlier_value_takes_no_memory() -> None:
    # CPython's own reader makes a table of two thousand million places for it.
    assert load_plain(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


def test_instructions_are_limited() -> None:
    data = pickle.dumps(list(range(1000)), 2)
    with pytest.raises(DecodeError, match=re.escape("more than 100 instructions")):
        load_plain(data, max_steps=100)
