"""One-off stacks of real programs whose places are known, read from outside without BPF and without stopping them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.frame_layouts import KNOWN_VERSIONS
from rootwalk.ebpf.stacks.snapshot import MAX_STACKS, Snapshots, ThreadStack
from rootwalk.ebpf.stacks.thread_stacks import MAX_FRAMES
from support.stack_truth import HERE, find_python

PROGRAM = HERE / "waiting_program.py"
LINES = PROGRAM.read_text(encoding="utf-8").splitlines()
# On a machine with other work a program may get a tenth of a CPU.
WAIT_S = 60.0
NOBODY = 65534
VERSIONS = [".".join(map(str, version)) for version in KNOWN_VERSIONS]
OWN = ".".join(map(str, sys.version_info[:2]))


def place(mark: str) -> str:
    """Return a marked place of the program as a frame names it."""
    line = next(number for number, text in enumerate(LINES, 1) if f"# HERE: {mark}" in text)
    return f"({PROGRAM.name}:{line})"


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a program; yield it and the child that it names."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline() or 0)
        try:
            yield process, child
        finally:
            process.kill()
            if child:
                os.kill(child, 9)


def take_until(
    pid: int, children: Sequence[int], is_there: Callable[[list[ThreadStack]], bool]
) -> list[ThreadStack]:
    """Return the first snapshot in which the threads have come to where they wait."""
    snapshots = Snapshots()
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            stacks = snapshots.take(pid, children)
            if is_there(stacks):
                return stacks
            if time.monotonic() > deadline:
                if not stacks:
                    pytest.skip("permission: this machine lets nobody trace other processes")
                pytest.fail(f"the threads are not where they wait: saw {stacks}")
            time.sleep(0.05)
    finally:
        snapshots.close()


def has(stack: ThreadStack, mark: str) -> bool:
    """Return whether a stack stands at a marked place."""
    return any(frame.endswith(place(mark)) for frame in stack.frames)


def find(stacks: Sequence[ThreadStack], mark: str) -> ThreadStack:
    """Return the one stack that stands at a marked place."""
    (found,) = [stack for stack in stacks if has(stack, mark)]
    return found


def is_waiting(stacks: Sequence[ThreadStack]) -> bool:
    """Return whether all threads of the program have come to where they wait or spin."""
    found = {
        mark: next((stack for stack in stacks if has(stack, mark)), None)
        for mark in ("generator", "lock", "spin", "child")
    }
    calls = {mark: stack.system_call if stack else "absent" for mark, stack in found.items()}
    return (
        calls.pop("spin") is None and None not in calls.values() and "absent" not in calls.values()
    )


@pytest.mark.parametrize(
    "version",
    [OWN, *(pytest.param(one, marks=pytest.mark.long) for one in VERSIONS if one != OWN)],
)
def test_every_thread_stands_at_its_line(version: str) -> None:
    with running([find_python(version), str(PROGRAM)]) as (process, child):
        stacks = take_until(process.pid, [child], is_waiting)
    main, worker = stacks[:2]
    assert (main.pid, main.tid, main.role) == (process.pid, process.pid, "main")
    python = [frame for frame in main.frames if PROGRAM.name in frame]
    assert python[0] == f"sleep_in_generator {place('generator')}"
    assert python[2].split(" ")[0].endswith("step")
    assert python[-2] == f"main {place('main')}"
    assert python[-1].startswith("<module> ")
    assert (worker.pid, worker.tid, worker.role) == (child, child, "loader_worker")
    assert find(stacks, "child") is worker
    lock, spin = find(stacks, "lock"), find(stacks, "spin")
    assert {lock.role, spin.role} == {"other"}
    assert lock.system_call == "futex"
    assert spin.system_call is None
    assert not any(frame.endswith("[kernel]") for frame in spin.frames)
    assert len({stack.tid for stack in stacks}) == len(stacks) == 4


def test_a_stack_is_whole_from_the_kernel_to_the_script() -> None:
    with running([sys.executable, str(PROGRAM)]) as (process, child):
        (main, *_) = take_until(process.pid, [child], is_waiting)
    kinds = [
        "python" if frame.endswith(")") else "kernel" if frame.endswith("[kernel]") else "native"
        for frame in main.frames
    ]
    # In this order, each in one piece; where /proc shows no kernel stack, there is none.
    assert kinds == sorted(kinds, key=("kernel", "native", "python").index)
    native = [frame for frame, kind in zip(main.frames, kinds, strict=True) if kind == "native"]
    assert native[0].endswith("[libc.so.6]")
    assert not any("_PyEval_EvalFrameDefault" in frame for frame in native)
    assert len(main.frames) <= MAX_FRAMES


@pytest.mark.parametrize("frames", ["-fomit-frame-pointer", "-fno-omit-frame-pointer"])
def test_native_code_below_python_is_unwound(frames: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("interpreter: needs a C compiler")
    library = tmp_path / "libwaiting.so"
    source = str(HERE / "waiting_library.c")
    flags = ["-O1", frames, "-fno-optimize-sibling-calls", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), source], check=True)
    with running([sys.executable, str(PROGRAM), str(library)]) as (process, child):
        (main, *_) = take_until(
            process.pid,
            [child],
            lambda stacks: (
                bool(stacks)
                and has(stacks[0], "library")
                and stacks[0].system_call == "clock_nanosleep"
            ),
        )
    functions = [f"wait_{name} [libwaiting.so]" for name in ("inner", "middle", "outer")]
    begin = main.frames.index(functions[0])
    assert list(main.frames[begin : begin + 3]) == functions
    assert main.frames[begin + 3].rpartition(" ")[2].startswith("[libffi")


@contextmanager
def silent_files(folder: Path) -> Iterator[Path]:
    """Mount a file system below a folder that answers no read; yield its one file. Skip where that cannot be done."""
    if os.getuid() != 0:
        pytest.skip("permission: needs root, to mount")
    mount, switch = folder / "mount", folder / "switch"
    mount.mkdir()
    switch.touch()
    server = Path(__file__).parents[2] / "gauntlet" / "faults" / "slow_files.py"
    command = [sys.executable, str(server), str(mount), "600", str(switch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        try:
            if said != "ready":
                pytest.skip(f"permission: cannot mount FUSE: saw {said}")
            yield mount / "file"
        finally:
            process.kill()  # who waits for it is let go
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("way", "kernel"),
    [
        ("os.pread(file, 100, 0)", "fuse_"),
        ("mmap.mmap(file, 8192, prot=mmap.PROT_READ)[5000]", "filemap_fault"),
    ],
)
def test_a_rank_that_waits_for_a_file_that_never_answers_is_shown(
    way: str, kernel: str, tmp_path: Path
) -> None:
    code = (
        "import mmap, os, sys\n"
        "print(0, flush=True)\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        f"def load_batch(): return {way}\n"
        "load_batch()\n"
    )
    with (
        silent_files(tmp_path) as file,
        subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE) as rank,
    ):
        try:
            stacks = take_until(
                rank.pid,
                [],
                lambda taken: bool(taken) and "request_wait_answer [kernel]" in taken[0].frames,
            )
        finally:
            rank.kill()
            # Nobody answers any more: who waits is let go.
            subprocess.run(["umount", "-f", str(file.parent)], check=False, capture_output=True)
    frames = stacks[0].frames
    assert any(frame.startswith(kernel) for frame in frames)
    assert "load_batch (<string>:4)" in frames
    assert frames[-1] == "<module> (<string>:5)"


def test_threads_of_another_namespace_have_their_python_stacks() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or os.getuid() != 0:
        pytest.skip("permission: needs root and unshare")
    command = [unshare, "--pid", "--fork", "--kill-child", sys.executable, str(PROGRAM)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        outer.stdout.readline()
        try:
            children = f"/proc/{outer.pid}/task/{outer.pid}/children"
            pid = int(Path(children).read_text(encoding="ascii").split()[0])
            stacks = take_until(
                pid,
                [],
                lambda taken: all(
                    any(has(stack, mark) for stack in taken) for mark in ("main", "lock", "spin")
                ),
            )
        finally:
            outer.kill()
    assert has(stacks[0], "main")
    assert stacks[0].tid == pid
    assert {find(stacks, mark).role for mark in ("lock", "spin")} == {"other"}


def test_a_process_that_is_gone_or_dies_meanwhile_gives_nothing_and_no_error() -> None:
    snapshots = Snapshots()
    code = "import threading; [threading.Thread(target=print).start() for _ in range(50)]; print(0)"
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                for stack in snapshots.take(process.pid):
                    assert stack.pid == process.pid
        assert snapshots.take(process.pid) == []
        snapshots.forget(process.pid)
    snapshots.close()
    snapshots.close()


def test_a_program_without_python_shows_its_native_stack() -> None:
    with subprocess.Popen(["sleep", "3600"]) as process:
        try:
            # One that is taken while the process becomes `sleep` has the kernel's part alone.
            stacks = take_until(
                process.pid,
                [],
                lambda taken: (
                    bool(taken) and any(one.endswith("[libc.so.6]") for one in taken[0].frames)
                ),
            )
        finally:
            process.kill()
    assert [(stack.tid, stack.name, stack.role) for stack in stacks] == [
        (process.pid, "sleep", "main")
    ]
    assert stacks[0].system_call == "clock_nanosleep"
    assert stacks[0].frames[-1].endswith("[sleep]")


def test_a_process_that_has_become_another_program_is_read_anew() -> None:
    code = (
        "import os, sys, time\n"
        "print(0, flush=True)\n"
        "def before(): sys.stdin.read(1)\n"
        "before()\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import time\\ndef after(): time.sleep(3600)\\nafter()'])"
    )
    snapshots = Snapshots()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        seen = set[str]()
        deadline = time.monotonic() + WAIT_S
        while "after (<string>:2)" not in seen and time.monotonic() < deadline:
            for stack in snapshots.take(process.pid):
                seen.update(stack.frames)
            if "before (<string>:3)" in seen and not process.stdin.closed:
                process.stdin.close()
            time.sleep(0.02)
        process.kill()
    snapshots.close()
    if not any("[lib" in frame for frame in seen):
        pytest.skip("permission: cannot read stacks here")
    assert {"before (<string>:3)", "after (<string>:2)"} <= seen


def test_of_many_threads_and_workers_the_main_ones_are_shown() -> None:
    code = (
        "import threading, time\n"
        "[threading.Thread(target=time.sleep, args=(3600,), daemon=True).start() for _ in range(40)]\n"
        "print(0, flush=True)\n"
        "time.sleep(3600)\n"
    )
    workers = [subprocess.Popen(["sleep", "3600"]) for _ in range(3)]
    try:
        with running([sys.executable, "-c", code]) as (process, _):
            stacks = take_until(
                process.pid, [one.pid for one in workers], lambda taken: len(taken) >= MAX_STACKS
            )
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert len(stacks) == MAX_STACKS
    assert [stack.role for stack in stacks] == ["main", *["loader_worker"] * 3, *["other"] * 12]


def take_as_nobody(pid: int) -> list[str]:
    """Return the frames of a process's main thread, and its system call, as a user without rights reads them."""
    code = (
        "import os, threading\n"
        "from rootwalk.ebpf.stacks.snapshot import Snapshots\n"
        f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        f"for stack in Snapshots().take({pid}): print(*stack.frames, stack.system_call, sep='\\n')"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_process_of_the_same_user_is_read_without_root_and_one_of_another_is_not() -> None:
    if os.getuid() != 0:
        pytest.skip("permission: needs root, to become other users")
    with (
        subprocess.Popen(["sleep", "3600"], user=NOBODY, group=NOBODY) as own,
        running([sys.executable, str(PROGRAM)]) as (other, _),
    ):
        try:
            take_until(own.pid, [], lambda taken: bool(taken) and taken[0].system_call is not None)
            frames = take_as_nobody(own.pid)
            assert take_as_nobody(other.pid) == []
        finally:
            own.kill()
    if not frames:
        pytest.skip("permission: this machine lets nobody trace their own processes")
    assert frames[-1] == "clock_nanosleep"
    assert any(frame.endswith("[libc.so.6]") for frame in frames)
