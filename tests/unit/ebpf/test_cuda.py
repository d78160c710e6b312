"""CUDA calls, the parts without a kernel: libraries in a process's maps, what a probe costs, sums as measurements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rootwalk.ebpf.cuda.communicators import Communicators
from rootwalk.ebpf.cuda.functions import FAMILIES, KINDS, LAYERS, NCCL_OPERATIONS, Call
from rootwalk.ebpf.cuda.libraries import FunctionFinder, find_libraries, is_dear
from rootwalk.ebpf.cuda.totals import (
    CALL_KEY,
    CALL_TOTAL,
    RUNNING,
    RUNNING_KEY,
    CallTotals,
    RunningCall,
    decode_running,
)
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import DecodeError

PID = 4242
MAPS = """\
55e0c0000000-55e0c0200000 r-xp 00000000 fd:01 11 /usr/bin/python3.11
7f0000000000-7f0000010000 r--p 00000000 fd:01 21 /site/nvidia/cu13/lib/libcudart.so.13
7f0000010000-7f0000020000 r-xp 00010000 fd:01 21 /site/nvidia/cu13/lib/libcudart.so.13
7f0000020000-7f0000030000 r-xp 00010000 fd:01 22 /site/torch/lib/libcudart-d0da41ae.so.11.0
7f0000030000-7f0000040000 r-xp 00010000 00:2f 23 /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f0000040000-7f0000050000 r-xp 00010000 fd:01 24 /a folder/with spaces/libnccl.so.2
7f0000050000-7f0000060000 r-xp 00010000 fd:01 25 /site/libcublasLt.so.13
7f0000060000-7f0000070000 r-xp 00010000 fd:01 26 /site/libcublas.so.13
7f0000070000-7f0000080000 r-xp 00010000 fd:01 27 /site/torch/lib/libc10_cuda.so
7f0000080000-7f0000090000 r-xp 00010000 fd:01 28 /site/libcuda.so.1 (deleted)
7f0000090000-7f00000a0000 r-xp 00010000 fd:01 29 /site/mylibcuda.so.1
7ffd00000000-7ffd00010000 r-xp 00000000 00:00 0 [vdso]
"""


def write_maps(root: Path, text: str) -> None:
    folder = root / f"proc/{PID}"
    folder.mkdir(parents=True)
    (folder / "maps").write_text(text)


def test_libraries_are_found_by_name_once_each(tmp_path: Path) -> None:
    write_maps(tmp_path, MAPS)
    found = find_libraries(PID, tmp_path)
    assert [(one.family, one.path, one.inode) for one in found] == [
        ("libcublas", "/site/libcublas.so.13", 26),
        ("libcublasLt", "/site/libcublasLt.so.13", 25),
        ("libcuda", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", 23),
        ("libcudart", "/site/nvidia/cu13/lib/libcudart.so.13", 21),
        ("libcudart", "/site/torch/lib/libcudart-d0da41ae.so.11.0", 22),
        ("libnccl", "/a folder/with spaces/libnccl.so.2", 24),
    ]
    assert {one.pid for one in found} == {PID}


def test_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert find_libraries(PID, tmp_path) == []


def test_library_is_opened_as_its_process_sees_it_and_only_if_it_is_the_same(
    tmp_path: Path,
) -> None:
    file = tmp_path / f"proc/{PID}/root" / "site/libcuda.so.1"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"the same")
    inode = file.stat().st_ino
    (tmp_path / f"proc/{PID}/maps").write_text(
        f"7f0000010000-7f0000020000 r-xp 00010000 fd:01 {inode} /site/libcuda.so.1\n"
    )
    (library,) = find_libraries(PID, tmp_path)
    with library.open(tmp_path) as opened:
        assert opened.read() == b"the same"
    other = file.with_name("other")
    other.write_bytes(b"another")
    other.replace(file)
    with pytest.raises(OSError, match="is not what is mapped"):
        library.open(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="is not what is mapped"):
        library.open(tmp_path)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("55 4889e5", False),  # push %rbp
        ("4157 4156", False),  # push %r15
        ("90 55", False),  # nop
        ("e9 00000000", False),  # jmp
        ("4883ec08", True),  # sub $8, %rsp
        ("49ba 0000000000000000", True),  # movabs
        ("41b8 00000000", True),  # mov $0, %r8d
        ("f30f1efa", True),  # endbr64: the probe goes behind it
    ],
)
def test_first_instruction_tells_what_a_probe_costs(code: str, *, expected: bool) -> None:
    assert is_dear(bytes.fromhex(code.replace(" ", "")) + bytes(8)) is expected


def test_what_is_no_library_is_said(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(b"\x7fELF but no more")
    with file.open("rb") as opened, pytest.raises(DecodeError):
        FunctionFinder().find("libnccl", opened)


FAMILIES_BY_OPERATION = {
    NCCL_OPERATIONS[call.kind - len(KINDS)]: call.is_message
    for call in FAMILIES["libnccl"].values()
}


def test_cookies_fit_the_program() -> None:
    # 8 bits for kind and layer; programs/cuda.h has room for 7 arguments.
    for calls in FAMILIES.values():
        for call in calls.values():
            assert call.kind < len(KINDS) + len(NCCL_OPERATIONS) <= 256
            arguments = call.size_argument, call.detail_argument, call.communicator_argument
            assert all(0 <= argument <= 7 for argument in arguments)
            assert call.cookie & 0xFF == call.kind
            assert call.cookie >> 8 & 0xFF == call.layer
    assert Call(1, 2, 3, 4, 5, 6).cookie == 0x6_54_03_02_01
    assert Call(1, 2, 3, 4, 5, 6, is_message=True).cookie == 0x16_54_03_02_01
    assert {one for one in NCCL_OPERATIONS if FAMILIES_BY_OPERATION[one]} == {"send", "recv"}


def key(kind: int, layer: int = 1, detail: int = 0, communicator: int = 0, slot: int = 5) -> bytes:
    return CALL_KEY.pack(slot, kind, layer, detail, communicator)


def test_time_of_a_call_that_runs_is_told_and_never_falls() -> None:
    sums = CallTotals(Communicators())
    sync = KINDS.index(semconv.TrainingCudaCallKind.DEVICE_SYNC)
    value = RUNNING.pack(1_000_000_000, 0, 0, 0, key(sync), 0, 0, 77)
    ((_, call),) = decode_running([(RUNNING_KEY.pack(78, 1), value)])
    assert call == RunningCall(key(sync), 1_000_000_000, 78, 77)

    def told(totals: list[tuple[bytes, bytes]], running: list[RunningCall], now_ns: int) -> float:
        return next(
            one.value
            for one in sums.measure(totals, running, now_ns)
            if one.metric == semconv.METRIC_TRAINING_CUDA_CALL_TIME
        )

    assert told([], [call], 3_500_000_000) == 2.5
    # It has ended after its sum was read: the sum says nothing of it yet.
    assert told([(key(sync), CALL_TOTAL.pack(0, 0, 0, 0))], [], 3_600_000_000) == 2.5
    assert told([(key(sync), CALL_TOTAL.pack(1, 2_600_000_000, 0, 0))], [], 3_700_000_000) == 2.6


def test_what_a_caller_says_may_be_anything() -> None:
    copy = KINDS.index(semconv.TrainingCudaCallKind.COPY)
    all_reduce = len(KINDS) + NCCL_OPERATIONS.index("all_reduce")
    totals = [
        (key(copy, detail=201), CALL_TOTAL.pack(1, 2, 3, 0)),
        (key(all_reduce, detail=201, communicator=0xABC), CALL_TOTAL.pack(1, 2, 3, 0)),
    ]
    found = list(CallTotals(Communicators()).measure(totals, [], 0))
    for one in found:
        definition = semconv.METRICS[one.metric]
        assert definition.required <= one.attributes.keys() <= definition.attributes
    told = {value for one in found for value in one.attributes.values()}
    assert {"by_address", "type 201", "0xabc"} <= told
    # The size of an unknown type is not known, so its bytes are not.
    assert semconv.METRIC_TRAINING_NCCL_IO not in {one.metric for one in found}


def test_every_kind_is_measured_by_the_registry() -> None:
    totals = [
        (key(kind, layer), CALL_TOTAL.pack(7, 2_000_000_000, 3, 1))
        for kind in range(len(KINDS) + len(NCCL_OPERATIONS))
        for layer in range(len(LAYERS))
    ]
    found = list(CallTotals(Communicators()).measure(totals, [], 0))
    for one in found:
        definition = semconv.METRICS[one.metric]
        assert definition.required <= one.attributes.keys() <= definition.attributes, one
        assert one.slot == 5
    assert len({(one.metric, *sorted(map(str, one.attributes.items()))) for one in found}) >= 100
