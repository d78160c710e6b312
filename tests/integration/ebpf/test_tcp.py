"""TCP of real processes, on machines made of namespaces, against what they did and what the kernel says itself."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rootwalk.ebpf import tcp_sockets
from rootwalk.ebpf.net_namespaces import NetNamespace
from rootwalk.ebpf.reader import Measurement, Place
from rootwalk.ebpf.tcp import TcpReader
from rootwalk.ebpf.tcp_counters import parse_counters
from rootwalk.ebpf.tcp_peers import Peer
from rootwalk.ebpf.tcp_sockets import TcpSockets
from rootwalk.ebpf.tcp_sums import NOTHING, Moved, PeerSums
from rootwalk.instrumentation.semconv import (
    TrainingTcpEvent,
    TrainingTcpPeer,
    TrainingTcpPeerScope,
)
from support.live_check import check_measurement
from support.namespaces import Machine, require_namespaces, two_machines
from support.rank_identities import identity
from support.tcp_ends import TcpEnd, connect, tcp_end, transfer
from support.tun_cable import slow_cable

# All prime: nothing that adds up by chance.
SENT, ANSWERED, LAST = 1_000_003, 7919, 104_729
LONG = 60_000_011
LOSS = 0.02
STANDSTILL_S = 2.0
# Each way; so long that a busy machine, which is late by some milliseconds now and then, is still within 5 %.
DELAY_S = 0.1
LOOKS = 3
LATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks on two machines of which each has a network of its own, and what reads them."""

    sockets: TcpSockets
    one: TcpEnd
    other: TcpEnd
    machines: tuple[Machine, Machine]

    def connect(self) -> None:
        connect(self.one, self.other, self.machines[1].address)


@pytest.fixture
def sockets() -> Iterator[TcpSockets]:
    made = TcpSockets()
    yield made
    made.close()


@pytest.fixture
def pair(sockets: TcpSockets) -> Iterator[Pair]:
    require_namespaces()
    with two_machines() as machines, tcp_end(machines[0]) as one, tcp_end(machines[1]) as other:
        for slot, end in ((1, one), (2, other)):
            sockets.meet(slot, identity(slot - 1))
            sockets.watch(end.pid, slot)
        yield Pair(sockets, one, other, machines)


def moved(sockets: TcpSockets, slot: int) -> Moved:
    """Everything that a rank has moved, whoever was at the other end."""
    total = NOTHING
    for _, sums in sockets.sums[slot]:
        total = total.plus(sums.moved)
    return total


def only_peer(sockets: TcpSockets, slot: int) -> tuple[Peer, PeerSums]:
    found = list(sockets.sums[slot])
    assert len(found) == 1, found
    return found[0]


def read_retransmissions(machine: Machine) -> int:
    text = Path(f"/proc/{machine.holder}/net/snmp").read_text()
    return parse_counters(text)[TrainingTcpEvent.RETRANSMITTED_SEGMENT]


def wait_until_closed(pair: Pair) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pair.sockets.look()
        if not pair.sockets.followed:
            break
        time.sleep(0.05)


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_bytes_between_two_ranks(pair: Pair) -> None:
    pair.connect()
    transfer(pair.one, pair.other, SENT)
    transfer(pair.other, pair.one, ANSWERED)
    pair.sockets.look()
    for slot, sent, received, rank in ((1, SENT, ANSWERED, "1"), (2, ANSWERED, SENT, "0")):
        peer, sums = only_peer(pair.sockets, slot)
        assert peer == Peer(TrainingTcpPeer.RANK, rank)
        assert (sums.moved.sent_bytes, sums.moved.received_bytes) == (sent, received)
        assert sums.connections == 1
    assert pair.sockets.losses()["tcp_malformed"] == 0


@pytest.mark.parametrize("late_looks", [0, LOOKS])
def test_what_is_sent_just_before_the_end_is_counted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, late_looks: int
) -> None:
    pair.connect()
    transfer(pair.one, pair.other, SENT)
    pair.sockets.look()
    transfer(pair.one, pair.other, LAST)
    pair.one.tell("close", 0)
    pair.other.tell("close", 0)
    # The kernel may hand out last values late; an emulated machine takes long for a look.
    monkeypatch.setattr(tcp_sockets, "LAST_VALUES_S", LATE_S)
    with monkeypatch.context() as patch:
        patch.setattr(NetNamespace, "read_ended", lambda _: [])
        for _ in range(late_looks):
            pair.sockets.look()
    wait_until_closed(pair)
    assert moved(pair.sockets, 1).sent_bytes == SENT + LAST
    # The kernel counts the mark of the end as a byte, and does not say whether one has come.
    assert moved(pair.sockets, 2).received_bytes - (SENT + LAST) in (0, 1)
    assert pair.sockets.losses().get("tcp_ended_unseen", 0) == 0


