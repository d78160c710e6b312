"""Limits on a stream of JSON, however it is cut into chunks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rootwalk.graph.importers.json_limits import MAX_DEPTH, MAX_NUMBER_BYTES, JsonLimits
from rootwalk.instrumentation.errors import DecodeError


def look_through(content: bytes, size: int) -> None:
    limits = JsonLimits()
    for start in range(0, len(content), size):
        limits.check(content[start : start + size])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
@pytest.mark.parametrize(
    "content",
    [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'{"a": "' + b"[" * 1000 + b'"}',
        b'{"a": "\\"' + b"{" * 1000 + b'\\\\"}',
        b'["' + b"\\\\" * 50 + b'", [1]]',
        b'["' + b"1" * 5000 + b'"]',
        b"[" + b",".join([b"1" * MAX_NUMBER_BYTES] * 9) + b"]",
        b"[1" + b", [1]" * 500 + b"]",
        b"",
    ],
)
def test_what_is_within_the_limits(content: bytes, size: int) -> None:
    look_through(content, size)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100_000])
@pytest.mark.parametrize(
    ("content", "saw"),
    [
        (b"[" * (MAX_DEPTH + 1), "levels"),
        (b'{"a":' * (MAX_DEPTH + 1), "levels"),
        (b'["\\\\", ' + b"[" * 100, "levels"),
        (b'["]]]]]]]]]]]]]]]]", ' + b"[" * MAX_DEPTH, "levels"),
        (b"[" + b"9" * (MAX_NUMBER_BYTES + 1) + b"]", "number"),
        (b"[1, -" + b"9" * 5000, "number"),
    ],
)
def test_what_exceeds_a_limit(content: bytes, saw: str, size: int) -> None:
    with pytest.raises(DecodeError, match=saw):
        look_through(content, size)


def test_depth_is_counted_as_a_parser_does() -> None:
    generator = np.random.default_rng(5)

    def build(depth: int) -> object:
        if depth == 0:
            leaves: list[object] = ['"[{', "\\", 'x\\"', 1.5e300, -7, None, "}]"]
            return leaves[int(generator.integers(len(leaves)))]
        count = int(generator.integers(1, 4))
        items = [build(int(generator.integers(depth))) for _ in range(count)]
        return (
            items if generator.random() < 0.5 else {f'k"[{i}': one for i, one in enumerate(items)}
        )

    for _ in range(300):
        content = json.dumps(build(6)).encode()
        limits = JsonLimits()
        for start in range(0, len(content), 5):
            limits.check(content[start : start + 5])
        assert limits._depth == 0
        assert not limits._is_in_string
