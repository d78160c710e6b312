"""`rootwalk run` lets NCCL's process groups time their operations, unless the user has decided otherwise."""

from __future__ import annotations

import pytest

from rootwalk.graph.commands import run
from rootwalk.instrumentation.identity import read_identity

NAMES = (
    "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_ENABLE_TIMING",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "512"}),
        (
            {"TORCH_NCCL_ENABLE_TIMING": "0"},
            {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_FR_BUFFER_SIZE": "512"},
        ),
        ({"NCCL_ENABLE_TIMING": "1"}, {"NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "512"}),
        (
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
        ),
        (
            {"TORCH_FR_BUFFER_SIZE": "0"},
            {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_FR_BUFFER_SIZE": "0"},
        ),
        (
            {"ROOTWALK_DEVICE_TIMES": "0"},
            {},
        ),
    ],
)
def test_the_job_gets_what_the_user_has_not_set(
    user: dict[str, str], expected: dict[str, str]
) -> None:
    plan = run.RunPlan(("true",), "j", None, None, (), 1, 0.25, (), None)
    child = run.job_environment(plan, "http://127.0.0.1:1", user)
    assert {name: child[name] for name in NAMES if name in child} == expected


def test_a_job_without_hooks_is_left_as_it_is() -> None:
    plan = run.RunPlan(("true",), "j", None, None, (), 1, 0.25, ("instrumentation",), None)
    child = run.job_environment(plan, "http://127.0.0.1:1", {})
    assert not set(NAMES) & set(child)


@pytest.mark.parametrize("without", [(), ("instrumentation",), ("bpf",)])
def test_ranks_belong_to_the_job_with_and_without_hooks(without: tuple[str, ...]) -> None:
    """The agent follows the ranks whose environment names its job."""
    plan = run.RunPlan(("true",), "j", None, None, (), 1, 0.25, without, None)
    child = run.job_environment(
        plan, "http://127.0.0.1:1", {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
    )
    assert read_identity(child | {"RANK": "0", "WORLD_SIZE": "2"}).job == "j"
