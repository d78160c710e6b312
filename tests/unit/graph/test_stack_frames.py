"""What single stacks say: where the user's program stands, and what for."""

from __future__ import annotations

import pytest

from rootwalk.graph.hangs import frames as of

SITE = "/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (["clock_nanosleep [libc.so.6]", "rest (/home/u/train.py:5)"], "rest (train.py:5)"),
        (["wait (threading.py:320)", "get (queue.py:171)", "load (data.py:9)"], "load (data.py:9)"),
        ([f"forward ({SITE}/nn/modules/module.py:12)", "run (/x/my.py:3)"], "run (my.py:3)"),
        (["all_reduce (distributed_c10d.py:10)"], None),
        (["poll [libc.so.6]"], None),
        ([], None),
    ],
)
def test_innermost_frame_of_the_user(frames: list[str], expected: str | None) -> None:
    assert of.user_frame(frames) == expected


@pytest.mark.parametrize(
    "frames",
    [
        [
            "futex [kernel]",
            "c10d::Reducer::finalize_backward() [libtorch_cpu.so]",
            "main (/x/t.py:1)",
        ],
        ["gloo::transport::tcp::UnboundBuffer::waitRecv [libtorch_cpu.so]", "main (/x/t.py:1)"],
        [f"_engine_run_backward ({SITE}/autograd/graph.py:823)", "main (/x/t.py:1)"],
        [f"barrier ({SITE}/distributed/distributed_c10d.py:4600)"],
        ["ncclCommInitRankConfig [libnccl.so.2]"],
    ],
)
def test_waits_for_other_ranks(frames: list[str]) -> None:
    assert of.is_in_collective(frames)


@pytest.mark.parametrize(
    "frames",
    [
        [
            "clock_nanosleep [libc.so.6]",
            "hook (/x/t.py:9)",
            f"all_reduce ({SITE}/distributed/distributed_c10d.py:1)",
        ],
        ["reduce (/x/words.py:4)", "main (/x/t.py:1)"],
        ["mkl_blas_sgemm [libmkl_core.so.2]", "main (/x/t.py:1)"],
        [],
    ],
)
def test_does_something_of_its_own(frames: list[str]) -> None:
    assert not of.is_in_collective(frames)


def test_rendezvous_is_told_from_a_collective() -> None:
    frames = [
        f"_store_based_barrier ({SITE}/distributed/distributed_c10d.py:800)",
        f"init_process_group ({SITE}/distributed/distributed_c10d.py:1700)",
        "main (/x/t.py:1)",
    ]
    assert of.is_in_rendezvous(frames)
    assert not of.is_in_rendezvous(["nap (/x/t.py:2)", "init_process_group (/x/t.py:9)"])


def test_shape_has_no_lines_and_no_kernel() -> None:
    one = ["do_futex [kernel]", "spin (/x/t.py:50)", "main (/x/t.py:1)"]
    other = ["spin (/x/t.py:51)", "main (/x/t.py:1)"]
    assert of.shape_of(one) == of.shape_of(other)
    assert of.shape_of(one) != of.shape_of(["turn (/x/t.py:51)", "main (/x/t.py:1)"])


def test_function_is_without_its_class_and_place() -> None:
    assert of.function_of("Trainer.fit (/x/train.py:57)") == "fit"
    assert of.function_of("c10d::Work::wait(int) [libtorch.so]") == "wait"
    assert of.function_of("futex_wait [kernel]") == "futex_wait"
