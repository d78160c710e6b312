"""Communicators of NCCL that are split from others: known by their parent, which split it was, and the colour."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation import ids
from support.cuda_standin import write_scenario
from support.cuda_watch import watch
from support.nccl_phases import ID, ID_A, SIZE, SLOT, read_calls, read_operations, write_phases
from support.puppet import puppet

pytestmark = [pytest.mark.bpf, pytest.mark.slow]


def test_split_is_known_by_its_parent_its_turn_and_its_colour(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    def rank(number: int, *colours: int) -> str:
        first, second = colours
        return write_phases(
            standins,
            f"make('a', A, 2, {number})",
            f"split('a', 'first', {first}) or split('a', 'second', {second})",
            "reduce('first', 3) or reduce('second', 5) if comms['first'].value else reduce('second', 5)",
            # A child's child, when its parent is gone before anybody has looked.
            "split('second', 'third', 7) or destroy('second') or reduce('third', 2)",
        )

    second_id = ids.nccl_split_id(ID_A, 2, 4)
    third_id = ids.nccl_split_id(second_id, 1, 7)
    # Rank 1 has no part in the first one.
    with puppet(rank(0, 4, 4)) as first, puppet(rank(1, -1, 4)) as second:
        for slot, process in enumerate((first, second), 1):
            watch(targets, reader, process.pid, slot)
            for _ in range(4):
                process.turn()
        told = [read_operations(reader, slot) for slot in (1, 2)]
        measured = list(reader.measurements())
    both = {(ID_A, False): 0, (third_id, False): 2}
    assert told == [{**both, (ids.nccl_split_id(ID_A, 1, 4), False): 3}, both]
    sizes = {
        one.attributes[ID]: one.attributes.get(SIZE) for one in measured if ID in one.attributes
    }
    assert (sizes[ID_A], sizes[second_id], sizes[third_id]) == (2, None, None)


def test_split_after_one_that_failed_is_not_known(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        "split('a', 'bad', -2)",  # the stand-in refuses this colour
        "split('a', 'next', 1) or reduce('next', 5) or reduce('a', 3)",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        assert [process.turn() for _ in range(3)] == ["0", "4", "0"]
        assert read_operations(reader) == {(ID_A, False): 3}


def test_split_that_goes_on_behind_the_call_is_known_by_its_first_operation(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    played = write_scenario(tmp_path / "scenario", {"late": 1.0})
    wait = "nccl.ncclCommGetAsyncError(comms['a'], ctypes.byref(ctypes.c_int()))"
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        "split('a', 'first', 4), split('a', 'none', -1), split('a', 'second', 4)",
        f"{wait} or reduce('second', 5) or reduce('first', 3)",
        # A child of one in which nothing was called, and one that ends before that.
        f"split('a', 'third', 1), split('a', 'fourth', 1), {wait}",
        f"split('third', 'fifth', 1), destroy('fourth'), {wait}, reduce('fifth', 2)",
        # Its address comes again where nobody is told of it, and lies where it lay.
        "nccl.ncclCommInitAll(at('fourth'), 1, P(0)) or reduce('fourth', 7)",
        environment=played,
    )
    first, second = (ids.nccl_split_id(ID_A, turn, 4) for turn in (1, 3))
    third, fourth = (ids.nccl_split_id(ID_A, turn, 1) for turn in (4, 5))
    fifth = ids.nccl_split_id(third, 1, 1)
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        assert process.turn() == "(7, 0, 7)"
        before = {(ID_A, False): 0, (first, False): 0, (second, False): 0}
        assert read_operations(reader) == before
        process.turn()
        called = {**before, (first, False): 3, (second, False): 5}
        assert read_operations(reader) == called
        process.turn()
        assert read_operations(reader) == {**called, (third, False): 0, (fourth, False): 0}
        process.turn()
        found = read_operations(reader)
        assert found == {**called, (third, False): 0, (fifth, False): 2}
        process.turn()
        assert read_operations(reader) == found
        assert read_calls(reader) == {first: 3, second: 5, fifth: 2, None: 7}


def test_more_splits_that_go_on_than_are_kept_are_counted(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    played = write_scenario(tmp_path / "scenario", {"late": 1.0})
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        # One place is told again and again: what was split before is lost to it.
        "[split('a', 'same', 1) for _ in range(20)] and None",
        "[split('a', str(n), 1) for n in range(8)] and None",
        environment=played,
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        process.turn()
        assert reader.losses()["bpf_communicators_full"] == 0
        process.turn()
        assert reader.losses()["bpf_communicators_full"] == 1
