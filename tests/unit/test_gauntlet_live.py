"""The judge and the runner of the live cases: what counts, what is right, and that the cases are whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet.live.__main__ import Places, run_once
from gauntlet.live.case import (
    CTRL_C,
    END,
    HANG,
    NEAR,
    PLAIN,
    TORCHRUN,
    Choice,
    Expected,
    LiveCase,
    Scene,
    choose,
)
from gauntlet.live.judge import Opened, find_first_line, find_invalid, judge, shows_line
from gauntlet.live.outside import freeze_all
from gauntlet.live.planted import FAULTS
from gauntlet.live.published import CASES, add_live, generate_live
from gauntlet.live.session import Line, Watched, find_first_word, find_marked, is_about_hang
from rootwalk.graph.reasons.contract import CONTRACT

BEGUN_S = 1000.0
HANG_CASE = LiveCase("a rank sleeps", HANG, Expected(rank=1, function="sleep_for_ever"), "sleep")
STOP_CASE = LiveCase("a rank is stopped", HANG, Expected(rank=1, reasons=("PROCESS_SUSPENDED",)))
NEAR_CASE = LiveCase(
    "a checkpoint", NEAR, Expected(is_finding=False), "checkpoint", steps=70, lasts_s=38.0
)
KILL_CASE = LiveCase(
    "a rank is killed",
    END,
    Expected(rank=1, reasons=("RANK_KILLED",), kinds=(None,), line="rank 1.*SIGKILL"),
)
CTRL_C_CASE = LiveCase("the user leaves", END, Expected(is_finding=False))
CHOICE = Choice(0.2, 2, TORCHRUN, CTRL_C)
# Codes that the issue adds to the contract.
ADDED = {"RANK_CRASHED", "RANK_KILLED"}


def make_steps(last: int, *, pause_at: int = 0, pause_s: float = 0.0) -> list[tuple[int, float]]:
    """Steps of 0.2 s of which the one after `pause_at` takes longer; step 60 begins at `BEGUN_S`."""
    return [
        (number, BEGUN_S + 0.2 * (number - 59) + (pause_s if number > pause_at else 0.0))
        for number in range(last + 1)
    ]


def make_finding(reason: str = "NOT_JOINED", rank: int = 1, kind: str | None = "hang") -> Any:
    return {
        "kind": kind,
        "reason": reason,
        "subject": {"rank": rank, "ranks": [rank]},
        "chain": [{"text": "all_reduce waits for rank 1"}],
    }


def make_verdict(*findings: Any, frames: tuple[str, ...] = ()) -> Any:
    groups = [{"ranks": [1], "frames": list(frames)}]
    return {
        "outcome": "finding" if findings else "healthy",
        "findings": list(findings),
        "hang": {"stack_groups": groups} if frames else None,
    }


def make_watched(verdict: Any, **more: Any) -> Watched:
    truth = [{"unix_s": BEGUN_S, "rank": 1, "function": "sleep_for_ever", "lines": [40, 44]}]
    options: dict[str, Any] = {
        "truth": truth,
        "steps": {0: make_steps(59), 1: make_steps(59)},
        "ending_unix_s": BEGUN_S + 40,
        "verdict": verdict,
        "output": "no progress since step 59: rank 1 waits\n  in sleep_for_ever\ndetail    x\n",
    }
    return Watched(**(options | more))


SLEEPING = make_verdict(
    make_finding(), frames=("clock_nanosleep [kernel]", "sleep_for_ever (planted.py:42)")
)
NAMED = Opened(BEGUN_S + 14, 1, "NOT_JOINED", "rank 1 has not called all_reduce")


def test_cases_are_whole() -> None:
    for name, case in CASES.items():
        assert name.startswith({HANG: "hang_", END: "end_", NEAR: "near_"}[case.kind]), name
        assert not case.fault or case.fault in FAULTS, name
        assert set(case.expected.reasons) <= {*CONTRACT, *ADDED}, name
        assert (case.lasts_s > 0) == (case.kind == NEAR), name
        assert case.expected.is_finding or not case.expected.reasons, name
        if case.expected.function:
            planted = FAULTS[case.fault].function
            assert case.expected.function in (planted.__name__, "spin_in_c"), name


def test_runs_take_turns_in_what_a_case_varies() -> None:
    case = replace(HANG_CASE, step_s=(0.04, 0.2, 1.0), ranks=(2, 4))
    taken = [choose(case, number) for number in range(12)]
    assert {(one.step_s, one.ranks) for one in taken} == {
        (step_s, ranks) for step_s in (0.04, 0.2, 1.0) for ranks in (2, 4)
    }
    assert {one.launcher for one in taken} == {TORCHRUN, PLAIN}
    assert len({one.ending for one in taken}) == 3


def test_run_counts_when_its_fault_was_reached_after_its_steps() -> None:
    assert find_invalid(HANG_CASE, CHOICE, make_watched(None)) is None
    assert find_invalid(HANG_CASE, CHOICE, make_watched(None, truth=[])) is not None
    early = {0: make_steps(59), 1: make_steps(20)}
    assert "had ended 20 steps" in str(
        find_invalid(HANG_CASE, CHOICE, make_watched(None, steps=early))
    )
    went_on = {0: make_steps(90), 1: make_steps(90)}
    assert "went on" in str(find_invalid(HANG_CASE, CHOICE, make_watched(None, steps=went_on)))
    ended = make_watched(None, ending_unix_s=None)
    assert "by itself" in str(find_invalid(HANG_CASE, CHOICE, ended))


def test_near_miss_counts_when_it_paused_and_went_on() -> None:
    paused = {rank: make_steps(70, pause_at=59, pause_s=40.0) for rank in (0, 1)}
    assert find_invalid(NEAR_CASE, CHOICE, make_watched(None, steps=paused)) is None
    short = {rank: make_steps(70, pause_at=59, pause_s=20.0) for rank in (0, 1)}
    assert "paused for 20" in str(find_invalid(NEAR_CASE, CHOICE, make_watched(None, steps=short)))
    cut = {rank: make_steps(65, pause_at=59, pause_s=40.0) for rank in (0, 1)}
    assert "65 steps of 70" in str(find_invalid(NEAR_CASE, CHOICE, make_watched(None, steps=cut)))


def test_hang_is_right_when_it_was_named_in_time_and_at_the_end() -> None:
    row = judge(HANG_CASE, make_watched(SLEEPING), [NAMED])
    assert (row["right"], row["named_s"], row["blamed"]) == (True, 14.0, 0)
    assert row["first_line"] == "no progress since step 59: rank 1 waits in sleep_for_ever"


@pytest.mark.parametrize(
    ("verdict", "opened"),
    [
        (SLEEPING, []),  # nothing was said while it hung
        (SLEEPING, [replace(NAMED, unix_s=BEGUN_S + 35)]),  # too late
        (SLEEPING, [replace(NAMED, unix_s=BEGUN_S + 41)]),  # when the user had left
        (SLEEPING, [replace(NAMED, rank=0)]),
        (SLEEPING, [NAMED, replace(NAMED, rank=0)]),  # another rank too
        (make_verdict(), [NAMED]),
        (make_verdict(make_finding(rank=0)), [NAMED]),
        (make_verdict(make_finding(kind="slow")), [NAMED]),
        (make_verdict(make_finding("PY_GC")), [NAMED]),
        (None, [NAMED]),
    ],
)
def test_hang_is_wrong(verdict: Any, opened: list[Opened]) -> None:
    assert judge(HANG_CASE, make_watched(verdict), opened)["right"] is False


def test_rank_that_has_not_joined_is_right_with_its_function_only() -> None:
    bare = make_watched(make_verdict(make_finding()), output="stuck: rank 1: asleep\n")
    assert not judge(HANG_CASE, bare, [NAMED])["right"]
    said = replace(bare, output="stuck: rank 1: asleep in sleep_for_ever (planted.py:42)\n")
    assert judge(HANG_CASE, said, [NAMED])["right"]


def test_reason_that_is_right_by_itself_needs_no_stack() -> None:
    verdict = make_verdict(make_finding("PROCESS_SUSPENDED"))
    named = replace(NAMED, reason="PROCESS_SUSPENDED")
    assert judge(STOP_CASE, make_watched(verdict), [named])["right"]
    assert not judge(STOP_CASE, make_watched(SLEEPING), [NAMED])["right"]


def test_line_is_right_within_the_function() -> None:
    assert shows_line(make_watched(SLEEPING)) is True
    elsewhere = make_verdict(make_finding(), frames=("sleep_for_ever (planted.py:77)",))
    assert shows_line(make_watched(elsewhere)) is False
    assert shows_line(make_watched(None)) is None


def test_near_miss_is_wrong_with_any_finding_or_accusing_word() -> None:
    quiet = make_watched(make_verdict(), output="healthy: 0.2 s a step\n")
    assert judge(NEAR_CASE, quiet, [])["right"]
    assert not judge(NEAR_CASE, quiet, [replace(NAMED, rank=None)])["right"]
    said = [Line(BEGUN_S + 20, "rootwalk: live: stuck for 20 s")]
    assert not judge(NEAR_CASE, replace(quiet, lines=said), [])["right"]
    waiting = [Line(BEGUN_S + 20, "rootwalk: live: waiting for a checkpoint of rank 0, 20 s")]
    assert judge(NEAR_CASE, replace(quiet, lines=waiting), [])["right"]
    accused = make_watched(make_verdict(make_finding("CKPT_IO", 0, "slow")))
    assert not judge(NEAR_CASE, accused, [])["right"]


def test_end_needs_the_first_rank_and_the_first_line() -> None:
    verdict = make_verdict(make_finding("RANK_KILLED", kind=None))
    line = "job failed after step 99: rank 1 was killed by SIGKILL (sent by pid 7, python)\n"
    watched = make_watched(verdict, output=line, ending_unix_s=None)
    assert judge(KILL_CASE, watched, [])["right"]
    assert not judge(KILL_CASE, replace(watched, output="healthy: 0.2 s a step\n"), [])["right"]
    both = make_verdict(make_finding("RANK_KILLED", kind=None), make_finding("RANK_GONE", 0))
    assert not judge(KILL_CASE, replace(watched, verdict=both), [])["right"]


def test_user_who_leaves_is_no_cause_to_accuse_a_rank() -> None:
    watched = make_watched(make_verdict(), output="stopped by the user after step 60\n")
    assert judge(CTRL_C_CASE, watched, [])["right"]
    blaming = make_watched(make_verdict(make_finding("RANK_KILLED", kind=None)))
    assert not judge(CTRL_C_CASE, blaming, [])["right"]


def test_healthy_is_never_the_right_rank() -> None:
    assert judge(HANG_CASE, make_watched(make_verdict()), [])["rank_right"] is False
    assert judge(HANG_CASE, make_watched(None), [])["rank_right"] is False
    assert judge(CTRL_C_CASE, make_watched(make_verdict()), [])["rank_right"] is True
    assert judge(HANG_CASE, make_watched(SLEEPING), [])["rank_right"] is True


def test_only_lines_of_rootwalk_after_the_fault_are_words_about_it() -> None:
    said = "rootwalk: live: no progress for 12 s: rank 1 has not called all_reduce #60"
    lines = [
        Line(BEGUN_S - 5, said),
        Line(BEGUN_S + 1, "[rank1]: the worker is stuck"),
        Line(BEGUN_S + 12, said),
    ]
    assert find_first_word(lines, BEGUN_S) == BEGUN_S + 12
    assert not is_about_hang("rootwalk: live: slow since step 12: rank 1")


def test_headline_is_one_line_again() -> None:
    assert (
        find_first_line("\njob failed:\n  rank 1\nnot seen  x\n          y\n")
        == "job failed: rank 1"
    )
    assert find_first_line("") == ""


def test_one_that_computes_runs_alone() -> None:
    places, order = Places(2), []

    def hold(name: str, *, every: bool) -> None:
        with places.take(every=every):
            order.append(name)
            gate.wait()
            order.append(name)

    gate = threading.Event()
    threads = [
        threading.Thread(target=hold, args=(name,), kwargs={"every": False}) for name in "ab"
    ]
    for thread in threads:
        thread.start()
    while len(order) < 2:
        time.sleep(0.01)
    last = threading.Thread(target=hold, args=("c",), kwargs={"every": True})
    last.start()
    gate.set()
    for thread in (*threads, last):
        thread.join()
    assert order[-2:] == ["c", "c"]


def test_processes_of_a_run_are_found_by_its_mark_and_a_frozen_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gauntlet.live.outside.SUSPENDED_S", 0.1)
    truths: list[int | None] = []
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"GAUNTLET_LIVE_RUN": "a-mark"},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_marked("a-mark") == [process.pid]
        assert find_marked("another") == []
        freeze_all(Scene(tmp_path, process.pid, process.pid, {}, truths.append))
        assert truths == [None]
        process.communicate()  # it ends with its input only if it runs again
        assert process.returncode == 0
    assert not find_marked("a-mark")


def test_what_cannot_be_had_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.live.places.shutil.which", lambda _: None)
    row = run_once("hang_spin_c", 0, "all sensors", None)
    assert "needs cc" in row["not_run"]
    assert "right" not in row


def test_table_has_the_runs_of_the_newest_state(tmp_path: Path) -> None:
    common = {"variant": "all sensors", "date": "2026-01-01", "machine": "m", "invalid": None}
    for commit, is_right in (("old", False), ("new", True), ("new", False), ("new", True)):
        named_s = 12.0 if is_right else None
        row = common | {"commit": commit, "right": is_right, "rank_right": True, "named_s": named_s}
        add_live("hang_sleep", row, tmp_path)
    blind = {"variant": "without bpf", "commit": "new", "right": False, "named_s": None}
    blind |= {"outcome": "insufficient_evidence"}
    first = {"commit": "old", "rank_right": False}
    add_live("hang_sleep", common | blind | first, tmp_path)
    add_live("hang_sleep", common | blind | {"rank_right": True}, tmp_path)
    add_live("hang_fuse", common | {"commit": "new", "not_run": "no /dev/fuse"}, tmp_path)
    text = generate_live(tmp_path)
    assert "| a rank sleeps for ever | 2 of 3 | 1 of 1 | not run | 12, 12 |" in text
    assert "not run: no /dev/fuse" in text
    assert "- hangs: 2 of 3 right" in text
    assert "- with earlier states of the product: hangs 0 of 1, hangs without bpf 0 of 1\n" in text
    assert "the right rank in 1 of 1 (goal: 70 %), called healthy in 0" in text
    assert "2026-01-01, m, new" in text
    assert "not run yet" in generate_live(tmp_path / "none")


def test_planted_truth_says_which_lines(tmp_path: Path) -> None:
    from gauntlet.live.training import Diary

    diary = Diary(tmp_path, 1)
    diary.step(3)
    diary.fault(4, FAULTS["sleep"].function)
    (truth,) = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    assert (truth["rank"], truth["step"], truth["function"]) == (1, 4, "sleep_for_ever")
    first, last = truth["lines"]
    source = Path(sys.modules["gauntlet.live.planted"].__file__ or "").read_text().splitlines()
    assert "time.sleep(3600)" in "\n".join(source[first - 1 : last])
