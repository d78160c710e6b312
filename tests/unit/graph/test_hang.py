"""Who is to blame for a hang, on made-up jobs whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rootwalk.graph.hangs.judge import Hang, find_hang
from rootwalk.graph.reasons import Reason
from support.flight_dumps import FlightJob

DATA = "0"


def data_parallel(ranks: int = 8) -> FlightJob:
    return FlightJob(ranks, {DATA: range(ranks)})


def one_absent() -> FlightJob:
    """Rank 3 of 8 never calls what the others wait in."""
    job = data_parallel()
    job.call_all((0, 1, 2, 4, 5, 6, 7), DATA)
    return job


def absent_in_a_nested_group() -> FlightJob:
    """TP pairs (0 1) (2 3), DP pairs (0 2) (1 3): rank 1 is absent in TP; 0 and then, in DP, 2 and 3 wait."""
    job = FlightJob(4, {"0": range(4), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)})
    for rank in (0, 2, 3):
        job.call(rank, "1" if rank < 2 else "2", "all_gather")
    job.finish((2, 3), "2")
    job.call(2, "3", "reduce_scatter")
    job.call(3, "4", "reduce_scatter")
    return job


def stuck_pipeline_stage() -> FlightJob:
    """Stages 0 > 1 > 2 > 3: the host of stage 2 does nothing; 3 waits for it, 1 sends to it, 0 waits for 1."""
    job = FlightJob(4, {"0": range(4)})
    job.receive(3, "0", 2)
    job.send(1, "0", 2)
    job.receive(1, "0", 2)
    job.receive(0, "0", 1)
    return job


def opposite_orders() -> FlightJob:
    """Two groups of the same two ranks: 0 waits in one of them, 1 in the other."""
    job = FlightJob(2, {"0": (0, 1), "1": (0, 1)})
    job.call(0, "0")
    job.call(1, "1")
    return job


def one_opposite_order() -> FlightJob:
    """Two groups of the same four ranks, both called by all; rank 2 calls them the other way round."""
    job = FlightJob(4, {"0": range(4), "1": range(4)})
    for rank in range(4):
        for group in ("1", "0") if rank == 2 else ("0", "1"):
            job.call(rank, group)
    return job


def other_size() -> FlightJob:
    """Rank 1 of 4 gives fewer numbers; all go on to the next call, which waits behind."""
    job = data_parallel(4)
    for rank in range(4):
        job.call(rank, DATA, elements=1000 if rank == 1 else 1024)
        job.call(rank, DATA)
    return job


def left_out() -> FlightJob:
    """Rank 3 of 4 leaves out an all-gather: its all-reduce has the number of the others' all-gather."""
    job = data_parallel(4)
    job.call_all(range(3), DATA, "all_gather")
    job.call_all(range(4), DATA)
    return job


def stopped_device() -> FlightJob:
    """All of 4 ranks call 5 times; 4 of them end, but rank 2 still has them as unfinished."""
    job = data_parallel(4)
    for _ in range(5):
        job.call_all(range(4), DATA)
    for _ in range(4):
        job.finish((0, 1, 3), DATA)
    return job


def device_not_begun() -> FlightJob:
    """All of 4 ranks have called; the devices of all but rank 0 have begun."""
    job = data_parallel(4)
    for rank in range(4):
        job.call(rank, DATA, state="scheduled" if rank == 0 else "started")
    return job


def two_faults() -> FlightJob:
    """Two groups of 4 with nothing in common: rank 6 never calls in one, in the other the device of rank 1 stops."""
    job = FlightJob(8, {"0": range(4), "1": range(4, 8)})
    job.call_all((4, 5, 7), "1")
    for _ in range(3):
        job.call_all(range(4), "0")
    job.finish((0, 2, 3), "0")
    job.finish((0, 2, 3), "0")
    return job


def host_behind_what_all_have_called() -> FlightJob:
    """Ranks 2 and 3 have called in their pair; 3, whose host is there still, is absent in the group of all."""
    job = FlightJob(4, {"0": range(4), "1": (2, 3)})
    job.call_all((2, 3), "1")
    job.call_all((0, 1, 2), "0")
    return job


def two_absent_in_two_groups() -> FlightJob:
    """Rank 2 never calls in one group of four, rank 6 in the other."""
    job = FlightJob(8, {"0": range(4), "1": range(4, 8)})
    job.call_all((0, 1, 3), "0")
    job.call_all((4, 5, 7), "1")
    return job


def other_size_not_begun() -> FlightJob:
    """Rank 3 of 4 gives fewer numbers, and its device is the one that has not begun."""
    job = data_parallel(4)
    for rank in range(4):
        is_odd = rank == 3
        state = "scheduled" if is_odd else "started"
        job.call(rank, DATA, elements=50 if is_odd else 100, state=state)
    return job


Scenario = Callable[[], FlightJob]
SCENARIOS: dict[Scenario, dict[Reason, tuple[int, ...]]] = {
    one_absent: {Reason.NOT_JOINED: (3,)},
    absent_in_a_nested_group: {Reason.NOT_JOINED: (1,)},
    stuck_pipeline_stage: {Reason.NOT_JOINED: (2,)},
    opposite_orders: {Reason.COLLECTIVE_DEADLOCK: (0, 1)},
    one_opposite_order: {Reason.COLLECTIVE_DEADLOCK: (2,)},
    other_size: {Reason.COLLECTIVE_MISMATCH: (1,)},
    left_out: {Reason.COLLECTIVE_MISMATCH: (3,)},
    stopped_device: {Reason.GPU_HANG: (2,)},
    device_not_begun: {Reason.GPU_HANG: (0,)},
    two_faults: {Reason.NOT_JOINED: (6,), Reason.GPU_HANG: (1,)},
    host_behind_what_all_have_called: {},
    two_absent_in_two_groups: {Reason.NOT_JOINED: (2, 6)},
    other_size_not_begun: {Reason.COLLECTIVE_MISMATCH: (3,)},
}


