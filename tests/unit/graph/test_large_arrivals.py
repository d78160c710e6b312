"""Of a job that is too large to read, who was late and who has to be read to tell why.

four ranks, two pairs and one group of all; rank 2 is 1 s late:

pair 0   rank 0 0.0   rank 1 0.0        pair 1   rank 2 1.0   rank 3 0.0
all      rank 0 0.1   rank 1 0.1                 rank 2 1.1   rank 3 1.1
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rootwalk.graph.large.arrivals import (
    Arrivals,
    choose_ranks,
    lateness_s,
    unread_wait_s,
    waits_for,
)
from rootwalk.graph.large.selection import Selection
from rootwalk.graph.score import ScoredFinding
from support.live_verdicts import make_finding

PAIR_0, PAIR_1, ALL = 0, 1, 2


def arrivals(late_s: float, step: int = 0, ranks: int = 4) -> Arrivals:
    """The picture above, and more pairs beside it that are never late but in the group of all."""
    rows = []
    for pair in range(ranks // 2):
        of_pair = late_s if pair == 1 else 0.0
        for rank in (2 * pair, 2 * pair + 1):
            communicator = pair if pair < ALL else pair + 1
            rows.append((rank, communicator, 2, of_pair if rank == 2 else 0.0))
            rows.append((rank, ALL, ranks, 0.1 + of_pair))
    table = np.array(rows)
    ranks_of, communicators, sizes = table[:, :3].astype(np.int64).T
    return Arrivals(
        rank=ranks_of,
        step=np.full(ranks_of.size, step),
        group=communicators + 100 * step,
        communicator=communicators,
        size=sizes,
        start_s=table[:, 3],
    )


def test_who_comes_late_to_more_groups_is_later() -> None:
    late = lateness_s(arrivals(1.0), np.array([0]), 4)
    # Half a second after the mean of the pair, and after that of all; rank 3 only the latter.
    assert late == pytest.approx([0.0, 0.0, 1.0, 0.5])


def test_steps_that_are_not_asked_for_do_not_count() -> None:
    assert not lateness_s(arrivals(1.0, step=7), np.array([0]), 4).any()


def test_whom_the_chosen_waited_for_is_chosen_too() -> None:
    """Rank 9 waited in the group of all; behind those who came last there stands rank 2."""
    nobody = np.zeros(10)
    chosen = choose_ranks(
        nobody, arrivals(0.0, ranks=10), arrivals(1.0, 1, 10), np.arange(10), [9], 9, 0.01
    )
    assert {2, 9} <= set(chosen.tolist())


def test_suspects_are_chosen_first() -> None:
    suspicion = np.zeros(1000)
    suspicion[617] = 1.0
    quiet = arrivals(0.0, ranks=1000)
    chosen = choose_ranks(suspicion, quiet, quiet, np.arange(1000), [], 20, 0.01)
    assert 617 in chosen.tolist()
    assert 12 <= chosen.size <= 20


def test_the_choice_is_the_same_each_time() -> None:
    quiet = arrivals(0.0, ranks=100)
    sets = [choose_ranks(np.zeros(100), quiet, quiet, np.arange(100), [], 20, 0.01) for _ in "12"]
    assert sets[0].tolist() == sets[1].tolist()


def test_victims_are_those_who_came_before_the_last() -> None:
    waits = waits_for(arrivals(1.0), 2, np.array([0]))
    # Rank 3 waited in the pair, all but rank 3 in the group of all: it came with rank 2.
    assert {rank: seconds.tolist() for rank, seconds in waits.items()} == {
        0: pytest.approx([1.0]),
        1: pytest.approx([1.0]),
        3: pytest.approx([1.0]),
    }


def test_nobody_waits_for_who_is_not_last() -> None:
    assert waits_for(arrivals(1.0), 0, np.array([0])) == {}


def test_groups_that_lack_a_member_are_counted() -> None:
    whole = arrivals(0.0)
    assert (whole.lacking()[0].tolist(), whole.lacking()[1]) == ([], 3)
    kept = slice(1, None)
    torn = Arrivals(*(getattr(whole, name)[kept] for name in Arrivals.__slots__))
    assert (torn.lacking()[0].tolist(), torn.lacking()[1]) == ([PAIR_0], 3)
    # Of a communicator that was split, nobody may know how many members it has.
    assert replace(torn, size=np.zeros_like(torn.size)).lacking()[0].size == 0


def test_nothing_is_late_where_nothing_came() -> None:
    none = np.zeros(0, dtype=np.int64)
    empty = Arrivals(none, none, none, none, none, np.zeros(0))
    assert not lateness_s(empty, np.array([0]), 3).any()
    assert empty.lacking()[0].size == empty.lacking()[1] == 0
    assert choose_ranks(np.zeros(3), empty, empty, np.arange(3), [1], 2, 0.1).tolist() != []


def test_waits_for_who_is_not_read_are_known() -> None:
    """Rank 9 waits 1 s in the group of all, for ranks 2 and 3; those two for nobody but each other."""
    quiet, slow = arrivals(0.0, ranks=10), arrivals(1.0, 1, 10)
    assert unread_wait_s(quiet, slow, np.array([0, 9]), 0.01) == pytest.approx(1.0)
    assert unread_wait_s(quiet, slow, np.array([2, 3, 9]), 0.01) == 0.0
    # Rank 3 waits for rank 2 in the pair as well.
    assert unread_wait_s(quiet, slow, np.array([3, 9]), 0.01) == pytest.approx(1.0)
    assert unread_wait_s(quiet, quiet, np.array([0, 9]), 0.01) == 0.0


@pytest.mark.parametrize(
    ("unread_s", "left"), [(0.0, ["CPU_CONTENTION", "UNKNOWN_NET"]), (0.3, ["CPU_CONTENTION"])]
)
def test_slow_transfers_that_may_be_waits_for_who_is_not_read_accuse_nobody(
    unread_s: float, left: list[str]
) -> None:
    none = np.zeros(0, dtype=np.int64)
    empty = Arrivals(none, none, none, none, none, np.zeros(0))
    selection = Selection(np.arange(12), 1000, empty, none, unread_s)
    scored = tuple(
        ScoredFinding(replace(make_finding(reason, share_s=0.2), layer=layer), cause)
        for cause, (reason, layer) in enumerate(
            (("CPU_CONTENTION", "operating_system"), ("UNKNOWN_NET", "network"))
        )
    )
    assert [one.finding.reason for one in selection.without_waits(scored)] == left
    assert ("not read" in selection.quality()[0].text) == bool(unread_s)
