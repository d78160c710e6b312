"""How urgent a question is beside a running job: less than the ranks, and than the receiver that stores what they send.

Where nobody writes the store there is no job to make room for.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["yield_to_receiver"]


def yield_to_receiver(store: Path) -> None:
    """Lower this process's priority when a live receiver writes a store."""
    from rootwalk.graph.own_process import give_way
    from rootwalk.otel_receiver.journal import is_journal_held, journal_path

    if is_journal_held(journal_path(store)):
        give_way()
