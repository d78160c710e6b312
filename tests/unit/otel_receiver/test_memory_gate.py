from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

import pytest

from rootwalk.otel_receiver.memory_gate import (
    REQUEST_OVERHEAD_BYTES,
    STORE_WAIT_S,
    Admission,
    MemoryGate,
    needed_bytes,
    read_resident_bytes,
)
from rootwalk.otel_receiver.memory_plan import MIB, MIN_MAX_MEMORY_BYTES, MemoryPlan, plan_memory
from rootwalk.otel_receiver.request_split import PIECE_BYTES
from rootwalk.otel_receiver.signals import Signal
from support.workloads import wait_until

PLAN = MemoryPlan(
    limit_bytes=100 * MIB,
    is_compiled=False,
    batch_bytes=MIB,
    compiled_batch_bytes=MIB,
    database_bytes=10 * MIB,
    storing_bytes=45 * MIB,
    resident_bytes=90 * MIB,
    request_bytes=65 * MIB,
    beside_bytes=20 * MIB,
)


@dataclass
class Machine:
    """A process of 50 MiB whose memory and clock the test sets."""

    resident_bytes: int = 50 * MIB
    now_s: float = 100.0

    def gate(self) -> MemoryGate:
        """65 MiB may be reserved, 20 MiB beside a batch, and 90 MiB resident."""
        gate = MemoryGate(PLAN, lambda: self.resident_bytes, lambda: self.now_s)
        gate.measure_idle()
        return gate


def test_what_is_reserved_is_given_back() -> None:
    gate = Machine().gate()

    with gate.reserve() as first, gate.reserve() as second:
        assert first.grow_to(50 * MIB) is Admission.ADMITTED
        assert second.grow_to(16 * MIB) is Admission.LATER
        assert second.grow_to(15 * MIB) is Admission.ADMITTED
        first.shrink_to(10 * MIB)
        assert gate.reserved_bytes == 25 * MIB
        assert first.grow_to(5 * MIB) is Admission.ADMITTED
        assert gate.reserved_bytes == 25 * MIB

    assert gate.reserved_bytes == 0


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    gate = Machine().gate()

    with gate.reserve() as held:
        assert held.grow_to(66 * MIB) is Admission.NEVER
        assert held.grow_to(65 * MIB) is Admission.ADMITTED
        assert held.grow_to(66 * MIB) is Admission.NEVER
        with gate.reserve() as other:
            assert other.grow_to(1) is Admission.LATER


def test_what_is_in_memory_already_counts_although_it_does_not_fit() -> None:
    gate = Machine().gate()

    with gate.reserve() as first, gate.reserve() as second:
        first.hold(70 * MIB)
        first.hold(60 * MIB)
        assert gate.reserved_bytes == 70 * MIB
        assert second.grow_to(1) is Admission.LATER
    assert gate.reserved_bytes == 0


def test_resident_memory_counts_whoever_uses_it() -> None:
    machine = Machine()
    gate = machine.gate()
    machine.resident_bytes += 70 * MIB

    with gate.reserve() as held:
        assert held.grow_to(21 * MIB) is Admission.LATER
        assert held.grow_to(20 * MIB) is Admission.ADMITTED


def test_memory_that_was_freed_is_seen_after_the_next_reading() -> None:
    machine = Machine()
    gate = machine.gate()
    machine.resident_bytes += 90 * MIB

    with gate.reserve() as held:
        assert held.grow_to(MIB) is Admission.LATER
        machine.resident_bytes -= 90 * MIB
        assert held.grow_to(MIB) is Admission.LATER
        machine.now_s += 0.02
        assert held.grow_to(MIB) is Admission.ADMITTED


def test_what_a_request_needs() -> None:
    assert needed_bytes(Signal.TRACES, 1000, is_json=False) == 10_000 + REQUEST_OVERHEAD_BYTES
    assert needed_bytes(Signal.TRACES, 1000, is_json=True) == 23_000 + REQUEST_OVERHEAD_BYTES
    # Cut into pieces, a request needs its bytes and one parsed piece.
    large = needed_bytes(Signal.TRACES, 64 * MIB, is_json=False)
    assert large == 64 * MIB + 10 * PIECE_BYTES + REQUEST_OVERHEAD_BYTES


