"""Which strangers are a crowd of a host: by name, control group, and how evenly they stand in its ranks' way."""

from __future__ import annotations

import numpy as np
import pytest

from rootwalk.graph.columns import (
    CollectiveRows,
    Contender,
    JobData,
    PhaseRows,
    RankRow,
    StallRow,
    StepRows,
)
from rootwalk.graph.crowds import find_crowds

NONE, NUMBERS = np.zeros(0), np.zeros(0, dtype=np.int64)
STATES = np.zeros((0, 0))
STEPS = StepRows(NUMBERS, NUMBERS, NONE, NONE, STATES, NONE, (), (), (), NONE, NONE)
PHASES = PhaseRows(NUMBERS, NUMBERS, (), NONE, NONE, STATES, NONE)
COLLECTIVES = CollectiveRows(
    step=NUMBERS,
    rank=NUMBERS,
    group=NUMBERS,
    communicator=NUMBERS,
    sequence=NUMBERS,
    size=NUMBERS,
    start_s=NONE,
    end_s=NONE,
    foreign_s=NONE,
    own_s=NONE,
    idle_s=NONE,
    operation=(),
    communicator_name=(),
    is_end_known=np.zeros(0, dtype=np.bool_),
)


def stall(rank: int, pid: int, name: str, cgroup: str | None = "/x") -> StallRow:
    """A wait of a rank behind one process."""
    ran = (Contender(pid, name, 0.01),)
    return StallRow(1, rank, 1, "main", "runnable", 0.0, 0.01, 0, "process", pid, cgroup, ran)


def job(*stalls: StallRow, hosts: tuple[str, ...] = ("a", "a")) -> JobData:
    ranks = tuple(RankRow(rank, host, host, 1000 + rank) for rank, host in enumerate(hosts))
    return JobData("j1", 0, len(ranks), 0, ranks, STEPS, PHASES, COLLECTIVES, stalls, ())


OWN = {rank: {0, 1000 + rank} for rank in range(4)}


def test_one_name_and_group_is_one_crowd() -> None:
    data = job(stall(0, 7, "burner"), stall(1, 8, "burner"))
    (crowd,) = find_crowds(data, OWN, {0: {7: 1.0}, 1: {8: 1.1}})
    assert (crowd.name, crowd.cgroup, crowd.pids, crowd.ranks) == ("burner", "/x", (7, 8), (0, 1))
    assert (crowd.key.rank, crowd.key.pid) == (None, None)
    assert {(one.rank, one.pid) for one in crowd.members} == {(0, 7), (0, 8), (1, 7), (1, 8)}


def test_processes_of_two_control_groups_are_two() -> None:
    data = job(stall(0, 7, "python", "/job-b"), stall(1, 8, "python", "/job-c"))
    assert find_crowds(data, OWN, {0: {7: 1.0}, 1: {8: 1.0}}) == ()


def test_a_process_whose_group_is_not_known_is_with_the_only_one_of_its_name() -> None:
    data = job(stall(0, 7, "burner"), stall(1, 8, "burner", None))
    (crowd,) = find_crowds(data, OWN, {0: {7: 1.0}, 1: {8: 1.0}})
    assert crowd.pids == (7, 8)


@pytest.mark.parametrize(
    "stood_s",
    [{0: {7: 2.0}, 1: {7: 1.0}}, {0: {7: 2.0}, 1: {}}, {0: {7: 2.0}}, {0: {}, 1: {}}],
    ids=["twice as much", "spared", "not read", "nobody"],
)
def test_what_is_not_alike_on_all_ranks_is_none(stood_s: dict[int, dict[int, float]]) -> None:
    assert find_crowds(job(stall(0, 7, "burner"), stall(1, 7, "burner")), OWN, stood_s) == ()


def test_one_pid_on_two_hosts_is_two_processes() -> None:
    stalls = (stall(0, 7, "a"), stall(1, 7, "a"), stall(2, 7, "b"), stall(3, 7, "b"))
    data = job(*stalls, hosts=("a", "a", "b", "b"))
    crowds = find_crowds(data, OWN, {rank: {7: 1.0} for rank in range(4)})
    assert [(one.host_id, one.name, one.ranks) for one in crowds] == [
        ("a", "a", (0, 1)),
        ("b", "b", (2, 3)),
    ]


def test_ranks_that_stand_behind_each_other_are_none() -> None:
    data = job(stall(0, 1001, "python"), stall(1, 1000, "python"))
    assert find_crowds(data, OWN, {0: {1001: 1.0}, 1: {1000: 1.0}}) == ()
