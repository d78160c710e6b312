"""Graph, replay, walk and contrasts of operations, on a job whose times follow from a few numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rootwalk.graph.operations.arrays import (
    NOT_KNOWN,
    Operations,
    align_operations,
    group_maxima,
    medians_by,
    numbered,
    take,
)
from rootwalk.graph.operations.causes import Cause, CauseKind, find_costs
from rootwalk.graph.operations.contrasts import split
from rootwalk.graph.operations.graph import OperationGraph, build_operations
from rootwalk.graph.operations.levels import order_levels
from rootwalk.graph.operations.replay import replay_operations
from rootwalk.graph.operations.walk import walk_operations
from support.pipelines import PipelineJob


def read(job: PipelineJob) -> Operations:
    """The job's operations as the store gives them."""
    rows = job.rows()
    types = sorted({str(row["optype"]) for row in rows})
    phases = ("", "backward", "forward")
    groups: dict[tuple[object, ...], int] = {}
    columns: dict[str, list[float]] = {name: [] for name in ("phase", "group", "size", "send")}
    for row in rows:
        kind, stage, replica = str(row["optype"]), int(row["stage"]), row["dp_rank"]
        phase, _, action = kind.partition("-")
        columns["phase"].append(phases.index(phase) if phase in phases else 0)
        columns["send"].append(action == "send")
        key: tuple[object, ...] | None = None
        size = 0
        if action in ("send", "recv"):
            step = 1 if phase == "forward" else -1
            key = (phase, replica, stage if action == "send" else stage - step, row["seq_id"])
            size = 2
        elif kind == "grads-reduce-scatter":
            key, size = (kind, stage), job.replicas
        elif kind == "optimizer-clip-main-grad":
            key, size = (kind,), job.replicas * job.stages
        columns["size"].append(size)
        number = NOT_KNOWN if key is None else groups.setdefault((row["step"], *key), len(groups))
        columns["group"].append(number)

    def integers(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([row[name] for row in rows], dtype=np.int64)

    start_s = np.array([float(row["start_ts"]) for row in rows])
    is_message = np.array([str(row["optype"]).endswith(("send", "recv")) for row in rows])
    return Operations(
        step=integers("step"),
        rank=integers("rank"),
        replica=integers("dp_rank"),
        stage=integers("stage"),
        type=np.array([types.index(str(row["optype"])) for row in rows], dtype=np.int64),
        phase=np.array(columns["phase"], dtype=np.int64),
        sequence=integers("seq_id"),
        micro_batch=integers("mb_id"),
        group=np.array(columns["group"], dtype=np.int64),
        size=np.array(columns["size"], dtype=np.int64),
        is_message=is_message,
        is_send=np.array(columns["send"], dtype=np.bool_),
        start_s=start_s,
        end_s=start_s + np.array([float(row["duration"]) for row in rows]),
        types=tuple(types),
        phases=phases,
    )


def build(job: PipelineJob) -> OperationGraph:
    return build_operations(read(job))


def share(graph: OperationGraph, kind: CauseKind, rank: int | None = None) -> float:
    """Seconds per step of one cause, 0 if it was not replayed."""
    costs = find_costs(graph)
    found = [i for i, cause in enumerate(costs.causes) if cause == Cause(kind, rank)]
    return float(costs.shares_s[:, found].mean(axis=0).sum()) if found else 0.0


# The first forward pass of the first stage, then four hops with their passes on the last one, its first backward pass,
# and four hops back with theirs; then the end of the step.
HEALTHY_S = 0.1 + 4 * (0.001 + 0.1) + 0.2 + 4 * (0.001 + 0.2) + 0.05 + 0.01 + 0.02


def test_a_healthy_step_takes_what_its_operations_take() -> None:
    graph = build(PipelineJob(steps=2))
    assert graph.step_s == pytest.approx([HEALTHY_S] * 2)
    assert graph.circular == 0


def test_the_replay_as_recorded_gives_the_recorded_times() -> None:
    job = PipelineJob(slow={(0, 0): 1.7}, late_s={(1, 1): 0.3})
    graph = build(job)
    replayed = replay_operations(graph, graph.work_s[:, None], graph.delay_s[:, None])
    assert replayed[:, 0] == pytest.approx(graph.step_s)


def test_every_node_comes_after_all_that_it_waits_for() -> None:
    graph = build(PipelineJob())
    count = graph.work_s.size
    for level in graph.levels:
        heads = graph.preds[graph.pred_start[level.first] : graph.pred_start[level.stop]]
        assert ((heads < level.first) | (heads == count)).all()
    assert graph.levels[-1].stop == count == read(PipelineJob()).step.size


def test_operations_that_wait_in_a_circle_are_counted() -> None:
    # 0 -> 1, and 1 with 2 in a group of which 2 comes before 0; 3 alone is free.
    group = np.array([NOT_KNOWN, 0, 0, NOT_KNOWN])
    order = order_levels(4, group, np.array([0, 2]), np.array([1, 0]))
    assert order.circular == 3
    assert order.nodes.tolist() == [3]


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.35])
def test_a_slow_worker_has_the_whole_slowdown(factor: float) -> None:
    job = PipelineJob(slow={(2, 0): factor})
    graph = build(job)
    slowdown_s = float(graph.step_s.mean()) - HEALTHY_S
    assert share(graph, CauseKind.WORKER, job.rank(2, 0)) == pytest.approx(slowdown_s, rel=0.02)
    assert share(graph, CauseKind.STAGE) == pytest.approx(0.0, abs=0.01 * slowdown_s)
    assert share(graph, CauseKind.TRANSFER) == pytest.approx(0.0, abs=0.01 * slowdown_s)


