"""Distances between what workers did, on numbers that are computed by eye."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rootwalk.graph.columns import FloatArray
from rootwalk.graph.summaries.table import (
    FunctionKind,
    Patterns,
    Summaries,
    history_distance,
    peer_distance,
)

Numbers = Sequence[float] | FloatArray


def patterns(share: Numbers, mean: Numbers, deviation: Numbers | None = None) -> Patterns:
    spread = np.zeros(len(share)) if deviation is None else np.array(deviation)
    return Patterns(np.array(share), np.array(mean), spread)


def workers(
    now: Patterns,
    kind: FunctionKind = FunctionKind.OPERATION,
    before: Patterns | None = None,
    stage: Sequence[int] | None = None,
) -> Summaries:
    """One function of some workers, each a rank."""
    count = now.share.size
    none: FloatArray = np.full(count, np.nan)
    return Summaries(
        rank=np.arange(count),
        stage=np.array(stage or [0] * count),
        function=np.zeros(count, dtype=np.int64),
        names=((kind, "forward"),),
        calls=np.ones(count, dtype=np.int64),
        now=now,
        before=before or Patterns(none, none, none),
        raw_bytes_by_rank={},
    )


def test_worker_that_takes_twice_as_long_stands_out() -> None:
    found = peer_distance(workers(patterns([0.1, 0.1, 0.1, 0.2], [1.0, 1.0, 1.0, 2.0])))
    # half of the largest share, and half of the largest mean
    assert found.distance.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert found.is_out.tolist() == [False, False, False, True]
    assert found.peers.tolist() == [3, 3, 3, 3]


def test_deviation_counts_by_what_calls_last() -> None:
    rows = patterns([0.1] * 4, [1.0] * 4, [0.0, 0.0, 0.0, 0.5])
    assert peer_distance(workers(rows)).distance.tolist() == [0.0, 0.0, 0.0, 0.5]


def test_two_bad_workers_of_six_both_stand_out() -> None:
    rows = patterns([0.1, 0.2, 0.1, 0.1, 0.2, 0.1], [1.0, 2.0, 1.0, 1.0, 2.0, 1.0])
    assert peer_distance(workers(rows)).is_out.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("kind", "stands_out"),
    [
        (FunctionKind.PHASE, True),
        (FunctionKind.ON_CPU, True),
        (FunctionKind.OFF_CPU, False),
        (FunctionKind.COMMUNICATION, False),
    ],
)
def test_who_waits_for_others_does_not_stand_out(kind: FunctionKind, stands_out: bool) -> None:
    rows = patterns([0.1, 0.1, 0.1, 0.2], [1.0, 1.0, 1.0, 2.0])
    found = peer_distance(workers(rows, kind))
    assert found.distance[3] == 1.0
    assert found.is_out[3] == stands_out


def test_worker_that_is_quicker_does_not_stand_out() -> None:
    found = peer_distance(workers(patterns([0.1, 0.2, 0.2, 0.2], [1.0, 2.0, 2.0, 2.0])))
    assert found.distance[0] == 1.0
    assert not found.is_out.any()


def test_stages_are_not_compared_with_each_other() -> None:
    rows = patterns([0.1, 0.1, 0.2, 0.2], [1.0, 1.0, 2.0, 2.0])
    found = peer_distance(workers(rows, stage=[0, 0, 1, 1]))
    assert found.distance.tolist() == [0.0] * 4
    assert found.peers.tolist() == [1] * 4


def test_two_peers_differ_and_nobody_can_tell_who_is_slow() -> None:
    found = peer_distance(workers(patterns([0.1, 0.1, 0.2], [1.0, 1.0, 2.0])))
    assert found.distance[2] == 1.0
    assert not found.is_out.any()


def test_what_takes_next_to_no_time_does_not_stand_out() -> None:
    rows = patterns([0.001, 0.001, 0.001, 0.009], [1.0, 1.0, 1.0, 9.0])
    assert not peer_distance(workers(rows)).is_out.any()


def test_workers_that_vary_by_as_much_do_not_stand_out() -> None:
    share = [0.10, 0.13, 0.16, 0.19, 0.22]
    assert not peer_distance(workers(patterns(share, [10 * s for s in share]))).is_out.any()


def test_healthy_workers_never_stand_out() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        mean = 1.0 + 0.02 * random.standard_normal(16)
        rows = patterns(0.3 * mean, mean, 0.05 * np.abs(random.standard_normal(16)))
        assert not peer_distance(workers(rows)).is_out.any()


def test_order_of_the_workers_does_not_matter() -> None:
    random = np.random.default_rng(6)
    share, mean, deviation = random.random((3, 9))
    order = random.permutation(9)
    straight = peer_distance(workers(patterns(share, mean, deviation)))
    mixed = peer_distance(workers(patterns(share[order], mean[order], deviation[order])))
    assert mixed.distance == pytest.approx(straight.distance[order])
    assert (mixed.is_out == straight.is_out[order]).all()


def test_past_shows_what_all_workers_have_alike() -> None:
    now, before = patterns([0.4] * 4, [2.0] * 4), patterns([0.2] * 4, [1.0] * 4)
    rows = workers(now, before=before)
    assert peer_distance(rows).distance.tolist() == [0.0] * 4
    assert history_distance(rows).tolist() == [1.0] * 4


def test_without_a_past_or_a_peer_there_is_no_distance() -> None:
    rows = workers(patterns([0.1], [1.0]))
    assert np.isnan(history_distance(rows)).all()
    assert np.isnan(peer_distance(rows).distance).all()
    none = workers(patterns([], []))
    assert peer_distance(none).distance.size == history_distance(none).size == 0
