"""The gauntlet's own judgement: which runs count, and what is right, vaguer or wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet.case import NO_RANK, OTHER, RANK, Case, Effect, Truth
from gauntlet.hang import Hang
from gauntlet.job import Run
from gauntlet.judge import LAYERS, VAGUE, find_invalid, judge, judge_hang
from gauntlet.step_logs import find_added, slowest_stretch
from rootwalk.graph.reasons.contract import CONTRACT
from support.gauntlet_runs import (
    FAULT,
    HANG,
    NEAR,
    PAIR,
    make_finding,
    make_hang,
    make_run,
    make_verdict,
)


def test_a_fault_that_did_something_and_cost_something_counts() -> None:
    assert find_invalid(FAULT, make_run()) is None


@pytest.mark.parametrize(
    ("case", "run", "words"),
    [
        (FAULT, make_run(effect=Effect(0.5, "s", 1.0)), "took no effect: 0.50 s"),
        (FAULT, make_run(added=0.04), "cost the job 4.0%"),
        (FAULT, make_run(others=0.5), "0.50 cores busy"),
        (NEAR, make_run(added=0.06), "near miss that cost"),
    ],
)
def test_runs_that_do_not_count(case: Case, run: Run, words: str) -> None:
    invalid = find_invalid(case, run)
    assert invalid is not None
    assert words in invalid


def test_a_near_miss_beside_which_the_machine_slowed_some_steps_down_counts() -> None:
    assert find_invalid(NEAR, replace(make_run(added=0.3), added=0.01)) is None


@pytest.mark.parametrize(
    ("slow", "added"),
    [(range(40, 60), 0.5), (range(45, 52), 0.0), (range(20, 30), 0.0), (range(0), 0.0)],
    ids=["all after it", "a burst after it", "a burst before it", "none"],
)
def test_what_a_disturbance_adds_is_of_the_middle_step(
    tmp_path: Path, slow: range, added: float
) -> None:
    for rank in (0, 1):
        lines = [{"step": n, "seconds": 0.15 if n in slow else 0.1} for n in range(60)]
        (tmp_path / f"rank{rank}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert find_added(tmp_path, 39) == pytest.approx(added)
    assert find_added(tmp_path, None) == 0.0


def test_a_near_miss_that_costs_all_the_same_counts() -> None:
    assert find_invalid(replace(NEAR, may_say=("GLOBAL_SLOW",)), make_run(added=0.5)) is None


def test_the_right_verdict_is_right_and_its_seconds_are_measured() -> None:
    row = judge(FAULT, make_run(), 1, make_verdict(make_finding()))
    assert (row["top1"], row["top3"], row["blamed"]) == (True, True, 0)
    assert row["share_error"] == pytest.approx(-0.1)
    assert row["predicted_error"] == pytest.approx(0.1)
    assert (row["onset_error"], row["named_s"]) == (1, 12.0)
    assert "detected_s" not in row


@pytest.mark.parametrize(
    "finding", [make_finding(rank=0), make_finding(reason="CPU_QUOTA"), make_finding(rank=None)]
)
def test_another_rank_or_reason_is_wrong(finding: dict[str, Any]) -> None:
    assert not judge(FAULT, make_run(), 1, make_verdict(finding))["top3"]


def test_an_abstention_about_a_fault_is_wrong() -> None:
    assert not judge(FAULT, make_run(), 1, make_verdict())["top1"]


def test_the_second_finding_counts_for_the_first_three_and_the_first_as_blame() -> None:
    row = judge(FAULT, make_run(), 1, make_verdict(make_finding(rank=0), make_finding()))
    assert (row["top1"], row["top3"], row["blamed"]) == (False, True, 1)


def test_a_near_miss_may_have_no_finding() -> None:
    assert judge(NEAR, make_run(), 1, make_verdict())["top1"]
    assert not judge(NEAR, make_run(), 1, make_verdict(make_finding(rank=None)))["top1"]


def test_that_all_ranks_were_slow_accuses_nobody_where_the_jobs_own_clock_says_so() -> None:
    slow = make_finding(rank=None, reason="GLOBAL_SLOW")
    run = replace(make_run(), slow_stretch=0.5)
    assert judge(NEAR, run, 1, make_verdict(slow))["top1"]
    assert not judge(NEAR, make_run(), 1, make_verdict(slow))["top1"]
    assert not judge(NEAR, run, 1, make_verdict(make_finding(rank=0, reason="GLOBAL_SLOW")))["top1"]
    assert not judge(NEAR, run, 1, make_verdict(make_finding(rank=None)))["top1"]


@pytest.mark.parametrize(
    ("step_s", "stretch"),
    [
        ([0.1] * 60 + [0.15] * 20, 0.5),
        ([0.1] * 60 + [0.15] * 4 + [0.1] * 20, 0.0),  # shorter than a stretch
        ([0.5] * 10 + [0.1] * 60, 0.0),  # cold
        ([0.1] * 35, 0.0),  # few
    ],
)
def test_a_slow_stretch_is_held_against_the_steps_before_it(
    step_s: list[float], stretch: float
) -> None:
    assert slowest_stretch(step_s) == pytest.approx(stretch)


def test_what_costs_all_the_same_may_be_told_without_a_rank_and_by_some_codes_only() -> None:
    case = replace(NEAR, may_say=("GLOBAL_SLOW", "PY_GC"))
    findings = [make_finding(rank, reason) for rank, reason in ((None, "PY_GC"), (1, "PY_GC"))]
    other = make_finding(None, "UNKNOWN_HOST")
    assert judge(case, make_run(), 1, make_verdict(findings[0]))["top1"]
    assert not judge(case, make_run(), 1, make_verdict(findings[1]))["top1"]
    assert not judge(case, make_run(), 1, make_verdict(other))["top1"]
    row = judge(case, make_run(), 1, make_verdict(*findings, other))
    assert (row["blamed"], row["wrong"]) == (2, 2)


@pytest.mark.parametrize(
    ("who", "blamed"),
    [
        (RANK, {0}),
        (OTHER, {1}),
        (NO_RANK, {0, 1}),
    ],
)
def test_other_ranks_than_those_of_the_truth_are_blamed(who: str, blamed: set[int]) -> None:
    case = replace(FAULT, truth=replace(FAULT.truth, who=who))
    for accused in (0, 1, None):
        row = judge(case, make_run(), 1, make_verdict(make_finding(accused)))
        assert row["blamed"] == row["wrong"] == (accused in blamed), accused


APPLICATION = replace(FAULT, truth=Truth(RANK, ("PY_GC",), ("application",)))
NETWORK = replace(FAULT, truth=Truth(NO_RANK, ("NET_LOSS",), ("network",)))
DEVICE = replace(FAULT, truth=Truth(RANK, ("GPU_THERMAL",), ("device",)))


@pytest.mark.parametrize(
    ("case", "rank", "reason", "wrong"),
    [
        (FAULT, 1, "CPU_CONTENTION", 0),
        (FAULT, None, "CPU_CONTENTION", 0),  # the reason, and no rank
        (FAULT, 1, "CPU_QUOTA", 1),
        (FAULT, None, "CPU_QUOTA", 1),
        (FAULT, 1, "UNKNOWN_HOST", 0),
        (FAULT, 0, "UNKNOWN_HOST", 1),  # vague, and of the wrong rank
        (APPLICATION, 1, "UNKNOWN_HOST", 0),
        (DEVICE, 1, "UNKNOWN_HOST", 1),  # its host was well
        (DEVICE, 1, "SLOW_COMPUTE", 0),
        (DEVICE, 1, "UNKNOWN_GPU", 0),
        (FAULT, 1, "SLOW_COMPUTE", 1),
        (FAULT, None, "UNKNOWN_NET", 1),
        (NETWORK, None, "UNKNOWN_NET", 0),
        (NETWORK, 1, "UNKNOWN_NET", 1),
        (FAULT, None, "GLOBAL_SLOW", 0),
        (FAULT, 1, "GLOBAL_SLOW", 1),  # one rank cannot be all
    ],
)
def test_a_vaguer_finding_is_not_wrong(
    case: Case, rank: int | None, reason: str, wrong: int
) -> None:
    row = judge(case, make_run(), 1, make_verdict(make_finding(rank, reason)))
    assert row["wrong"] == wrong


def test_what_is_vague_is_a_code_of_the_contract_and_layers_as_well() -> None:
    assert VAGUE.keys() <= CONTRACT.keys()
    assert set(LAYERS) == {layer for layer, _ in CONTRACT.values()} - {None}
    assert {layer for layers in VAGUE.values() for layer in layers} <= set(LAYERS)


def test_a_finding_of_another_kind_is_wrong() -> None:
    verdict = make_verdict(make_finding() | {"kind": "hang"})
    assert judge(FAULT, make_run(), 1, verdict)["wrong"] == 1


def test_times_are_in_wrong_rows_too() -> None:
    seen = make_finding(reason="CPU_QUOTA") | {"detected_unix_ns": 1_004_000_000_000}
    row = judge(FAULT, make_run(), 1, make_verdict(seen, make_finding()))
    assert not row["top1"]
    # Seen after 4 s by the first, named after 12 s by the second.
    assert (row["detected_s"], row["named_s"]) == (4.0, 12.0)
    wrong = judge(FAULT, make_run(), 1, make_verdict(seen))
    assert (wrong["detected_s"], "named_s" in wrong) == (4.0, False)


@pytest.mark.parametrize(
    ("finding", "blamed", "wrong"),
    [
        (make_hang("RANK_GONE", 1), 0, 0),
        (make_hang("NOT_JOINED", 1), 0, 0),
        (make_hang("NOT_JOINED", 0), 1, 1),
        (make_hang("NOT_JOINED"), 0, 0),
        (make_hang("COLLECTIVE_MISMATCH", 1), 0, 1),
        (make_hang("RANK_GONE", 0, 1), 1, 1),  # its victim too
    ],
)
def test_of_a_hang_that_is_told_vaguely_nothing_is_wrong(
    finding: dict[str, Any], blamed: int, wrong: int
) -> None:
    row = judge_hang(HANG, 1, make_verdict(finding))
    assert (row["blamed"], row["wrong"]) == (blamed, wrong)


def test_ranks_that_wait_for_one_another_are_listed_by_the_right_finding_only() -> None:
    truth = Truth(NO_RANK, ("COLLECTIVE_DEADLOCK",), ("collective",), kind="hang")
    case = replace(HANG, truth=truth)
    right, other = make_hang("COLLECTIVE_DEADLOCK", 0, 1), make_hang("NOT_JOINED", 1)
    row = judge_hang(case, 1, make_verdict(right))
    assert (row["top1"], row["blamed"], row["wrong"]) == (True, 0, 0)
    row = judge_hang(case, 1, make_verdict(right, other))
    assert (row["blamed"], row["wrong"]) == (1, 1)


def test_a_hang_that_accuses_a_victim_too_is_told() -> None:
    finding = make_finding() | {"kind": "hang"}
    finding["subject"]["ranks"] = [0, 1]
    case = replace(FAULT, truth=replace(FAULT.truth, kind="hang"))
    assert judge_hang(case, 1, make_verdict(finding))["blamed"] == 1
    assert (
        judge_hang(replace(case, truth=replace(case.truth, who=NO_RANK)), 1, make_verdict(finding))[
            "blamed"
        ]
        == 0
    )


def test_a_hang_that_was_none_does_not_count() -> None:
    assert Hang(1.0, {0: 15, 1: 14}, (0, 1)).find_invalid() is None
    assert Hang(None, {0: 15}, (0,)).find_invalid() == "the bug was not reached"
    assert Hang(1.0, {0: 4000}, ()).find_invalid() == "the job went on to its end"
    assert Hang(1.0, {0: 15}, ()).find_invalid() == "no rank left a dump"
    none = Hang(1.0, {0: 15}, (0,), Effect(0.0, "times said", 1.0))
    assert none.find_invalid() == "took no effect: 0.00 times said"


def make_collections(rank: int) -> dict[str, Any]:
    return make_finding(rank, "PY_GC") | {"layer": "application"}


@pytest.mark.parametrize(
    ("findings", "top1", "top3", "blamed"),
    [
        ((make_finding(), make_collections(0)), True, True, 0),
        ((make_collections(0), make_finding()), True, True, 0),
        ((make_finding(),), False, False, 0),
        ((make_finding(), make_collections(1)), False, False, 1),
        ((make_finding(), make_finding(0), make_collections(0)), False, True, 1),
    ],
)
def test_of_a_pair_both_come_first(
    findings: tuple[dict[str, Any], ...], top1: bool, top3: bool, blamed: int
) -> None:
    judged = judge(PAIR, make_run(), 1, make_verdict(*findings))
    assert (judged["top1"], judged["top3"], judged["blamed"]) == (top1, top3, blamed)


def test_of_a_pair_what_is_vaguer_than_either_is_not_wrong() -> None:
    def count_wrong(*findings: dict[str, Any]) -> Any:
        return judge(PAIR, make_run(), 1, make_verdict(*findings))["wrong"]

    assert count_wrong(make_finding(), make_collections(0)) == 0
    assert count_wrong(make_finding(0, "UNKNOWN_HOST"), make_finding(1, "UNKNOWN_HOST")) == 0
    assert count_wrong(make_finding(0), make_collections(1)) == 2  # each on the other's rank