def blames(hang: Hang) -> dict[Reason, tuple[int, ...]]:
    """Return the ranks by reason; no rank may be blamed for an operation that it has no part in."""
    found: dict[Reason, tuple[int, ...]] = {}
    for blame in hang.blames:
        assert set(blame.ranks) <= set(blame.operation.members) or blame.cycle
        found[blame.reason] = tuple(sorted({*found.get(blame.reason, ()), *blame.ranks}))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_names_all_that_are_to_blame_and_nobody_else(scenario: Scenario) -> None:
    hang = find_hang(scenario().records())
    assert blames(hang) == SCENARIOS[scenario]
    assert not hang.aside
    blamed = {rank for ranks in SCENARIOS[scenario].values() for rank in ranks}
    assert not blamed & set(hang.victims)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_renamed_ranks_are_renamed_in_the_blame(scenario: Scenario, seed: int) -> None:
    job = scenario()
    names = list(range(job.ranks))
    random.Random(seed).shuffle(names)  # noqa: S311  (a seeded order)
    place = dict(enumerate(names))
    expected = {
        reason: tuple(sorted(place[rank] for rank in ranks))
        for reason, ranks in SCENARIOS[scenario].items()
    }
    assert blames(find_hang(job.permuted(place).records())) == expected


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_order_of_the_dumps_does_not_matter(scenario: Scenario) -> None:
    records = scenario().records()
    assert find_hang(records[::-1]) == find_hang(records)


def test_nothing_unfinished_blames_nobody() -> None:
    job = data_parallel()
    job.call_all(range(8), DATA)
    job.finish(range(8), DATA)
    hang = find_hang(job.records())
    assert not hang.operations
    assert not hang.blames
    assert not hang.victims


def test_an_operation_that_all_have_joined_blames_nobody() -> None:
    job = data_parallel()
    job.call_all(range(8), DATA)
    hang = find_hang(job.records())
    assert len(hang.operations) == 1
    assert hang.blames == ()


def test_all_to_all_may_have_other_sizes() -> None:
    job = data_parallel(4)
    for rank in range(4):
        job.call(rank, DATA, "all_to_all", elements=1000 + rank)
    assert find_hang(job.records()).blames == ()


def test_a_rank_without_a_dump_is_gone() -> None:
    hang = find_hang(one_absent().records((0, 1, 2, 4, 5, 6, 7)))
    assert blames(hang) == {Reason.RANK_GONE: (3,)}
    assert hang.missing == (3,)


def test_a_lost_dump_of_a_victim_blames_nobody_new() -> None:
    hang = find_hang(one_absent().records((0, 1, 2, 3, 4, 5, 6)))
    assert blames(hang) == {Reason.NOT_JOINED: (3,)}
    assert hang.missing == (7,)


def test_an_idle_rank_and_another_group_change_nothing() -> None:
    alone = find_hang(one_absent().records())
    job = one_absent()
    job.ranks = 10
    job.groups = {**job.groups, "1": (8, 9)}
    assert find_hang(job.records()).blames == alone.blames


def test_two_unfinished_parts_of_one_operation_blame_nobody() -> None:
    # Rank 0 has ended it; whether 1 or 2 holds up the other cannot be told.
    job = data_parallel(3)
    job.call_all(range(3), DATA)
    job.finish((0,), DATA)
    assert find_hang(job.records()).blames == ()


def test_the_only_rank_that_does_not_end_is_blamed_with_less_certainty() -> None:
    job = data_parallel(3)
    job.call_all(range(3), DATA)
    job.finish((0, 1), DATA)
    (blame,) = find_hang(job.records()).blames
    assert (blame.reason, blame.ranks) == (Reason.GPU_HANG, (2,))
    (sure,) = find_hang(stopped_device().records()).blames
    assert blame.certainty < sure.certainty


def test_a_broadcast_that_has_ended_at_its_root_proves_nothing() -> None:
    job = data_parallel(2)
    for _ in range(3):
        job.call_all(range(2), DATA, "broadcast")
    job.finish((0,), DATA)
    job.finish((0,), DATA)
    assert find_hang(job.records()).blames == ()


def test_messages_of_one_batch_have_no_order() -> None:
    # Both send first and receive then, at once: no rank waits in a ring.
    job = FlightJob(2, {"0": (0, 1)})
    for rank, peer in ((0, 1), (1, 0)):
        job.send(rank, "0", peer)
        job.receive(rank, "0", peer, in_batch=True)
    assert find_hang(job.records()).blames == ()


def test_the_number_of_a_message_is_not_that_of_a_collective() -> None:
    # Rank 1 has not called; its last message, of a higher number than the collective, is all that its status tells.
    job = FlightJob(3, {"0": range(3)})
    for _ in range(9):
        job.send(1, "0", 0)
        job.receive(0, "0", 1)
        job.finish((0, 1), "0")
    job.call_all((0, 2), "0")
    (blame,) = find_hang(job.records()).blames
    assert (blame.reason, blame.ranks) == (Reason.NOT_JOINED, (1,))
    (sure,) = find_hang(one_absent().records()).blames
    assert blame.certainty < sure.certainty
