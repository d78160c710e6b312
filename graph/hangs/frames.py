"""Read the frames of one-off stacks: which belong to the user's program, which wait for other ranks, which for a lock.

A frame is `function (file:line)` for Python, `function [library]` for native code and `function [kernel]`; stacks are
innermost first. Pure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

__all__ = [
    "MESSAGE_FUNCTIONS",
    "call_of",
    "function_of",
    "is_in_collective",
    "is_in_debugger",
    "is_in_file_system_in_user_space",
    "is_in_input",
    "is_in_interpreter_lock",
    "is_in_library_work",
    "is_in_lock",
    "is_in_rendezvous",
    "is_in_sleep",
    "shape_of",
    "user_frame",
]

_PYTHON: Final = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_NATIVE: Final = re.compile(r"^(?P<function>.*) \[(?P<library>[^\]]*)\]$")
_OUTSIDE: Final = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/torch/",
    "<frozen",
    "<string>",
)
# PyTorch's own files, of which only the last part of a path is known.
_TORCH_FILES: Final = frozenset(
    (
        *("distributed_c10d.py", "c10d_logger.py", "rendezvous.py", "distributed.py", "_tensor.py"),
        *("graph.py", "module.py", "dataloader.py", "function.py", "eval_frame.py", "optimizer.py"),
        *("lr_scheduler.py", "worker.py", "_utils.py", "convert_frame.py", "functional.py"),
        *("linear.py", "container.py", "_fully_shard.py", "_composable_state.py", "run.py"),
    )
)
# Functions of PyTorch, NCCL, Gloo and MPI in which a rank waits for others.
_COLLECTIVE: Final = re.compile(
    r"\b(c10d|gloo|nccl|ucc|ProcessGroup\w*|Reducer|MPI)\b|ncclGroup|ncclAllReduce|WorkNCCL|WorkGloo|AsyncWork"
    r"|^(all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|broadcast\w*|barrier|monitored_barrier|gather\w*"
    r"|scatter\w*|reduce|_engine_run_backward|send|recv|isend|irecv|batch_isend_irecv|wait_stream"
    r"|destroy_process_group) \(",
)
# Of these one end sends and the other receives: that ranks stand in different ones is as it should be.
MESSAGE_FUNCTIONS: Final = frozenset(
    (
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
        "wait",
        "send_object_list",
        "recv_object_list",
    )
)
_DISTRIBUTED_FILES: Final = ("distributed_c10d.py", "c10d_logger.py")
_WAIT_LIBRARIES: Final = ("libnccl", "libgloo", "libucc", "libmpi", "librccl")
_RENDEZVOUS: Final = re.compile(
    r"init_process_group|_store_based_barrier|rendezvous|TCPStore|FileStore|next_rendezvous|init_device_mesh"
)
_SLEEPS: Final = re.compile(r"nanosleep|^(do_)?sleep\b|^u?sleep \[|time_sleep|pysleep")
_INTERPRETER_LOCK: Final = "take_gil"
_LOCKS: Final = (
    *(
        "futex",
        "lll_lock_wait",
        "pthread_mutex_lock",
        "pthread_rwlock",
        "lock_acquire",
        "acquire_lock",
    ),
    *("sem_wait", "sem_clockwait", "sem_timedwait", "pthread_cond_wait", "PyMutex", "parking_lot"),
)
_INPUT: Final = ("builtin_input", "PyOS_Readline", "n_tty_read", "my_fgets", "rl_getc", "tty_read")
_DEBUGGERS: Final = ("pdb.py", "bdb.py", "pydevd", "debugpy", "ipdb", "rpdb.py", "remote_pdb")
_USER_FILE_SYSTEM: Final = ("fuse_", "request_wait_answer")
# Libraries that compute: time in them is work however alike the stacks are.
_COMPUTES: Final = (
    *(
        "libtorch",
        "libmkl",
        "libopenblas",
        "libblas",
        "libgomp",
        "libomp",
        "libiomp",
        "libcu",
        "libcud",
    ),
    *(
        "libc10",
        "libaten",
        "libnumpy",
        "multiarray",
        "_umath",
        "libarrow",
        "libz",
        "libzstd",
        "libjpeg",
    ),
    *("libhip", "libroc", "libtriton", "liboneDNN", "libdnnl"),
)


def function_of(frame: str) -> str:
    """Return the function of a frame without its class, module or place.

    >>> function_of("Trainer.fit (train.py:57)")
    'fit'
    """
    match = _PYTHON.match(frame) or _NATIVE.match(frame)
    name = match["function"] if match else frame
    return name.partition("(")[0].rpartition(".")[2].rpartition("::")[2].strip() or name


def shape_of(frames: Sequence[str]) -> tuple[str, ...]:
    """Return a stack without its lines and without the kernel: two of them are alike where the thread stands still."""
    shape = []
    for frame in frames:
        match = _PYTHON.match(frame)
        if match:
            shape.append(f"{match['function']} ({match['file']})")
        elif not frame.endswith("[kernel]"):
            shape.append(frame)
    return tuple(shape)


def user_frame(frames: Sequence[str]) -> str | None:
    """Return the innermost Python frame outside PyTorch and the standard library; None without one."""
    for frame in frames:
        match = _PYTHON.match(frame)
        if match and _is_of_user(match["file"]):
            return f"{match['function']} ({PurePosixPath(match['file']).name}:{match['line']})"
    return None


def call_of(frames: Sequence[str]) -> tuple[str, str] | None:
    """Return the function that the user's program waits in, and where it called it; None without a Python frame of it.

    >>> call_of(("poll [libc.so.6]", "barrier (distributed_c10d.py:4800)", "main (job.py:80)"))
    ('barrier', 'main (job.py:80)')
    """
    for index, frame in enumerate(frames):
        place = user_frame((frame,))
        if place is not None:
            return (function_of(frames[index - 1]) if index else ""), place
    return None


def _is_of_user(path: str) -> bool:
    if any(part in path for part in _OUTSIDE) or path.startswith("<"):
        return False
    name = PurePosixPath(path).name
    if "/" in path:
        return True
    return name not in _TORCH_FILES and name.removesuffix(".py") not in sys.stdlib_module_names


def is_in_rendezvous(frames: Sequence[str]) -> bool:
    """Return whether a thread waits for others to make a process group."""
    for frame in frames:
        match = _PYTHON.match(frame)
        if match and _is_of_user(match["file"]):
            return False
        if _RENDEZVOUS.search(frame):
            return True
    return False


def is_in_collective(frames: Sequence[str]) -> bool:
    """Return whether a thread is in a call of a collective operation, or in a backward pass that waits for one.

    What the user's program does inside such a call, as in a hook of it, is not the call.
    """
    for frame in frames:
        python = _PYTHON.match(frame)
        if python and _is_of_user(python["file"]):
            return False
        if python and python["file"].endswith(_DISTRIBUTED_FILES):
            return True
        native = _NATIVE.match(frame)
        if native and native["library"].startswith(_WAIT_LIBRARIES):
            return True
        if not frame.endswith("[kernel]") and _COLLECTIVE.search(frame):
            return True
    return False


def is_in_sleep(frames: Sequence[str]) -> bool:
    """Return whether a thread sleeps because its program asked for it."""
    return any(_SLEEPS.search(frame) for frame in frames[:8] if not _PYTHON.match(frame))


def is_in_interpreter_lock(frames: Sequence[str]) -> bool:
    """Return whether a thread waits for Python's interpreter lock."""
    return any(_INTERPRETER_LOCK in frame for frame in frames)


