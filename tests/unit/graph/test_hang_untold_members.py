"""Gloo's dumps, which do not tell the members of a group: who has called in it is one, of others nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.hangs.flight_store import RecordReader, to_text
from rootwalk.graph.hangs.judge import Hang, find_hang
from rootwalk.graph.hangs.moments import Doubled
from rootwalk.graph.hangs.quality import find_problems
from rootwalk.graph.importers.flight_recorder_format import parse_dump
from rootwalk.graph.reasons import Reason
from support.flight_dumps import FlightJob

DATA = Path(__file__).parents[2] / "data" / "gloo_flight_recorder"
ALL, EXPERTS, BATCH = "0", "1", "2"
EVERYONE = range(4)


def used(*, groups: tuple[str, ...] = (ALL, EXPERTS, BATCH)) -> FlightJob:
    """A job of four ranks with three groups of all, of which some have been called and have ended."""
    job = FlightJob(4, dict.fromkeys((ALL, EXPERTS, BATCH), EVERYONE))
    for group in groups:
        job.call_all(EVERYONE, group)
        job.finish(EVERYONE, group)
    return job


def crossed(**options: tuple[str, ...]) -> FlightJob:
    """Rank 3 calls in the two groups in the other order."""
    job = used(**options)
    job.call_all((0, 1, 2), EXPERTS)
    job.call(3, BATCH)
    return job


def pairs() -> FlightJob:
    """Ranks 0 and 1, and 2 and 3, have a group each, and one together; all have been called."""
    job = FlightJob(4, {ALL: EVERYONE, EXPERTS: (0, 1), BATCH: (2, 3)})
    for rank in EVERYONE:
        for group in (ALL, EXPERTS if rank < 2 else BATCH):
            job.call(rank, group)
            job.finish((rank,), group)
    return job


def blamed(hang: Hang) -> list[tuple[Reason, tuple[int, ...]]]:
    return [(blame.reason, blame.ranks) for blame in hang.blames]


def read_case(case: str, *ranks: int) -> Hang:
    return find_hang(
        parse_dump((DATA / case / f"nccl_trace_rank_{rank}").read_bytes(), rank) for rank in ranks
    )


def test_two_groups_in_opposite_order_are_a_deadlock_where_all_have_called_in_both() -> None:
    hang = find_hang(crossed().gloo_records())
    assert blamed(hang) == [(Reason.COLLECTIVE_DEADLOCK, (3,))]
    assert [op.communicator for op in hang.blames[0].cycle] == [EXPERTS, BATCH]
    assert hang.victims == (0, 1, 2)
    assert hang.world == 4


def test_the_group_of_all_and_another_in_opposite_order_are_a_deadlock_as_well() -> None:
    job = used()
    job.call_all((0, 1, 2), ALL)
    job.call(3, BATCH)
    assert blamed(find_hang(job.gloo_records())) == [(Reason.COLLECTIVE_DEADLOCK, (3,))]


@pytest.mark.parametrize("missing", EVERYONE)
def test_a_deadlock_is_told_of_those_whose_dumps_are_there(missing: int) -> None:
    ranks = [rank for rank in EVERYONE if rank != missing]
    hang = find_hang(crossed().gloo_records(ranks))
    assert blamed(hang) == ([] if missing == 3 else [(Reason.COLLECTIVE_DEADLOCK, (3,))])
    assert hang.missing == (missing,)


def test_groups_that_were_never_called_before_accuse_nobody() -> None:
    # Rank 3 may be no member of what the others wait in, nor they of what it waits in.
    records = crossed(groups=(ALL,)).gloo_records()
    hang = find_hang(records)
    assert blamed(hang) == []
    assert len(hang.operations) == 2
    (problem,) = find_problems(hang, records, Doubled())
    assert (problem.code, problem.count) == ("MISSING_EDGE", 2)


def test_a_rank_that_is_late_in_one_group_has_not_joined() -> None:
    job = used()
    job.call_all((0, 1, 2), EXPERTS)
    hang = find_hang(job.gloo_records())
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]
    assert hang.blames[0].certainty > 0.9
    assert not find_problems(hang, job.gloo_records(), Doubled())


def test_a_rank_that_is_late_behind_another_group_is_the_only_one_to_blame() -> None:
    # Rank 2 waits for rank 3 in one group, ranks 0 and 1 wait for both in the other.
    job = used()
    job.call_all((0, 1), EXPERTS)
    job.call(2, BATCH)
    job.call_all((0, 1), BATCH)
    hang = find_hang(job.gloo_records())
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]


def test_an_idle_rank_that_has_never_called_in_a_group_is_not_said_to_be_absent_from_it() -> None:
    job = used(groups=(ALL,))
    job.call_all((0, 1, 2), EXPERTS)
    assert blamed(find_hang(job.gloo_records())) == []


def test_groups_of_other_ranks_do_not_mix() -> None:
    # The lists of both pairs are [0, 1].
    job = pairs()
    job.call(2, BATCH)
    hang = find_hang(job.gloo_records())
    (operation,) = hang.operations
    assert operation.members == (2, 3)
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]


def test_who_waits_for_the_waiting_pair_is_a_victim() -> None:
    job = pairs()
    job.call(2, BATCH)
    job.call_all((0, 1), ALL)
    hang = find_hang(job.gloo_records())
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]
    assert hang.victims == (0, 1, 2)


def test_a_rank_without_a_dump_is_gone_from_the_group_of_all_only() -> None:
    job = used()
    job.call_all((0, 1, 3), ALL)
    assert blamed(find_hang(job.gloo_records((0, 1, 3)))) == [(Reason.RANK_GONE, (2,))]
    job = used()
    job.call_all((0, 1, 3), EXPERTS)
    hang = find_hang(job.gloo_records((0, 1, 3)))
    assert (blamed(hang), hang.missing) == ([], (2,))


def test_a_job_that_has_ended_is_not_held_against_a_rank_without_a_dump() -> None:
    assert not find_hang(used().gloo_records((0, 1, 3))).operations
    assert not find_hang(used().gloo_records()).operations


def test_a_dump_that_is_not_used_proves_no_members() -> None:
    # Left from a larger launch before: its rank 7 says that there are ranks 4 to 6.
    before = FlightJob(8, {ALL: range(8)})
    before.call(7, ALL)
    job = used(groups=(ALL, ALL, ALL))
    job.call_all(EVERYONE, ALL)
    hang = find_hang([*job.gloo_records(), *before.gloo_records((7,))])
    assert hang.aside == {7}
    assert hang.operations
    assert blamed(hang) == []


def test_who_failed_for_a_member_that_nobody_knows_is_not_said_to_wait_for_nobody() -> None:
    # Rank 1 has raised an exception; ranks 0 and 2 failed for it in a group of first use, and rank 3 waits for all.
    job = used(groups=(ALL,))
    job.call_all((0, 2), EXPERTS)
    job.finish((0, 2), EXPERTS)
    job.call(3, ALL)
    hang = find_hang(job.gloo_records())
    assert blamed(hang) == [(Reason.NOT_JOINED, (1,))]
    assert hang.victims == (0, 2, 3)


@pytest.mark.parametrize("ahead", [0, 1])
def test_who_failed_with_the_one_that_others_wait_for_shows_no_device_that_has_stopped(
    ahead: int,
) -> None:
    # Rank 3 has raised; ranks 0 and 2 failed for it in a group of first use, rank 2 with more calls under way.
    job = used(groups=(ALL,))
    job.call_all((0, 2), EXPERTS)
    for _ in range(ahead):
        job.call(2, EXPERTS)
    job.call_all((1, 2), BATCH)
    for entries in job.entries.values():
        for entry in entries:
            entry["state"] = "completed"
    job.call(1, ALL)
    hang = find_hang(job.gloo_records())
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]


def test_who_failed_for_a_rank_without_a_dump_is_not_said_to_wait_for_nobody() -> None:
    # Rank 1 was killed: ranks 0 and 3 failed for it in one group, rank 2 behind that in another.
    job = used()
    job.call_all((0, 2, 3), EXPERTS)
    job.finish((0, 2, 3), EXPERTS)
    job.call(2, BATCH)
    job.finish((2,), BATCH)
    hang = find_hang(job.gloo_records((0, 2, 3)))
    assert not {0, 2, 3} & {rank for blame in hang.blames for rank in blame.ranks}
    assert hang.missing == (1,)


def test_pairs_that_have_ended_hang_in_nothing() -> None:
    assert not find_hang(pairs().gloo_records()).operations


def test_a_record_is_the_same_once_it_has_been_text() -> None:
    for record in crossed().gloo_records():
        assert RecordReader().read(to_text(record)) == record
    whole = crossed().records()[0]
    assert "is_whole" not in to_text(whole)


def test_recorded_groups_in_opposite_order_are_a_deadlock() -> None:
    hang = read_case("crossed", 0, 1)
    assert blamed(hang) == [(Reason.COLLECTIVE_DEADLOCK, (0, 1))]
    assert [op.description for op in hang.blames[0].cycle] == ["experts", "data"]


def test_recorded_groups_of_first_use_accuse_nobody() -> None:
    hang = read_case("first_use", 0, 1)
    assert blamed(hang) == []
    assert [op.description for op in hang.operations] == ["experts", "data"]


def test_a_recorded_pair_waits_for_its_own_rank() -> None:
    hang = read_case("pairs", 0, 1, 2, 3)
    assert blamed(hang) == [(Reason.NOT_JOINED, (3,))]
    assert hang.victims == (0, 1, 2)
