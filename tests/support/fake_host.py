"""A machine's /proc and /sys in a folder, file by file, and what a reader tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rootwalk.ebpf.host import pace
from rootwalk.ebpf.reader import Reader
from support.live_check import check_measurement

# (metric, values of its attributes in the order of their names, slot)
Key = tuple[str, tuple[str | int | float | bool, ...], int | None]


def write_files(root: Path, files: Mapping[str, str | int]) -> None:
    """Write files below a folder, by path."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if isinstance(text, int) else text)


def told(reader: Reader) -> dict[Key, float]:
    """Return what a reader tells now, each value once and by the registry."""
    values: dict[Key, float] = {}
    for one in reader.measurements():
        check_measurement(one)
        attributes = tuple(value for _, value in sorted(one.attributes.items()))
        key = (one.metric, attributes, one.slot)
        assert key not in values, f"told twice: {key}"
        values[key] = one.value
    return values


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers read whenever they are asked, whatever that costs."""
    monkeypatch.setattr(pace, "REST_RATIO", 0)
