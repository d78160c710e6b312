"""What is remembered of threads that waited for the interpreter lock."""

from __future__ import annotations

import ctypes
import os

from rootwalk.ebpf.events import SchedEvent, ThreadState, Wait
from rootwalk.ebpf.system_calls import call_names
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import semconv

MS = 1_000_000
PID, MAIN, HOLDER = os.getpid(), 71, 72
FUTEX = next(number for number, name in call_names().items() if name == "futex")
LOCK = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


def lock_wait(waker: int) -> SchedEvent:
    """A wait of the main thread for the lock, ended by a thread of the process, or by a timer under process 0."""
    process = PID if waker else 0
    wait = Wait(LOCK, FUTEX, 0, 0, 0, 0, 0, 0, 0, waker, process, "decode")
    return SchedEvent(
        0, 5 * MS, MAIN, PID, 1, 0, ThreadState.BLOCKED, 0, "python", (0, 0, 0, 0), (), wait
    )


def tells_holder(details: WaitDetails) -> bool:
    keys = b"".join(details.attributes(lock_wait(0)))
    return semconv.TRAINING_WAKER_THREAD_ID.encode() in keys


def test_holder_of_the_lock_is_remembered_until_its_process_is_gone() -> None:
    details = WaitDetails()
    details.kind(lock_wait(HOLDER))
    assert tells_holder(details)
    details.forget(PID + 1)
    assert tells_holder(details)
    details.forget(PID)
    assert not tells_holder(details)
