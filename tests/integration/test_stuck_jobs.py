"""Jobs in which no rank makes progress, diagnosed from what their ranks report, through a real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.instrumentation import semconv
from support.jobs import START_UNIX_NS, Job, simulate, write_rows
from support.progress_reports import (
    ALL_REDUCE_STACK,
    JOB,
    STUCK_S,
    Place,
    Rank,
    Reports,
    absent,
    stuck_job,
    waiting,
)
from support.stores import query_rows
from support.verdicts import check_verdict

CALL, KIND = semconv.TRAINING_WAIT_SYSTEM_CALL, semconv.TRAINING_WAIT_KIND
FUSE_STACK = (
    "request_wait_answer [kernel]",
    "fuse_simple_request [kernel]",
    "vfs_read [kernel]",
    "read [libc.so.6]",
    "load (/home/user/train.py:33)",
)
LOCK_STACK = (
    "futex_wait [kernel]",
    "__futex_abstimed_wait_common [libc.so.6]",
    "PyThread_acquire_lock_timed [python3.12]",
    "take_twice (/home/user/train.py:44)",
)
INPUT_STACK = (
    "n_tty_read [kernel]",
    "read [libc.so.6]",
    "PyOS_Readline [python3.12]",
    "ask (/home/user/train.py:21)",
)
DEBUGGER_STACK = (
    "read [libc.so.6]",
    "cmdloop (/usr/lib/python3.12/cmd.py:126)",
    "interaction (/usr/lib/python3.12/pdb.py:430)",
    "forward (/home/user/model.py:12)",
)
LOADER_STACK = (
    "poll [libc.so.6]",
    "_try_get_data (/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py:1131)",
    "main (/home/user/train.py:70)",
)
FORKED_STACK = (
    "futex_wait [kernel]",
    "lock_PyThread_acquire_lock [python3.12]",
    "__getitem__ (/home/user/data.py:9)",
    "_bootstrap (/usr/lib/python3.12/multiprocessing/process.py:314)",
    "_launch (/usr/lib/python3.12/multiprocessing/popen_fork.py:71)",
    "main (/home/user/train.py:70)",
)
SPIN_STACKS = tuple(
    (f"spin (/home/user/train.py:{line})", "main (/home/user/train.py:79)") for line in (50, 51)
)
WORK_STACKS = tuple(
    (f"encode_{place} (/home/user/words.py:{place})", "main (/home/user/train.py:79)")
    for place in range(4)
)
MATRIX_STACK = ("mkl_blas_avx2_sgemm [libmkl_avx2.so.2]", "evaluate (/home/user/train.py:60)")
BUSY = {"cpu": 0.99, "main_cpu": 0.99}
NO_CALL: dict[str, Any] = {"attributes": {}}


def solved(store: Path) -> Verdict:
    return check_verdict(diagnose(store, job=JOB))


def with_culprit(path: Path, culprit: Rank, ranks: int = 8, at: int = 3) -> Verdict:
    return solved(
        stuck_job(path / "s.duckdb", [culprit if r == at else waiting() for r in range(ranks)])
    )


CASES = [
    pytest.param(absent(), "NOT_JOINED", "asleep in sleep_forever (train.py:57)", id="sleep"),
    pytest.param(absent(state="stopped"), "PROCESS_SUSPENDED", "stopped by a signal", id="stopped"),
    pytest.param(absent(state="traced"), "PROCESS_SUSPENDED", "stopped by a debugger", id="traced"),
    pytest.param(
        absent(state="running", rates=BUSY, stacks=SPIN_STACKS, **NO_CALL),
        "NOT_JOINED",
        "runs at the same place all the time",
        id="spins",
    ),
    pytest.param(
        absent(attributes={CALL: "futex"}, stacks=(LOCK_STACK,)),
        "NOT_JOINED",
        "waits for a lock in take_twice (train.py:44)",
        id="lock",
    ),
    pytest.param(
        absent(attributes={CALL: "read"}, stacks=(INPUT_STACK,)),
        "NOT_JOINED",
        "waits for input in ask (train.py:21)",
        id="input",
    ),
    pytest.param(
        absent(attributes={CALL: "read"}, stacks=(DEBUGGER_STACK,)),
        "NOT_JOINED",
        "in a debugger in forward (model.py:12)",
        id="debugger",
    ),
    pytest.param(
        absent(state="disk", attributes={CALL: "read", KIND: "file_read"}, stacks=(FUSE_STACK,)),
        "NOT_JOINED",
        "waits for a FUSE file system to answer in load (train.py:33)",
        id="fuse",
    ),
    pytest.param(
        absent(attributes={CALL: "poll"}, stacks=(LOADER_STACK,), child=FORKED_STACK),
        "FORK_DEADLOCK",
        "waits for a child",
        id="forked child",
    ),
    pytest.param(
        absent(attributes={CALL: "recvfrom", KIND: "socket_read"}, stacks=(("recv [libc.so.6]",),)),
        "NOT_JOINED",
        "waits for a connection in recv [libc.so.6]",
        id="socket",
    ),
]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("culprit", "reason", "words"), CASES)
def test_rank_is_named_with_what_it_does(
    tmp_path: Path, culprit: Rank, reason: str, words: str, ranks: int
) -> None:
    at = ranks // 2 - 1 + ranks // 8
    verdict = with_culprit(tmp_path, culprit, ranks, at)

    (finding,) = verdict.findings
    assert (verdict.kind, finding.reason, finding.subject.ranks) == ("hang", reason, (at,))
    text = " ".join(render_text(verdict).split())
    assert text.startswith(f"stuck for 20 s after step 65: rank {at}: {words}")
    assert "has not called all_reduce #66 of dp0" in text
    assert finding.victims.count == ranks - 1
    assert verdict.hang is not None
    assert (verdict.hang.sequence, verdict.hang.absent) == (66, (at,))
    assert verdict.hang.ranks[0].rank == at
    assert verdict.hang.stack_groups[0].ranks == (at,)  # the odd one is shown first


NEAR_MISSES = [
    pytest.param(
        absent(attributes={semconv.TRAINING_PROGRESS_IS_COMPILING: True}, rates=BUSY), id="compiles"
    ),
    pytest.param(
        absent(
            attributes={semconv.TRAINING_PHASE: "checkpoint", KIND: "file_write"},
            rates={"io": 2e7, "cpu": 0.3},
        ),
        id="checkpoint",
    ),
    pytest.param(
        absent(state="disk", attributes={KIND: "file_sync"}, rates={"io": 100.0}), id="sync"
    ),
    pytest.param(
        absent(
            state="running",
            attributes={semconv.TRAINING_PHASE: "evaluation"},
            rates=BUSY,
            stacks=(MATRIX_STACK,),
        ),
        id="evaluation",
    ),
    pytest.param(
        absent(state="running", rates=BUSY, stacks=(MATRIX_STACK,), **NO_CALL), id="computes"
    ),
    pytest.param(
        absent(state="running", rates=BUSY, stacks=WORK_STACKS, **NO_CALL), id="works in Python"
    ),
    pytest.param(
        absent(attributes={CALL: "recvfrom", KIND: "socket_read"}, rates={"io": 3e6}),
        id="downloads",
    ),
    pytest.param(
        absent(attributes={CALL: "poll"}, stacks=(LOADER_STACK,), rates={"cpu": 1.5}),
        id="its loader works",
    ),
]


@pytest.mark.parametrize("culprit", NEAR_MISSES)
def test_rank_at_work_is_no_hang(tmp_path: Path, culprit: Rank) -> None:
    assert with_culprit(tmp_path, culprit).kind is None


def test_job_that_is_suspended_as_a_whole_is_no_hang(tmp_path: Path) -> None:
    ranks = [waiting(state="stopped") for _ in range(3)] + [absent(state="stopped")]
    assert solved(stuck_job(tmp_path / "s.duckdb", ranks)).kind is None


def test_pause_that_is_usual_for_the_job_is_no_hang(tmp_path: Path) -> None:
    ranks = [waiting(usual_s=8.0), absent(usual_s=8.0)]
    assert solved(stuck_job(tmp_path / "s.duckdb", ranks)).kind is None


def test_evaluation_on_all_ranks_is_no_hang(tmp_path: Path) -> None:
    one = absent(
        state="running",
        attributes={semconv.TRAINING_PHASE: "evaluation"},
        rates=BUSY,
        stacks=(MATRIX_STACK,),
    )
    store = stuck_job(tmp_path / "s.duckdb", [one] * 4, until_s=STUCK_S + 45.0)
    assert solved(store).kind is None


def test_all_have_called_and_none_ends_blames_no_rank(tmp_path: Path) -> None:
    verdict = solved(stuck_job(tmp_path / "s.duckdb", [waiting()] * 4))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.subject.ranks) == (
        "UNKNOWN_NET",
        None,
        (),
    )
    assert "all 4 ranks wait in all_reduce #66 of dp0, and it does not end" in " ".join(
        render_text(verdict).split()
    )


@pytest.mark.parametrize("rates", [{"io": 2e6}, {"cpu": 0.1}])
def test_transfer_whose_bytes_arrive_is_no_hang(tmp_path: Path, rates: dict[str, float]) -> None:
    ranks = [waiting(rates=rates)] * 4
    assert solved(stuck_job(tmp_path / "s.duckdb", ranks)).kind is None


def test_another_operation_under_the_same_number_is_named(tmp_path: Path) -> None:
    verdict = with_culprit(tmp_path, waiting(places=(Place(66, 65, operation="broadcast"),)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_MISMATCH", (3,))
    assert "called broadcast as #66" in " ".join(render_text(verdict).split())


def test_two_groups_in_opposite_order_are_a_deadlock(tmp_path: Path) -> None:
    def places(first: int, second: int) -> tuple[Place, ...]:
        return (
            Place(first, 9, communicator="a", name="tp0", members=(0, 1)),
            Place(second, 9, communicator="b", name="dp0", members=(0, 1)),
        )

    ranks = [waiting(places=places(10, 9)), waiting(places=places(9, 10))]
    verdict = solved(stuck_job(tmp_path / "s.duckdb", ranks))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_DEADLOCK", (0, 1))
    assert verdict.hang is not None
    assert len(verdict.hang.cycle) == 2


def test_waiting_is_followed_through_groups_to_the_one_who_waits_for_nobody(tmp_path: Path) -> None:
    """Rank 2 is asleep; rank 1 waits for it in their pair and so misses the operation of all."""
    world = Place(40, 39, name="world")
    behind = Place(39, 39, name="world")
    pair: dict[str, Any] = {"communicator": "p", "name": "pair", "size": 2, "members": (1, 2)}
    ranks = [
        waiting(places=(world,)),
        waiting(places=(behind, Place(7, 6, **pair))),
        absent(places=(behind, Place(6, 6, **pair))),
        waiting(places=(world,)),
    ]
    (finding,) = solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings
    assert finding.subject.ranks == (2,)


STARTING: dict[str, Any] = {"step": None, "usual_s": None, "places": ()}


def test_rank_that_never_comes_to_the_rendezvous_is_named(tmp_path: Path) -> None:
    ranks = [Rank(stage="rendezvous", **STARTING)] * 7
    ranks.insert(5, absent(stage="started", **STARTING))
    verdict = solved(stuck_job(tmp_path / "s.duckdb", ranks))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.ranks) == ("NOT_JOINED", (5,))
    assert " ".join(render_text(verdict).split()).startswith(
        "stuck for 20 s before the first step: rank 5: asleep in sleep_forever (train.py:57);"
        " has not reached init_process_group"
    )


def test_rank_that_was_never_started_is_named_after_a_while(tmp_path: Path) -> None:
    ranks = [Rank(stage="rendezvous", **STARTING)] * 2
    early = stuck_job(tmp_path / "early.duckdb", ranks, world=3, until_s=STUCK_S + 25.0)
    assert not solved(early).findings
    late = stuck_job(tmp_path / "late.duckdb", ranks, world=3, until_s=STUCK_S + 40.0)
    (finding,) = solved(late).findings
    assert (finding.subject.ranks, finding.confidence.band) == ((2,), "medium")


def test_first_collective_that_one_has_not_called(tmp_path: Path) -> None:
    place = Place(1, 0, operation="barrier", size_bytes=None)
    started = {"stage": "initialised", "step": None, "usual_s": None}
    ranks = [waiting(places=(place,), **started)] * 3
    ranks.append(absent(places=(Place(0, 0, operation="", size_bytes=None),), **started))
    (finding,) = solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings
    assert finding.subject.ranks == (3,)


def test_all_in_the_first_collective_are_given_time(tmp_path: Path) -> None:
    place = Place(1, 0)
    one = waiting(places=(place,), stage="initialised", step=None, usual_s=None)
    assert not solved(stuck_job(tmp_path / "s.duckdb", [one] * 4)).findings


def test_download_before_the_first_step_is_no_hang(tmp_path: Path) -> None:
    ranks = [Rank(stage="rendezvous", **STARTING)] * 3
    ranks.append(absent(stage="started", rates={"io": 4e6}, **STARTING))
    assert solved(stuck_job(tmp_path / "s.duckdb", ranks)).kind is None


WITHOUT_HOOKS: dict[str, Any] = {"stage": None, "step": None, "usual_s": None, "places": ()}


def test_stacks_alone_name_who_stands_elsewhere(tmp_path: Path) -> None:
    ranks = [waiting(**WITHOUT_HOOKS)] * 7
    ranks.insert(3, absent(**WITHOUT_HOOKS))
    (finding,) = solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings
    assert (finding.subject.ranks, finding.confidence.band) == ((3,), "medium")


def test_stacks_alone_say_nothing_of_a_job_in_which_nobody_waits(tmp_path: Path) -> None:
    ranks = [absent(**WITHOUT_HOOKS)] * 4
    assert not solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings


def test_rank_that_works_is_not_blamed_by_stacks_alone(tmp_path: Path) -> None:
    work = Rank(state="running", rates=BUSY, stacks=WORK_STACKS, **WITHOUT_HOOKS)
    ranks = [waiting(**WITHOUT_HOOKS)] * 3 + [work]
    assert not solved(stuck_job(tmp_path / "s.duckdb", ranks)).findings


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"code": 0}, "RANK_GONE"),
        ({"code": 7}, "RANK_CRASHED"),
        ({"signal": "SIGKILL"}, "RANK_KILLED"),
        ({"signal": "SIGSEGV"}, "RANK_CRASHED"),
    ],
)
def test_rank_whose_process_ended_unnoticed_is_named(
    tmp_path: Path, end: dict[str, Any], reason: str
) -> None:
    reports = Reports(4)
    for rank in (0, 2, 3):
        reports.add_rank(rank, waiting())
    reports.end(1, STUCK_S - 0.5, **end)
    (finding,) = solved(reports.save(tmp_path / "s.duckdb")).findings
    assert (finding.reason, finding.subject.ranks) == (reason, (1,))


def test_rank_that_has_called_and_then_died_is_named(tmp_path: Path) -> None:
    """All have called; the one that is gone will not end it."""
    reports = Reports(4)
    for rank in range(4):
        reports.add_rank(rank, waiting(), STUCK_S + (6.0 if rank == 1 else 30.0))
    reports.end(1, STUCK_S + 7.0, signal="SIGKILL")
    (finding,) = solved(reports.save(tmp_path / "s.duckdb")).findings
    assert (finding.reason, finding.subject.ranks) == ("RANK_KILLED", (1,))


@pytest.mark.parametrize("by", ["signal", "end", "run"])
def test_verdict_stays_when_the_user_ends_the_job(tmp_path: Path, by: str) -> None:
    """What moves because the job was ended does not show that it went on."""
    over_s = STUCK_S + 31.0
    reports = Reports(4)
    for number in range(4):
        rank = absent(resumed_s=over_s + 0.2) if number == 2 else waiting(resumed_s=over_s + 0.4)
        reports.add_rank(number, rank, over_s + 1.0)
        reports.end(number, over_s + 0.9, signal="SIGTERM")
    if by == "signal":
        told = {semconv.TRAINING_SIGNAL_NAME: "SIGINT", semconv.TRAINING_PROCESS_IS_CHILD: False}
        reports.add(semconv.EVENT_TRAINING_PROCESS_SIGNAL, 0, over_s, **told)
    if by == "run":
        told = {semconv.TRAINING_RUN_ENDED_BY: "user"}
        reports.add(semconv.EVENT_ROOTWALK_RUN_END, None, over_s + 1.0, **told)
    (finding,) = solved(reports.save(tmp_path / "s.duckdb", over_s + 1.0)).findings
    assert (finding.reason, finding.subject.ranks) == ("NOT_JOINED", (2,))


@pytest.mark.parametrize("is_first", [0, 1, 3])
def test_who_holds_up_a_job_may_be_the_last_to_end(tmp_path: Path, is_first: int) -> None:
    """Without BPF no signal is seen: the first that is known of the end is that one of the waiting has ended."""
    over_s = STUCK_S + 26.3
    reports = Reports(4)
    for number in range(4):
        held_up = Rank(state="stopped")
        rank = held_up if number == 2 else waiting()
        reports.add_rank(number, rank, over_s + (30.0 if number == 2 else 0.0))
        if number != 2:
            reports.end(number, over_s + (0.0 if number == is_first else 0.4))
    reports.end(2, over_s + 30.1)
    (finding,) = solved(reports.save(tmp_path / "s.duckdb", over_s + 31.0)).findings
    assert (finding.reason, finding.subject.ranks) == ("PROCESS_SUSPENDED", (2,))


def write_steps(path: Path, steps: int, **changes: Any) -> None:
    rows = simulate(Job(ranks=4, steps=steps, **changes))
    write_rows(path, [row | {"received_unix_ns": START_UNIX_NS} for row in rows])


def test_hang_that_was_over_is_a_closed_finding_of_a_job_that_is_well(tmp_path: Path) -> None:
    """Ninety seconds without progress at 2 s; the later steps say nothing of them."""
    path = tmp_path / "s.duckdb"
    goes_on_s = 92.0
    reports = Reports(4)
    for number in range(4):
        build = absent if number == 1 else waiting
        reports.add_rank(number, build(since_s=2.0, resumed_s=goes_on_s), goes_on_s)
    reports.save(path, goes_on_s)
    write_steps(path, 1000)

    verdict = solved(path)

    (finding,) = verdict.findings
    assert (finding.state, finding.reason, finding.subject.ranks) == ("closed", "NOT_JOINED", (1,))
    assert finding.lost.wall_s == pytest.approx(90.0, abs=0.1)
    assert "was stuck for 90 s" in " ".join(render_text(verdict).split())
    assert query_rows(path, "SELECT state, reason FROM findings") == [("closed", "NOT_JOINED")]


def test_store_says_what_the_finding_rests_on(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    stuck_job(path, [waiting(), absent()])
    (finding,) = solved(path).findings
    for row in finding.evidence:
        assert row.query is not None
        assert query_rows(path, row.query)
    edges = query_rows(path, "SELECT source_id, target_id FROM edges ORDER BY ALL")
    assert edges == [("collective:0/66", "rank:1"), ("job:j1", "collective:0/66")]


def test_stack_of_many_ranks_is_one_group(tmp_path: Path) -> None:
    verdict = with_culprit(tmp_path, absent(), ranks=128, at=77)
    assert verdict.hang is not None
    first, second = verdict.hang.stack_groups
    assert (first.ranks, len(second.ranks), second.frames) == ((77,), 127, ALL_REDUCE_STACK)


def test_other_operation_that_has_ended_at_its_rank_is_named(tmp_path: Path) -> None:
    """A small broadcast ends at its root although nobody takes part: its span says what was called."""
    path = tmp_path / "s.duckdb"
    ranks = [waiting(places=(Place(66, 65, communicator="world"),)) for _ in range(3)]
    ranks.append(waiting(places=(Place(67, 66, communicator="world"),)))
    stuck_job(path, ranks)
    (row,) = [
        row
        for row in simulate(Job(ranks=4, steps=40))
        if row.get("sequence") == 66 and row["rank"] == 3
    ]
    called = {"operation": "broadcast", "communicator_id": "world"}
    write_rows(path, [row | called | {"received_unix_ns": START_UNIX_NS}])
    (finding,) = solved(path).findings
    assert (finding.reason, finding.subject.ranks) == ("COLLECTIVE_MISMATCH", (3,))
