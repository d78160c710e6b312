"""Stacks of a program of known shape, held against what it logged itself, on each interpreter that is at hand."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.interpreters import Refusal
from rootwalk.ebpf.stacks.layouts import LAYOUTS
from rootwalk.ebpf.stacks.program import StackProgram
from rootwalk.ebpf.stacks.reader import StackSample, StackSource
from rootwalk.ebpf.stacks.records import Counter, StackKind
from rootwalk.graph.hangs.forked import is_in_inherited_lock
from rootwalk.instrumentation.profiles import FrameKind
from support.bpf_programs import open_targets
from support.stack_truth import (
    HERE,
    build_library,
    find_python,
    open_stacks,
    python_leaf,
    read_log,
    run_shapes,
    score,
    target,
    waited_ns,
)

pytestmark = [pytest.mark.bpf, pytest.mark.long]

VERSIONS = [".".join(map(str, version)) for version in LAYOUTS]
CPU_S = 4.0
# On a machine with other work the program may get a tenth of a CPU.
WAIT_S = 120.0
MIN_SAMPLES = 150
RIGHT_RATIO = 0.98
OFF_CPU_RATIO = 0.05
# Rules are taught at the first two looks, which are half a second apart.
LEARNING_NS = 1_500_000_000


@pytest.mark.parametrize("version", VERSIONS)
def test_stacks_are_what_the_program_says(version: str, tmp_path: Path) -> None:
    python, library, log = find_python(version), build_library(tmp_path), tmp_path / "log"
    command = [python, str(HERE / "stack_shapes.py"), str(library), str(log), str(CPU_S)]
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, command, WAIT_S)
        lost = {**stacks[1].losses(), **stacks[1].unknowns()}
    calls = read_log(log)
    found = score(samples, calls)
    assert found.samples >= MIN_SAMPLES
    assert found.right >= RIGHT_RATIO * found.samples, found.wrong.most_common(5)
    assert found.right_chains >= RIGHT_RATIO * found.chains > 0
    for name in ("rest", "pause"):
        asked_ns = sum(call.asked_ns for call in calls if call.name == name)
        assert waited_ns(samples, name) == pytest.approx(asked_ns, rel=OFF_CPU_RATIO)
    assert not any(lost.values()), lost
    spinning = [one for one in samples if python_leaf(one.frames) == "Spinner.turn"]
    callers = {
        tuple(f.function for f in one.frames if f.kind is FrameKind.CPYTHON) for one in spinning
    }
    assert ("Spinner.turn", "Spinner.step", "main", "<module>") in callers


def test_code_without_frame_pointers_is_walked_by_its_tables(tmp_path: Path) -> None:
    """The library, libffi behind it, and the interpreter: all built without; only the first looks find no rules."""
    library, log = build_library(tmp_path, has_frame_pointers=False), tmp_path / "log"
    command = [sys.executable, str(HERE / "stack_shapes.py"), str(library), str(log), "6"]
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, command, WAIT_S)
    calls = read_log(log)
    learnt_ns = calls[0].begin_ns + LEARNING_NS
    found = score([one for one in samples if one.mono_ns >= learnt_ns], calls)
    assert found.samples >= MIN_SAMPLES
    assert found.right_chains >= RIGHT_RATIO * found.chains > 0
    inside = [one for one in samples if one.mono_ns >= learnt_ns and _is_in_library(one)]
    through = [one for one in inside if any("ctypes" in str(f.function) for f in one.frames)]
    assert len(through) >= RIGHT_RATIO * len(inside) > 0


def _is_in_library(sample: StackSample) -> bool:
    return any(str(frame.function).startswith("shape_") for frame in sample.frames)


def test_a_stripped_interpreter_is_read(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()
    strip = shutil.which("strip")
    libraries = sorted(python.parent.parent.glob("lib/libpython3.*.so.*"))
    if strip is None:
        pytest.skip("interpreter: needs strip")
    whole = libraries[0] if libraries else python
    stripped = tmp_path / whole.name
    subprocess.run([strip, "-o", str(stripped), str(whole)], check=True)
    log, home = tmp_path / "log", str(python.parent.parent)
    shapes = [str(HERE / "stack_shapes.py"), str(build_library(tmp_path)), str(log), "2"]
    program = str(python) if libraries else str(stripped)
    environment = ["env", f"LD_LIBRARY_PATH={tmp_path}", f"PYTHONHOME={home}"]
    maps = [*environment, program, "-c", "print(open('/proc/self/maps').read())"]
    assert str(stripped) in subprocess.run(maps, capture_output=True, text=True, check=True).stdout
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [*environment, program, *shapes], WAIT_S)
    found = score(samples, read_log(log))
    assert found.samples >= MIN_SAMPLES / 3
    assert found.right >= RIGHT_RATIO * found.samples, found.wrong.most_common(5)


def test_a_program_that_is_no_python_is_refused_and_still_sampled() -> None:
    with (
        open_stacks() as (program, source),
        subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process,
    ):
        try:
            target(program, process.pid)
            refused = source.watch(process.pid)
            samples: list[StackSample] = []
            deadline = time.monotonic() + WAIT_S
            while not samples and time.monotonic() < deadline:
                time.sleep(0.2)
                samples = source.take()
        finally:
            process.kill()
    assert refused is not None
    assert refused.reason is Refusal.NO_INTERPRETER
    assert source.refusals == {Refusal.NO_INTERPRETER: 1}
    assert {frame.kind for one in samples for frame in one.frames} <= {
        FrameKind.NATIVE,
        FrameKind.KERNEL,
    }


def test_a_recursion_without_end_is_cut_and_said() -> None:
    code = (
        "import sys, time\n"
        "sys.setrecursionlimit(5000)\n"
        "def dive(n):\n"
        "    if n: return dive(n - 1)\n"
        "    end = time.process_time() + 1\n"
        "    while time.process_time() < end: pass\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "dive(1000)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, "-c", code], WAIT_S)
    deep = [one.frames for one in samples if python_leaf(one.frames) == "dive"]
    assert deep
    assert max(map(len, deep)) <= 3 * 128
    assert all(frames[-1].function == "unknown (deeper frames cut off)" for frames in deep)


def test_waits_beyond_the_allowance_keep_their_time_and_lose_their_stack() -> None:
    code = (
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: time.sleep(0.001)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with open_stacks(waits_window=2) as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, "-c", code], WAIT_S)
        counts = stacks[0].counts()
    waits = [one for one in samples if one.kind is StackKind.OFF_CPU]
    bare = [one for one in waits if one.frames[0].function == "unknown (waits too often)"]
    assert sum(one.number for one in bare) > sum(one.number for one in waits) / 2
    assert counts[Counter.WAITS_NOT_TAKEN] > 0
    assert sum(one.time_ns for one in bare) >= 0.001e9 * sum(one.number for one in bare)


def test_a_wait_that_goes_on_is_told_once() -> None:
    code = (
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "time.sleep(3.2)\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, "-c", code], WAIT_S)
    waits = [one for one in samples if one.kind is StackKind.OFF_CPU]
    told = [one for one in waits if one.number == 0]
    assert told
    asleep_ns = sum(one.time_ns for one in waits if "nanosleep" in str(one.frames))
    assert asleep_ns == pytest.approx(3.2e9, rel=OFF_CPU_RATIO)


HANDS_OVER = """
import sys, threading, time
given, told = threading.Semaphore(0), threading.Event()
def hand_over():
    print("ready", threading.get_native_id(), flush=True)
    told.wait()
    for _ in range(300):
        time.sleep(0.005)
        given.release()