def test_connection_that_its_owner_resets_is_said_to_be_unseen(pair: Pair) -> None:
    pair.connect()
    transfer(pair.one, pair.other, SENT)
    pair.sockets.look()
    transfer(pair.one, pair.other, LAST)
    pair.one.tell("abort", 0)
    pair.other.tell("close", 0)
    wait_until_closed(pair)
    # The kernel wipes the sender's counts; the receiver's are whole.
    assert moved(pair.sockets, 1).sent_bytes == SENT
    assert moved(pair.sockets, 2).received_bytes == SENT + LAST
    assert pair.sockets.losses()["tcp_ended_unseen"] == 1


def test_sums_outlive_connections(pair: Pair) -> None:
    sent = 0
    for number in range(5):
        pair.connect()
        transfer(pair.one, pair.other, ANSWERED, number, number)
        pair.sockets.look()
        assert moved(pair.sockets, 1).sent_bytes == sent + ANSWERED
        sent += ANSWERED
        pair.one.tell("close", number)
        pair.other.tell("close", number)
        time.sleep(0.05)
        pair.sockets.look()
        assert moved(pair.sockets, 1).sent_bytes == sent


def test_what_was_moved_before_the_reader_began_does_not_count() -> None:
    with tcp_end() as one, tcp_end() as other:
        connect(one, other, "127.0.0.1")
        transfer(one, other, SENT)
        time.sleep(0.03)  # more than a clock tick after the processes began
        sockets = TcpSockets()
        try:
            sockets.watch(one.pid, 1)
            sockets.look()
            transfer(one, other, LAST)
            sockets.look()
            assert moved(sockets, 1).sent_bytes == LAST
        finally:
            sockets.close()


def test_retransmissions_are_the_kernels(pair: Pair) -> None:
    pair.connect()
    pair.other.tell("lose", 0, LOSS)
    before = read_retransmissions(pair.machines[0])
    transfer(pair.one, pair.other, LONG)
    pair.other.tell("lose", 0, 0)  # the last acknowledgement comes through
    time.sleep(0.5)
    pair.sockets.look()
    found = moved(pair.sockets, 1)
    segments = read_retransmissions(pair.machines[0]) - before
    assert segments > 0
    assert found.retransmitted_segments == segments
    assert found.retransmitted_bytes > 0
    assert found.sent_bytes == LONG


def test_receiver_that_does_not_read(pair: Pair) -> None:
    """The sender fills the receiver's window in a moment, then stands.

    sender    |full|-------- limited by the window --------|sends the rest|
    receiver       |------------ 2 s ---------------------|reads
    """
    pair.connect()
    pair.one.tell("begin_send", 0, LONG)
    began_s = time.monotonic()
    time.sleep(STANDSTILL_S)
    pair.sockets.look()
    stood_s = time.monotonic() - began_s
    found = moved(pair.sockets, 1)
    assert found.window_limited_us / 1e6 == pytest.approx(stood_s, rel=0.05)
    assert found.busy_us >= found.window_limited_us
    assert pair.other.tell("receive", 0, LONG) == LONG
    pair.one.tell("join")
    pair.sockets.look()
    assert moved(pair.sockets, 1).window_limited_us >= found.window_limited_us
    assert moved(pair.sockets, 1).sent_bytes == LONG


def test_round_trip_is_what_the_socket_says(pair: Pair) -> None:
    pair.connect()
    for _ in range(20):
        transfer(pair.one, pair.other, ANSWERED)
    time.sleep(0.1)
    pair.sockets.look()
    trip = only_peer(pair.sockets, 1)[1].round_trip
    assert trip is not None
    assert trip.high == trip.mean == pair.one.tell("rtt", 0)
    assert trip.floor is not None
    assert 0 < trip.floor <= trip.high
    # Nothing was sent since: nothing is known about the way now.
    pair.sockets.look()
    assert only_peer(pair.sockets, 1)[1].round_trip is None


def test_way_that_takes_a_known_time(pair: Pair) -> None:
    with slow_cable(pair.machines, DELAY_S) as cable:
        connect(pair.one, pair.other, cable.addresses[1])
        for _ in range(10):
            transfer(pair.one, pair.other, ANSWERED)
            transfer(pair.other, pair.one, 1)  # carries the acknowledgement, which would wait else
        pair.sockets.look()
        peer, sums = only_peer(pair.sockets, 1)
    trip = sums.round_trip
    assert trip is not None
    assert peer.rank == "1"
    assert trip.mean / 1e6 == pytest.approx(2 * DELAY_S, rel=0.05)
    assert trip.floor is not None
    assert trip.floor / 1e6 == pytest.approx(2 * DELAY_S, rel=0.05)


