"""How far a rank has come in its communicators, written by its hooks and read back from its ring."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.ring_layout import (
    FRONTIER,
    FRONTIER_CAPACITY,
    FRONTIERS_OFFSET,
    MAX_MEMBERS,
)
from rootwalk.instrumentation.shared_ring import Frontier
from support.rings import Rank

GROUP = "7|2|gloo|default_pg"


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    opened = Rank(tmp_path)
    yield opened
    opened.close()


def call(group: Communicator, rank: Rank, number: int, at_ns: int, *, is_p2p: bool = False) -> None:
    rank.clock.now_ns = at_ns
    group.begin(number, "recv" if is_p2p else "all_reduce", 64 + number, is_p2p=is_p2p, root=1)


def only(rank: Rank) -> Frontier:
    (found,) = rank.reader.frontiers()
    return found


def test_a_called_operation_is_pending_until_it_has_ended(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP, members=(4, 6))
    assert rank.reader.frontiers() == []
    call(group, rank, 1, 100)
    expected = Frontier(GROUP, False, 1, 0, "all_reduce", 65, 1, 100, (4, 6))
    assert only(rank) == expected
    rank.clock.now_ns = 150
    group.end(1, is_known=True)
    assert only(rank) == expected._replace(ended=1, pending_mono_ns=None)


def test_ends_out_of_order_count_when_all_before_them_have_ended(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    for number in range(1, 6):
        call(group, rank, number, 100 * number)
    ended = []
    for number in (2, 1, 5, 3, 4):
        group.end(number, is_known=True)
        ended.append((only(rank).ended, only(rank).pending_mono_ns))
    assert ended == [(0, 100), (2, 300), (2, 300), (3, 400), (5, None)]


def test_an_end_that_the_host_does_not_see_is_neither_ended_nor_pending(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    call(group, rank, 1, 100)
    group.end(1, is_known=True)
    call(group, rank, 2, 200)
    assert only(rank).pending_mono_ns == 200  # in the call itself it is
    group.end(2, is_known=False)
    call(group, rank, 3, 300)
    group.end(3, is_known=False)
    found = only(rank)
    assert (found.called, found.ended, found.pending_mono_ns) == (3, 1, None)


def test_what_a_device_has_done_is_known_with_all_before_it(rank: Rank) -> None:
    entry = rank.writer.frontiers.claim(rank.writer.intern(GROUP), is_p2p=False)
    for number in range(1, 5):
        entry.begin(number, 100 * number, 0, 8, None)
        entry.end(number, 100 * number + 1, is_known=False)
    entry.confirm(3, 900)
    assert (only(rank).called, only(rank).ended) == (4, 3)
    entry.confirm(2, 901)  # told later, and older
    assert only(rank).ended == 3
    entry.confirm(4, 902)
    assert (only(rank).ended, only(rank).root, only(rank).pending_mono_ns) == (4, None, None)


def test_sends_and_receives_have_an_entry_of_their_own(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    call(group, rank, 1, 100)
    call(group, rank, 2, 200, is_p2p=True)
    found = {one.is_p2p: (one.called, one.operation) for one in rank.reader.frontiers()}
    assert found == {False: (1, "all_reduce"), True: (1, "recv")}


def test_what_is_not_seen_at_level_0_is_not_there(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    call(group, rank, 1, 100)
    group.end(1, is_known=True)
    group.pause()
    assert rank.reader.frontiers() == []
    group.resume(41)
    call(group, rank, 2, 300)
    group.end(2, is_known=True)
    # Of those that were not seen nobody knows whether they have ended.
    assert (only(rank).called, only(rank).ended, only(rank).pending_mono_ns) == (42, 40, None)


def test_every_call_and_end_moves(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    seen = [rank.reader.movement()]
    call(group, rank, 1, 100)
    seen.append(rank.reader.movement())
    assert rank.reader.moved_mono_ns() == 100
    rank.clock.now_ns = 170
    group.end(1, is_known=True)
    seen.append(rank.reader.movement())
    assert rank.reader.moved_mono_ns() == 170
    assert len(set(seen)) == 3
    assert rank.reader.movement() == seen[-1]


def test_a_table_that_is_full_takes_no_more(rank: Rank) -> None:
    groups = [
        Communicator(rank.tracker, f"{number}|2|gloo|g") for number in range(FRONTIER_CAPACITY + 2)
    ]
    for group in groups:
        call(group, rank, 1, 100)
    assert len(rank.reader.frontiers()) == FRONTIER_CAPACITY
    assert rank.reader.exception() is None  # what follows the table is untouched


def test_members_that_do_not_fit_are_left_out(rank: Rank) -> None:
    for count in (MAX_MEMBERS, MAX_MEMBERS + 1):
        group = Communicator(rank.tracker, f"{count}|{count}|gloo|g", members=range(count))
        call(group, rank, 1, 100)
    fits, large = rank.reader.frontiers()
    assert fits.members == tuple(range(MAX_MEMBERS))
    assert large.members == ()


def test_an_entry_that_is_being_written_is_not_read(rank: Rank) -> None:
    group = Communicator(rank.tracker, GROUP)
    call(group, rank, 1, 100)
    with rank.writer.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        fields = list(FRONTIER.unpack_from(memory, FRONTIERS_OFFSET))
        FRONTIER.pack_into(memory, FRONTIERS_OFFSET, *fields[:-1], fields[-1] + 1)
        assert rank.reader.frontiers() == []
        FRONTIER.pack_into(memory, FRONTIERS_OFFSET, *fields)
    assert only(rank).called == 1


def test_threads_that_call_and_end_at_once_leave_the_truth(tmp_path: Path) -> None:
    # Ends come on a thread of the backend's: the last one to write must not have an older state.
    rank = Rank(tmp_path)
    rounds, interval = 4000, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for trial in range(5):
            group = Communicator(rank.tracker, f"{trial}|2|gloo|g")
            ready = threading.Semaphore(0)

            def end_all(group: Communicator = group, ready: threading.Semaphore = ready) -> None:
                for number in range(rounds):
                    ready.acquire()
                    group.end(number, is_known=True)

            thread = threading.Thread(target=end_all)
            thread.start()
            for number in range(rounds):
                group.begin(number, "all_reduce", 4, is_p2p=False)
                ready.release()
            thread.join()
            found = rank.reader.frontiers()[-1]
            assert (found.called, found.ended, found.pending_mono_ns) == (rounds, rounds, None)
    finally:
        sys.setswitchinterval(interval)
        rank.close()
