"""Two loaders of one source: what CO-RE and BCC tell of the same threads at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.backends import VARIABLE
from rootwalk.ebpf.bcc_backend import BccBackend, BccProgram, BccTargets
from rootwalk.ebpf.core_backend import CoreBackend
from rootwalk.ebpf.events import SchedEvent, ThreadRecord
from rootwalk.ebpf.libbpf import BpfMap, Program
from rootwalk.ebpf.sensors import probe_sched
from rootwalk.ebpf.targets import Targets, open_program
from rootwalk.instrumentation.errors import UnavailableError
from support import workloads
from support.bpf_programs import list_bpf_programs

pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

WINDOW_S = 2.0
# What one loader may see and the other not: both stand at the same hook, one after the other.
TOLERANCE = 0.01
Aggressors = Counter[tuple[int, str]]


def skip_without_bcc() -> None:
    """Skip where BCC's programs cannot be loaded."""
    try:
        BccTargets().close()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")


@pytest.fixture
def pair() -> Iterator[tuple[Targets, CoreBackend, BccBackend]]:
    """Both at once over one table of watched processes, which libbpf made and BCC's program uses."""
    try:
        targets = Targets()
        core, bcc = CoreBackend(targets), BccBackend(targets)
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    yield targets, core, bcc
    for part in (bcc, core, targets):
        part.close()


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


def test_both_tell_the_same(pair: tuple[Targets, CoreBackend, BccBackend]) -> None:
    targets, *both = pair
    cpu = workloads.last_cpu()
    with (
        workloads.python(workloads.burn(cpu)) as target,
        workloads.python(workloads.named_burn(cpu, "the-hog")) as hog,
    ):
        targets.watch(target.pid, 1)
        for backend in both:
            backend.watch(target.pid, 1)
        time.sleep(0.5)
        first = freeze(target.pid, both)
        os.kill(target.pid, signal.SIGCONT)
        time.sleep(WINDOW_S)
        last = freeze(target.pid, both)
    wall_ns = last[0].since_ns - first[0].since_ns
    core, bcc = (
        [y - x for x, y in zip(before.totals, after.totals, strict=True)]
        for before, after in zip(first, last, strict=True)
    )
    # Everything but the last, the number of switches, is a time.
    assert bcc[:-1] == pytest.approx(core[:-1], abs=TOLERANCE * wall_ns)
    assert bcc[-1] == pytest.approx(core[-1], abs=1)
    by_core, by_bcc = (aggressors(b, first[0].since_ns, last[0].since_ns) for b in both)
    assert by_core[hog.pid, "the-hog"] > 5 * TOLERANCE * wall_ns
    assert by_bcc[hog.pid, "the-hog"] == pytest.approx(by_core[hog.pid, "the-hog"], rel=TOLERANCE)
    for who, ran_ns in by_core.items():
        assert by_bcc[who] == pytest.approx(ran_ns, abs=TOLERANCE * wall_ns)


@pytest.mark.parametrize("name", ["sched", "targets"])
def test_maps_are_the_same(name: str) -> None:
    def configure(opened: Program) -> None:
        opened.set_max_entries("slices", 2)
        opened.set_initial(".rodata", bytes(24))

    use = configure if name == "sched" else None
    try:
        loaded: list[Program] = [open_program(name, use), BccProgram(name, use)]
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    core, bcc = ({(m.name, *sizes(m)) for m in each.maps.values()} for each in loaded)
    for each in loaded:
        each.close()
    assert bcc == core


def sizes(entry: BpfMap) -> tuple[int, int, int]:
    return entry.key_bytes, entry.value_bytes, entry.max_entries


def test_programs_of_libbpf_use_a_table_that_bcc_made() -> None:
    try:
        targets = BccTargets()
        core = CoreBackend(targets)
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    with workloads.python(workloads.sleeper()) as target:
        targets.watch(target.pid, 3)
        core.watch(target.pid, 3)
        workloads.wait_until(lambda: target.pid in core.threads())
        record = core.threads()[target.pid]
    core.close()
    targets.close()
    assert record.slot == 3


def test_machine_without_libbpf_uses_bcc_and_says_why() -> None:
    # The agent's own process never holds a compiler: the loader is another one, and has ended.
    code = (
        "import json\n"
        "from pathlib import Path\n"
        "from rootwalk.ebpf.backends import choose_targets, open_bpf_scheduler\n"
        "from rootwalk.ebpf.sensors import probe_sched\n"
        "with_bcc = open_bpf_scheduler(choose_targets().targets)\n"
        "libraries = Path('/proc/self/maps').read_text()\n"
        "held = [name for name in ('libbcc', 'LLVM', 'libbpf') if name in libraries]\n"
        "print(json.dumps({**probe_sched(Path('/'), ()).as_json(), 'held': held}))\n"
    )
    skip_without_bcc()
    missing = "no-such-libbpf.so.1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ROOTWALK_LIBBPF": missing},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["status"], found["backend"], found["held"]) == ("available", "bcc", [])
    assert missing in found["detail"]
    assert done.stderr == ""


def test_variable_asks_for_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_bcc()
    monkeypatch.setenv(VARIABLE, "bcc")
    found = probe_sched(Path("/"), ())
    assert (found.status, found.backend) == (Status.AVAILABLE, "bcc")
    assert found.detail == "ROOTWALK_BPF_BACKEND=bcc"


def test_function_that_is_left_out_is_not_loaded() -> None:
    skip_without_bcc()
    before = list_bpf_programs()
    program = BccProgram("targets", lambda opened: opened.leave_out("on_end"))
    loaded = len(list_bpf_programs() - before)
    program.close()
    assert loaded == 1


def test_program_that_does_not_fit_says_what_the_kernel_said() -> None:
    # A ring of a size that is no power of two: BCC only writes why to stderr.
    skip_without_bcc()
    with pytest.raises(UnavailableError) as caught:
        BccProgram("sched", lambda opened: opened.set_max_entries("events", 12_288))
    assert caught.value.reason == Reason.LOAD_REFUSED
    assert "Invalid argument" in str(caught.value)
