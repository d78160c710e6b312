"""Ranks learn who they are from the process group that they join, whatever their PyTorch can do besides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rootwalk.instrumentation import torch_hooks
from rootwalk.instrumentation.identity import RANK_VARIABLES, WORLD_SIZE_VARIABLES
from rootwalk.instrumentation.runtime import Runtime


class OldGroup:
    """A process group of a PyTorch before 2.15: it has a rank and a size, and no hooks."""

    group_name = "0"

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 3


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """The instrumentation of a process that no launcher gave a rank, as `torch.multiprocessing.spawn` starts them."""
    monkeypatch.setenv("ROOTWALK_RING_DIRECTORY", str(tmp_path))
    for name in (*RANK_VARIABLES, *WORLD_SIZE_VARIABLES, "ROOTWALK_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    made = Runtime()
    yield made
    made._stop()


def make_group(runtime: Runtime, made: Any, ranks: list[int]) -> None:
    module = ModuleType("distributed_c10d")
    vars(module)["_new_process_group_helper"] = lambda *_, **__: (made, None)
    torch_hooks.patch_process_groups(runtime, module)
    vars(module)["_new_process_group_helper"](3, 1, ranks, "gloo", None)


def test_rank_of_an_old_pytorch_has_its_group_s_number(runtime: Runtime) -> None:
    make_group(runtime, OldGroup(), [])
    tracker = runtime.tracker
    assert tracker is not None
    assert (tracker.ring.identity.rank, tracker.ring.identity.world_size) == (1, 3)


def test_rank_that_had_begun_before_it_joined_begins_again(runtime: Runtime) -> None:
    assert runtime.begin_phase("backward")
    runtime.end_phase()
    make_group(runtime, OldGroup(), [])
    tracker = runtime.ensure_tracker()
    assert tracker is not None
    assert (tracker.ring.identity.rank, runtime.failure) == (1, None)


def test_group_of_some_ranks_says_nothing_of_the_job_s(runtime: Runtime) -> None:
    make_group(runtime, OldGroup(), [0, 2, 4])
    tracker = runtime.tracker
    assert tracker is not None
    assert tracker.ring.identity.rank == 0


def test_group_of_others_is_not_asked(runtime: Runtime) -> None:
    make_group(runtime, object(), [0, 2])
    assert (runtime.tracker, runtime.failure) == (None, None)
