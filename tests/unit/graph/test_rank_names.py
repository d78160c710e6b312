"""Ranks from file names: words wherever they stand, folders, counted places, and claims that contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.importers.rank_names import last_number, ranks_of_names, refuse_claims
from rootwalk.instrumentation.errors import ConfigError


def ranks(*names: str, are_some: bool = False) -> list[int | None]:
    paths = [Path(name) for name in names]
    found = ranks_of_names(paths, are_some=are_some)
    return [found.get(path) for path in paths]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("fr_rank_3_node01.json", 3),
        ("node07-rank12.pt.trace.json.gz", 12),
        ("Rank=4 (2).json", 4),
        ("job2_noderank1_rank7.json", 7),
        ("dp_rank_1_tp_rank_0_rank_5.json", 5),
        ("x_global_rank_6_local_rank_2.json", 6),
        ("worker3.17.json", 3),
        ("2024-11-16/rank_10/trace.json", 10),
        ("rank-9/2024-11-16/trace.json", 9),
        ("frank_5.json", None),
        ("libkineto_activities_41000.json", None),
        ("rank_20241116.json", None),
    ],
)
def test_a_word_before_a_number_says_the_rank_wherever_it_is(name: str, rank: int | None) -> None:
    assert ranks(name) == [rank]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("0/dump.pickle", "1/dump.pickle"), [0, 1]),
        (("2024-11-16_1_node01.json", "2024-11-16_0_node01.json"), [1, 0]),
        (("2.node02.json", "0.node01.json", "1.node01.json"), [2, 0, 1]),
        (("gpu-a100-1.20241116_101112.json", "gpu-a100-0.20241116_101113.json"), [1, 0]),
        (("node0/0.json", "node0/1.json", "node1/2.json", "node1/3.json"), [0, 1, 2, 3]),
        (("libkineto_41000.json", "libkineto_41001.json"), [None, None]),
        (("rank0_a.json", "trace_1.json", "trace_2.json"), [0, 1, 2]),
    ],
)
def test_without_a_word_the_number_that_counts_the_files_is_the_rank(
    names: tuple[str, ...], expected: list[int | None]
) -> None:
    assert ranks(*names) == expected


def test_with_files_missing_the_only_number_that_differs_is_the_rank() -> None:
    assert ranks("5_node01.json", "3_node01.json") == [None, None]
    assert ranks("5_node01.json", "3_node01.json", are_some=True) == [5, 3]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("nccl_trace_rank_container-node02_12", 12),
        ("_dump_0", 0),
        ("job2_7.pickle.gz", 7),
        ("a.json", None),
    ],
)
def test_pytorchs_own_names_end_with_the_rank(name: str, number: int | None) -> None:
    assert last_number(Path(name)) == number


def test_several_files_that_claim_one_rank_are_refused_with_their_names() -> None:
    refuse_claims({Path("a_0"): 0, Path("a_1"): 1})
    with pytest.raises(ConfigError, match='saw rank 1 for "a_1", "b_1"') as caught:
        refuse_claims({Path("a_0"): 0, Path("a_1"): 1, Path("b_1"): 1})
    assert caught.value.hint is not None
    assert "--rank" in caught.value.hint
    with pytest.raises(ConfigError, match=r'"node1/0\.json", "node2/0\.json"'):
        refuse_claims({Path("node1/0.json"): 0, Path("node2/0.json"): 0})
