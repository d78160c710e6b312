"""Two loaders of one source: what CO-RE and BCC tell of the same threads at the same time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rootwalk.ebpf import bcc_backend
from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.backends import VARIABLE
from rootwalk.ebpf.bcc_backend import BCC, LIMITS, BccProgram
from rootwalk.ebpf.core_backend import CoreBackend
from rootwalk.ebpf.events import SchedEvent, ThreadRecord, ThreadState, Wait, decode_thread_record
from rootwalk.ebpf.libbpf import BpfMap, Program
from rootwalk.ebpf.sensors import probe_sched
from rootwalk.ebpf.system_calls import call_kinds
from rootwalk.ebpf.targets import CORE, Targets, open_program
from rootwalk.instrumentation.errors import UnavailableError
from support import workloads
from support.bpf_programs import LoneBackend, list_bpf_programs, skip_without

pytestmark = [pytest.mark.bpf, pytest.mark.long, pytest.mark.flaky(reruns=2)]

WINDOW_S = 2.0
# What one loader may see and the other not: both stand at the same hook, one after the other.
TOLERANCE = 0.01
# So often does the first thread wait for an answer that another one of its process sends.
TIMES = 101
READS = f"""
import socket, threading, time
ask, answer = socket.socketpair()
time.sleep(0.5)
def send():
    for _ in range({TIMES}):
        time.sleep(0.005)
        answer.send(b"x")
threading.Thread(target=send).start()
for _ in range({TIMES}):
    ask.recv(1)
time.sleep(60)
"""
MIN_WAIT_NS = 1_000_000
Aggressors = Counter[tuple[int, str]]


@pytest.fixture
def pair() -> Iterator[list[CoreBackend]]:
    """Both at once, each with its own table of watched processes."""
    skip_without(CORE)
    skip_without(BCC)
    both: list[CoreBackend] = [LoneBackend(CORE), LoneBackend(BCC)]
    yield both
    for backend in both:
        backend.close()


def freeze(pid: int, backends: Sequence[CoreBackend]) -> list[ThreadRecord]:
    """Stop a process; return what each backend says of its first thread when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.1)
    return [backend.threads()[pid] for backend in backends]


def aggressors(backend: CoreBackend, since_ns: int, until_ns: int) -> Aggressors:
    """Return for how long which process ran in a watched thread's place, ns."""
    found: Aggressors = Counter()
    for event in backend.read():
        if isinstance(event, SchedEvent) and since_ns <= event.start_ns < until_ns:
            for runner in event.runners:
                found[runner.tgid, runner.name] += runner.ran_ns
    return found


def test_both_tell_the_same(pair: list[CoreBackend]) -> None:
    cpu = workloads.last_cpu()
    with (
        workloads.python(workloads.burn(cpu)) as target,
        workloads.python(workloads.named_burn(cpu, "the-hog")) as hog,
    ):
        for backend in pair:
            backend.watch(target.pid, 1)
        time.sleep(0.5)
        first = freeze(target.pid, pair)
        os.kill(target.pid, signal.SIGCONT)
        time.sleep(WINDOW_S)
        last = freeze(target.pid, pair)
    wall_ns = last[0].since_ns - first[0].since_ns
    core, bcc = (
        [y - x for x, y in zip(before.totals, after.totals, strict=True)]
        for before, after in zip(first, last, strict=True)
    )
    # Everything but the last, the number of switches, is a time.
    assert bcc[:-1] == pytest.approx(core[:-1], abs=TOLERANCE * wall_ns)
    assert bcc[-1] == pytest.approx(core[-1], abs=1)
    by_core, by_bcc = (aggressors(b, first[0].since_ns, last[0].since_ns) for b in pair)
    assert by_core[hog.pid, "the-hog"] > 5 * TOLERANCE * wall_ns
    assert by_bcc[hog.pid, "the-hog"] == pytest.approx(by_core[hog.pid, "the-hog"], rel=TOLERANCE)
    for who, ran_ns in by_core.items():
        assert by_bcc[who] == pytest.approx(ran_ns, abs=TOLERANCE * wall_ns)


def long_waits(backend: CoreBackend, pid: int) -> list[Wait | None]:
    """Return what a process's first thread waited for, each time that it did so for 1 ms or more."""
    return [
        event.wait
        for event in backend.read()
        if isinstance(event, SchedEvent)
        and event.tid == pid
        and event.state == ThreadState.BLOCKED
        and event.end_ns - event.start_ns >= MIN_WAIT_NS
    ]


