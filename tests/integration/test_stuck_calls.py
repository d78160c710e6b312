"""Jobs that stand still and of which only stacks are known: all ranks wait for others, not all in the same call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from support.progress_reports import JOB, Rank, stuck_job, waiting
from support.verdicts import check_verdict

WITHOUT_HOOKS: dict[str, Any] = {"stage": None, "step": None, "usual_s": None, "places": ()}


def solved(store: Path) -> Verdict:
    return check_verdict(diagnose(store, job=JOB))


def in_call(function: str, line: int) -> Rank:
    """A rank without hooks that waits in a function of PyTorch, called in a line of its program."""
    stack = (
        "poll [libc.so.6]",
        f"{function} (/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py:3000)",
        f"main (/home/user/train.py:{line})",
    )
    return waiting(stacks=(stack,), **WITHOUT_HOOKS)


@pytest.mark.parametrize("function", ["barrier", "broadcast", "all_gather_into_tensor"])
@pytest.mark.parametrize(("world", "at"), [(3, 0), (4, 1), (16, 9)])
def test_a_rank_that_is_alone_in_another_call_is_named_by_stacks_alone(
    tmp_path: Path, function: str, world: int, at: int
) -> None:
    ranks = [in_call("all_reduce", 80)] * (world - 1)
    ranks.insert(at, in_call(function, 95))
    verdict = solved(stuck_job(tmp_path / "s.duckdb", ranks))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_MISMATCH", (at,))
    assert finding.confidence.band == "low"
    words = f"waits in {function}, called by main (train.py:95); no other rank is in that call"
    assert words in finding.chain[-1].text
    assert words in " ".join(render_text(verdict).split())


def test_of_two_ranks_in_different_calls_both_are_named_and_not_the_network(tmp_path: Path) -> None:
    ranks = [in_call("all_reduce", 80), in_call("barrier", 95)]
    (finding,) = solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_MISMATCH", (0, 1))


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([("all_reduce", 80)] * 2 + [("all_gather", 60)] * 2, id="two groups"),
        pytest.param([("send", 80), ("recv", 60), ("recv", 61), ("recv", 60)], id="a pipeline"),
    ],
)
def test_calls_that_may_be_of_several_groups_accuse_neither_a_rank_nor_the_network(
    tmp_path: Path, places: list[tuple[str, int]]
) -> None:
    verdict = solved(stuck_job(tmp_path / "s.duckdb", [in_call(*place) for place in places]))
    assert (verdict.kind, verdict.outcome, verdict.findings) == (
        "hang",
        "insufficient_evidence",
        (),
    )
