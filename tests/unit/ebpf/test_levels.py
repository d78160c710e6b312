"""Which request for another level is in force."""

from __future__ import annotations

from rootwalk.ebpf.levels import MAX_REQUESTS, Levels


def test_without_a_request_it_is_what_the_agent_was_started_with() -> None:
    levels = Levels(1)
    assert levels.of_rank(7, 0.0) == 1
    assert levels.asked(7, 0.0) is None


def test_a_request_for_some_ranks_leaves_the_others() -> None:
    levels = Levels(1)
    levels.ask(2, [3, 4], None, 0.0)
    assert [levels.of_rank(rank, 1.0) for rank in (2, 3, 4, 5)] == [1, 2, 2, 1]


def test_a_request_for_a_time_gives_back_what_was_before() -> None:
    levels = Levels(1)
    levels.ask(0, None, None, 0.0)
    levels.ask(2, None, 60.0, 10.0)
    assert levels.of_rank(0, 69.9) == 2
    assert levels.of_rank(0, 70.0) == 0


def test_the_last_request_decides_and_one_for_all_ends_those_before() -> None:
    levels = Levels(1)
    levels.ask(2, [3], None, 0.0)
    levels.ask(0, None, None, 1.0)
    assert levels.of_rank(3, 2.0) == 0
    levels.ask(1, [3], None, 3.0)
    assert (levels.of_rank(3, 4.0), levels.of_rank(5, 4.0)) == (1, 0)


def test_requests_of_a_script_gone_wild_are_bounded() -> None:
    levels = Levels(1)
    for rank in range(3 * MAX_REQUESTS):
        levels.ask(2, [rank], None, 0.0)
    assert len(levels._requests) == MAX_REQUESTS
    assert levels.of_rank(3 * MAX_REQUESTS - 1, 0.0) == 2


def test_stacks_are_taken_as_asked_and_else_as_the_agent_was_started() -> None:
    levels = Levels(1, 19)
    levels.ask(2, [3], 60.0, 0.0, 99)
    assert [levels.profile_hz_of(rank, 1.0) for rank in (3, 4)] == [99, 19]
    levels.ask(2, [3], 10.0, 2.0)  # says nothing of stacks
    assert levels.profile_hz_of(3, 3.0) == 19
    assert levels.profile_hz_of(3, 12.5) == 99
    assert levels.profile_hz_of(3, 60.0) == 19
    levels.ask(1, None, None, 61.0, 0)
    assert levels.profile_hz_of(3, 62.0) == 0
