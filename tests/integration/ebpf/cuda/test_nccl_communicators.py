"""NCCL's communicators by uprobes: the same id and the same numbers at all members, and never a wrong one.

    process 0   make A | make B | 17 + 2 operations of A | 101 of B
    process 1   make A | make B | the same               | the same
    process 2   make A | make B | 13 + 2                 | the same: A is 4 short

The stand-in makes communicators as the real library does, the unique id by value; an address comes again at once.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.cuda.communicators import Lifetime
from rootwalk.ebpf.cuda.functions import Call
from rootwalk.ebpf.cuda.libraries import FunctionFinder
from rootwalk.ebpf.cuda.lifetimes import LifetimeProbes
from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.function_probes import FunctionProbes
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.targets import Targets
from support.cuda_calls import settle
from support.cuda_standin import write_scenario
from support.cuda_watch import open_reader, watch
from support.nccl_phases import (
    ID,
    ID_A,
    ID_B,
    SIZE,
    SLOT,
    read_calls,
    read_operations,
    write_phases,
)
from support.puppet import puppet
from support.wheel_libraries import find_wheel_libraries

pytestmark = [pytest.mark.bpf, pytest.mark.slow]


def test_members_know_a_communicator_by_one_id_and_count_alike(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    def rank(number: int, own: int) -> str:
        return write_phases(
            standins,
            f"make('a', A, 3, {number})",
            f"nccl.ncclCommInitRankConfig(at('b'), 3, B, {number}, P(0))",
            f"reduce('a', {own}) or gather('a', 2)",
            "reduce('b', 101)",
            f"send('a', {own})",
        )

    # The last of them has called less.
    with (
        puppet(rank(0, 17)) as first,
        puppet(rank(1, 17)) as second,
        puppet(rank(2, 13)) as third,
    ):
        processes = (first, second, third)
        for slot, process in enumerate(processes, 1):
            watch(targets, reader, process.pid, slot)
        for _ in range(5):
            for process in processes:
                process.turn()
        told = [read_operations(reader, slot) for slot in (1, 2, 3)]
        measured = list(reader.measurements())
    alike = {(ID_A, False): 19, (ID_A, True): 17, (ID_B, False): 101}
    assert told == [alike, alike, {(ID_A, False): 15, (ID_A, True): 13, (ID_B, False): 101}]
    named = [one for one in measured if one.metric.startswith("training.nccl.")]
    assert {(one.attributes[ID], one.attributes[SIZE]) for one in named} == {(ID_A, 3), (ID_B, 3)}
    assert reader.losses()["bpf_communicators_unreadable"] == 0


def test_creation_is_watched_even_where_a_probe_is_dear(standins: list[Path]) -> None:
    # Rank 0 of the test above makes one by this function; the stand-in's begins as the real one does.
    if platform.machine() != "x86_64":
        pytest.skip("cuda: needs x86-64")
    libraries = [standins[-1], find_wheel_libraries().get("libnccl.so.2")]
    for path in [one for one in libraries if one is not None]:
        with path.open("rb") as file:
            found = {one.name: one for one in FunctionFinder().find("libnccl", file)}
        assert found["ncclCommInitRankConfig"].is_dear
        assert {"ncclCommInitRank", "ncclCommSplit", "ncclCommDestroy"} <= found.keys()


def test_scalable_creation_is_known_by_the_first_of_its_ids(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "nccl.ncclCommInitRankScalable(at('a'), 5, 4, 2, ctypes.byref((Id * 2)(A, B)), P(0))",
        "reduce('a', 7)",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 7}


def test_operations_inside_operations_and_groups_are_numbered_once(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        "nccl.ncclGroupStart() or bcast('a', 11) or nccl.ncclGroupEnd()",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 11}  # ncclBcast calls ncclBroadcast


def test_call_that_does_not_return_has_its_number(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    played = write_scenario(tmp_path / "scenario", {"ncclAllGather": -1.0})
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        "reduce('a', 7)",
        "__import__('threading').Thread(target=gather, args=('a', 1), daemon=True).start()",
        "__import__('time').sleep(0.2)",
        environment=played,
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        for _ in range(4):
            process.turn()
        assert read_operations(reader) == {(ID_A, False): 8}
        assert read_calls(reader) == {ID_A: 7}


def test_address_that_comes_again_is_another_communicator(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "make('a', A, 2, 0) or reduce('a', 11)",
        "destroy('a') or make('b', B, 4, 1) or reduce('b', 5)",
        # The same id again is the same communicator to everybody, counted from its begin.
        "nccl.ncclCommAbort(comms['b']) or make('b', B, 4, 1) or reduce('b', 3)",
        # One that nobody is told of.
        "destroy('b') or nccl.ncclCommInitAll(at('b'), 1, P(0)) or reduce('b', 2)",
        "comms['a'].value == comms['b'].value",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 11}
        process.turn()
        assert read_operations(reader) == {(ID_B, False): 5}
        # What has ended is told for a while, apart.
        assert read_calls(reader) == {ID_A: 11, ID_B: 5}
        process.turn()
        assert read_operations(reader) == {(ID_B, False): 3}
        process.turn()
        assert read_operations(reader) == {}
        assert read_calls(reader)[None] == 2
        assert process.turn() == "True"


@pytest.mark.parametrize(
    "otherwise",
    [
        "nccl.ncclCommInitAll((P * 2).from_buffer(room := bytearray(16)), 2, P(0))",
        "nccl.ncclCommShrink(P(0), P(0), 0, at('b'), P(0), 0)",
        "nccl.ncclCommGrow(P(0), 2, P(0), 0, at('b'), P(0))",
    ],
)
def test_communicator_without_an_identity_takes_over_no_other(
    targets: Targets, reader: CudaReader, standins: list[Path], otherwise: str
) -> None:
    code = write_phases(
        standins,
        "make('a', A, 2, 0) or reduce('a', 7)",
        # Its memory is free, and nobody said so.
        f"ctypes.memset(comms['a'], 0, 1) and ({otherwise})",
        "reduce('a', 5)",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        for _ in range(3):
            process.turn()
        assert read_operations(reader) == {}
        assert read_calls(reader)[None] == 5


def test_communicator_that_was_there_before_has_no_number(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "make('a', A, 2, 0)",
        "reduce('a', 7) or split('a', 'child', 1) or reduce('child', 5)",
        "make('b', B, 2, 0) or reduce('b', 3)",
    )
    with puppet(code) as process:
        process.turn()
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        assert read_operations(reader) == {}
        assert read_calls(reader) == {None: 12}
        process.turn()
        assert read_operations(reader) == {(ID_B, False): 3}


def test_level_0_makes_numbers_unknown_and_level_1_does_not(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(standins, "make('a', A, 2, 0) or reduce('a', 7)", *["reduce('a', 5)"] * 3)
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        for level in (1, 2):
            reader.set_level(level)
            settle(reader)
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 12}
        reader.set_level(0)
        process.turn()
        reader.set_level(2)
        settle(reader)
        process.turn()
        assert read_operations(reader) == {}
        assert read_calls(reader) == {ID_A: 12, None: 5}


def test_operation_that_failed_ends_the_numbers(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins, "make('a', A, 2, 0) or reduce('a', 7)", "reduce('a', 1, 100)", "reduce('a', 5)"
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 7}
        assert process.turn() == "4"
        process.turn()
        assert read_operations(reader) == {}


def test_what_goes_on_behind_the_call_has_not_failed(
    targets: Targets, reader: CudaReader, standins: list[Path], tmp_path: Path
) -> None:
    played = write_scenario(tmp_path / "scenario", {"in_progress": 1.0})
    code = write_phases(standins, "make('a', A, 2, 0)", "reduce('a', 5)", environment=played)
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        assert [process.turn(), process.turn()] == ["7", "7"]
        assert read_operations(reader) == {(ID_A, False): 5}


@pytest.mark.parametrize(
    ("members", "rank"), [(0, 0), (-5, 0), (2, 2), (2, -1), (-(2**31), 2**31 - 1)]
)
def test_members_that_cannot_be_make_no_communicator(
    targets: Targets,
    reader: CudaReader,
    standins: list[Path],
    tmp_path: Path,
    members: int,
    rank: int,
) -> None:
    played = write_scenario(tmp_path / "scenario", {"lenient": 1.0})
    code = write_phases(
        standins, f"make('a', A, {members}, {rank})", "reduce('a', 5)", environment=played
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        process.turn()
        assert read_operations(reader) == {}
        assert read_calls(reader) == {None: 5}


@pytest.mark.parametrize(
    "bad",
    [
        "nccl.ncclCommInitRank(P(8), 2, A, 0)",
        "nccl.ncclCommInitRankScalable(at('b'), 2, 0, 1, P(8), P(0))",
        "nccl.ncclCommInitRankConfig(P(8), 2, A, 0, P(0))",
    ],
)
def test_what_cannot_be_read_is_counted_and_leaves_nothing(
    targets: Targets, reader: CudaReader, standins: list[Path], bad: str
) -> None:
    code = write_phases(standins, bad, "make('a', A, 2, 0) or reduce('a', 5)")
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        assert read_operations(reader) == {}
        assert reader.losses()["bpf_communicators_unreadable"] == 1
        process.turn()
        assert read_operations(reader) == {(ID_A, False): 5}


def test_creation_that_failed_leaves_nothing(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins, "make('a', A, 2, 2)", "nccl.ncclCommInitRank(P(0), 2, A, 0)", "reduce('a', 5)"
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        assert [process.turn(), process.turn()] == ["4", "4"]
        process.turn()
        assert read_operations(reader) == {}
        assert reader.losses()["bpf_communicators_unreadable"] == 0


def test_more_than_can_be_kept_is_counted_and_has_no_number(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(
        standins,
        "[make('a', A, 2, 0) or destroy('a') for _ in range(2048)] and None",  # as `births` holds
        "make('b', B, 2, 0) or reduce('b', 5)",
        "destroy('b') or make('b', B, 2, 0) or reduce('b', 3)",
    )
    with puppet(code) as process:
        watch(targets, reader, process.pid, SLOT)
        process.turn()
        process.turn()
        assert read_operations(reader) == {}
        assert reader.losses()["bpf_communicators_full"] == 1
        process.turn()  # they have been taken out meanwhile
        assert read_operations(reader) == {(ID_B, False): 3}


def test_rank_that_has_ended_leaves_no_communicator(
    targets: Targets, reader: CudaReader, standins: list[Path]
) -> None:
    code = write_phases(standins, "make('a', A, 2, 0) or reduce('a', 7)")
    with puppet(code) as first, puppet(code) as second:
        for slot, process in enumerate((first, second), 1):
            watch(targets, reader, process.pid, slot)
            process.turn()
        reader.forget(first.pid)
        assert read_operations(reader, 1) == {}
        assert read_operations(reader, 2) == {(ID_A, False): 7}


def test_library_is_watched_before_the_first_call_for_the_device(
    targets: Targets, standins: list[Path], tmp_path: Path
) -> None:
    # A host with a driver, and a rank that has loaded NCCL and has not asked for the device yet.
    open_reader(targets).close()  # skips where probes are refused
    code = write_phases([standins[-1]], "make('a', A, 2, 0) or reduce('a', 7)")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: none\n")
    with puppet(code) as process:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        folder = tmp_path / f"proc/{process.pid}"
        folder.mkdir()
        (folder / "root").symlink_to(f"/proc/{process.pid}/root")
        # Its stand-in needs the driver's: what the real one loads when it is first asked is not there yet.
        kept = [line for line in maps.splitlines(keepends=True) if "libcuda.so" not in line]
        (folder / "maps").write_text("".join(kept))
        reader = CudaReader(Place(root=tmp_path, targets=targets))
        try:
            watch(targets, reader, process.pid, SLOT)
            process.turn()
            assert read_operations(reader) == {(ID_A, False): 7}
            assert reader.missing is Reason.NO_CUDA  # it has not asked for the device
        finally:
            reader.close()


def test_kernels_without_links_by_file_number_the_same(
    targets: Targets, standins: list[Path]
) -> None:
    open_reader(targets).close()  # skips where probes are refused
    with standins[-1].open("rb") as file:
        found = FunctionFinder().find("libnccl", file)
    calls = FunctionProbes(
        "cuda", "on_call", "on_return", lambda opened: opened.share(targets.map), by_file=False
    )
    lifetimes = LifetimeProbes(calls, targets.map)
    code = write_phases(standins, "make('a', A, 2, 0) or reduce('a', 7)", "destroy('a')")
    try:
        for attach, kind in ((calls.attach, Call), (lifetimes.attach, Lifetime)):
            attach(
                standins[-1],
                [(one.offset, one.call.cookie) for one in found if isinstance(one.call, kind)],
            )
        with puppet(code) as process:
            targets.watch(process.pid, SLOT)
            process.turn()
            lifetimes.take(lambda _: True)
            (told,) = lifetimes.measure(0.0, {SLOT})
            assert (told.value, told.attributes[ID]) == (7, ID_A)
            process.turn()
            lifetimes.take(lambda _: True)
            assert list(lifetimes.measure(0.0, {SLOT})) == []
    finally:
        lifetimes.close()
        calls.close()


def test_real_library_without_a_device_leaves_nothing(targets: Targets) -> None:
    real = find_wheel_libraries()
    if "libnccl.so.2" not in real:
        pytest.skip("needs PyTorch with its CUDA libraries")
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("cuda: needs a machine without a device")
    reader = open_reader(targets, needs_driver=False)
    code = write_phases(
        [real["libnccl.so.2"]],
        "nccl.ncclGetUniqueId(ctypes.byref(A))",
        "make('a', A, 1, 0)",
        "nccl.ncclCommInitRankConfig(at('b'), 1, A, 0, P(0))",
        "comms['a'].value is None and comms['b'].value is None",
    )
    try:
        with puppet(code) as process:
            watch(targets, reader, process.pid, SLOT)
            assert process.turn() == "0"
            assert "0" not in {process.turn(), process.turn()}
            assert process.turn() == "True"
            assert read_operations(reader) == {}
            assert reader.losses()["bpf_communicators_unreadable"] == 0
    finally:
        reader.close()
