"""What the members of a hanging operation call there and where, in words; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rootwalk.graph.model import CallGroup, HangView

__all__ = ["MAX_LISTED", "call_rows", "list_ranks"]

# Ranks that are named one by one.
MAX_LISTED: Final = 8
# Groups that are shown: who differs, and what is usual.
MAX_GROUPS: Final = 3


def call_rows(hang: HangView) -> list[tuple[str, str]]:
    """Return a row for each group of ranks: what it calls, where members differ in it, and where it waits."""
    calls = [group for group in hang.calls if group.operation is not None]
    versions = {(g.operation, g.elements, g.data_type) for g in calls}
    if len(versions) > 1:
        return [("calls", f"{list_ranks(g.ranks)}: {_call(g)}{_at(g)}") for g in _ends(calls)]
    rows = [
        ("last call", f"{list_ranks(g.ranks)}: {g.place}")
        for g in _ends([g for g in hang.calls if g.operation is None and g.place])
    ]
    waiting = [group for group in calls if group.place]
    return rows + [("waits at", f"{list_ranks(g.ranks)}: {g.place}") for g in _ends(waiting)]


def _ends(groups: Sequence[CallGroup]) -> list[CallGroup]:
    """Return the smallest groups and the largest."""
    return [*groups[: MAX_GROUPS - 1], groups[-1]] if len(groups) > MAX_GROUPS else list(groups)


def _call(group: CallGroup) -> str:
    parts = [str(group.operation)]
    if group.elements is not None:
        parts.append(f"of {group.elements} elements")
    if group.data_type:
        parts.append(f"({group.data_type})")
    return " ".join(parts)


def _at(group: CallGroup) -> str:
    return f" at {group.place}" if group.place else ""


def list_ranks(ranks: Sequence[int]) -> str:
    """Return ranks by number, the first of many.

    >>> list_ranks((3, 12))
    'ranks 3, 12'
    """
    listed = ", ".join(str(rank) for rank in ranks[:MAX_LISTED])
    more = f" and {len(ranks) - MAX_LISTED} more" if len(ranks) > MAX_LISTED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"
