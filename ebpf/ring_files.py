"""The rings of this host's ranks as files: which are new and ours, and which nobody will ever read."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rootwalk.ebpf.discovery import is_process_alive
from rootwalk.ebpf.scope import Scope
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.shared_ring import RingReader, ring_directory

__all__ = ["RingFiles", "find_folders"]

logger = logging.getLogger(__name__)

# A run that ends, even by force, removes its rings or is read by a later agent; what is left after a day is rubbish.
STALE_NS = 24 * 3600 * 1_000_000_000


def find_folders() -> Sequence[Path]:
    """Return where rings and agents' sockets lie: this user's folder, and every user's when root."""
    own = ring_directory()
    if os.geteuid() != 0:
        return [own]
    return sorted({own, *own.parent.glob("rootwalk-*")})


class RingFiles:
    """Finds rings.

    Args:
        folders: Where they lie; None for this user's, and every user's when root.
        job: Only those of this job; None for all.
        scope: Tells whose processes are this agent's.
    """

    def __init__(self, folders: Sequence[Path] | None, job: str | None, scope: Scope) -> None:
        self._folders = folders
        self._job = job
        self._scope = scope
        self._foreign: set[Path] = set()

    def open_new(self, known: Collection[Path]) -> list[RingReader]:
        """Open the rings that are not known yet and are this agent's; the caller closes them."""
        found = set(self._list())
        self._foreign &= found
        readers = []
        for path in sorted(found - set(known) - self._foreign):
            reader = self._open(path)
            if reader is None:
                self._foreign.add(path)
            else:
                readers.append(reader)
        return readers

    def remove_stale(self) -> int:
        """Remove rings of processes that ended more than a day ago and that nobody reads; return how many."""
        removed = 0
        for path in self._list():
            try:
                age_ns = time.time_ns() - path.stat().st_mtime_ns
                reader = RingReader(path)
            except (DecodeError, OSError):
                continue  # not ours to judge
            with contextlib.closing(reader):
                if min(age_ns, _silence_ns(reader)) < STALE_NS or _is_alive(reader):
                    continue
                if reader.try_lock():
                    reader.unlink()
                    removed += 1
        if removed:
            logger.info("removed %d rings of processes that ended more than a day ago", removed)
        return removed

    def _list(self) -> list[Path]:
        paths: list[Path] = []
        for folder in find_folders() if self._folders is None else self._folders:
            with contextlib.suppress(OSError):
                paths.extend(path for path in folder.iterdir() if path.suffix == ".ring")
        return paths

    def _open(self, path: Path) -> RingReader | None:
        try:
            reader = RingReader(path)
        except FileNotFoundError:
            return None  # read and removed by somebody else just now
        except (DecodeError, OSError) as error:
            logger.warning("%s", error)
            return None
        who = reader.identity
        is_covered = (
            self._scope.covers(who.pid) if _is_alive(reader) else self._scope.covers_ring(who)
        )
        if self._job in (None, who.job) and is_covered:
            return reader
        reader.close()
        return None


def _is_alive(reader: RingReader) -> bool:
    return is_process_alive(reader.identity.pid, reader.start_ticks)


def _silence_ns(reader: RingReader) -> int:
    """Return for how long the rank has told nothing, ns; very long where it never did, or before the last boot."""
    state = reader.live_state()
    silence_ns = time.monotonic_ns() - state.last_event_mono_ns if state is not None else -1
    return silence_ns if silence_ns >= 0 else 1 << 62