def test_two_slow_workers_share_what_they_cost() -> None:
    job = PipelineJob(slow={(0, 0): 1.5, (3, 1): 1.4})
    graph = build(job)
    costs = find_costs(graph)
    assert costs.shares_s.sum(axis=1) == pytest.approx(
        graph.step_s - costs.ideal_s - (graph.step_s - costs.simulated_s)
    )
    first = share(graph, CauseKind.WORKER, job.rank(0, 0))
    second = share(graph, CauseKind.WORKER, job.rank(3, 1))
    assert first > 0.1
    assert second > 0.1
    assert first + second == pytest.approx(float(graph.step_s.mean()) - HEALTHY_S, rel=0.05)


def test_two_slow_workers_of_one_replica_are_not_its_data() -> None:
    # Two of its four stages take half as long again: that is no property of what the replica computes on.
    graph = build(PipelineJob(replicas=4, stages=4, slow={(1, 0): 1.5, (1, 2): 1.5}))
    assert share(graph, CauseKind.DATA) == pytest.approx(0.0, abs=1e-6)
    assert share(graph, CauseKind.WORKER, 1) > 0.1
    assert share(graph, CauseKind.WORKER, 9) > 0.1


def test_what_most_stages_of_a_replica_have_alike_is_its_data() -> None:
    slow = {(1, stage): 1.5 for stage in range(4)}
    graph = build(PipelineJob(replicas=4, stages=4, slow=slow))
    assert share(graph, CauseKind.DATA) > 0.3
    assert share(graph, CauseKind.WORKER, 1) == pytest.approx(0.0, abs=1e-6)


def test_a_slow_worker_that_a_slower_one_hides_is_not_left_out() -> None:
    # Alone, rank 5 gains nothing, nor do the three that are slow by next to nothing and come before it.
    little = dict.fromkeys([(1, 0), (2, 0), (3, 0)], 1.02)
    graph = build(PipelineJob(slow={(0, 0): 3.0, (1, 1): 2.0, **little}))
    workers = [cause.rank for cause in find_costs(graph).causes if cause.rank is not None]
    assert workers[:2] == [0, 5]
    assert share(graph, CauseKind.WORKER, 5) > 0.1


