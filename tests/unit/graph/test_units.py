from __future__ import annotations

import pytest

from rootwalk.graph.commands.units import parse_bytes, parse_seconds
from rootwalk.instrumentation.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("256MiB", 256 * 1024**2),
        ("1GiB", 1024**3),
        ("1.5 kib", 1536),
        ("500MB", 500_000_000),
        ("1048576", 1024**2),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text, "--max-memory-bytes") == size_bytes


@pytest.mark.parametrize("text", ["", "many", "-1", "1XB", "1 2", "MiB", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="for --max-memory-bytes: saw no size; needs a size"):
        parse_bytes(text, "--max-memory-bytes")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m", 60.0), ("0.5", 0.5)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--flush-interval") == seconds


def test_what_is_no_time() -> None:
    with pytest.raises(ConfigError, match='cannot use "soon" for --flush-interval'):
        parse_seconds("soon", "--flush-interval")
