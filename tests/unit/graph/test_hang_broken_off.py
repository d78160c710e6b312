"""Gloo's dumps, in which a call that failed looks as one that has ended: who is gone, and who called something else."""

from __future__ import annotations

import pytest

from rootwalk.graph.hangs.flight_store import RecordReader, to_text
from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.reasons import Reason
from support.flight_dumps import FlightJob

GROUP = "0"
# Rank 1 is killed: as recorded of a real job, rank 2 had its part of the broadcast and was in the next call.
SURVIVORS = (0, 2, 3)


def leave(job: FlightJob) -> FlightJob:
    """Let all calls be over, as gloo writes them down when they have ended and when they have failed."""
    for entries in job.entries.values():
        for entry in entries:
            entry["retired"] = True
    return job


def killed(*, is_ahead: bool) -> FlightJob:
    job = FlightJob(4, {GROUP: range(4)})
    job.call_all(range(4), GROUP)
    job.call_all(SURVIVORS, GROUP, "broadcast")
    if is_ahead:
        job.call(2, GROUP)
    return leave(job)


def other_operation() -> FlightJob:
    """Rank 1 broadcasts something else, and waits; the others have left or go on."""
    job = FlightJob(4, {GROUP: range(4)})
    job.call_all(range(4), GROUP)
    for rank in range(4):
        job.call(rank, GROUP, "broadcast", elements=64 if rank == 1 else 1024)
    job.call_all((2, 3), GROUP)
    leave(job)
    for rank in (1, 2):
        job.entries[rank][-1]["retired"] = False
    return job


@pytest.mark.parametrize(("is_ahead", "ends"), [(False, {1: True}), (True, {}), (True, {1: True})])
def test_a_killed_rank_is_gone_and_its_survivors_wait(
    is_ahead: bool, ends: dict[int, bool]
) -> None:
    records = killed(is_ahead=is_ahead).records(SURVIVORS, has_history=True)
    hang = find_hang(records, (), ends)
    assert [(blame.reason, blame.ranks) for blame in hang.blames] == [(Reason.RANK_GONE, (1,))]
    assert hang.victims == SURVIVORS
    assert not hang.aside
    assert hang.blames[0].certainty == (0.95 if ends else 0.6)


def test_who_could_not_go_on_without_the_one_that_is_missing_is_a_victim() -> None:
    # As recorded of a real job: rank 1 waits in a worker of its own; the root of the broadcast, and a rank that was
    # ahead, failed as the first one left.
    job = FlightJob(4, {GROUP: range(4)})
    job.call_all(range(4), GROUP)
    job.call_all(SURVIVORS, GROUP, "broadcast")
    job.call_all((2, 3), GROUP)
    leave(job)
    job.entries[3][-1]["retired"] = False
    hang = find_hang(job.records(has_history=True))
    assert [(blame.reason, blame.ranks) for blame in hang.blames] == [(Reason.NOT_JOINED, (1,))]
    assert hang.victims == SURVIVORS


def test_a_lost_dump_of_a_job_that_has_ended_accuses_nobody() -> None:
    job = killed(is_ahead=False)
    # All have stopped at one place: with or without a word about its end, the job may have ended there.
    assert find_hang(job.records(SURVIVORS, has_history=True)).blames == ()
    assert find_hang(job.records(SURVIVORS, has_history=True), (), {1: False}).blames == ()
    for entries in job.entries.values():
        for entry in entries:
            entry["state"] = "completed"
    assert find_hang(job.records(SURVIVORS, has_history=True)).blames == ()


def test_dumps_of_all_ranks_that_have_ended_accuse_nobody() -> None:
    job = FlightJob(4, {GROUP: range(4)})
    job.call_all(range(4), GROUP)
    assert find_hang(leave(job).records(has_history=True)).operations == ()


def test_the_odd_one_out_is_to_blame_though_the_others_have_left() -> None:
    hang = find_hang(other_operation().records(has_history=True))
    (blame,) = hang.blames
    assert (blame.reason, blame.ranks) == (Reason.COLLECTIVE_MISMATCH, (1,))
    assert blame.certainty == 0.9
    assert hang.victims == SURVIVORS


def test_two_against_two_are_all_named() -> None:
    job = FlightJob(4, {GROUP: range(4)})
    for rank in range(4):
        job.call(rank, GROUP, "broadcast" if rank < 2 else "all_reduce")
    (blame,) = find_hang(job.records()).blames
    assert (blame.reason, blame.ranks) == (Reason.COLLECTIVE_MISMATCH, (0, 1, 2, 3))
    assert blame.certainty < 0.9


def test_calls_that_are_over_go_through_the_store() -> None:
    for record in killed(is_ahead=True).records(SURVIVORS, has_history=True):
        assert record.over
        assert RecordReader().read(to_text(record)) == record


@pytest.mark.parametrize("is_in_collective", [False, True])
def test_a_chain_of_receives_that_ends_at_a_live_rank_is_no_circle(is_in_collective: bool) -> None:
    # 3 waits for 2, 2 for 1, 1 for 0, and 0 is elsewhere: at nothing, or in a collective that 4 does not call.
    job = FlightJob(5, {GROUP: range(5), "1": (0, 4)})
    for rank in (1, 2, 3):
        job.receive(rank, GROUP, rank - 1)
    if is_in_collective:
        job.call(0, "1")
    (blame,) = find_hang(job.records()).blames
    expected = 4 if is_in_collective else 0
    assert (blame.reason, blame.ranks) == (Reason.NOT_JOINED, (expected,))
