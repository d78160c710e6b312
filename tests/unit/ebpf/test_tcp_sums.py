"""Sums of a rank's connections, from counts made by hand."""

from __future__ import annotations

import socket

import pytest

from rootwalk.ebpf.inet_diag import Connection, ConnectionInfo, TcpState
from rootwalk.ebpf.tcp import _measure
from rootwalk.ebpf.tcp_peers import Peer
from rootwalk.ebpf.tcp_sums import (
    MAX_RANKS,
    MAX_SERVICES,
    NOTHING,
    UNKNOWN_RTT,
    Moved,
    PeerSums,
    RankSums,
    read_moved,
)
from rootwalk.instrumentation.semconv import TrainingTcpPeer, TrainingTcpPeerScope
from support.live_check import check_measurement


def info(rtt_us: int = 100, floor_us: int = 50, sent: int = 0, again: int = 0) -> ConnectionInfo:
    return ConnectionInfo(rtt_us, 1, 11, floor_us, 900, 30, 20, sent, again)


def sent(count: int, again: int = 0) -> Moved:
    return Moved(count, 0, again, 0, 0, 0, 0)


def connection(state: int, what: ConnectionInfo | None) -> Connection:
    return Connection(socket.AF_INET, state, bytes(48), 1, what)


def test_metrics_of_a_service_tell_its_port_and_where_it_is() -> None:
    service = Peer(TrainingTcpPeer.OUTSIDE, port=443, scope=TrainingTcpPeerScope.PUBLIC)
    sums = PeerSums()
    sums.add(sent(1013), info())
    found = list(_measure(3, service, sums))
    for one in found:
        check_measurement(one)
        assert one.slot == 3
        assert one.attributes["network.peer.port"] == 443
        assert one.attributes["training.tcp.peer.scope"] == "public"
    assert 1013 in {one.value for one in found if one.metric == "process.network.io"}


def test_bytes_that_were_sent_again_count_once() -> None:
    found = read_moved(connection(TcpState.ESTABLISHED, info(sent=1013, again=13)))
    assert found == Moved(1000, 11, 13, 1, 30, 20, 900)


@pytest.mark.parametrize("state", [TcpState.CLOSE_WAIT, TcpState.LAST_ACK, TcpState.CLOSING])
def test_mark_of_the_end_is_no_byte(state: int) -> None:
    found = read_moved(connection(state, info()))
    assert found is not None
    assert found.received_bytes == 10


def test_remains_tell_nothing() -> None:
    assert read_moved(connection(TcpState.TIME_WAIT, None)) is None


def test_what_a_connection_has_counted_never_falls() -> None:
    assert sent(10).grown_to(sent(7)) == sent(10)
    assert sent(10).grown_to(sent(17)).minus(sent(10)) == sent(7)


def test_round_trip_is_weighted_by_what_was_sent() -> None:
    sums = PeerSums()
    sums.add(sent(900), info(rtt_us=100, floor_us=80))
    sums.add(sent(50, again=50), info(rtt_us=1100, floor_us=40))
    sums.add(NOTHING, info(rtt_us=9, floor_us=1))  # idle: its time is an old one
    trip = sums.round_trip
    assert trip is not None
    assert (trip.high, trip.floor) == (1100, 40)
    assert trip.mean == (900 * 100 + 100 * 1100) / 1000
    assert sums.moved == sent(950, again=50)


def test_floor_that_is_not_known() -> None:
    sums = PeerSums()
    sums.add(sent(1), info(floor_us=UNKNOWN_RTT))
    assert sums.round_trip is not None
    assert sums.round_trip.floor is None
    sums.add(sent(1), info(floor_us=7))
    assert sums.round_trip.floor == 7


def test_time_that_was_never_measured_is_left_out() -> None:
    sums = PeerSums()
    sums.add(sent(1), info(rtt_us=0))
    assert sums.round_trip is None


def test_what_is_now_is_forgotten_and_sums_are_not() -> None:
    rank, peer = RankSums(), Peer(TrainingTcpPeer.LOCAL)
    rank.of(peer).add(sent(3), info())
    rank.of(peer).connections += 1
    rank.begin_look()
    ((_, sums),) = rank
    assert (sums.connections, sums.round_trip, sums.moved) == (0, None, sent(3))


def test_ranks_beyond_the_bound_share_one_place() -> None:
    rank = RankSums()
    for number in range(MAX_RANKS + 10):
        rank.of(Peer(TrainingTcpPeer.RANK, str(number))).add(sent(1), None)
    rank.of(Peer(TrainingTcpPeer.RANK)).add(sent(1), None)
    by_peer = {peer.rank: sums.moved.sent_bytes for peer, sums in rank}
    assert len(by_peer) == MAX_RANKS + 2
    assert by_peer["other"] == 10
    assert by_peer["0"] == by_peer[None] == 1


def test_services_beyond_the_bound_share_one_place() -> None:
    rank, scope = RankSums(), TrainingTcpPeerScope.PUBLIC
    for port in range(MAX_SERVICES + 10):
        rank.of(Peer(TrainingTcpPeer.OUTSIDE, port=port, scope=scope)).add(sent(1), None)
    by_port = {peer.port: sums.moved.sent_bytes for peer, sums in rank}
    assert len(by_port) == MAX_SERVICES + 1
    assert by_port[None] == 10
