"""What threads wait for, caused in a process that measures each wait itself, and read from the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.events import SchedEvent, ThreadState
from rootwalk.ebpf.kernel_files import read_text
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingWaitKind as Kind
from support import hierarchies, workloads
from support.bpf_programs import LoneBackend
from support.spans import decode_attributes

# They measure a CPU that other processes of the machine may want at any moment: one quiet try of three decides.
pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

TIMES = 13
WAIT_S = 0.05
# What thaws and freezes, in this order.
V1_WORDS = ("THAWED", "FROZEN")
# Each body prepares, notes the time by `begin()`, and waits once; `later(f)` calls f after WAIT_S in another thread.
PRELUDE = """
import ctypes, json, os, select, socket, sys, threading, time
sys.stdin.readline()
def later(act):
    threading.Timer({wait}, act).start()
r, w = os.pipe()
a, b = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0)); client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
event = threading.Event()
full_r, full_w = os.pipe(); os.set_blocking(full_w, False)
try:
    while True: os.write(full_w, bytes(4096))
except BlockingIOError: os.set_blocking(full_w, True)
began = 0.0
def away():
    # Time in which this thread neither ran nor waited for a CPU, but for what the kernel takes to put it to sleep.
    with open("/proc/thread-self/schedstat") as file: queued = int(file.read().split()[1])
    return time.monotonic() - time.thread_time() - queued / 1e9
def begin():
    global began
    began = away()
def once():
{body}
took = []
for _ in range({times}):
    time.sleep(0.002)
    begin()
    once()
    took.append(away() - began)
print(json.dumps(took), flush=True)
sys.stdin.readline()
"""
BODIES = {
    Kind.PIPE_READ: "later(lambda: os.write(w, b'x')); begin(); os.read(r, 1)",
    Kind.SOCKET_READ: "later(lambda: peer.send(b'x')); begin(); client.recv(1)",
    Kind.PIPE_WRITE: "later(lambda: os.read(full_r, 4096)); begin(); os.write(full_w, bytes(4096))",
    Kind.LOCK: "event.clear(); later(event.set); begin(); event.wait()",
    Kind.SLEEP: "begin(); time.sleep({wait})",
    Kind.POLL: "later(lambda: os.write(w, b'x')); begin(); select.select([r, a], [], []); os.read(r, 1)",
    Kind.CHILD: "pid = os.fork()\n    pid or (time.sleep({wait}), os._exit(0))\n    begin(); os.waitpid(pid, 0)",
}


@pytest.fixture
def backend() -> Iterator[LoneBackend]:
    try:
        opened = LoneBackend()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    yield opened
    opened.close()


class Waiter:
    """A process whose main thread waits when it is told to, and says for how long it was away in each wait, s."""

    def __init__(self, backend: LoneBackend, body: str) -> None:
        code = PRELUDE.format(wait=WAIT_S, times=TIMES, body="    " + body.format(wait=WAIT_S))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
        self._backend = backend
        backend.watch(self.process.pid, 1)

    @property
    def pid(self) -> int:
        return self.process.pid

    def waits(self) -> tuple[list[float], list[SchedEvent]]:
        """Let it wait; return for how long it was away in each by its own clocks, and what the kernel told."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        took = json.loads(self.process.stdout.readline())
        events = [
            one
            for one in self._backend.read()
            if isinstance(one, SchedEvent) and one.tid == self.pid and one.wait is not None
        ]
        return took, events

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def duration_s(event: SchedEvent) -> float:
    return (event.end_ns - event.start_ns) / 1e9


@pytest.mark.parametrize("kind", list(BODIES))
def test_as_many_waits_as_there_were_and_as_long(backend: LoneBackend, kind: Kind) -> None:
    details = WaitDetails()
    waiter = Waiter(backend, BODIES[kind])
    try:
        took, events = waiter.waits()
    finally:
        waiter.close()
    # A machine that is slow may begin to wait late for what is on its way: its own clock decides how many were long.
    caused = [seconds for seconds in took if seconds > WAIT_S / 2]
    found = [e for e in events if details.kind(e) is kind and duration_s(e) > WAIT_S / 2]
    assert len(took) == TIMES
    assert len(caused) > TIMES / 2
    assert len(found) == len(caused)
    assert sum(map(duration_s, found)) == pytest.approx(sum(caused), rel=0.05)


def test_interpreter_lock_and_who_had_it(backend: LoneBackend) -> None:
    # A thread that computes lets go of the lock 5 ms after another one asks for it.
    body = (
        "if not hasattr(once, 'hog'):\n"
        "        def work():\n"
        "            while True: sum(range(1000))\n"
        "        once.hog = threading.Thread(target=work, daemon=True); once.hog.start()\n"
        "    time.sleep(0.001)"
    )
    waiter = Waiter(backend, body)
    details = WaitDetails()
    try:
        _, events = waiter.waits()
        others = {int(t.name) for t in Path(f"/proc/{waiter.pid}/task").iterdir()} - {waiter.pid}
        told = [
            (event, decode_attributes(details.attributes(event)))
            for event in events
            if details.kind(event) is Kind.INTERPRETER_LOCK
        ]
    finally:
        waiter.close()
    # The two pauses of each round end with a wait for the lock each; the last is broken off by the answer.
    assert sum(duration_s(event) for event, _ in told) >= TIMES * 0.005
    # A timer ends the long waits: the holder is known from the hand-over that follows each, so not for the first.
    holders = [
        values.get(semconv.TRAINING_WAKER_THREAD_ID)
        for event, values in told
        if duration_s(event) > 0.001
    ]
    named = [holder.int_value for holder in holders if holder is not None]
    assert len(named) >= TIMES
    assert set(named) == others