def test_workers_that_hide_each_other_share_though_without_one_alone_nothing_is_gained() -> None:
    costs = find_costs(build(PipelineJob(replicas=8, slow={(0, 0): 1.5, (1, 0): 1.5})))
    first, second = (costs.causes.index(Cause(CauseKind.WORKER, rank)) for rank in (0, 1))
    assert costs.remove_s[[first, second]] == pytest.approx(0.0, abs=1e-9)
    shares_s = costs.shares_s.mean(axis=0)
    assert shares_s[first] == pytest.approx(shares_s[second])
    assert shares_s[first] + shares_s[second] == pytest.approx(
        costs.simulated_s - costs.ideal_s, rel=0.02
    )


def test_what_changes_nothing_alone_shares_nothing_and_the_shares_still_add_up() -> None:
    # The transfers of one rank are a fifth of a millisecond longer: a ten-thousandth of the step.
    rows = read(PipelineJob(slow={(2, 0): 1.5}))
    last = rows.is_communication & ~rows.is_message & (rows.end_s == rows.end_s.max())
    costs = find_costs(build_operations(replace(rows, end_s=rows.end_s + 2e-4 * last)))
    transfer = costs.causes.index(Cause(CauseKind.TRANSFER))
    assert costs.shares_s[:, transfer] == pytest.approx(0.0)
    assert costs.shares_s.mean(axis=0).sum() == pytest.approx(costs.simulated_s - costs.ideal_s)


def test_a_stage_with_more_work_is_no_workers_fault() -> None:
    job = PipelineJob(stage_factor={1: 1.6})
    graph = build(job)
    costs = find_costs(graph)
    assert share(graph, CauseKind.STAGE) == pytest.approx(
        float(graph.step_s.mean()) - costs.ideal_s, rel=0.02
    )
    assert np.abs(costs.parts.worker_s).max() == pytest.approx(0.0, abs=1e-9)


def test_long_sequences_are_the_datas_not_a_workers() -> None:
    """Another replica has the long micro-batch in every step; both of its stages take longer for it."""

    def factor(step: int, replica: int, micro_batch: int) -> float:
        return 3.0 if (replica == step % 4 and micro_batch == 1) else 1.0

    graph = build(PipelineJob(steps=8, data_factor=factor))
    slowdown_s = float(graph.step_s.mean()) - HEALTHY_S
    assert share(graph, CauseKind.DATA) == pytest.approx(slowdown_s, rel=0.05)
    assert np.abs(find_costs(graph).parts.worker_s).max() == pytest.approx(0.0, abs=1e-9)


def test_what_only_one_stage_takes_longer_for_is_not_the_datas() -> None:
    job = PipelineJob(slow={(1, 0): 1.5})
    graph = build(job)
    assert np.abs(split(graph.operations, graph.work_s).data_s).max() == pytest.approx(
        0.0, abs=1e-9
    )


def test_late_starts_are_the_hosts_where_they_cost_enough() -> None:
    """0.5 s before the last backward pass of the last stage, which nothing that is recorded explains."""
    job = PipelineJob(late_s={(1, 1): 0.5})
    graph = build(job)
    costs = find_costs(graph)
    assert costs.has_delays
    assert share(graph, CauseKind.HOST, job.rank(1, 1)) == pytest.approx(0.5, rel=0.02)


def test_the_late_host_is_the_one_that_costs_not_the_one_that_is_late_most() -> None:
    """Both replicas' last stages are late, one by more; but its replica has hardly any work."""

    def factor(step: int, replica: int, micro_batch: int) -> float:
        return 0.1 if replica == 3 else 1.0

    job = PipelineJob(late_s={(1, 1): 0.5, (3, 1): 0.8}, data_factor=factor)
    costs = find_costs(build(job))
    (host,) = [i for i, cause in enumerate(costs.causes) if cause.kind is CauseKind.HOST]
    assert costs.causes[host].rank == job.rank(1, 1)
    assert costs.remove_s[host] == pytest.approx(0.5, rel=0.02)


def test_late_starts_that_cost_little_are_left_out() -> None:
    costs = find_costs(build(PipelineJob(late_s={(1, 1): 0.02})))
    assert not costs.has_delays
    # The first stage ends three hops of 1 ms later, and waits for what is left.
    assert costs.delays_s == pytest.approx(0.02 - 3 * 0.001)


