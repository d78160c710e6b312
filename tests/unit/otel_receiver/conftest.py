"""What most tests of the receiver begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.otel_receiver.store import create_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    path = tmp_path / "s.duckdb"
    create_store(path)
    return path
