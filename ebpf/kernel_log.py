"""The kernel's log: GPU errors, links, machine checks, lockups, kills for memory, disks that fail.

Reads /dev/kmsg from its end, without waiting, twice a second. Counts each line that `kernel_messages` recognises; tells
of each kind and device at most once in 10 s: a faulty link can print thousands of lines a second. Lines that the
kernel overwrote before they were read are counted as lost. Does not see what was printed before the agent started.

Needs the right to read /dev/kmsg: any user where kernel.dmesg_restrict is 0, else CAP_SYSLOG. All kernels since 3.5.
Cost: one system call a line that anybody prints, and the patterns of `kernel_messages` on it (20 us).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from rootwalk.ebpf.availability import TIER_CAPABILITIES, Reason
from rootwalk.ebpf.kernel_messages import KernelMessage, recognise
from rootwalk.ebpf.reader import Measurement, Occurrence, Place, Reader, Value
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingKernelMessageKind as Kind

__all__ = ["KernelLog", "KernelLogReader", "decode_record"]

# One record is 8 KiB at most (CONSOLE_EXT_LOG_MAX, PRINTK_MESSAGE_MAX).
RECORD_BYTES = 8192
# A flood must not stop the agent's round; what is more is read the next time, or lost and counted.
MAX_RECORDS = 2000
QUIET_NS = 10_000_000_000
# Times in the log are of the scheduler's clock, which drifts from the monotonic one: they only serve while they agree.
MAX_DRIFT_NS = 1_000_000_000
GOOD_KINDS = frozenset({Kind.LINK_UP})


class LogRecord(NamedTuple):
    """One record: sequence number, time (ns, of the scheduler's clock), text."""

    sequence: int
    time_ns: int
    text: str


def decode_record(raw: bytes) -> LogRecord | None:
    """Return one record of /dev/kmsg; None for what is none.

    Source:
        Documentation/ABI/testing/dev-kmsg: ``priority,sequence,microseconds,flags;text``, then lines of properties.
    """
    head, found, rest = raw.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return None
    text = rest.split(b"\n", 1)[0].decode(errors="replace")
    return LogRecord(int(fields[1]), int(fields[2]) * 1000, text)


def read_records(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Return what is in the log now, at most `MAX_RECORDS`.

    Args:
        read: Reads the next record; raises BlockingIOError where there is none, BrokenPipeError where the kernel has
            overwritten it: the next one's number tells how many.
    """
    for _ in range(MAX_RECORDS):
        try:
            yield read()
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue


class KernelLog:
    """What the lines so far have said."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.lost = 0
        self._last_sequence: int | None = None
        self._told_ns: dict[tuple[Kind, str | None, int | None], int] = {}

    def take(self, raw: bytes, now_ns: int) -> Occurrence | None:
        """Take one record; return what is to be told of it.

        Args:
            raw: As it was read.
            now_ns: CLOCK_MONOTONIC.
        """
        record = decode_record(raw)
        if record is None:
            return None
        if self._last_sequence is not None:
            self.lost += max(0, record.sequence - self._last_sequence - 1)
        self._last_sequence = record.sequence
        message = recognise(record.text)
        if message is None:
            return None
        self.counts[message.kind] += 1
        if not self._is_news(message, now_ns):
            return None
        is_near = now_ns - MAX_DRIFT_NS <= record.time_ns <= now_ns
        return _occurrence(message, record.time_ns if is_near else now_ns)

    def _is_news(self, message: KernelMessage, now_ns: int) -> bool:
        key = (message.kind, message.device, message.code)
        if key in self._told_ns and now_ns - self._told_ns[key] < QUIET_NS:
            return False
        self._told_ns = {k: ns for k, ns in self._told_ns.items() if now_ns - ns < QUIET_NS}
        self._told_ns[key] = now_ns
        return True


def _occurrence(message: KernelMessage, mono_ns: int) -> Occurrence:
    attributes: dict[str, Value] = {semconv.TRAINING_KERNEL_MESSAGE_KIND: str(message.kind)}
    if message.device is not None:
        attributes[semconv.TRAINING_KERNEL_MESSAGE_DEVICE] = message.device
    if message.code is not None:
        attributes[semconv.TRAINING_KERNEL_MESSAGE_CODE] = message.code
    return Occurrence(
        semconv.EVENT_TRAINING_KERNEL_MESSAGE,
        mono_ns,
        message.text,
        attributes,
        is_bad=message.kind not in GOOD_KINDS,
    )


class KernelLogReader(Reader):
    """Reads the log from where it ends now."""

    sensor = "kernel_log"
    tier = TIER_CAPABILITIES
    backend = "kmsg"

    def __init__(self, place: Place) -> None:
        path = place.root / "dev/kmsg"
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise UnavailableError(
                f'cannot read the kernel\'s log: saw {error.strerror} for "/dev/kmsg"; needs CAP_SYSLOG',
                reason=Reason.NO_KERNEL_LOG,
                hint=Reason.NO_KERNEL_LOG.hint,
            ) from error
        os.lseek(self._descriptor, 0, os.SEEK_END)
        self._log = KernelLog()
        self._is_closed = False

    def occurrences(self) -> Iterable[Occurrence]:
        """Return what the lines since the last call tell."""
        records = read_records(partial(os.read, self._descriptor, RECORD_BYTES))
        told = (self._log.take(raw, time.monotonic_ns()) for raw in records)
        return [occurrence for occurrence in told if occurrence is not None]

    def measurements(self) -> Iterable[Measurement]:
        """Return how many lines there were of each kind."""
        for kind, count in self._log.counts.items():
            attributes = {semconv.TRAINING_KERNEL_MESSAGE_KIND: str(kind)}
            yield Measurement(semconv.METRIC_TRAINING_KERNEL_MESSAGES, count, attributes)

    def losses(self) -> Mapping[str, int]:
        """Return how many lines the kernel overwrote before they were read."""
        return {"kernel_log_overwritten": self._log.lost}

    def close(self) -> None:
        """Close the log; safe twice."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)
