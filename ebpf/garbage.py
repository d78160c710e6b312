"""Python's garbage collector in processes that run as long as a job does."""

from __future__ import annotations

import gc

__all__ = ["collect_seldom"]

# A second of a busy rank's records.
COLLECTED_OBJECTS = 5_000


def collect_seldom() -> None:
    """Let the collector look seldom, and never at what is there now and stays until the end.

    What these processes make and forget is freed by reference counts. By default the collector walks over it every 700
    objects, and over everything that was ever imported now and then: an eighth of an agent's CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS)