def wait_for_it():
    given.acquire()
thread = threading.Thread(target=hand_over, daemon=True)
thread.start()
sys.stdin.readline()
told.set()
for _ in range(300):
    wait_for_it()
print("done", flush=True)
sys.stdin.read()
"""


def test_a_wait_tells_the_thread_that_ended_it() -> None:
    said: list[str] = []
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, "-c", HANDS_OVER], WAIT_S, said)
    helper = int(said[0].split()[1])
    waits = [
        one
        for one in samples
        if one.kind is StackKind.OFF_CPU
        and one.number
        and any(frame.function == "wait_for_it" for frame in one.frames)
    ]
    total_ns = sum(one.time_ns for one in waits)
    right_ns = sum(one.time_ns for one in waits if one.waker and one.waker.tid == helper)
    assert total_ns >= 0.5 * 300 * 0.005e9  # on a busy machine each hand-over takes longer
    assert right_ns >= RIGHT_RATIO * total_ns, [one.waker for one in waits]
    assert {one.waker.pid for one in waits if one.waker} == {waits[0].pid}


FORKS = """
import multiprocessing, sys, threading, time
lock = threading.Lock()
def hold():
    with lock:
        time.sleep(600)
def take_copied_lock():
    lock.acquire()
def fork_worker():
    child = multiprocessing.get_context("fork").Process(target=take_copied_lock, daemon=True)
    child.start()
    print("forked", child.pid, flush=True)
    child.join()
