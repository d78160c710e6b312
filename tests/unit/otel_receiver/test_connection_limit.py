"""Which connection has to go when all places are taken."""

from __future__ import annotations

import logging

import pytest

from rootwalk.otel_receiver.connection_limit import ConnectionLimit
from rootwalk.otel_receiver.http2_frames import ErrorCode
from rootwalk.otel_receiver.http2_limits import UnreservedMemory
from rootwalk.otel_receiver.memory_gate import FIRST_BODY_BYTES, next_reservation
from rootwalk.otel_receiver.quiet_log import RateLimit


class FakeGuest:
    def __init__(self, *, is_busy: bool = False, may_end: bool = True) -> None:
        self.is_busy = is_busy
        self.may_end = may_end
        self.is_ended = False

    def abort(self) -> bool:
        self.is_ended = self.may_end
        return self.may_end


def _add(limit: ConnectionLimit, *guests: FakeGuest) -> None:
    for guest in guests:
        limit.make_room()
        limit.add(guest)


def test_idle_sockets_end_each_other_and_not_a_client() -> None:
    limit = ConnectionLimit(3)
    client, *others = (FakeGuest() for _ in range(50))
    _add(limit, client)
    limit.prove(client)
    _add(limit, *others)
    assert not client.is_ended
    assert [guest.is_ended for guest in others] == [True] * 47 + [False] * 2
    assert len(limit) == 3


def test_of_clients_the_one_that_sent_longest_ago_goes_and_no_busy_one() -> None:
    limit = ConnectionLimit(3)
    first, second, third = (FakeGuest() for _ in range(3))
    _add(limit, first, second, third)
    for guest in (first, second, third, first):
        limit.prove(guest)
    second.is_busy = True
    _add(limit, FakeGuest())
    assert [guest.is_ended for guest in (first, second, third)] == [False, False, True]


def test_when_none_can_go_the_new_one_is_refused() -> None:
    limit = ConnectionLimit(1)
    _add(limit, FakeGuest(may_end=False))
    with pytest.raises(ConnectionRefusedError):
        limit.make_room()


def test_memory_is_reserved_for_what_comes_and_not_for_what_is_announced() -> None:
    size = 60 * 1024 * 1024
    assert next_reservation(0, size) == FIRST_BODY_BYTES
    there, steps = FIRST_BODY_BYTES, 0
    while there < size:
        there, steps = next_reservation(there, size), steps + 1
        assert there <= max(FIRST_BODY_BYTES, 8 * there)
    assert (there, steps) == (size, 4)
    assert next_reservation(FIRST_BODY_BYTES, 200_000) == 200_000


class FakeConnection:
    def __init__(self, memory: list[UnreservedMemory], held: int, waited_s: float) -> None:
        self.memory, self.held, self.waited_s = memory, held, waited_s
        self.closed: list[ErrorCode] = []

    def burden(self) -> tuple[int, float]:
        return self.held, self.waited_s

    def close(self, code: ErrorCode, saw: str) -> None:
        assert saw
        self.closed.append(code)
        self.memory[0].give_back(self.held)
        self.held = 0


def test_who_holds_most_for_longest_makes_room() -> None:
    cell: list[UnreservedMemory] = []
    attackers = [FakeConnection(cell, 200, 10.0) for _ in range(4)]
    client = FakeConnection(cell, 50, 0.01)
    memory = UnreservedMemory(1000, lambda: [*attackers, client])
    cell.append(memory)
    assert all(memory.take(size) for size in (200, 200, 200, 200, 50))
    assert memory.take(100)
    assert [len(a.closed) for a in attackers] == [1, 0, 0, 0]
    assert client.closed == []


@pytest.mark.parametrize("attackers_wait_s", [0.1, 10.0])
@pytest.mark.parametrize("client_waits_s", [0.0, 5.0])
def test_a_connection_that_holds_little_has_room_and_is_not_closed(
    attackers_wait_s: float, client_waits_s: float
) -> None:
    cell: list[UnreservedMemory] = []
    attackers = [FakeConnection(cell, 0, attackers_wait_s) for _ in range(20)]
    client = FakeConnection(cell, 4, client_waits_s)
    memory = UnreservedMemory(4096, lambda: [client, *attackers])
    cell.append(memory)
    assert memory.take(4, 0)
    refused = 0
    for _ in range(100):
        for attacker in attackers:
            if memory.take(4, attacker.held):
                attacker.held += 4
            else:
                refused += 1
        assert memory.take(4, client.held)
        memory.give_back(4)
    assert client.closed == []
    assert any(attacker.closed for attacker in attackers) == (attackers_wait_s > 1)
    assert refused or attackers_wait_s > 1
    assert memory.held_bytes <= 4096


def test_a_peer_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    logger = logging.getLogger("test.peers")
    logger.addFilter(RateLimit(lambda: now[0]))
    with caplog.at_level(logging.WARNING):
        for number in range(10_000):
            error = ValueError("x" * 10_000 + "\n\x1b[2J")
            logger.error("bad request %d", number, exc_info=error)
        now[0] = 61.0
        logger.warning("bad request again")
    assert len(caplog.records) == 6
    assert sum(len(record.getMessage()) for record in caplog.records) < 10_000
    assert all(record.exc_info is None for record in caplog.records)
