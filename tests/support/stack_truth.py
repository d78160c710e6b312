"""Runs `stack_shapes.py` under the stack program, and holds the stacks against what it logged."""

from __future__ import annotations

import os
import re
import select
import shutil
import struct
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from rootwalk.ebpf.libbpf import BpfMap
from rootwalk.ebpf.stacks.program import StackProgram
from rootwalk.ebpf.stacks.reader import StackSample, StackSource
from rootwalk.ebpf.stacks.records import StackKind
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.profiles import Frame, FrameKind

HERE = Path(__file__).parent
# To the millisecond: what lies this near to a call's begin or end may be another's.
SLICE_NS = 1_000_000
MARGIN_NS = 2_000_000
NATIVE = {"native": ["shape_inner", "shape_middle", "shape_outer"], "kernel": ["shape_ask"]}


class Call(NamedTuple):
    """One line of the log."""

    begin_ns: int
    end_ns: int
    name: str
    kind: str
    asked_ns: int


@dataclass
class Score:
    """How many samples were held against the log, and how many were right.

    Attributes:
        samples: On the CPU, inside a call.
        right: Of those, with the right innermost Python function.
        chains: In the C library or the kernel.
        right_chains: Of those, with all functions of the library, and the kernel's where it ran.
        wrong: What was seen in place of what, how often.
    """

    samples: int = 0
    right: int = 0
    chains: int = 0
    right_chains: int = 0
    wrong: Counter[tuple[str, str | None]] = field(default_factory=Counter)


def find_python(version: str) -> str:
    """Return an interpreter of a version, from PATH or pyenv; skip the test where there is none."""
    found = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(root.glob(f"versions/{version}.*/bin/python{version}")):
        if re.fullmatch(r"[\d.]+", path.parents[1].name):
            found = str(path)
    if found is None:
        pytest.skip(f"interpreter: needs CPython {version}, on PATH or from pyenv")
    return found


def build_library(folder: Path, *, has_frame_pointers: bool = True) -> Path:
    """Compile the C library of the program, with frame pointers or without; skip where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("interpreter: needs a C compiler")
    path = folder / "shapes.so"
    frames = "-fno-omit-frame-pointer" if has_frame_pointers else "-fomit-frame-pointer"
    flags = ["-O1", frames, "-fno-optimize-sibling-calls", "-shared", "-fPIC"]
    source = str(HERE / "stack_shapes.c")
    subprocess.run([compiler, *flags, "-o", str(path), source], check=True)
    return path


@contextmanager
def open_stacks(
    hz: int = 99, *, waits_window: int = 20, targets: BpfMap | None = None
) -> Iterator[tuple[StackProgram, StackSource]]:
    """Load the program, with a table of watched processes of its own or another's; skip where BPF cannot be used."""
    try:
        program = StackProgram(hz, targets, SLICE_NS, waits_window=waits_window)
    except UnavailableError as error:
        if str(error.reason) in ("LOAD_REFUSED", "NO_OBJECT"):
            raise
        pytest.skip(f"bpf: {error.reason}: {error}")
    source = StackSource(program)
    try:
        yield program, source
    finally:
        source.close()
        program.close()


def target(program: StackProgram, pid: int) -> None:
    """Write a process into the program's own table, as rank slot 1."""
    program.maps["targets"].write(struct.pack("<I", pid), struct.pack("<II", 1, 0))


def run_shapes(
    stacks: tuple[StackProgram, StackSource],
    command: Sequence[str],
    seconds: float,
    said: list[str] | None = None,
) -> tuple[list[StackSample], float]:
    """Run a program that is told to begin by a line, and says when it is done; return samples and CPU time of taking.

    Args:
        stacks: The program and who names its stacks.
        command: Its command line.
        seconds: It is done after so long at most, on a machine with other work.
        said: Is given the line with which it says that it is ready.
    """
    program, source = stacks
    samples: list[StackSample] = []
    spent_s = 0.0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline().decode()
        if said is not None:
            said.append(first)
        target(program, process.pid)
        assert source.watch(process.pid) is None
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + seconds
        is_done = False
        while not is_done and time.monotonic() < deadline:
            is_done = bool(select.select([process.stdout], [], [], 0.5)[0])
            begin_s = time.process_time()
            samples += source.take()
            spent_s += time.process_time() - begin_s
        process.stdin.close()
        process.wait()
        source.forget(process.pid)
    return samples, spent_s


def read_log(path: Path) -> list[Call]:
    """Return the calls of a log by their begin."""
    calls = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, kind, begin_ns, end_ns, asked_ns = line.split()
        calls.append(Call(int(begin_ns), int(end_ns), name, kind, int(asked_ns)))
    return sorted(calls)


def python_leaf(frames: Sequence[Frame]) -> str | None:
    """Return the innermost Python function of a stack."""
    names = (frame.function for frame in frames if frame.kind is FrameKind.CPYTHON)
    return next(names, None)


def score(samples: Sequence[StackSample], calls: Sequence[Call]) -> Score:
    """Hold samples on the CPU against the calls that they fall in."""
    result = Score()
    begins = [call.begin_ns for call in calls]
    for sample in samples:
        place = bisect_right(begins, sample.mono_ns) - 1
        if sample.kind is not StackKind.ON_CPU or place < 0:
            continue
        call = calls[place]
        is_inside = call.begin_ns + MARGIN_NS < sample.mono_ns < call.end_ns - MARGIN_NS
        if not is_inside or call.kind == "wait":
            continue
        leaf = python_leaf(sample.frames)
        result.samples += sample.number
        if leaf == call.name:
            result.right += sample.number
        else:
            result.wrong[call.name, leaf] += sample.number
        if call.kind in NATIVE:
            result.chains += sample.number
            result.right_chains += sample.number * _has_chain(sample.frames, call)
    return result


def _has_chain(frames: Sequence[Frame], call: Call) -> bool:
    """Return whether the library's functions are all there, between the kernel's and Python's."""
    names = [frame.function for frame in frames if frame.kind is FrameKind.NATIVE]
    wanted = NATIVE[call.kind]
    kinds = [frame.kind for frame in frames]
    in_order = sorted(kinds, key=[FrameKind.KERNEL, FrameKind.NATIVE, FrameKind.CPYTHON].index)
    if call.kind == "kernel" and frames[0].kind is not FrameKind.KERNEL:
        return False
    return names[: len(wanted)] == wanted and kinds == in_order


def waited_ns(samples: Sequence[StackSample], name: str) -> int:
    """Return the time of the waits in a Python function, ns."""
    return sum(
        sample.time_ns
        for sample in samples
        if sample.kind is StackKind.OFF_CPU and python_leaf(sample.frames) == name
    )