def test_the_kernel_tells_what_is_resident() -> None:
    before_bytes = read_resident_bytes()
    held = bytearray(b"x") * (32 * MIB)

    assert read_resident_bytes() - before_bytes > 24 * MIB
    assert len(held) == 32 * MIB


async def _wait_for_both(gate: MemoryGate) -> list[tuple[str, Admission]]:
    """The first holds all; the large second waits before the small third, which comes later."""
    order: list[tuple[str, Admission]] = []

    async def wait(name: str, size_bytes: int) -> None:
        with gate.reserve() as held:
            order.append((name, await gate.wait_for(held, size_bytes)))

    with gate.reserve() as first:
        first.grow_to(65 * MIB)
        second = asyncio.create_task(wait("second", 60 * MIB))
        await asyncio.sleep(0)
        first.shrink_to(60 * MIB)
        third = asyncio.create_task(wait("third", MIB))
        await asyncio.sleep(0.02)
        assert order == []
    await asyncio.gather(second, third)
    return order


def test_who_waits_is_served_in_turn() -> None:
    assert asyncio.run(_wait_for_both(Machine().gate())) == [
        ("second", Admission.ADMITTED),
        ("third", Admission.ADMITTED),
    ]


def test_a_batch_begins_when_requests_leave_room_and_new_ones_wait_for_its_end() -> None:
    gate = Machine().gate()
    is_storing, may_end = threading.Event(), threading.Event()

    def store() -> None:
        with gate.storing():
            is_storing.set()
            may_end.wait(10.0)

    thread = threading.Thread(target=store)
    with gate.reserve() as first, gate.reserve() as second, gate.reserve() as third:
        assert first.grow_to(30 * MIB) is Admission.ADMITTED
        thread.start()
        wait_until(lambda: second.grow_to(MIB) is Admission.LATER)
        # What is in progress may grow, because the batch waits for its end.
        assert first.grow_to(40 * MIB) is Admission.ADMITTED
        assert not is_storing.is_set()
        first.shrink_to(10 * MIB)
        assert is_storing.wait(10.0)
        assert second.grow_to(10 * MIB) is Admission.ADMITTED
        assert third.grow_to(MIB) is Admission.LATER
        may_end.set()
        thread.join()
        assert third.grow_to(45 * MIB) is Admission.ADMITTED


def test_a_batch_does_not_wait_for_ever() -> None:
    gate = MemoryGate(PLAN)

    with gate.reserve() as held:
        held.grow_to(60 * MIB)
        began_s = time.monotonic()
        with gate.storing():
            waited_s = time.monotonic() - began_s

    assert STORE_WAIT_S <= waited_s < STORE_WAIT_S + 1.0


async def _store_twice_beside_a_large_request(gate: MemoryGate) -> list[str]:
    order: list[str] = []
    is_first_over = threading.Event()

    def store(name: str) -> None:
        with gate.storing():
            order.append(name)
            is_first_over.wait(10.0)

    async def request() -> None:
        with gate.reserve() as held:
            assert await gate.wait_for(held, 60 * MIB) is Admission.ADMITTED
            order.append("request")

    first = asyncio.create_task(asyncio.to_thread(store, "first batch"))
    while not order:
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(request())
    await asyncio.sleep(0.01)
    is_first_over.set()
    await first
    await asyncio.gather(waiting, asyncio.to_thread(store, "second batch"))
    return order


def test_what_a_batch_kept_out_goes_before_the_next() -> None:
    order = asyncio.run(_store_twice_beside_a_large_request(Machine().gate()))

    assert order == ["first batch", "request", "second batch"]


@pytest.mark.parametrize("limit_mib", [MIN_MAX_MEMORY_BYTES // MIB, 256, 511, 512, 1024, 65_536])
def test_the_shares_of_a_limit_are_within_it(limit_mib: int) -> None:
    plan = plan_memory(limit_mib * MIB)

    assert 0 < plan.beside_bytes < plan.request_bytes < plan.resident_bytes < plan.limit_bytes
    assert plan.beside_bytes + plan.storing_bytes < plan.resident_bytes
    assert MIB <= plan.batch_bytes <= 16 * MIB
    assert MIB <= plan.compiled_batch_bytes <= 48 * MIB
    # The largest request of OTLP has room, its bytes and its parsed piece.
    assert needed_bytes(Signal.TRACES, 64 * MIB, is_json=False) <= plan.request_bytes
