"""The lifecycle program on this kernel, against signals, ends and kills for memory that the tests cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rootwalk.ebpf.lifecycle import LifecycleReader
from rootwalk.ebpf.reader import Occurrence, Place
from rootwalk.ebpf.targets import Targets
from support import workloads
from support.memory_group import memory_group

pytestmark = pytest.mark.bpf

STOPS = 31
# A process of its own name that sends one signal, as a stranger would.
STRANGER = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(15, b'st\\nranger\\xff', 0, 0, 0)\n"  # PR_SET_NAME
    "os.kill(int(sys.argv[1]), int(sys.argv[2]))\n"
)
# A loader worker that fails, one that is ended by its rank, one that crashes, and one that ends well.
CHILDREN = """
import os, signal, time
def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid
time.sleep(0.3)
for pid in (child(lambda: os._exit(3)), child(os.abort), child(lambda: None)): os.waitpid(pid, 0)
pid = child(lambda: time.sleep(60))
os.kill(pid, signal.SIGTERM)
os.waitpid(pid, 0)
os._exit(7)
"""
# Asks for more memory than its group allows.
GREEDY = """
import sys
sys.stdin.readline()
taken = []
while True: taken.append(bytearray(b"x" * 10_000_000))
"""


@dataclass
class Watch:
    """A reader, and the table of watched processes that it shares."""

    targets: Targets
    reader: LifecycleReader

    def watch(self, pid: int, slot: int = 1) -> None:
        """Follow a process as a rank."""
        self.targets.watch(pid, slot)
        self.reader.watch(pid, slot)

    def read(self, last: str) -> list[Occurrence]:
        """Return what has happened, up to the first of a sort that must come."""
        found: list[Occurrence] = []

        def is_there() -> bool:
            found.extend(self.reader.occurrences())
            return any(one.event.endswith(last) for one in found)

        workloads.wait_until(is_there)
        return found


@pytest.fixture
def watch(targets: Targets) -> Iterator[Watch]:
    reader = LifecycleReader(Place(targets=targets))
    yield Watch(targets, reader)
    reader.close()


def test_signals_are_told_one_by_one_with_their_sender(watch: Watch) -> None:
    with workloads.python(workloads.sleeper()) as process:
        watch.watch(process.pid)
        for _ in range(STOPS):
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(process.pid, signal.SIGCONT)
            os.kill(process.pid, signal.SIGCHLD)
            os.kill(process.pid, signal.SIGWINCH)
        told = list(watch.reader.occurrences())
    names = [one.attributes["training.signal.name"] for one in told]
    assert names == ["SIGSTOP", "SIGCONT"] * STOPS
    assert {one.attributes["training.signal.sender.pid"] for one in told} == {os.getpid()}
    assert {one.slot for one in told} == {1}
    assert [one.is_bad for one in told[:2]] == [True, False]
    times = [one.mono_ns for one in told]
    assert times == sorted(times)
    assert 0 < time.monotonic_ns() - times[-1] < 5_000_000_000
    assert not any(watch.reader.losses().values())


def test_a_stranger_is_named_and_its_name_is_one_line(watch: Watch) -> None:
    with workloads.python(workloads.sleeper()) as process:
        watch.watch(process.pid)
        command = [sys.executable, "-S", "-E", "-c", STRANGER, str(process.pid), "15"]
        stranger = subprocess.Popen(command)
        assert stranger.wait(10) == 0
        assert process.wait(10) == -signal.SIGTERM
        told, end = watch.read("process.end")
    assert told.attributes["training.signal.sender.pid"] == stranger.pid
    assert told.attributes["training.signal.sender.name"] == "st\ufffdranger\ufffd"
    assert end.attributes == {
        "process.pid": process.pid,
        "training.process.is_child": False,
        "training.signal.name": "SIGTERM",
    }
    assert end.is_bad


def test_ends_of_a_rank_and_of_its_children(watch: Watch) -> None:
    with workloads.python(CHILDREN) as process:
        watch.watch(process.pid)
        assert process.wait(20) == 7
    told = list(watch.reader.occurrences())
    ends = [one for one in told if one.event.endswith(".end")]
    outcome = [
        (
            one.attributes["training.process.is_child"],
            one.attributes.get("process.exit.code", one.attributes.get("training.signal.name")),
            one.is_bad,
        )
        for one in ends
    ]
    # Which of the two ends first is the scheduler's business.
    assert sorted(map(str, outcome[:2])) == ["(True, 'SIGABRT', True)", "(True, 3, True)"]
    assert outcome[2:] == [(True, "SIGTERM", False), (False, 7, True)]
    assert ends[-1].attributes["process.pid"] == process.pid
    signals = [one.attributes["training.signal.name"] for one in told if one not in ends]
    assert sorted(map(str, signals)) == ["SIGABRT", "SIGTERM"]


def test_a_fault_is_sent_by_the_kernel(watch: Watch) -> None:
    with workloads.python("import ctypes, time; time.sleep(0.5); ctypes.string_at(0)") as process:
        watch.watch(process.pid)
        assert process.wait(20) == -signal.SIGSEGV
        told, _ = watch.read("process.end")
    assert told.attributes["training.signal.name"] == "SIGSEGV"
    assert told.attributes["training.signal.sender.name"] == "kernel"
    assert "training.signal.sender.pid" not in told.attributes
    assert told.is_bad


def test_a_kill_for_memory(watch: Watch) -> None:
    with (
        memory_group("rootwalk-test-lifecycle") as group,
        subprocess.Popen([sys.executable, "-S", "-c", GREEDY], stdin=subprocess.PIPE) as process,
    ):
        if group is None:
            process.kill()
            pytest.skip("cgroup: NO_CGROUP_ACCESS")
        (group / "cgroup.procs").write_text(str(process.pid))
        watch.watch(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(30) == -signal.SIGKILL
        told = list(watch.reader.occurrences())
    sorts = [one.event.rpartition(".")[2] for one in told]
    assert sorted(sorts) == ["end", "oom_kill", "signal"]
    assert {one.attributes["process.pid"] for one in told} == {process.pid}
    sender = next(one for one in told if one.event.endswith(".signal"))
    assert sender.attributes["training.signal.sender.name"] == "kernel"


def test_strangers_and_the_forgotten_are_not_told(watch: Watch) -> None:
    with workloads.python(workloads.sleeper()) as rank, workloads.python(workloads.sleeper()) as _:
        watch.watch(rank.pid)
        watch.targets.forget(rank.pid)
        watch.reader.forget(rank.pid)
        watch.reader.forget(rank.pid)
        os.kill(rank.pid, signal.SIGSTOP)
        os.kill(rank.pid, signal.SIGKILL)
        rank.wait()
    assert list(watch.reader.occurrences()) == []
    assert watch.reader._object.maps["living"].items() == []


def test_children_that_were_there_before(watch: Watch) -> None:
    code = "import os, time\npid = os.fork()\ntime.sleep(0.5 if not pid else 60)\nos._exit(5)\n"
    with workloads.python(code) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workloads.wait_until(lambda: bool(children.read_text()))
        watch.watch(process.pid)
        watch.targets.watch(int(children.read_text()), 1, is_child=True)
        watch.reader.watch(int(children.read_text()), 1)
        (told,) = watch.read("process.end")
    assert told.attributes["training.process.is_child"] is True
    assert told.attributes["process.exit.code"] == 5


def test_a_flood_is_counted_and_survived(watch: Watch) -> None:
    """The ring holds 64 KiB, some 1,020 events of 64 bytes; the others are counted."""
    with workloads.python(workloads.sleeper()) as process:
        watch.watch(process.pid)
        for _ in range(3001):
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(process.pid, signal.SIGCONT)
        told = len(list(watch.reader.occurrences()))
    assert 1000 < told <= 64 * 1024 // 64
    assert told + watch.reader.losses()["bpf_lifecycle_ring_full"] == 2 * 3001
