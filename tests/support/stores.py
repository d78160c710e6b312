"""What tests ask of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rootwalk.otel_receiver.store import query_store


def query_rows(store: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of one query."""
    return query_store(store, sql)[2]
