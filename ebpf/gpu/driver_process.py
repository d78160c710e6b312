"""The helper process as the agent sees it: started, heard, and given up when it does not answer in time.

    starting ──▶ talks ──▶ silent for `DEADLINE_S` ──▶ killed ──▶ gone ──▶ started again after `RESTART_S`

A process that is inside a driver that hangs does not die when it is killed: it is left alone, nobody waits for it, and
none is started beside it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["GpuHelper"]

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
# NVML answers within milliseconds; a GPU without persistence mode takes seconds to wake, eight of them one by one.
DEADLINE_S, FIRST_DEADLINE_S = 10.0, 60.0
RESTART_S = 60.0
# A whole look of 16 GPUs is 100 KiB; what nobody reads is not kept.
_READ_BYTES, _MAX_LINE_BYTES = 1 << 16, 1 << 22
_COMMAND = (sys.executable, "-m", "rootwalk.ebpf.gpu.worker", str(INTERVAL_S))


class GpuHelper:
    """Owns the process. Nothing here blocks, but `wait_first`.

    Args:
        command: What is started.
        deadline_s: Silence for which it is given up.
        restart_s: How long after its end it is started again.
        clock_s: Monotonic clock, s.
    """

    def __init__(
        self,
        command: Sequence[str] = _COMMAND,
        deadline_s: float = DEADLINE_S,
        restart_s: float = RESTART_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = tuple(command)
        self._deadline_s = deadline_s
        self._restart_s = restart_s
        self._clock_s = clock_s
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._heard_s = 0.0
        self._has_spoken = False
        self._is_killed = False
        self._restart_at_s: float | None = None
        # What the helpers before this one used, and the last word of this one.
        self._ended_cpu_s = self._cpu_s = 0.0
        self.silences = 0
        self._start()

    @property
    def is_talking(self) -> bool:
        """Whether a process is there that has answered and is not late."""
        return self._process is not None and self._has_spoken and not self._is_killed

    @property
    def is_silent(self) -> bool:
        """Whether it was given up, or has not answered yet."""
        return self._process is not None and (self._is_killed or not self._has_spoken)

    @property
    def cpu_s(self) -> float:
        """CPU time of all helpers so far, s, by their own word."""
        return self._ended_cpu_s + self._cpu_s

    def wait_first(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return its first words, none when they take longer."""
        end_s = self._clock_s() + timeout_s
        while self._process is not None and self._clock_s() < end_s:
            messages = self.take()
            if messages:
                return messages
            time.sleep(0.01)
        return []

    def take(self) -> list[dict[str, Any]]:
        """Return what it has said since the last call, oldest first; end or start it when that is due."""
        now_s = self._clock_s()
        process = self._process
        if process is None:
            if self._restart_at_s is not None and now_s >= self._restart_at_s:
                self._start()
            return []
        messages = [] if self._is_killed else self._read()
        if messages:
            self._heard_s, self._has_spoken = now_s, True
            self._cpu_s = float(messages[-1].get("cpu_s", self._cpu_s))
        if process.poll() is not None:
            self._end(now_s)
        elif not self._is_killed and now_s - self._heard_s > (
            self._deadline_s if self._has_spoken else max(self._deadline_s, FIRST_DEADLINE_S)
        ):
            logger.warning(
                "cannot read GPUs: saw no answer of the NVIDIA driver for %.0f s; going on without it",
                now_s - self._heard_s,
            )
            self.silences += 1
            self._is_killed = True
            process.kill()
        return messages

    def close(self) -> None:
        """Ask it to end, and end it when it does not; safe twice, and with one that cannot die."""
        process, self._process, self._restart_at_s = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        for patience_s in (0.3, 0.5):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                return
            process.kill()
        process.returncode = -9  # it is in the driver; the system takes it when that lets it go

    def _start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
        self._buffer = b""
        self._heard_s = self._clock_s()
        self._has_spoken = self._is_killed = False
        self._restart_at_s = None

    def _end(self, now_s: float) -> None:
        self._restart_at_s = now_s + self._restart_s
        self._ended_cpu_s, self._cpu_s = self.cpu_s, 0.0
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> list[dict[str, Any]]:
        if self._process is None or self._process.stdout is None:
            return []
        descriptor = self._process.stdout.fileno()
        while True:
            try:
                more = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            if not more:
                break
            self._buffer += more
        *lines, self._buffer = self._buffer.split(b"\n")
        self._buffer = self._buffer[-_MAX_LINE_BYTES:]
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages
