"""Records of ranks that spin while they wait for their devices, as PyTorch's do: blocked time counts as running."""

from __future__ import annotations

from typing import Any


def let_spin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a job's records with nobody blocked."""
    kept = [row for row in rows if row["name"] != "stall.blocked"]
    for row in kept:
        if row.get("blocked_ns"):
            row["running_ns"] += row["blocked_ns"]
            row["blocked_ns"] = 0
    return kept
