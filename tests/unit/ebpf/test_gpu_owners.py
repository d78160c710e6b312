"""Which rank uses which GPU."""

from __future__ import annotations

import pytest

from rootwalk.ebpf.gpu.owners import Gpu, Started, find_owners

FIRST, SECOND = "GPU-aaaa1111", "GPU-bbbb2222"


def gpus(*pids: tuple[int, ...] | None) -> list[Gpu]:
    return [Gpu(n, (FIRST, SECOND)[n], of_gpu) for n, of_gpu in enumerate(pids)]


def test_processes_decide() -> None:
    # Rank of slot 7 was started for the first, and computes on the second.
    found = find_owners(gpus((), (42, 43, 99)), {42: 7, 43: 7}, {7: Started(0, "0")})
    assert found == {SECOND: [7]}


def test_gpu_of_two_ranks_has_both() -> None:
    assert find_owners(gpus((1, 2)), {1: 4, 2: 3}, {}) == {FIRST: [3, 4]}


def test_what_it_was_started_with_is_the_second_choice() -> None:
    unknown = gpus((900,), (901,))  # of another pid namespace
    started = {5: Started(0, "1,0"), 6: Started(1, "1,0")}
    assert find_owners(unknown, {}, started) == {SECOND: [5], FIRST: [6]}
    assert find_owners(gpus(None, None), {}, {5: Started(1)}) == {SECOND: [5]}


@pytest.mark.parametrize(
    ("visible", "owner"),
    [
        ("1", SECOND),
        ("GPU-bb", SECOND),
        (SECOND, SECOND),
        ("GPU-", None),  # two begin so
        ("", None),
        ("-1", None),
        ("NoDevFiles", None),
        ("7", None),
        ("MIG-1234", None),
        ("0,1", FIRST),
    ],
)
def test_visible_devices(visible: str, owner: str | None) -> None:
    found = find_owners(gpus((900,), (901,)), {}, {5: Started(0, visible)})
    assert found == ({} if owner is None else {owner: [5]})


def test_job_on_cpus_owns_no_gpu() -> None:
    started = {5: Started(0), 6: Started(1)}
    assert find_owners(gpus((), ()), {}, started) == {}
    # Who computes there is seen, and is no rank.
    assert find_owners(gpus((77,), (78,)), {}, started, is_here=(77, 78)) == {}


def test_local_rank_beyond_the_gpus_is_no_ones() -> None:
    assert find_owners(gpus((900,), (901,)), {}, {5: Started(9), 6: Started(9, "0,1")}) == {}
