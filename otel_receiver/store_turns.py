"""Whose turn it is to open a store, among the threads of a process and among processes.

DuckDB only says that a file is in use. Left to retry, a writer never gets in where readers come so often that one
always has the file: their locks go together. So while a receiver's journal lies beside a store, a writer locks the
journal's folder before it waits for the file, until it has closed it; readers begin only while nobody has that lock:

    reader 1  |== reads ==|
    writer         |...........|== writes ==|      . waits, = has the file open
    reader 2            |...................|== reads ==|

Without a journal nobody writes all the time, and nobody needs this. Opens no database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rootwalk.otel_receiver.journal import journal_path
from rootwalk.otel_receiver.store_errors import locked

__all__ = ["await_file", "await_writer", "file_number", "keep_readers_out", "turn"]

# How often a locked file is tried again; a commit holds it for tens of ms.
LOCK_RETRY_S: Final = 0.02
# A receiver that has much to store lets go of the folder for the time that a batch takes to decode.
FOLDER_RETRY_S: Final = 0.002

# DuckDB refuses two ways of opening one file in a process, so threads take turns.
_turns: dict[str, threading.RLock] = {}
_turns_guard = threading.Lock()


@contextlib.contextmanager
def turn(path: Path, timeout_s: float) -> Iterator[None]:
    """Keep the other threads of this process from opening a store.

    Raises:
        StoreError: If one of them has it open for so long.
    """
    key = str(path.resolve())
    with _turns_guard:
        lock = _turns.setdefault(key, threading.RLock())
    if not lock.acquire(timeout=timeout_s):
        raise locked(path, timeout_s, "another thread of this process has it open")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def keep_readers_out(path: Path, timeout_s: float) -> Iterator[None]:
    """Let no reader of other processes begin; those that have begun are to be waited for.

    Raises:
        StoreError: If another process does so for so long.
    """
    descriptor = _lock_folder(path, timeout_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def await_writer(path: Path, timeout_s: float) -> None:
    """Return when no process keeps readers out.

    Raises:
        StoreError: If one does for so long.
    """
    descriptor = _lock_folder(path, timeout_s, fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)


def await_file(path: Path, *, read_only: bool, deadline_s: float) -> None:
    """Return when no process has a store open that keeps this one from it, or at a deadline.

    The kernel is asked, at a hundredth of what a refusal by DuckDB costs. A process loses its locks on a file when it
    closes any descriptor of it, so this is only for who has not opened it, inside its turn.
    """
    kind = fcntl.LOCK_SH if read_only else fcntl.LOCK_EX
    while time.monotonic() < deadline_s:
        time.sleep(LOCK_RETRY_S)
        try:
            with path.open("rb" if read_only else "r+b") as file:
                fcntl.lockf(file, kind | fcntl.LOCK_NB)
                return
        except BlockingIOError:
            continue
        except OSError:
            return  # DuckDB has words for what is wrong with it


def file_number(path: Path) -> int | None:
    """Return the number by which a file is told from another one that took its name; None without a file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _lock_folder(path: Path, timeout_s: float, kind: int = fcntl.LOCK_EX) -> int | None:
    """Return the locked folder of a store's journal; None without a journal, or where folders cannot be locked."""
    try:
        descriptor = os.open(journal_path(path), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline_s:
                time.sleep(FOLDER_RETRY_S)
                continue
            os.close(descriptor)
            raise locked(path, timeout_s, "another process writes it") from error
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
