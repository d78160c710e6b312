"""Dumps that were not taken at one moment: what an older one cannot know is not held against its rank."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.judge import Hang, find_hang
from rootwalk.graph.hangs.moments import find_later
from rootwalk.graph.reasons import Reason
from support.flight_dumps import START_NS, FlightJob

SECOND = 1_000_000_000
WORLD = "0"


def blamed(hang: Hang) -> dict[Reason, tuple[int, ...]]:
    return {blame.reason: blame.ranks for blame in hang.blames}


def running(calls: int, ranks: int = 4) -> FlightJob:
    """A job all of whose ranks have called and ended so many all-reduces."""
    job = FlightJob(ranks, {WORLD: range(ranks)})
    for _ in range(calls):
        job.call_all(range(ranks), WORLD)
        job.finish(range(ranks), WORLD)
    return job


def one_dump_of_a_step_ago(*, has_history: bool = False) -> list[RankRecord]:
    """Rank 3 dumped after 5 calls; the others after 8, when they wait in the 9th, which all have called."""
    job = running(5)
    (early,) = job.records([3], has_history=has_history)
    for _ in range(3):
        job.call_all(range(4), WORLD)
        job.finish(range(4), WORLD)
    job.call_all(range(4), WORLD)
    return [*job.records(range(3), has_history=has_history), early]


@pytest.mark.parametrize("has_history", [False, True])
def test_a_dump_without_what_has_ended_elsewhere_is_older(has_history: bool) -> None:
    hang = find_hang(one_dump_of_a_step_ago(has_history=has_history))
    assert hang.unlike.progress == (3,)
    assert hang.aside == {3}
    assert hang.blames == ()
    assert hang.missing == ()


def test_an_older_dump_with_a_call_in_flight_blames_no_device() -> None:
    # Rank 3 dumped while calls 5 and 6 were on their way; the others have ended up to 8.
    job = running(4)
    job.call_all(range(4), WORLD)
    job.call_all(range(4), WORLD)
    (early,) = job.records([3])
    job.finish(range(4), WORLD)
    job.finish(range(4), WORLD)
    for _ in range(2):
        job.call_all(range(4), WORLD)
        job.finish(range(4), WORLD)
    job.call_all(range(4), WORLD)
    hang = find_hang([*job.records(range(3)), early])
    assert hang.unlike.progress == (3,)
    assert hang.blames == ()


def test_a_newer_dump_of_an_idle_rank_is_not_blamed_for_an_older_one() -> None:
    # Rank 0 dumped with call 5 on its way; rank 1, later, has nothing unfinished and 8 calls issued.
    job = running(4, ranks=2)
    job.call_all(range(2), WORLD)
    (early,) = job.records([0])
    job.finish(range(2), WORLD)
    for _ in range(3):
        job.call_all(range(2), WORLD)
        job.finish(range(2), WORLD)
    hang = find_hang([early, *job.records([1])])
    assert hang.unlike.progress == (0,)
    assert hang.blames == ()


def test_what_holds_for_any_moment_is_still_held_against_a_rank() -> None:
    # As above, and rank 2, whose dump is as new as those of 0 and 1, has not called.
    job = running(5)
    (early,) = job.records([3])
    for _ in range(3):
        job.call_all(range(4), WORLD)
        job.finish(range(4), WORLD)
    job.call_all((0, 1, 3), WORLD)
    hang = find_hang([*job.records(range(3)), early])
    assert hang.aside == {3}
    assert blamed(hang) == {Reason.NOT_JOINED: (2,)}


def waiting_for(rank: int) -> FlightJob:
    """Three of four ranks wait for one that has not called."""
    job = running(3)
    job.call_all([r for r in range(4) if r != rank], WORLD)
    return job


def test_a_rank_whose_file_was_written_before_the_others_called_is_not_blamed() -> None:
    records = waiting_for(3).records()
    last_ns = max(record.seen_unix_ns or 0 for record in records)
    late = [replace(record, written_unix_ns=last_ns + 600 * SECOND) for record in records]
    assert blamed(find_hang(late)) == {Reason.NOT_JOINED: (3,)}
    hang = find_hang([*late[:3], replace(records[3], written_unix_ns=last_ns - 5 * SECOND)])
    assert hang.unlike.times == (3,)
    assert hang.blames == ()


def test_a_file_that_is_older_than_what_is_in_it_says_nothing() -> None:
    job = waiting_for(3)
    job.groups = {**job.groups, "1": (3,)}
    job.call(3, "1")
    records = [replace(record, written_unix_ns=START_NS - 60 * SECOND) for record in job.records()]
    assert find_hang(records).aside == frozenset()


def test_times_farther_apart_than_a_call_may_take_are_not_of_one_hang() -> None:
    # The attempt before had come farther: what rank 3 "has ended" then is no proof against the others' devices.
    before = running(9)
    before.call(3, WORLD)
    after = running(3)
    after.call_all(range(4), WORLD)
    old = [
        replace(r, seen_unix_ns=(r.seen_unix_ns or 0) - 3_600 * SECOND) for r in before.records([3])
    ]
    hang = find_hang([*after.records(range(3)), *old])
    assert hang.unlike.times == (3,)
    assert hang.blames == ()


def test_skew_within_the_timeout_changes_nothing() -> None:
    records = waiting_for(3).records()
    skewed = [
        replace(r, seen_unix_ns=r.seen_unix_ns and r.seen_unix_ns + r.rank * 50_000_000)
        for r in records
    ]
    assert blamed(find_hang(skewed)) == blamed(find_hang(records)) == {Reason.NOT_JOINED: (3,)}


def test_a_dump_with_other_members_of_a_communicator_is_not_used() -> None:
    other = FlightJob(4, {WORLD: (2, 3)})
    other.call(3, WORLD)
    hang = find_hang([*waiting_for(2).records((0, 1, 2)), *other.records([3])])
    assert hang.unlike.members == (3,)
    assert blamed(hang) == {Reason.NOT_JOINED: (2,)}


@pytest.mark.parametrize("seed", range(40))
def test_dumps_of_a_healthy_job_taken_one_after_the_other_blame_nobody(seed: int) -> None:
    """Ranks 0 to 5 in pairs and all together, each dumped at another time of a job that runs on."""
    choose = random.Random(seed)  # noqa: S311  (a seeded job)
    groups = {WORLD: range(6), "1": (0, 1), "2": (2, 3), "3": (4, 5)}
    job = FlightJob(6, groups)
    order = choose.sample(range(6), 6)
    records = []
    for rank in order:
        for _ in range(choose.randrange(3, 9)):
            kind = choose.choice(((WORLD,), ("1", "2", "3")))
            for name in kind:
                job.call_all(groups[name], name)
                job.finish(groups[name], name)
        # A call is on its way when the dump is taken.
        job.call_all(range(6), WORLD)
        records += job.records([rank])
        job.finish(range(6), WORLD)
    hang = find_hang(records)
    assert hang.blames == ()
    assert set(hang.unlike.progress) <= set(order[:-1])
    assert len(hang.unlike.progress) >= 3


def test_the_later_of_two_dumps_is_the_one_with_the_later_times() -> None:
    job = running(3)
    first = job.records([1])
    job.call(1, WORLD)
    second = job.records([1])
    assert find_later([*first, *second]) == find_later([*second, *first]) == second[0]


def test_of_two_dumps_without_times_the_one_that_has_come_farther_is_later() -> None:
    first, second = running(3).records([1]), running(5).records([1])
    assert first[0].seen_unix_ns is None
    assert find_later([*first, *second]) == find_later([*second, *first]) == second[0]


def test_of_two_dumps_that_tell_nothing_the_file_written_last_is_later() -> None:
    (record,) = running(3).records([1])
    frames = replace(record, last_frames=("step (train.py:3)",))
    assert find_later([record, frames]) is None
    old, new = replace(record, written_unix_ns=5), replace(frames, written_unix_ns=6)
    assert find_later([old, new]) == find_later([new, old]) == new
