"""Graph, walk and replay of two ranks whose times can be added up by eye.

Rank 1 is 60 ms late in every step from 40 on::

    rank 0  data 10 | fwd 30 | gap 5 | bwd 50 ~~~~~ wait 65 ~~~~~ | opt 20
    rank 1  data 10 | fwd 30 | gap 5 | fault 60 ... bwd 50 wait 5 | opt 20
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph import graph_store, job_choice
from rootwalk.graph.analysis import (
    NotReplayed,
    StepClock,
    analyse,
    choose_window,
    step_clock,
)
from rootwalk.graph.columns import JobData
from rootwalk.graph.replay import Counterfactual, replay, share_out
from rootwalk.graph.slots import SlotKeys
from rootwalk.graph.steps import OpKind, StepGraph, build
from rootwalk.graph.walk import waits_by_culprit, walk
from rootwalk.otel_receiver import store
from support.examples import examples
from support.jobs import Fault, Job, write_job

LATE = Job(steps=60, faults=(Fault("contention", 1, 0.060, 40),))


def read(path: Path, job: Job) -> tuple[JobData, StepClock]:
    write_job(path, job)
    with store.reading(path) as connection:
        key = job_choice.choose_job(connection, None)
        assert key is not None
        data = graph_store.read_outline(connection, key, (0, job.steps))
        span = (0, job.steps)
        phases, _ = graph_store.read_phases(connection, key, data.origin_unix_ns, span)
        data = replace(
            data,
            phases=phases,
            collectives=graph_store.read_collectives(connection, key, data.origin_unix_ns, span),
            stalls=graph_store.read_stalls(connection, key, data.origin_unix_ns, span),
        )
    return data, step_clock(data)


def window(path: Path, job: Job, first: int = 40) -> StepGraph:
    data, clock = read(path, job)
    return build(data, clock.numbers[first:], float(clock.start_s[first]), SlotKeys())


@pytest.fixture
def late(tmp_path: Path) -> StepGraph:
    return window(tmp_path / "late.duckdb", LATE)


def test_the_step_clock_is_the_end_of_the_last_rank(tmp_path: Path) -> None:
    _, clock = read(tmp_path / "s.duckdb", LATE)
    assert clock.step_s[1:40] == pytest.approx(np.full(39, 0.120))
    assert clock.step_s[40:] == pytest.approx(np.full(20, 0.180))


def test_lanes_tile_the_window_and_the_replay_gives_the_recorded_time(late: StepGraph) -> None:
    for rank in (0, 1):
        lane = (late.rank == rank) & ((late.kind == OpKind.EXEC) | (late.kind == OpKind.WAIT))
        assert (late.op_end_s - late.op_start_s)[lane].sum() == pytest.approx(20 * 0.180)
    nothing = np.zeros((late.kind.size, 1))
    assert replay(late, nothing, np.zeros((1, 1)))[0] == pytest.approx(0.180)


def test_operations_that_wait_for_each_other_in_a_circle_are_told(tmp_path: Path) -> None:
    data, clock = read(tmp_path / "s.duckdb", LATE)
    rows = data.collectives
    # Rank 1 called in step 40 what rank 0 called in step 41, and the other way round: neither can have ended.
    mine = [np.flatnonzero((rows.rank == 1) & (rows.step == step)) for step in (40, 41)]
    group = rows.group.copy()
    group[mine[0]], group[mine[1]] = rows.group[mine[1]], rows.group[mine[0]]
    torn = replace(data, collectives=replace(rows, group=group))
    question = choose_window(clock, (40, 59))
    assert question is not None
    found = analyse(torn, clock, question, 0.0)
    assert isinstance(found, NotReplayed)
    assert [item.code for item in found.quality] == ["BAD_TIME"]
    assert "wait for each other" in found.quality[0].text


def test_waits_have_no_work_and_go_to_the_late_rank(late: StepGraph) -> None:
    waits = waits_by_culprit(late)
    assert set(waits.series) == {(0, 1)}
    assert waits.series[(0, 1)] == pytest.approx(np.full(20, 0.060))
    assert (late.work_s[late.kind == OpKind.WAIT] == 0.0).all()


def test_the_path_partitions_the_window_and_lies_on_the_late_rank(late: StepGraph) -> None:
    path = walk(late, 0.0)
    assert path.check_partition()
    assert sum(s.end_s - s.start_s for s in path.segments) == pytest.approx(20 * 0.180)
    assert {jump.culprit for jump in path.jumps} <= {1}
    assert path.certainty() > 0.99


def test_removing_the_late_work_gives_the_healthy_step(late: StepGraph) -> None:
    amounts = np.zeros((late.kind.size, 2))
    # The operation that holds the fault is the one of 85 ms; the other cause is 40 ms hidden on rank 0.
    is_fault = (late.rank == 1) & (late.kind == OpKind.EXEC) & (late.work_s > 0.080)
    assert is_fault.sum() == 20
    amounts[is_fault, 0] = 0.060
    result = share_out(late, amounts)
    assert result.share == pytest.approx((0.060, 0.0))
    assert result.remove == pytest.approx((0.060, 0.0))
    assert result.ideal_s == pytest.approx(0.120)


def test_causes_together_cost_what_one_cause_of_both_costs(late: StepGraph) -> None:
    # Rank 0 loses 40 ms, of which nobody sees anything while rank 1 is 60 ms late, in two parts.
    is_late = (late.rank == 1) & (late.kind == OpKind.EXEC) & (late.work_s > 0.080)
    is_other = (late.rank == 0) & (late.kind == OpKind.EXEC) & (late.work_s > 0.045)
    amounts = np.zeros((late.kind.size, 4))
    amounts[is_late, 0], amounts[is_late, 2], amounts[is_other, 1] = 0.035, 0.025, 0.040
    apart = share_out(late, amounts)
    joined = amounts[:, [0, 1, 3]]
    joined[:, 0] += amounts[:, 2]
    one = share_out(late, joined)
    share_s, remove_s, add_s = apart.together([0, 2])
    assert (remove_s, add_s) == pytest.approx((one.remove[0], one.add[0]))
    assert remove_s == pytest.approx(0.060)
    assert share_s == pytest.approx(apart.share[0] + apart.share[2])
    everything = apart.together(range(4))
    gained_s = apart.simulated_s - apart.ideal_s
    assert everything == pytest.approx((gained_s, gained_s, gained_s))


def test_causes_that_were_not_replayed_are_summed() -> None:
    sums = Counterfactual(0.2, 0.1, (0.04, 0.06), (0.03, 0.05), (0.04, 0.06))
    assert sums.together([0, 1]) == pytest.approx((0.1, 0.08, 0.1))


@pytest.mark.slow
@examples(0.25)
@given(st.data())
def test_shares_always_add_up(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    job = Job(ranks=3, steps=4, jitter_ratio=0.3, seed=data.draw(st.integers(0, 1000)))
    graph = window(tmp_path_factory.mktemp("job") / "s.duckdb", job, first=1)
    assert walk(graph, 0.0).check_partition()
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    amounts = random.uniform(-0.5, 1.0, (graph.kind.size, 4)) * graph.work_s[:, None] / 4
    result = share_out(graph, amounts)
    assert sum(result.share) == pytest.approx(result.simulated_s - result.ideal_s, abs=1e-9)
