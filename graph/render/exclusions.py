"""What else it could have been, and the numbers by which it was not."""

from __future__ import annotations

from rootwalk.graph.model import Finding

__all__ = ["excluded_rows"]


def excluded_rows(finding: Finding) -> list[tuple[str, str]]:
    """Return the row about the causes that were looked at and left out; none where nothing was."""
    because = [item.because for item in finding.excluded]
    return [("excluded", "; ".join(because))] if because else []
