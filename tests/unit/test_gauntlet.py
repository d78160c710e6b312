"""The gauntlet's own judgement: which runs count, what is right, and the table; the cases are whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet.case import NO_RANK, NOBODY, OTHER, RANK, Case, Effect, Truth, load_cases
from gauntlet.hang import Hang
from gauntlet.job import Run
from gauntlet.judge import find_invalid, judge, judge_hang
from gauntlet.results import add_run, count_done, read_runs, summarise
from gauntlet.table import generate, render_case
from rootwalk.graph.commands.demo_job import StepTimes

FAULT = Case("a hog", Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)), None)
NEAR = Case("a near miss", Truth(NOBODY), None)
ENOUGH = Effect(5.0, "s", 1.0)


def make_run(added: float = 1.0, effect: Effect | None = ENOUGH, others: float = 0.0) -> Run:
    """Steps of 0.1 s that become longer by a part of themselves."""
    return Run(StepTimes(0.1, 0.1 * (1 + added), 80), effect, 1000.0, others)


def make_finding(rank: int | None = 1, reason: str = "CPU_CONTENTION") -> dict[str, Any]:
    return {
        "kind": "slow",
        "reason": reason,
        "layer": "operating_system",
        "subject": {"rank": rank, "ranks": [] if rank is None else [rank], "aggressor": None},
        "seconds": {"share": 0.09},
        "onset": {"step": 81},
        "confidence": {"band": "high"},
        "detected_unix_ns": None,
        "named_unix_ns": 1_012_000_000_000,
    }


def make_verdict(*findings: dict[str, Any]) -> dict[str, Any]:
    outcome = "finding" if findings else "healthy"
    return {"outcome": outcome, "findings": list(findings), "predicted_step_s": 0.11}


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


def test_a_near_miss_that_costs_all_the_same_counts() -> None:
    assert find_invalid(replace(NEAR, may_cost=True), make_run(added=0.5)) is None


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


def test_what_costs_all_the_same_may_be_told_without_a_rank() -> None:
    case = replace(NEAR, may_cost=True)
    assert judge(case, make_run(), 1, make_verdict(make_finding(rank=None)))["top1"]
    assert not judge(case, make_run(), 1, make_verdict(make_finding(rank=1)))["top1"]


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


def test_results_are_kept_and_counted(tmp_path: Path) -> None:
    right: dict[str, Any] = {
        "variant": "all sensors",
        "invalid": None,
        "blamed": 0,
        "found": [],
        "outcome": "x",
    }
    right |= {"top1": True, "top3": True, "share_error": -0.2, "naive": {"rule": True}}
    wrong = right | {"top1": False, "top3": False, "found": [["CPU_QUOTA", 0, None]], "blamed": 1}
    for row in (right, wrong, {"variant": "all sensors", "invalid": "took no effect"}):
        add_run("hog", row, tmp_path)
    runs = read_runs("hog", tmp_path)
    assert count_done(runs, "all sensors") == 2
    assert count_done(runs, "without bpf") == 0
    summary = summarise(runs)
    assert (summary["runs"], summary["invalid"], summary["top1"], summary["blamed"]) == (2, 1, 1, 1)
    assert summary["share_error"] == [0.2, 0.2]
    line = render_case(FAULT, summary)
    assert line.startswith("| a hog (CPU_CONTENTION) | 1 of 2 | 1 of 2 | 20 %, 20 % |")
    assert "named CPU_QUOTA 0; 1 invalid" in line


def test_what_cannot_be_had_here_is_not_passed(tmp_path: Path) -> None:
    add_run("hog", {"variant": "all sensors", "not_run": "no swap"}, tmp_path)
    assert render_case(FAULT, summarise(read_runs("hog", tmp_path))).count("not run") == 1


def test_no_results_make_no_table(tmp_path: Path) -> None:
    assert "|" not in generate(tmp_path)


def test_every_case_says_what_is_done_and_what_it_must_not_be_taken_for() -> None:
    cases = load_cases()
    for name, case in cases.items():
        assert case.text, name
        assert case.looks_like, name
        assert bool(case.truth.reasons) == case.is_fault, name
        assert (case.disturbance is None) == (name.startswith(("healthy", "hang"))), name
        assert name.startswith("near") == (not case.is_fault and case.disturbance is not None), name
    assert sum(case.is_quick for case in cases.values()) >= 5


RIGHT: dict[str, Any] = {"top1": True, "found": [], "outcome": "finding", "rank": 1, "run_s": 1.0}
WRONG = RIGHT | {"top1": False}
INVALID = WRONG | {"invalid": "took no effect"}


@pytest.mark.parametrize(
    ("before", "runs", "code"),
    [
        ([RIGHT], [RIGHT], 0),
        ([RIGHT], [WRONG, RIGHT], 0),
        ([RIGHT], [WRONG, WRONG], 1),
        ([RIGHT], [WRONG, INVALID], 0),  # the second says nothing of the verdict
        ([RIGHT], [INVALID, INVALID], 0),
        ([WRONG], [], 0),  # it was never right: not run
        ([], [], 0),
    ],
)
def test_quick_cases_fail_when_one_is_wrong_twice_that_was_right_before(
    before: list[dict[str, Any]],
    runs: list[dict[str, Any]],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gauntlet import __main__ as gauntlet

    left = iter(runs)
    monkeypatch.setattr(
        gauntlet, "read_runs", lambda _: [run | {"variant": "all sensors"} for run in before]
    )
    monkeypatch.setattr(gauntlet, "run_once", lambda *_: next(left))
    assert gauntlet.check_quick({"a_case": FAULT}) == code
    assert next(left, None) is None


PAIR = Case(
    "a hog here, collections there",
    Truth(RANK, ("CPU_CONTENTION",), ("operating_system",)),
    None,
    also=Truth(OTHER, ("PY_GC",), ("application",)),
)


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