def waits_of_reads(pair: list[CoreBackend]) -> tuple[int, list[list[Wait | None]]]:
    """Return a process whose first thread waits for answers, and what each backend tells of it."""
    with workloads.python(READS) as target:
        for backend in pair:
            backend.watch(target.pid, 1)
        threads = Path(f"/proc/{target.pid}/task")
        # The one that answers has begun, and has ended.
        workloads.wait_until(lambda: len(list(threads.iterdir())) == 2)
        workloads.wait_until(lambda: len(list(threads.iterdir())) == 1)
        time.sleep(0.1)
        return target.pid, [long_waits(backend, target.pid) for backend in pair]


def test_both_tell_what_a_thread_waited_for(pair: list[CoreBackend]) -> None:
    pid, (core, bcc) = waits_of_reads(pair)
    of_sockets = [wait for wait in core if wait is not None and wait.family == socket.AF_UNIX]
    assert {wait.waker_tgid for wait in of_sockets} == {pid}
    # One that finds the answer there already does not wait.
    assert TIMES - 4 <= len(of_sockets) <= TIMES
    assert bcc == core
    for backend in pair:
        backend.set_level(0)
    assert waits_of_reads(pair)[1] == [[], []]


@pytest.mark.parametrize("name", ["sched", "targets"])
def test_maps_are_the_same(name: str) -> None:
    def configure(opened: Program) -> None:
        opened.set_max_entries("slices", 2)
        opened.set_initial(".rodata", call_kinds())

    skip_without(CORE)
    skip_without(BCC)
    use = configure if name == "sched" else None
    loaded = [loader.open(name, use) for loader in (CORE, BCC)]
    core, bcc = ({(m.name, *sizes(m)) for m in each.maps.values()} for each in loaded)
    for each in loaded:
        each.close()
    assert bcc == core


def sizes(entry: BpfMap) -> tuple[int, int, int]:
    return entry.key_bytes, entry.value_bytes, entry.max_entries


def test_programs_of_libbpf_use_a_table_that_bcc_made() -> None:
    skip_without(CORE)
    skip_without(BCC)
    with (
        contextlib.closing(Targets(loader=BCC)) as targets,
        contextlib.closing(open_program("sched", lambda opened: opened.share(targets.map))) as core,
        workloads.python(workloads.sleeper()) as target,
    ):
        targets.watch(target.pid, 3)
        core.maps["enabled"].write(bytes(4), b"\1\0\0\0")
        threads, key = core.maps["threads"], target.pid.to_bytes(4, "little")
        workloads.wait_until(lambda: threads.read(key) is not None)
        assert decode_thread_record(threads.read(key) or b"").slot == 3


def test_machine_without_libbpf_uses_bcc_and_says_why() -> None:
    # The agent's own process never holds a compiler: the loader is another one, and has ended.
    code = (
        "import json\n"
        "from pathlib import Path\n"
        "from rootwalk.ebpf.backends import choose_targets\n"
        "from rootwalk.ebpf.core_backend import CoreBackend\n"
        "targets, why = choose_targets()\n"
        "scheduler = CoreBackend(targets)\n"
        "libraries = Path('/proc/self/maps').read_text()\n"
        "held = [name for name in ('libbcc', 'LLVM', 'libbpf') if name in libraries]\n"
        "print(json.dumps([scheduler.sensor, why, held]))\n"
    )
    skip_without(BCC)
    missing = "no-such-libbpf.so.1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROOTWALK_LIBBPF": missing},
        capture_output=True,
        text=True,
        check=True,
    )
    sensor, why, held = json.loads(done.stdout)
    assert (sensor, held, done.stderr) == ("bcc", [], "")
    assert missing in why


@pytest.mark.parametrize("deadline_s", [0.1, 0.4, 0.7])
def test_loader_that_is_killed_leaves_no_program(
    monkeypatch: pytest.MonkeyPatch, deadline_s: float
) -> None:
    # One program takes about half a second: killed before it, in it, and perhaps after it.
    skip_without(BCC)
    before = list_bpf_programs()
    monkeypatch.setattr(bcc_backend, "LOAD_DEADLINE_S", deadline_s)
    with contextlib.suppress(UnavailableError):
        BCC.open("targets", None).close()
    workloads.wait_until(lambda: not list_bpf_programs() - before)


def test_variable_asks_for_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without(BCC)
    monkeypatch.setenv(VARIABLE, "bcc")
    found = probe_sched(Path("/"), ())
    assert (found.status, found.backend) == (Status.AVAILABLE, "bcc")
    assert found.detail == f"ROOTWALK_BPF_BACKEND=bcc; {LIMITS}"


def test_program_that_does_not_fit_says_what_the_kernel_said() -> None:
    # A ring of a size that is no power of two: BCC only writes why to stderr.
    skip_without(BCC)
    with pytest.raises(UnavailableError) as caught:
        BccProgram("sched", lambda opened: opened.set_max_entries("events", 12_288))
    assert caught.value.reason == Reason.LOAD_REFUSED
    assert "Invalid argument" in str(caught.value)
