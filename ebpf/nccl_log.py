"""NCCL's own debug files: over what each rank sends to others, and by which algorithm and protocol.

    NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/logs/nccl.%h.%p          a rank that was started with it; nothing is switched on
    NCCL_DEBUG_SUBSYS=INIT,P2P,SHM,NET,TUNING                 TUNING tells algorithms and protocols

What counts: connections that a rank has set up, and operations for which NCCL told its choice. What does not: a file
that is not each process's own (without %p), what a program sets after its start, and NCCL's output among other output.
A file is read twice a second from where it ended, from its begin when it is shorter than that; of a flood the rest
comes later, and a line that is longer than any of NCCL's is left out.

Needs: nothing for ranks of the same user. Cost: 3 us a line.
Source: NVIDIA, "NCCL environment variables"; of the lines `nccl_messages`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from rootwalk.ebpf.availability import TIER_NONE
from rootwalk.ebpf.host.missing_file import missing_file
from rootwalk.ebpf.host.rank_folders import RankFolders
from rootwalk.ebpf.nccl_messages import Choice, find_choice, find_transport
from rootwalk.ebpf.reader import Measurement, Place, Reader, Value
from rootwalk.instrumentation import semconv

__all__ = ["NcclLogReader", "find_log"]

# A flood must not stop the agent's round.
READ_BYTES = 256 * 1024
MAX_LINE_BYTES = 4096
# NCCL writes its file when the first communicator is made: a job that reads its data first takes minutes until then.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
# Values of one attribute: what a line says may be anything.
MAX_VALUES = 32
LEVELS = frozenset({"INFO", "TRACE"})
_Key = TypeVar("_Key")
_REGULAR = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def find_log(environment: str, pid: int, host_name: str) -> str | None:
    r"""Return where a process has NCCL write to; None where it has not, or where others write there too.

    Args:
        environment: Of the process, as /proc tells it: entries that end with a null character.
        pid: Its number, as itself knows it.
        host_name: Up to the first dot, as NCCL takes it.

    >>> find_log("NCCL_DEBUG=INFO\0NCCL_DEBUG_FILE=/logs/%h.%p\0", 7, "gpu-12")
    '/logs/gpu-12.7'
    """
    entries = dict(entry.partition("=")[::2] for entry in environment.split("\0"))
    pattern = entries.get("NCCL_DEBUG_FILE", "")
    if entries.get("NCCL_DEBUG", "").upper() not in LEVELS or "%p" not in pattern:
        return None
    known = {"%h": host_name, "%p": str(pid), "%%": "%"}
    return re.sub("%.", lambda found: known.get(found[0], found[0]), pattern)


class _Log:
    """One rank's file and what it has said; `read_from` opens it."""

    def __init__(self, open_file: Callable[[], int], clock_s: Callable[[], float]) -> None:
        self._open, self._clock_s = open_file, clock_s
        self._descriptor: int | None = None
        self._next_s, self._wait_s = 0.0, FIRST_WAIT_S
        self._offset = 0
        self._rest = b""
        self._is_too_long = False
        self.connections: Counter[str] = Counter()
        self.choices: Counter[Choice] = Counter()

    def look(self) -> None:
        """Read what has been added."""
        if self._descriptor is None:
            self._descriptor = self._try_to_open()
        if self._descriptor is None:
            return
        if os.fstat(self._descriptor).st_size < self._offset:
            self._offset, self._rest = 0, b""
        data = os.pread(self._descriptor, READ_BYTES, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._is_too_long and len(line) <= MAX_LINE_BYTES:
                self._take(line.decode("utf-8", errors="replace"))
            self._is_too_long = False
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._is_too_long = b"", True

    def _try_to_open(self) -> int | None:
        now_s = self._clock_s()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2.0 * self._wait_s, LONGEST_WAIT_S)
        try:
            descriptor = self._open()
        except OSError:  # not there yet, or not for us
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return None

    def _take(self, line: str) -> None:
        transport = find_transport(line)
        if transport is not None:
            _count(self.connections, transport)
        choice = find_choice(line)
        if choice is not None:
            _count(self.choices, choice)

    def close(self) -> None:
        """Close it; safe twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _count(counts: Counter[_Key], key: _Key) -> None:
    if key in counts or len(counts) < MAX_VALUES:
        counts[key] += 1


class NcclLogReader(Reader):
    """Reads the files of the ranks' first processes.

    Args:
        place: Where to look.
        clock_s: Monotonic clock, s.

    Raises:
        UnavailableError: NO_COUNTERS.
    """

    sensor = "nccl_log"
    tier = TIER_NONE
    backend = "files"

    def __init__(self, place: Place, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._proc = Path(place.root, "proc")
        if not (self._proc / "self").exists():
            raise missing_file("NCCL's debug files", f'no "{self._proc}/self"')
        self._clock_s = clock_s
        self._ranks = RankFolders(place.root)
        self._logs: dict[int, _Log] = {}

    def watch(self, pid: int, slot: int) -> None:
        """Find out where a rank's first process has NCCL write to."""
        if slot in self._logs:
            return
        self._ranks.watch(pid, slot)
        if slot not in self._ranks:
            return
        environment = self._ranks.read(slot, "environ")
        path = find_log(environment, self._own_pid(slot, pid), self._host_name(slot, pid))
        if path is not None:
            # In its own file system: a container has another.
            name = f"root{path}" if path.startswith("/") else f"cwd/{path}"
            self._logs[slot] = _Log(lambda: self._ranks.open(slot, name, _REGULAR), self._clock_s)

    def _own_pid(self, slot: int, pid: int) -> int:
        """Return a process's number in its own namespace (proc_pid_status(5), NSpid)."""
        for line in self._ranks.read(slot, "status").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return pid

    def _host_name(self, slot: int, pid: int) -> str:
        """Return a process's host name up to the first dot; a container has its own."""
        names = [self._proc / who / "ns/uts" for who in ("self", str(pid))]
        with contextlib.suppress(OSError):
            if names[0].readlink() != names[1].readlink():
                return self._ranks.read(slot, "root/etc/hostname").strip().partition(".")[0]
        return os.uname().nodename.partition(".")[0]

    def forget(self, pid: int) -> None:
        """Read a rank's file to its end, and stop."""
        for slot in [slot for slot in self._ranks if self._ranks.pid(slot) == pid]:
            log = self._logs.pop(slot, None)
            if log is not None:
                log.look()
                log.close()
        self._ranks.forget(pid)

    def look(self) -> None:
        """Read what every rank's NCCL has added."""
        for log in self._logs.values():
            log.look()

    def measurements(self) -> Iterable[Measurement]:
        """Return over what ranks send, and how operations are done."""
        for slot, log in self._logs.items():
            for transport, count in log.connections.items():
                way = {semconv.TRAINING_NCCL_TRANSPORT: transport}
                yield Measurement(semconv.METRIC_TRAINING_NCCL_CONNECTIONS, count, way, slot)
            for choice, count in log.choices.items():
                how: dict[str, Value] = {
                    semconv.TRAINING_NCCL_ALGORITHM: choice.algorithm,
                    semconv.TRAINING_NCCL_PROTOCOL: choice.protocol,
                }
                if choice.operation:
                    how[semconv.TRAINING_NCCL_OPERATION] = choice.operation
                yield Measurement(semconv.METRIC_TRAINING_NCCL_CHOICES, count, how, slot)

    def close(self) -> None:
        """Close all files; safe twice."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._ranks.close()
