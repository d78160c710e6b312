"""Calls of NCCL as spans: whose they are, when they are told, and how many."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.ebpf.cuda.communicators import BIRTH, IS_NUMBERED, Communicators
from rootwalk.ebpf.cuda.functions import KINDS, NCCL_OPERATIONS
from rootwalk.ebpf.cuda.operations import OPERATION, decode_operations, name_operations
from rootwalk.ebpf.nccl_spans import MAX_PER_STEP, MAX_WAITING
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.reader import CollectiveCall
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import ids
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.shared_ring import RingReader
from support.rings import Rank
from support.spans import decode_resource_spans

MS, SLOT = 1_000_000, 5
UNIQUE_ID = bytes([7]) * 128


class Watched:
    """A rank whose steps are 10 ms of forward each, from 10 ms on, and what is told of it."""

    def __init__(self, folder: Path, level: int = 2) -> None:
        self.rank = Rank(folder)
        self.stream = RankStream(
            RingReader(self.rank.writer.path), None, ProcessDetails().read, WaitDetails(), level
        )
        self._steps = 0

    def step(self, backend: str | None = None, *, is_known: bool = False) -> None:
        """Run a step, in which the hooks may record a collective."""
        self._steps += 1
        begin = self._steps * 10 * MS
        self.rank.phase("forward", begin, begin + 8 * MS)
        if backend is not None:
            group = Communicator(self.rank.tracker, f"feed|2|{backend}|default_pg")
            group.begin(1, "all_reduce", 44, is_p2p=False)
            group.end(1, is_known=is_known)
        self.rank.phase("optimizer", begin + 8 * MS, begin + 9 * MS)

    def call(self, step: int, sequence: int) -> None:
        start = step * 10 * MS + MS + sequence
        self.stream.take_call(
            CollectiveCall(
                *(SLOT, start, start + 50, "all_reduce", "feed", 2, sequence),
                *(44, "Float", False),
            )
        )

    def told(self) -> list[Span]:
        self.stream.read()
        batch = self.stream.batch()
        if batch is None:
            return []
        scopes = decode_resource_spans(batch).scope_spans
        spans = [s for scope in scopes for s in scope.spans if scope.scope.name == "rootwalk.ebpf"]
        self.stream.acknowledge()
        return spans

    def close(self) -> None:
        self.stream.close()
        self.rank.close()


def test_calls_are_told_after_two_steps_without_a_record(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in (1, 2, 3):
        watched.step()
        watched.call(number, number)
    # The third has ended when the fourth begins; the first two are known to be whole.
    watched.step()
    spans = watched.told()
    assert [span.name for span in spans] == ["collective.all_reduce"] * 3
    assert [span.span_id for span in spans] == [
        ids.collective_id("j1", 0, 0, "feed", number, is_p2p=False) for number in (1, 2, 3)
    ]
    watched.call(4, 4)
    watched.step()
    watched.step()
    assert len(watched.told()) == 1
    watched.close()


def test_one_step_without_a_record_may_be_one_that_is_kept_back(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.step()
    watched.call(1, 1)
    watched.step("nccl")
    assert watched.told() == []
    watched.call(2, 2)
    for _ in range(4):
        watched.step()
    assert watched.told() == []
    watched.close()


@pytest.mark.parametrize(
    ("backend", "is_known", "expected"),
    [
        ("nccl", False, 0),
        ("cpu:gloo,cuda:nccl", True, 0),
        ("undefined", False, 0),  # nobody is told of its end: it is on devices
        ("gloo", True, 2),
    ],
)
def test_hooks_that_record_nccl_are_left_to_it(
    tmp_path: Path, backend: str, expected: int, *, is_known: bool
) -> None:
    watched = Watched(tmp_path)
    for number in (1, 2):
        watched.step(backend, is_known=is_known)
        watched.call(number, number)
    watched.step()
    watched.step()
    assert len(watched.told()) == expected
    watched.close()


def test_rank_below_level_2_tells_none(tmp_path: Path) -> None:
    watched = Watched(tmp_path, level=1)
    for number in (1, 2):
        watched.step()
        watched.call(number, number)
    watched.step()
    assert watched.told() == []
    watched.close()


def test_a_step_of_more_calls_than_are_told_says_so(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in (1, 2):
        watched.step()
        watched.call(number, number)
    for sequence in range(3, 3 + MAX_PER_STEP + 7):
        watched.call(3, sequence)
    for _ in range(3):
        watched.step()
    assert len(watched.told()) == 2 + MAX_PER_STEP
    assert watched.stream.losses()["nccl_calls_full"] == 7
    watched.close()


def test_calls_whose_step_never_closes_do_not_gather(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for sequence in range(MAX_WAITING + 11):
        watched.call(1, sequence)
    assert watched.told() == []
    assert watched.stream.losses()["nccl_calls_full"] == 11
    watched.close()


def record(kind: int, number: int, data_type: int = 7, *, is_message: int = 0) -> bytes:
    value = OPERATION.pack(
        *(100, 250, 41, 11, SLOT, kind, 2, data_type, IS_NUMBERED | number, is_message)
    )
    return struct.pack("<II", len(value), 0) + value


def test_operations_of_known_communicators_are_named() -> None:
    send = len(KINDS) + NCCL_OPERATIONS.index("send")
    data = record(send, 1, is_message=1) + record(send, 2) + record(send, 1, 99) + record(250, 1)
    operations, used = decode_operations(data + struct.pack("<II", 5 | 1 << 31, 0))
    assert used == len(data)
    communicators = Communicators()
    birth = BIRTH.pack(0xABC0, 0, 4242, SLOT, 3, 1, 0, 0, UNIQUE_ID)
    communicators.take([((1).to_bytes(8, "little"), birth)])
    known = CollectiveCall(
        SLOT, 100, 250, "send", ids.nccl_communicator_id(UNIQUE_ID), 3, 41, 44, "Float", is_p2p=True
    )
    assert list(name_operations(operations, communicators)) == [
        known,
        known._replace(size_bytes=None, data_type=None, is_p2p=False),
    ]
