"""What a blocked thread waited for, as attributes of its stall."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from rootwalk.ebpf.events import SchedEvent, ThreadState, Wait
from rootwalk.ebpf.interpreter import Interpreters
from rootwalk.ebpf.system_calls import call_names
from rootwalk.ebpf.waits import device_number, file_system_name, wait_kind, wait_peer
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.redact import redact_thread_name
from rootwalk.instrumentation.semconv import TrainingWaitKind
from rootwalk.instrumentation.step_spans import key_value

__all__ = ["WaitDetails"]


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

    def kind(self, event: SchedEvent) -> TrainingWaitKind | None:
        """Return what one blocked interval was for; None where that is not known."""
        wait = event.wait
        if wait is None:
            return None
        return wait_kind(
            wait,
            self._call_names.get(wait.call),
            is_stopped=event.state == ThreadState.STOPPED,
            is_interpreter_lock=bool(wait.object)
            and self._interpreters.holds_lock(event.tgid, wait.object),
        )

    def attributes(self, event: SchedEvent) -> list[KeyValue]:
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
        # Only a thread of the same process hands the lock on; every 5 ms a timer ends the wait, under whoever ran.
        is_handed_on = (
            kind is not TrainingWaitKind.INTERPRETER_LOCK or wait.waker_tgid == event.tgid
        )
        if wait.waker_tid and is_handed_on:
            values[semconv.TRAINING_WAKER_PID] = wait.waker_tgid
            values[semconv.TRAINING_WAKER_THREAD_ID] = wait.waker_tid
            values[semconv.TRAINING_WAKER_NAME] = redact_thread_name(wait.waker_name)
        return [key_value(key, value) for key, value in values.items() if value is not None]

    def forget(self, pid: int) -> None:
        """Forget a process that has become another program."""
        self._interpreters.forget(pid)

    def _device(self, wait: Wait) -> str | None:
        number = device_number(wait)
        return None if number is None else self._device_name(number)

    def _read_device_name(self, number: str) -> str:
        """Return a block device's name; the number of one that has none, such as a network file system's."""
        try:
            return (self._block_devices / number).readlink().name
        except OSError:
            return number
