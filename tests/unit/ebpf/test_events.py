"""Decoding of what the scheduler program writes, from bytes laid out by hand as programs/sched.h says."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf import events
from rootwalk.ebpf.events import EventFlag, Runner, RunnerKind, SchedEvent, ThreadExit, ThreadState


def ring_record(payload: bytes, flag_bits: int = 0) -> bytes:
    padding = bytes(-len(payload) % 8)
    return struct.pack("<II", len(payload) | flag_bits, 0) + payload + padding


def head(state: int, flags: int, runner_count: int = 0) -> bytes:
    times_and_ids = struct.pack("<QQIIII", 100, 350, 11, 10, 3, 1)
    return times_and_ids + struct.pack("<BBHI16s", state, flags, runner_count, 0, b"python\0junk")


def wait_event() -> bytes:
    sums = struct.pack("<4Q", 200, 0, 40, 10)
    own = struct.pack("<QQ16s", 10 << 32 | RunnerKind.OWN << 30 | 12, 200, b"tokenizer")
    kernel = struct.pack("<QQ16s", 22 << 32 | RunnerKind.KERNEL << 30, 40, b"kworker/1:1")
    return head(ThreadState.RUNNABLE, EventFlag.LEADER, 2) + sums + own + kernel


def test_wait_with_two_runners() -> None:
    found, used = events.decode_ring(ring_record(wait_event()))
    assert found == [
        SchedEvent(
            100,
            350,
            11,
            10,
            3,
            1,
            ThreadState.RUNNABLE,
            EventFlag.LEADER,
            "python",
            (200, 0, 40, 10),
            (Runner(10, 1, 200, "tokenizer", 12), Runner(22, 2, 40, "kworker/1:1")),
        )
    ]
    assert used == 8 + 88 + 2 * 32


def test_end_of_a_thread() -> None:
    payload = head(ThreadState.EXITED, EventFlag.INHERITED) + struct.pack("<10Q", *range(10))
    found, _ = events.decode_ring(ring_record(payload))
    assert isinstance(found[0], ThreadExit)
    assert found[0].end_ns == 350
    assert found[0].totals == tuple(range(10))


def test_record_that_is_being_written_ends_the_piece() -> None:
    done, busy = ring_record(wait_event()), ring_record(wait_event(), 1 << 31)
    found, used = events.decode_ring(done + busy + done)
    assert len(found) == 1
    assert used == len(done)


def test_discarded_record_is_skipped() -> None:
    data = ring_record(wait_event(), 1 << 30) + ring_record(wait_event())
    found, used = events.decode_ring(data)
    assert len(found) == 1
    assert used == len(data)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (events.SCHED_EVENT, 88),
        (events.RUNNER, 32),
        (events.WAIT, 56),
        (events.EXIT_EVENT, 136),
        (events.THREAD_RECORD, 192),
    ],
)
def test_sizes_are_those_that_the_header_asserts(layout: struct.Struct, size: int) -> None:
    assert layout.size == size


@given(st.integers(0, 40))
def test_any_number_of_records(count: int) -> None:
    data = ring_record(wait_event()) * count
    found, used = events.decode_ring(data)
    assert (len(found), used) == (count, len(data))
