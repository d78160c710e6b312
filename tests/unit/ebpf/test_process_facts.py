"""What /proc says of real processes that sleep, wait, compute or are stopped, and of one in a folder of files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.process_facts import ProcessFacts, ProcessReader, Usage
from rootwalk.instrumentation.semconv import TrainingProcessState as State
from rootwalk.instrumentation.semconv import TrainingWaitKind as Wait
from support import workloads

CHILD = "import os\nif os.fork(): os.wait()\nelse: os.read(0, 1)"
TERMINAL = "import os; os.read(os.openpty()[1], 1)"
LOCK = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
SOCKET = "import socket; a, b = socket.socketpair(socket.{family}); a.recv(1)"
INET = """
import socket
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
near.recv(1)
"""


@contextmanager
def running(code: str) -> Iterator[int]:
    """Run Python; the pipe of its standard input stays open and empty."""
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code], stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def can_read_calls() -> bool:
    with running("import time; time.sleep(60)") as pid:
        try:
            return bool(Path(f"/proc/{pid}/syscall").read_text())
        except OSError:
            return False


def wait_for(pid: int, expected: ProcessFacts) -> None:
    reader = ProcessReader()
    workloads.wait_until(lambda: reader.facts(pid, pid) == expected)


@pytest.mark.parametrize(
    ("code", "wait", "call"),
    [
        ("import time; time.sleep(60)", Wait.SLEEP, "clock_nanosleep"),
        (LOCK, Wait.LOCK, "futex"),
        ("import sys; sys.stdin.read()", Wait.PIPE_READ, "read"),
        (CHILD, Wait.CHILD, "wait4"),
        (SOCKET.format(family="AF_UNIX"), Wait.PIPE_READ, "recvfrom"),
        (INET, Wait.SOCKET_READ, "recvfrom"),
        (TERMINAL, Wait.DEVICE, "read"),
    ],
)
def test_what_a_sleeping_thread_waits_for(code: str, wait: Wait, call: str) -> None:
    if not can_read_calls():
        pytest.skip("the right to see another process's system call")
    with running(code) as pid:
        wait_for(pid, ProcessFacts(State.SLEEPING, wait, call))


def test_a_stopped_process_and_one_that_computes() -> None:
    with running("while True: pass") as pid:
        wait_for(pid, ProcessFacts(State.RUNNING, None, None))
        os.kill(pid, signal.SIGSTOP)
        wait_for(pid, ProcessFacts(State.STOPPED, Wait.STOP, None))


def test_a_process_that_has_ended_and_one_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    wait_for(process.pid, ProcessFacts(State.ZOMBIE, None, None))
    process.wait()
    wait_for(process.pid, ProcessFacts(None, None, None))
    assert ProcessReader().usage(process.pid, process.pid, ()) == Usage(None, None, None, None)


def test_use_grows_with_the_children_that_run() -> None:
    reader = ProcessReader()
    with running("import time; time.sleep(60)") as idle, running("while True: pass") as busy:
        before = reader.usage(idle, idle, (busy,))
        assert before.cpu_ns is not None

        def has_grown() -> bool:
            after = reader.usage(idle, idle, (busy,))
            return (after.cpu_ns or 0) > (before.cpu_ns or 0) + 100_000_000

        workloads.wait_until(has_grown)
        alone = reader.usage(idle, idle, ())
    assert alone.main_cpu_ns is not None
    assert alone.main_cpu_ns < 1_000_000_000
    assert alone.wakeups is not None


def test_bytes_that_were_read_count_from_pipes_too() -> None:
    reader = ProcessReader()
    code = "import os; os.write(os.open('/dev/null', 1), bytes(100_000)); input()"
    with running(code) as pid:
        workloads.wait_until(lambda: (reader.usage(pid, pid, ()).io_bytes or 0) > 100_000)


@pytest.mark.parametrize("version", [1, 2])
def test_a_frozen_control_group_is_told(tmp_path: Path, version: int) -> None:
    mount, line = (
        ("cgroup2 cgroup2 rw", "0::/job")
        if version == 2
        else ("cgroup cgroup rw,freezer", "3:freezer:/job")
    )
    write(tmp_path / "proc/self/mountinfo", f"30 23 0:26 / /sys/fs/cgroup rw - {mount}\n")
    write(tmp_path / "proc/9/cgroup", line + "\n")
    write(tmp_path / "proc/9/task/9/stat", "9 (my (thread) S 1 9 9 0 0 0 0 0 0 0 5 6 7 8 0\n")
    folder = tmp_path / "sys/fs/cgroup/job"
    frozen = (
        ("cgroup.events", "populated 1\nfrozen 1\n")
        if version == 2
        else ("freezer.state", "FROZEN\n")
    )
    thawed = (
        ("cgroup.events", "populated 1\nfrozen 0\n")
        if version == 2
        else ("freezer.state", "THAWED\n")
    )
    reader = ProcessReader(tmp_path)
    write(folder / frozen[0], frozen[1])
    assert reader.facts(9, 9) == ProcessFacts(State.FROZEN, Wait.STOP, None)
    write(folder / thawed[0], thawed[1])
    assert reader.facts(9, 9) == ProcessFacts(State.SLEEPING, None, None)


def test_what_may_not_be_read_is_not_known(tmp_path: Path) -> None:
    write(tmp_path / "proc/9/stat", "9 (x) S 1 9 9 0 0 0 0 0 0 0 100 50 25 25 0\n")
    write(tmp_path / "proc/9/task/9/stat", "9 (x) D 1 9 9 0 0 0 0 0 0 0 100 0 25 25 0\n")
    reader = ProcessReader(tmp_path)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert reader.usage(9, 9, (10,)) == Usage(200 * tick_ns, 100 * tick_ns, None, None)
    assert reader.facts(9, 9) == ProcessFacts(State.DISK, None, None)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
