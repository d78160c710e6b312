"""The rings of one job in shared memory, as `rootwalk run` sees them: which ranks run, and what nobody will read."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from rootwalk.ebpf.discovery import is_process_alive
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.shared_ring import RingReader, ring_directory

__all__ = ["find_ranks", "remove_rings"]

logger = logging.getLogger(__name__)


def find_ranks(job: str) -> set[int]:
    """Return the process ids of the job's ranks that run, as their rings tell."""
    with contextlib.ExitStack() as stack:
        rings = [stack.enter_context(contextlib.closing(ring)) for ring in _rings(job)]
        return {ring.identity.pid for ring in rings if _is_alive(ring)}


def remove_rings(job: str) -> int:
    """Remove the rings of ranks that have ended, and return how many of them held records that nobody had read.

    For the end of a run: whoever reads rings has stopped, and none of them would be found by anybody else.
    """
    unread = 0
    for ring in _rings(job):
        with contextlib.closing(ring):
            if not _is_alive(ring) and ring.try_lock():
                unread += bool(ring.read(1))
                ring.unlink()
    return unread


def _is_alive(ring: RingReader) -> bool:
    return is_process_alive(ring.identity.pid, ring.start_ticks)


def _rings(job: str) -> Iterator[RingReader]:
    """Open the job's rings, also those of other users where this one may; the caller closes them."""
    own = ring_directory()
    for folder in sorted({own, *own.parent.glob("rootwalk-*")}):
        paths: list[Path] = []
        with contextlib.suppress(OSError):
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".ring")
        for path in paths:
            try:
                ring = RingReader(path)
            except (DecodeError, OSError):
                continue  # gone meanwhile, or not ours
            if ring.identity.job == job:
                yield ring
            else:
                ring.close()
