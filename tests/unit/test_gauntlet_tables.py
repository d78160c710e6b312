"""Results of the gauntlet, kept, and what the tables make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet.case import load_cases
from gauntlet.goals import WANTED_QUIET, CaseRuns, find_wanted, render_goals
from gauntlet.results import add_run, count_done, newest, read_runs, summarise
from gauntlet.table import generate, render_blind, render_case
from support.gauntlet_runs import FAULT, HANG, NEAR, PAIR


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


def test_simple_rules_are_counted_where_they_were_asked() -> None:
    asked = make_row(naive={"rule": True})
    assert summarise([asked, make_row()])["naive"] == {"rule": 1}


def test_what_cannot_be_had_here_is_not_passed(tmp_path: Path) -> None:
    add_run("hog", {"variant": "all sensors", "not_run": "no swap"}, tmp_path)
    assert render_case(FAULT, summarise(read_runs("hog", tmp_path))).count("not run") == 1


def test_what_was_had_on_another_day_is_passed(tmp_path: Path) -> None:
    add_run("hog", {"variant": "all sensors", "not_run": "no swap"}, tmp_path)
    old = {"variant": "all sensors", "top1": True, "top3": True, "blamed": 0, "found": []}
    add_run("hog", old | {"outcome": "finding"}, tmp_path)  # as rows were before the newer keys
    summary = summarise(read_runs("hog", tmp_path))
    assert render_case(FAULT, summary).startswith("| a hog (CPU_CONTENTION) | 1 of 1 |")


def test_no_results_make_no_table(tmp_path: Path) -> None:
    assert "|" not in generate(tmp_path)


def make_row(**more: Any) -> dict[str, Any]:
    row = {"variant": "all sensors", "outcome": "finding", "found": [], "blamed": 0, "wrong": 0}
    return row | {"top1": True, "top3": True, "date": "2026-11-25", "machine": "here"} | more


def read_goals(*cases: CaseRuns) -> dict[str, str]:
    """Return what is measured by goal."""
    rows = [line.strip("| ").split(" | ") for line in render_goals(list(cases)) if line]
    assert rows[0] == ["goal", "wanted", "measured"]
    return {goal: measured for goal, _, measured in rows[2:]}


def test_goals_are_counted_from_all_runs() -> None:
    soon = make_row(detected_s=15.0, named_s=20.0, faulty_s=0.2)
    by_steps = make_row(detected_s=24.9, named_s=39.9, faulty_s=5.0)  # 5 and 8 steps of 5 s
    late = make_row(detected_s=15.1, named_s=20.1, faulty_s=0.2)
    unseen = make_row(top1=False, top3=True, faulty_s=0.2)
    before = make_row(detected_s=-3.0, named_s=-3.0, faulty_s=0.2)  # of something else
    slow = [soon | {"share_error": -0.1, "predicted_error": 0.04}, by_steps, late, unseen, before]
    invalid = {"variant": "all sensors", "invalid": "took no effect"}
    cases = [
        CaseRuns(FAULT, [*slow, invalid, invalid]),  # two in seven
        CaseRuns(
            HANG,
            [
                make_row(top1=False, top3=False, named_s=None),
                *(make_row(named_s=named_s) for named_s in (17.0, 30.0, 30.1)),
                make_row(),  # older than this goal
            ],
        ),
        CaseRuns(HANG, [*[make_row()] * 4, invalid]),  # one in five; four that count
        CaseRuns(PAIR, [make_row(), make_row(top1=False)]),
        CaseRuns(NEAR, [make_row(), make_row(top1=False, blamed=2), make_row(), invalid]),
        CaseRuns(
            FAULT,
            [make_row(variant="without bpf", wrong=2), make_row(variant="without instrumentation")],
        ),
    ]
    measured = read_goals(*cases)
    assert measured == {
        "a fault is named first": "86 % (12 of 14)",
        "a fault is among the first three": "93 % (13 of 14)",
        "faults with 5 runs that count": "2 of 4",
        "near misses and healthy runs": "3",
        "of them, accuse somebody": "1",
        "seconds off, median": "10 % (of 1)",
        "seconds off, 90th percentile": "10 % (of 1)",
        "predicted step time off, median": "4 % (of 1)",
        "a slow fault is detected within 15 s or 5 steps": "40 % (2 of 5)",
        "a slow fault is named within 20 s or 8 steps": "40 % (2 of 5)",
        "a hang: who is absent, and why, within 30 s": "50 % (2 of 4)",
        "both of a pair of faults are the first two": "50 % (1 of 2)",
        "findings that are wrong without a sensor": "2 in 2 runs",
        "cases with more than one invalid run in five": "2 of 5",
        "as many runs as are wanted, without a sensor too": "not run",
    }


def test_the_time_of_all_runs_is_told_and_of_how_many_it_is() -> None:
    rows = [make_row(run_s=1800.0), make_row(run_s=2700.0, invalid="took no effect")]
    rows.append({"variant": "all sensors", "not_run": "no second core"})
    # Of the second variant one run is wanted: the newest.
    blind = [make_row(run_s=seconds, variant="without bpf") for seconds in (3600.0, 900.0)]
    told = read_goals(CaseRuns(FAULT, rows), CaseRuns(NEAR, blind))
    assert told["as many runs as are wanted, without a sensor too"] == "1.5 h (3 runs)"
    told = read_goals(CaseRuns(FAULT, rows), CaseRuns(NEAR, [make_row()]))
    assert told["as many runs as are wanted, without a sensor too"] == (
        "1.2 h (2 runs, 1 more without a time)"
    )


def test_a_goal_without_runs_says_so() -> None:
    measured = read_goals(CaseRuns(FAULT, []), CaseRuns(NEAR, [make_row()]))
    assert measured.pop("near misses and healthy runs") == "1"
    assert measured.pop("of them, accuse somebody") == "0"
    assert measured.pop("cases with more than one invalid run in five") == "0 of 1"
    assert set(measured.values()) == {"not run"}
    assert render_goals([CaseRuns(FAULT, [])]) == []


def test_runs_without_a_sensor_are_right_or_vaguer_or_wrong() -> None:
    bpf, own = {"variant": "without bpf"}, {"variant": "without instrumentation"}
    rows = [
        make_row(**bpf),
        make_row(**bpf, top1=False, found=[["UNKNOWN_HOST", 1, None], ["GLOBAL_SLOW", None, None]]),
        make_row(**own, top1=False, wrong=1, found=[["CPU_QUOTA", 0, None]]),
        make_row(**own, wrong=1, found=[["CPU_CONTENTION", 1, None], ["PY_GC", 0, None]]),
        make_row(**own, top1=False, outcome="healthy"),
        make_row(**own, top1=False, outcome="no verdict"),
        own | {"invalid": "took no effect"},
    ]
    lines = render_blind([CaseRuns(FAULT, rows), CaseRuns(NEAR, [make_row()])])
    assert lines[0] == "| case | without bpf | without instrumentation |"
    assert lines[2:] == [
        "| a hog | right; vaguer: UNKNOWN_HOST 1, GLOBAL_SLOW "
        "| wrong: CPU_QUOTA 0; wrong: CPU_CONTENTION 1, PY_GC 0; "
        "wrong: `healthy`; wrong: `no verdict` |",
        "",
    ]
    assert render_blind([CaseRuns(NEAR, [make_row()])]) == []


def test_tables_begin_with_the_goals_and_pairs_are_apart(tmp_path: Path) -> None:
    add_run("cpu_hog", make_row(), tmp_path)
    add_run("pair_hog_and_collections", make_row(), tmp_path)
    add_run("healthy_ddp", make_row(), tmp_path)
    add_run("cpu_hog", make_row(variant="without bpf", date="2026-11-26"), tmp_path)
    text = generate(tmp_path)
    heads = ("| goal |", "| fault |", "| pair of faults |", "| healthy |", "| case | without bpf")
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert places[0] == 0
    assert "on the other rank (CPU_CONTENTION and PY_GC) | 1 of 1" in text
    assert text.endswith("2026-11-25, here; 2026-11-26, here; `make gauntlet`.\n")


def test_the_newest_runs_of_each_variant_count_and_the_invalid_ones_among_them() -> None:
    runs: list[dict[str, Any]] = [
        make_row(top1=False),
        {"variant": "all sensors", "invalid": "took no effect"},
        make_row(variant="without bpf"),
        make_row(),
        {"variant": "all sensors", "not_run": "no FUSE"},
        make_row(),
    ]
    assert newest(runs, 2) == runs[2:]
    assert newest(runs, 3) == runs
    assert newest([], 2) == []


def test_as_many_runs_are_wanted_as_the_goals_say() -> None:
    cases = load_cases()
    quiet = sum(find_wanted(case) for case in cases.values() if not case.is_fault)
    assert quiet >= WANTED_QUIET
    assert {find_wanted(case) for case in cases.values() if case.is_fault} == {5}
    assert {find_wanted(case, "without bpf") for case in cases.values()} == {1}


def test_what_older_code_did_is_told_beside_the_newest_runs(tmp_path: Path) -> None:
    for name, wanted in (("cpu_hog", 5), ("healthy_ddp", 6)):
        assert find_wanted(load_cases()[name]) == wanted
        for is_right in (False, *[True] * wanted):
            add_run(name, make_row(top1=is_right, blamed=int(not is_right)), tmp_path)
    text = generate(tmp_path)
    assert "| a fault is named first | at least 95 % | 100 % (5 of 5) |" in text
    assert "| of them, accuse somebody | 0 | 0 |" in text
    told = " ".join(text.split())
    assert "first in 83 % (5 of 6); of 7 near misses and healthy runs 1 accuse" in told
