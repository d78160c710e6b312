"""What a blocked thread waited for, as attributes of its stall."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.events import SchedEvent, ThreadState, Wait
from rootwalk.ebpf.interpreter import Interpreters
from rootwalk.ebpf.system_calls import call_names
from rootwalk.ebpf.waits import device_number, file_system_name, wait_kind, wait_peer
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.redact import redact_thread_name
from rootwalk.instrumentation.semconv import TrainingWaitKind
from rootwalk.instrumentation.step_spans import key_value

__all__ = ["WaitDetails"]

REMEMBERED_HOLDERS = 4096


class Waker(NamedTuple):
    """Who ended a wait."""

    pid: int
    thread_id: int
    name: str


class WaitDetails:
    """Describes waits.

    Args:
        root: Where /proc and /sys are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._interpreters = Interpreters(root / "proc")
        self._block_devices = root / "sys/dev/block"
        self._call_names = call_names()
        self._device_name = lru_cache(maxsize=256)(self._read_device_name)
        self._harmless = lru_cache(maxsize=1024)(redact_thread_name)
        # Thread -> who last handed it the interpreter lock.
        self._holders: OrderedDict[int, Waker] = OrderedDict()

    def kind(self, event: SchedEvent) -> TrainingWaitKind | None:
        """Return what one blocked interval was for; None where that is not known."""
        wait = event.wait
        if wait is None:
            return None
        kind = wait_kind(
            wait,
            self._call_names.get(wait.call),
            is_stopped=event.state == ThreadState.STOPPED,
            is_interpreter_lock=bool(wait.object)
            and self._interpreters.holds_lock(event.tgid, wait.object),
        )
        if kind is TrainingWaitKind.INTERPRETER_LOCK and wait.waker_tgid == event.tgid:
            self._remember(event.tid, Waker(wait.waker_tgid, wait.waker_tid, wait.waker_name))
        return kind

    def attributes(self, event: SchedEvent) -> list[bytes]:
        """Return the attributes that say what one blocked interval was for; none where that is not known."""
        wait, kind = event.wait, self.kind(event)
        if wait is None or kind is None:
            return []
        values: dict[str, str | int | None] = {
            semconv.TRAINING_WAIT_KIND: kind.value,
            semconv.TRAINING_WAIT_SYSTEM_CALL: self._call_names.get(wait.call),
            semconv.SYSTEM_FILESYSTEM_TYPE: file_system_name(wait),
            semconv.SYSTEM_DEVICE: self._device(wait),
        }
        peer = wait_peer(wait)
        if peer is not None:
            values[semconv.TRAINING_WAIT_PEER] = peer.value
            values[semconv.NETWORK_PEER_PORT] = wait.port or None
        waker = self._waker(event, wait, kind)
        if waker is not None:
            values[semconv.TRAINING_WAKER_PID] = waker.pid
            values[semconv.TRAINING_WAKER_THREAD_ID] = waker.thread_id
            values[semconv.TRAINING_WAKER_NAME] = self._harmless(waker.name)
        return [key_value(key, value) for key, value in values.items() if value is not None]

    def forget(self, pid: int) -> None:
        """Forget a process that has ended or has become another program: its numbers may soon be another's."""
        self._interpreters.forget(pid)
        for tid in [tid for tid, holder in self._holders.items() if holder.pid == pid]:
            del self._holders[tid]

    def _waker(self, event: SchedEvent, wait: Wait, kind: TrainingWaitKind) -> Waker | None:
        """Return who ended a wait; for the interpreter lock who last handed it on.

        A thread that waits for that lock is woken by a timer every 5 ms, under whoever runs there, asks the holder to
        let go, and waits again, briefly: only the end of that short wait tells the holder.
        """
        if kind is TrainingWaitKind.INTERPRETER_LOCK:
            return self._holders.get(event.tid)
        return Waker(wait.waker_tgid, wait.waker_tid, wait.waker_name) if wait.waker_tid else None

    def _remember(self, thread_id: int, holder: Waker) -> None:
        self._holders[thread_id] = holder
        self._holders.move_to_end(thread_id)
        if len(self._holders) > REMEMBERED_HOLDERS:
            self._holders.popitem(last=False)

    def _device(self, wait: Wait) -> str | None:
        number = device_number(wait)
        return None if number is None else self._device_name(number)

    def _read_device_name(self, number: str) -> str:
        """Return a block device's name; the number of one that has none, such as a network file system's."""
        try:
            return (self._block_devices / number).readlink().name
        except OSError:
            return number