def is_in_lock(frames: Sequence[str]) -> bool:
    """Return whether a thread waits for a lock or a condition."""
    inner = frames[:10]
    return any(lock in frame for frame in inner for lock in _LOCKS if not _PYTHON.match(frame))


def is_in_input(frames: Sequence[str]) -> bool:
    """Return whether a thread waits for somebody to type."""
    return any(name in frame for frame in frames for name in _INPUT)


def is_in_debugger(frames: Sequence[str]) -> bool:
    """Return whether a thread stands in a Python debugger."""
    for frame in frames:
        match = _PYTHON.match(frame)
        if match and any(name in match["file"] for name in _DEBUGGERS):
            return True
    return False


def is_in_file_system_in_user_space(frames: Sequence[str]) -> bool:
    """Return whether the kernel waits for the process that serves a FUSE file system."""
    return any(
        frame.endswith("[kernel]") and any(name in frame for name in _USER_FILE_SYSTEM)
        for frame in frames
    )


def is_in_library_work(frames: Sequence[str]) -> bool:
    """Return whether the innermost native function belongs to a library that computes."""
    for frame in frames:
        native = _NATIVE.match(frame)
        if native and native["library"] != "kernel":
            return native["library"].startswith(_COMPUTES)
        if not native:
            return False
    return False
