"""JSON as tools write it: control characters, numbers that are none and wrong bytes, wherever a chunk ends."""

from __future__ import annotations

import io
import json

import pytest

from rootwalk.graph.importers.plain_json import PlainJson


def plain(text: bytes, size_bytes: int) -> tuple[bytes, int]:
    reader = PlainJson(io.BufferedReader(io.BytesIO(text)))
    parts = []
    while part := reader.read(size_bytes):
        parts.append(part)
    return b"".join(parts), reader.replaced


@pytest.mark.parametrize("size_bytes", [*range(1, 40), 4096])
def test_what_the_standard_does_not_allow_is_replaced_wherever_a_chunk_ends(
    size_bytes: int,
) -> None:
    text = (
        b'{"a": NaN, "b": [Infinity,-Infinity , nan,1, -nan(ind)],\n "n":"x\x1b[1m\ty\nz",'
        b' "t":"is nan, or: inf", "u":"\xff\xc3\xa9", "v":inf}'
    )
    made, replaced = plain(text, size_bytes)
    assert json.loads(made) == {
        "a": None,
        "b": [None, None, None, 1, None],
        "n": "x [1m y z",
        "t": "is nan, or: inf",
        "u": "?é",
        "v": None,
    }
    assert replaced >= 8


@pytest.mark.parametrize("size_bytes", [1, 7, 4096])
def test_whole_json_stays_as_it_is(size_bytes: int) -> None:
    value = {"nan": ["Infinity", "é", "\U0001f600", -1.5e9, True, None], "info": {"inf": "NaN,"}}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        made, replaced = plain(text.encode(), size_bytes)
        assert json.loads(made) == value
        assert replaced == 0