def test_files_by_type_and_device(backend: LoneBackend, tmp_path: Path) -> None:
    body = (
        f"f = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "    os.write(f, os.urandom(4_000_000)); os.fsync(f); os.close(f)"
    )
    details = WaitDetails()
    waiter = Waiter(backend, body)
    try:
        _, events = waiter.waits()
    finally:
        waiter.close()
    found = [event for event in events if details.kind(event) is Kind.FILE_SYNC]
    if not found:
        pytest.skip("fsync never waits on this file system")
    assert len(found) >= TIMES
    values = decode_attributes(details.attributes(found[0]))
    attributes = {key: value.string_value for key, value in values.items()}
    device = tmp_path.stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    expected = name.readlink().name if name.exists() else f"{os.major(device)}:{os.minor(device)}"
    assert attributes[semconv.SYSTEM_DEVICE] == expected
    assert attributes[semconv.TRAINING_WAIT_SYSTEM_CALL] == "fsync"
    types = dict(line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    mount = max((m for m in types if str(tmp_path).startswith(m)), key=len)
    assert attributes[semconv.SYSTEM_FILESYSTEM_TYPE] == types[mount]


@dataclass(frozen=True)
class Stopping:
    """A way to stop a process: `switch(True)` stops it, `switch(False)` lets it go on, `holds` says that it stands."""

    switch: Callable[[bool], object]
    holds: Callable[[], bool]

    def stop_for(self, seconds: float) -> tuple[float, float]:
        """Stop it, and let it go on so long after it stood; return for how long it stood at least and at most, s."""
        asked = time.monotonic()
        self.switch(True)
        workloads.wait_until(self.holds, period_s=0.0005)
        stood = time.monotonic()
        time.sleep(seconds)
        let_go = time.monotonic()
        self.switch(False)
        return let_go - stood, time.monotonic() - asked


@contextlib.contextmanager
def signals(pid: int) -> Iterator[Stopping]:
    """Yield what stops a process by a signal."""
    yield Stopping(
        lambda stop: os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT),
        lambda: workloads.state_of(pid) == "T",
    )


@contextlib.contextmanager
def freezer(pid: int, controller: str | None) -> Iterator[Stopping]:
    """Yield what freezes a process in a control group of its own."""
    with hierarchies.own_group(hierarchies.unique("freezer"), controller) as (group, is_unified):
        home = CgroupReader().levels_in(read_text(f"/proc/{pid}/cgroup"), controller)
        assert home is not None
        hierarchies.move(pid, group)
        file, words = (
            (group / "cgroup.freeze", ("0", "1"))
            if is_unified
            else (group / "freezer.state", V1_WORDS)
        )
        says, frozen = (group / "cgroup.events", "frozen 1") if is_unified else (file, "FROZEN")
        yield Stopping(
            lambda stop: file.write_text(words[stop]),
            lambda: frozen in says.read_text().splitlines(),
        )
        hierarchies.move(pid, Path(home[0].folder))


@pytest.mark.parametrize(
    "way",
    [
        signals,
        pytest.param(partial(freezer, controller="freezer"), id="freezer"),
        pytest.param(partial(freezer, controller=None), id="freezer_of_version_2"),
    ],
)
def test_stopped_for_a_known_time(
    backend: LoneBackend, way: Callable[[int], AbstractContextManager[Stopping]], tmp_path: Path
) -> None:
    busy, over = tmp_path / "busy", tmp_path / "over"
    last = f"while len(took) == {TIMES - 1} and not os.path.exists({str(over)!r}): os.path.exists({str(busy)!r}) or "
    waiter = Waiter(backend, last + f"os.mkdir({str(busy)!r})")
    stood_s: list[tuple[float, float]] = []

    def stop() -> None:
        try:
            workloads.wait_until(busy.exists)  # what is frozen in its sleep is asleep
            for _ in range(5):
                time.sleep(0.02)
                stood_s.append(stopping.stop_for(WAIT_S))
        finally:
            over.touch()

    stopper = threading.Thread(target=stop)
    try:
        with way(waiter.pid) as stopping:
            stopper.start()
            _, events = waiter.waits()
            stopper.join()
    finally:
        waiter.close()
    details = WaitDetails()
    found = [event for event in events if details.kind(event) is Kind.STOP]
    assert len(found) == len(stood_s) == 5
    assert all(event.state == ThreadState.STOPPED for event in found)
    least_s, most_s = map(sum, zip(*stood_s, strict=True))
    assert 0.99 * least_s <= sum(map(duration_s, found)) <= 1.01 * most_s


def test_port_at_the_other_end(backend: LoneBackend) -> None:
    waiter = Waiter(backend, BODIES[Kind.SOCKET_READ])
    try:
        _, events = waiter.waits()
        ports = set()
        for line in Path(f"/proc/{waiter.pid}/net/tcp").read_text().splitlines()[1:]:
            ports.add(int(line.split()[1].split(":")[1], 16))
    finally:
        waiter.close()
    details = WaitDetails()
    found = [event for event in events if details.kind(event) is Kind.SOCKET_READ]
    values = decode_attributes(details.attributes(found[0]))
    assert values[semconv.TRAINING_WAIT_PEER].string_value == "local"
    assert values[semconv.NETWORK_PEER_PORT].int_value in ports


def test_thread_that_is_gone_is_described_without_its_process(backend: LoneBackend) -> None:
    waiter = Waiter(backend, BODIES[Kind.LOCK])
    try:
        _, events = waiter.waits()
    finally:
        waiter.close()
    workloads.wait_until(lambda: not Path(f"/proc/{waiter.pid}").exists())
    details = WaitDetails()
    kinds = {details.kind(event) for event in events}
    assert Kind.LOCK in kinds
    assert Kind.INTERPRETER_LOCK not in kinds
