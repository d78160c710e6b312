"""The rings of this host's ranks as files: which are new and ours, and which nobody will ever read."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rootwalk.ebpf.discovery import is_process_alive
from rootwalk.ebpf.ring_owners import JobOwners, printable, read_users
from rootwalk.ebpf.scope import Scope
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.shared_ring import RingReader, ring_directory

__all__ = ["RingFiles", "find_folders"]

logger = logging.getLogger(__name__)

# Of one folder: its user may fill it, and harms only his own ranks then. Each ring that is open has one descriptor.
MAX_FILES = 8192
MAX_RINGS = 1024
# Sentences about files that cannot be read.
MAX_WARNINGS = 20
ROOT = 0
# A run that ends, even by force, removes its rings or is read by a later agent; what is left after a day is rubbish.
STALE_NS = 24 * 3600 * 1_000_000_000


def find_folders() -> Sequence[Path]:
    """Return where rings and agents' sockets lie: this user's folder, and every user's when root."""
    own = ring_directory()
    if os.geteuid() != 0:
        return [own]
    others = [path for path in own.parent.glob("rootwalk-*") if _is_of_its_user(path)]
    return sorted({own, *others})


def _is_of_its_user(path: Path) -> bool:
    """Return whether `rootwalk-UID` is a folder, and of this user: anybody can make one with another name."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and path.name == f"rootwalk-{status.st_uid}"


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
        self._owners = JobOwners()
        self._warnings = 0

    def reject(self, path: Path, saw: str) -> None:
        """Leave a ring out from now on, and say why."""
        self._foreign.add(path)
        self._warn(f'cannot read ring "{path}": saw {saw}; it is left out')

    def _warn(self, text: str) -> None:
        """Say something of a file that anybody may have written, a few times only."""
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            logger.warning("%s", printable(text))
        elif self._warnings == MAX_WARNINGS + 1:
            logger.warning("further rings that cannot be read are left out without a word")

    def open_new(self, known: Collection[Path]) -> list[RingReader]:
        """Open the rings that are not known yet and are this agent's; the caller closes them."""
        found = set(self._list())
        self._foreign &= found
        self._owners.keep(path for path in found if path in known)
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
                if reader.owner not in (os.geteuid(), path.parent.stat().st_uid):
                    continue
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
                with os.scandir(folder) as entries:
                    names = [
                        entry.name
                        for entry in itertools.islice(entries, MAX_FILES)
                        if entry.name.endswith(".ring")
                    ]
                paths.extend(folder / name for name in sorted(names)[:MAX_RINGS])
        return paths

    def _find_forgery(self, reader: RingReader) -> str | None:
        """Return what shows that a ring is not of the process that it names; None where nothing does."""
        who = reader.identity
        if reader.owner == ROOT:
            return None  # could write anything anywhere; a rank may have given up root since
        if _is_alive(reader):
            users = read_users(who.pid)
            if users is not None and reader.owner not in users:
                return f"a ring of user {reader.owner} that names process {who.pid} of another user"
        owner = self._owners.of(who.job)
        if owner not in (None, ROOT, reader.owner):
            return f"a ring of user {reader.owner} for a job of user {owner}"
        return None

    def _open(self, path: Path) -> RingReader | None:
        try:
            reader = RingReader(path)
        except FileNotFoundError:
            return None  # read and removed by somebody else just now
        except (DecodeError, OSError) as error:
            self._warn(str(error))
            return None
        saw = self._find_forgery(reader)
        if saw is not None:
            self._warn(f'cannot read ring "{path}": saw {saw}; it is left out')
            reader.close()
            return None
        who = reader.identity
        is_covered = (
            self._scope.covers(who.pid) if _is_alive(reader) else self._scope.covers_ring(who)
        )
        if self._job in (None, who.job) and is_covered:
            self._owners.note(path, who.job, reader.owner)
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