threading.Thread(target=hold, daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
sys.stdin.readline()
fork_worker()
"""


@contextlib.contextmanager
def watched_parent(command: list[str]) -> Iterator[tuple[StackProgram, StackSource, int, str]]:
    """Run a program whose children are watched from their forks; yield its pid, and what it says after them."""
    with (
        open_targets() as targets,
        open_stacks(targets=targets.map) as (program, source),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            targets.watch(process.pid, 1)
            assert source.watch(process.pid) is None
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield program, source, process.pid, process.stdout.readline().decode()
        finally:
            subprocess.run(["pkill", "-P", str(process.pid)], check=False)
            process.kill()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_forked_child_that_blocks_at_once_has_its_functions(version: str) -> None:
    """Nobody has found the child before it waits: what is known of its parent holds until it is another program."""
    with watched_parent([find_python(version), "-c", FORKS]) as (_, source, _, said):
        child = int(said.split()[1])
        time.sleep(2.0)  # the agent looks for children that often
        assert source.watch(child) is None
        waits = [one for one in source.take() if one.pid == child]
    functions = [
        tuple(f.function for f in one.frames if f.kind is FrameKind.CPYTHON) for one in waits
    ]
    assert any(
        names[0] == "take_copied_lock" and names[-1] == "<module>" and "Popen._launch" in names
        for names in functions
        if names
    ), functions
    assert any(
        is_in_inherited_lock([f.function or "" for f in reversed(one.frames)]) for one in waits
    )


def test_a_child_that_becomes_another_program_is_not_walked_as_its_parent() -> None:
    """Its addresses mean something else from then on: nothing of the parent's interpreter stays behind."""
    code = (
        "import os, sys, time\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "if not os.fork(): os.execvp('sleep', ['sleep', '60'])\n"
        "if not os.fork(): os._exit(0)\n"
        "print('forked', flush=True)\n"
        "os.wait()\n"
        "time.sleep(60)\n"
    )
    with watched_parent([sys.executable, "-c", code]) as (program, _, pid, _):
        time.sleep(1.0)
        known = {struct.unpack("<I", key)[0] for key, _ in program.maps["interpreters"].items()}
    assert known == {pid}


def test_processes_that_end_while_they_are_looked_at_cost_nothing_but_their_names() -> None:
    """Each lives for some 30 ms: its samples are read, and named, when it has gone."""
    work = "end = __import__('time').monotonic() + 0.03\nwhile __import__('time').monotonic() < end: pass"
    code = (
        "import subprocess, sys\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"for _ in range(20): subprocess.run([sys.executable, '-S', '-c', {work!r}])\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with watched_parent([sys.executable, "-c", code]) as (program, source, pid, said):
        samples = source.take()
        taught = {struct.unpack("<I", key)[0] for key, _ in program.maps["interpreters"].items()}
        assert said == "done\n"
    ended = [one for one in samples if one.pid != pid]
    assert ended
    assert all(frame.function or frame.address for one in ended for frame in one.frames)
    assert taught == {pid}