def test_the_parts_of_every_operation_add_up() -> None:
    job = PipelineJob(slow={(0, 1): 1.3}, stage_factor={0: 1.2})
    graph = build(job)
    parts = split(graph.operations, graph.work_s)
    total = parts.reference_s + parts.stage_s + parts.worker_s + parts.data_s + parts.jitter_s
    assert total + parts.transfer_s == pytest.approx(graph.work_s)


def test_the_walk_covers_every_step_once_and_jumps_to_the_slow_worker() -> None:
    job = PipelineJob(slow={(2, 0): 2.0})
    graph = build(job)
    for paths in walk_operations(graph, 1e-5, finishers=3):
        for path in paths:
            assert path.check_partition()
            assert path.seconds().sum() == pytest.approx(path.end_s)
            culprits = {int(graph.operations.rank[last]) for _, last, _, _ in path.jumps}
            assert job.rank(2, 0) in culprits


def test_skewed_clocks_are_put_on_one_reference() -> None:
    """50 ms and more between the ranks' clocks; the collectives end at one moment."""
    skew = {rank: 0.05 * (-1) ** rank * (rank + 1) for rank in range(8)}
    plain, skewed = read(PipelineJob()), read(PipelineJob(skew_s=skew))
    aligned, offset_s, sigma_s, quality = align_operations(skewed)
    assert quality == ()
    assert sigma_s < 1e-6
    middle = float(np.median(list(skew.values())))
    assert [offset_s[rank] for rank in skew] == pytest.approx(
        [skew[rank] - middle for rank in skew], abs=1e-6
    )
    straight, bent = build_operations(plain), build_operations(aligned)
    assert bent.step_s == pytest.approx(straight.step_s, abs=1e-6)


def test_ranks_without_a_collective_in_common_are_said_to_be_unaligned() -> None:
    operations = read(PipelineJob())
    messages = take(operations, ~operations.is_communication | operations.is_message)
    _, offset_s, _, quality = align_operations(messages)
    assert set(offset_s.values()) == {0.0}
    assert [item.code for item in quality] == ["CLOCK_UNALIGNED"]


def test_the_order_of_the_rows_makes_no_difference() -> None:
    operations = read(PipelineJob(slow={(0, 0): 1.3}))
    order = np.random.default_rng(7).permutation(operations.step.size)
    first, second = build_operations(operations), build_operations(take(operations, order))
    assert find_costs(first).shares_s.tobytes() == find_costs(second).shares_s.tobytes()


@pytest.mark.parametrize("spread", [3, 1_000_000_000], ids=["counted", "sorted"])
def test_rows_are_numbered_in_the_order_of_their_columns(spread: int) -> None:
    rng = np.random.default_rng(1)
    one, other = rng.integers(-4, 5, 200) * spread, rng.integers(0, 3, 200)
    first, number = numbered(one, other)
    pairs = [*zip(one.tolist(), other.tolist(), strict=True)]
    ordered = sorted(set(pairs))
    assert number.tolist() == [ordered.index(pair) for pair in pairs]
    assert first.tolist() == [pairs.index(pair) for pair in ordered]


def test_of_no_rows_there_are_no_numbers() -> None:
    empty = np.zeros(0, dtype=np.int64)
    assert [part.size for part in numbered(empty, empty)] == [0, 0]


def test_medians_and_maxima_of_groups() -> None:
    key = np.array([2, 0, 0, 2, 2, 0])
    values = np.array([5.0, 1.0, 4.0, 9.0, 7.0, 2.0])
    medians = medians_by(key, values)
    assert medians[[0, 2]].tolist() == [2.0, 7.0]
    assert np.isnan(medians[1])
    group = np.array([1, NOT_KNOWN, 0, 1, 0, NOT_KNOWN])
    assert group_maxima(group, values).tolist() == [9.0, 1.0, 7.0, 9.0, 7.0, 2.0]