def test_service_on_another_machine_is_outside_the_job(pair: Pair) -> None:
    with tcp_end(pair.machines[1]) as service:
        connect(pair.one, service, pair.machines[1].address, 9000)
        transfer(pair.one, service, SENT)
        pair.sockets.look()
        peer, sums = only_peer(pair.sockets, 1)
    assert peer == Peer(TrainingTcpPeer.OUTSIDE, port=9000, scope=TrainingTcpPeerScope.PRIVATE)
    assert sums.moved.sent_bytes == SENT


def test_rank_that_nobody_here_watches_is_known_by_its_ports(pair: Pair) -> None:
    pair.sockets.forget(pair.other.pid)
    pair.connect()
    pair.sockets.look()
    assert only_peer(pair.sockets, 1)[0] == Peer(TrainingTcpPeer.RANK)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_processes_of_one_host(sockets: TcpSockets, address: str) -> None:
    with tcp_end() as one, tcp_end() as other, tcp_end() as stranger:
        for slot, end in ((1, one), (2, other)):
            sockets.meet(slot, identity(slot + 3))
            sockets.watch(end.pid, slot)
        connect(one, other, address)
        connect(one, stranger, address)
        transfer(one, other, SENT)
        transfer(one, stranger, LAST, 1)
        sockets.look()
        by_peer = {peer: sums.moved.sent_bytes for peer, sums in sockets.sums[1]}
        assert by_peer == {
            Peer(TrainingTcpPeer.RANK, "5"): SENT,
            Peer(TrainingTcpPeer.LOCAL): LAST,
        }


def test_process_that_vanishes(pair: Pair) -> None:
    pair.connect()
    transfer(pair.one, pair.other, SENT)
    pair.sockets.look()
    pair.one.end()
    pair.sockets.look()
    time.sleep(0.1)
    pair.sockets.look()
    assert moved(pair.sockets, 1).sent_bytes == SENT
    pair.sockets.forget(pair.one.pid)
    pair.sockets.forget(pair.one.pid)
    pair.sockets.look()
    assert 1 not in pair.sockets.sums


