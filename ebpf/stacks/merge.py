"""One stack out of three chains, innermost first: kernel, native, Python.

    kernel   futex_wait  do_syscall_64
    native                              pthread_cond_wait  take_lock_ext  _PyEval_EvalFrameDefault  _PyEval_Vector  main
    Python                                                                forward  step  main.py
    merged   futex_wait  do_syscall_64  pthread_cond_wait  take_lock_ext  forward  step  main.py

The Python frames stand where the interpreter's evaluation of them begins. Native frames between two Python functions
(C code that calls Python again) are not shown. Where the native chain breaks off before it comes to the interpreter, as
it does in code that no table tells of, the Python frames follow what there is of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rootwalk.instrumentation.profiles import Frame

__all__ = ["is_interpreter", "merge_frames", "trim_wait"]

# What evaluates Python frames, in 3.10 to 3.14 (there one function each instruction, where Clang built it); compilers
# split parts off and name them with a dot.
EVALUATES = re.compile(
    r"(_PyEval_EvalFrameDefault|_PyEval_EvalFrame|_PyEval_Vector|PyEval_EvalCode|_PyFunction_Vectorcall|_TAIL_CALL_[A-Za-z_]+)(\..*)?"
)
# How a thread leaves the CPU, which is in every wait's stack: the probe itself, and the scheduler.
LEAVES = re.compile(
    r"(bpf_.*|__bpf_.*|__traceiter_.*|trace_.*|perf_.*|__schedule|schedule|schedule_.*|preempt_schedule.*|__cond_resched.*|unknown)"
)


def trim_wait(kernel: Sequence[Frame]) -> Sequence[Frame]:
    """Return the kernel's frames of a wait without those of leaving the CPU; all of them where nothing else is left."""
    for place, frame in enumerate(kernel):
        if frame.function is None or not LEAVES.fullmatch(frame.function):
            return kernel[place:]
    return kernel


def merge_frames(
    kernel: Sequence[Frame],
    native: Sequence[Frame],
    python: Sequence[Frame],
    interpreter: str | None = None,
) -> tuple[Frame, ...]:
    """Return one stack.

    Args:
        kernel: The kernel's frames, innermost first.
        native: The process's own frames.
        python: Its Python functions; empty where the thread runs none.
        interpreter: Name of the file that the interpreter was loaded from.
    """
    if python:
        native = _before_interpreter(native, interpreter)
    return (*kernel, *native, *python)


def is_interpreter(frame: Frame, interpreter: str | None) -> bool:
    """Return whether a native frame is the interpreter that evaluates Python frames.

    Args:
        frame: Native.
        interpreter: Name of the file that the interpreter was loaded from.
    """
    if frame.function is not None and EVALUATES.fullmatch(frame.function):
        return True
    # In a stripped interpreter nothing tells which function it is; the Python frames say more.
    is_nameless = frame.function is None and frame.binary is not None
    return is_nameless and frame.binary is not None and frame.binary.name == interpreter


def _before_interpreter(native: Sequence[Frame], interpreter: str | None) -> Sequence[Frame]:
    for place, frame in enumerate(native):
        if is_interpreter(frame, interpreter):
            return native[:place]
    return native
