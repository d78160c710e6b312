"""One stack out of three chains."""

from __future__ import annotations

import pytest

from rootwalk.ebpf.stacks.merge import merge_frames, trim_wait
from rootwalk.instrumentation.profiles import Binary, Frame, FrameKind

PYTHON = [Frame(FrameKind.CPYTHON, name) for name in ("forward", "step", "<module>")]
KERNEL = [Frame(FrameKind.KERNEL, name) for name in ("read_zero", "ksys_read")]


def native(*names: str) -> list[Frame]:
    return [Frame(FrameKind.NATIVE, name) for name in names]


def names(frames: tuple[Frame, ...]) -> list[str | None]:
    return [frame.function for frame in frames]


@pytest.mark.parametrize(
    "evaluates", ["_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault.cold", "_PyEval_Vector"]
)
def test_python_functions_stand_for_the_interpreters_frames(evaluates: str) -> None:
    chain = native("sgemm", "at_linear", evaluates, "PyEval_EvalCode", "main")
    merged = merge_frames(KERNEL, chain, PYTHON)
    assert names(merged) == [
        *("read_zero", "ksys_read", "sgemm", "at_linear"),
        *("forward", "step", "<module>"),
    ]


def test_a_function_that_is_only_named_like_it_stays() -> None:
    merged = merge_frames([], native("my_PyEval_Vector", "_PyEval_VectorOfMine"), PYTHON)
    assert names(merged)[:2] == ["my_PyEval_Vector", "_PyEval_VectorOfMine"]


def test_a_chain_that_breaks_off_is_kept_before_python() -> None:
    assert names(merge_frames([], native("writev"), PYTHON))[:2] == ["writev", "forward"]


def test_nameless_frames_of_a_stripped_interpreter_end_the_chain() -> None:
    ours, other = Binary("libpython3.12.so.1.0"), Binary("libtorch_cpu.so")
    chain = [
        Frame(FrameKind.NATIVE, None, binary=other, address=16),
        Frame(FrameKind.NATIVE, None, binary=ours, address=32),
        Frame(FrameKind.NATIVE, "main"),
    ]
    merged = merge_frames([], chain, PYTHON, ours.name)
    assert merged == (chain[0], *PYTHON)


def test_without_python_every_native_frame_stays() -> None:
    chain = native("_PyEval_EvalFrameDefault", "main")
    assert merge_frames([], chain, []) == tuple(chain)
    assert merge_frames([], [], []) == ()


def test_a_wait_begins_where_the_kernel_was_asked() -> None:
    kernel = [
        Frame(FrameKind.KERNEL, name)
        for name in ("bpf_prog_1_take_leave", "__traceiter_sched_switch", "__schedule", "schedule")
    ]
    asked = [Frame(FrameKind.KERNEL, name) for name in ("futex_do_wait", "do_syscall_64")]
    assert list(trim_wait([*kernel, *asked])) == asked
    assert list(trim_wait(kernel)) == kernel
    assert list(trim_wait([])) == []