def test_interrupted_dump_ends_nothing_and_is_repeated(
    sockets: TcpSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    (space,) = sockets._spaces.values()
    whole = space.net.diag.dump
    with tcp_end() as one, tcp_end() as other:
        sockets.watch(one.pid, 1)
        connect(one, other, "127.0.0.1")
        transfer(one, other, SENT)
        sockets.look()
        # A second connection asks for a dump; it brings nothing.
        connect(one, other, "127.0.0.1")
        transfer(one, other, LAST, 1, 1)
        monkeypatch.setattr(
            space.net.diag,
            "dump",
            lambda inodes: whole(inodes)._replace(connections=[], is_complete=False),
        )
        sockets.look()
        assert only_peer(sockets, 1)[1].connections == 1
        assert moved(sockets, 1).sent_bytes == SENT
        assert sockets.losses()["tcp_dump_interrupted"] == 1
        monkeypatch.undo()
        sockets.look()
        assert only_peer(sockets, 1)[1].connections == 2
        assert moved(sockets, 1).sent_bytes == SENT + LAST


def test_namespace_is_let_go_with_its_last_process(pair: Pair) -> None:
    pair.sockets.look()
    before = count_descriptors()
    number = Path(f"/proc/{pair.one.pid}/ns/net").stat().st_ino
    assert len(pair.sockets.namespaces[number]) == 1
    assert len(pair.sockets.namespaces) == 3
    pair.sockets.forget(pair.one.pid)
    pair.sockets.forget(pair.other.pid)
    pair.sockets.look()
    assert len(pair.sockets.namespaces) == 1
    assert count_descriptors() == before - 4


def test_other_namespaces_without_the_right_to_enter(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.sockets, "can_enter", False)
    pair.connect()
    pair.sockets.look()
    assert list(pair.sockets.sums[1]) == []
    assert pair.sockets.losses()["tcp_namespace_closed"] == 2


def test_metrics_of_a_rank(pair: Pair) -> None:
    reader = TcpReader(Place())
    try:
        assert reader.degraded is None
        reader.meet(1, identity(0))
        reader.watch(pair.one.pid, 1)
        list(reader.measurements())
        pair.connect()
        pair.other.tell("lose", 0, LOSS)
        transfer(pair.one, pair.other, LONG)
        time.sleep(0.3)
        found = list(reader.measurements())
    finally:
        reader.close()
    by_name: dict[str, list[Measurement]] = {}
    for one in found:
        check_measurement(one)
        by_name.setdefault(one.metric, []).append(one)
    about = {"training.tcp.peer": "rank"}
    sent = {**about, "network.transport": "tcp", "network.io.direction": "transmit"}
    assert Measurement("process.network.io", LONG, sent, 1) in by_name["process.network.io"]
    assert by_name["training.tcp.connections"] == [
        Measurement("training.tcp.connections", 1, about, 1)
    ]
    (again,) = by_name["training.tcp.retransmitted.segments"]
    host = {
        one.attributes["training.tcp.event"]: one for one in by_name["training.tcp.host.events"]
    }
    assert host["retransmitted_segment"].value >= again.value > 0
    assert host["retransmitted_segment"].slot is None
    assert {
        one.attributes["training.tcp.limit"] for one in by_name["training.tcp.limited.time"]
    } == {
        "receive_window",
        "send_buffer",
    }
    for name in ("mean", "max", "floor"):
        (trip,) = by_name[f"training.tcp.rtt.{name}"]
        assert 0 < trip.value < 1


def test_metrics_name_the_rank_at_the_other_end(pair: Pair) -> None:
    reader = TcpReader(Place())
    try:
        for slot, end in enumerate((pair.one, pair.other), start=1):
            reader.meet(slot, identity(slot - 1))
            reader.watch(end.pid, slot)
        pair.connect()
        found = list(reader.measurements())
    finally:
        reader.close()
    for one in found:
        check_measurement(one)
    (ours,) = [one for one in found if one.metric == "training.tcp.connections" and one.slot == 1]
    assert ours.attributes == {"training.tcp.peer": "rank", "training.tcp.peer.rank": "1"}


def test_eight_ranks_with_two_thousand_sockets(sockets: TcpSockets) -> None:
    """Each rank has 125 connections to the next one, the last one to the first; 7 bytes go over each."""
    with contextlib.ExitStack() as opened:
        ranks = [opened.enter_context(tcp_end()) for _ in range(8)]
        for number, rank in enumerate(ranks):
            sockets.meet(number + 1, identity(number))
            sockets.watch(rank.pid, number + 1)
        for rank, following in zip(ranks, ranks[1:] + ranks[:1], strict=True):
            port = following.tell("listen", "127.0.0.1", 0)
            rank.ask("connect_many", "127.0.0.1", port, 125)
            following.tell("accept_many", 125)
            rank.answer()
        sockets.look()
        idle_s = _cpu_of_a_look(sockets)
        busy_looks_s = []
        for _ in range(LOOKS):
            for rank in ranks:
                # The last rank's first connections are those that it has accepted.
                rank.tell("send_each", 125, 7)
            busy_looks_s.append(_cpu_of(sockets.look))
    for number in range(8):
        by_rank = {peer.rank: sums for peer, sums in sockets.sums[number + 1]}
        assert by_rank.keys() == {str((number + 1) % 8), str((number - 1) % 8)}
        assert all(sums.connections == 125 for sums in by_rank.values())
    assert sum(moved(sockets, slot).sent_bytes for slot in range(1, 9)) == LOOKS * 8 * 125 * 7
    assert sum(moved(sockets, slot).received_bytes for slot in range(1, 9)) == LOOKS * 8 * 125 * 7
    # Twice was measured: what has moved costs as much again as a look itself, whatever the machine.
    assert min(busy_looks_s) < 10 * idle_s


def test_ten_thousand_sockets(sockets: TcpSockets) -> None:
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 100:
        pytest.skip(f"needs {count} open files: the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ends: list[socket.socket] = []
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, tcp_end() as rank:
            for _ in range(count // 2):
                ends.append(socket.create_connection(listener.getsockname()))
                ends.append(listener.accept()[0])
            sockets.watch(rank.pid, 1)
            sockets.look()
            foreign_s = _cpu_of_a_look(sockets)
            sockets.watch(os.getpid(), 2)
            sockets.look()
            known = sum(sums.connections for _, sums in sockets.sums[2])
            own_s = _cpu_of_a_look(sockets)
    finally:
        for end in ends:
            end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert known == 8192
    assert sockets.losses()["tcp_connections_full"] == count - 8192
    # Other people's sockets cost nothing (0.1 ms for all of them), one's own 16 us each.
    assert foreign_s < own_s / 100


def _cpu_of_a_look(sockets: TcpSockets) -> float:
    """The least of some: what else runs here disturbs the caches."""
    return min(_cpu_of(sockets.look) for _ in range(LOOKS))


def _cpu_of(call: Callable[[], object]) -> float:
    """CPU time of this thread that a call takes, s."""
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s
