"""Who is at the other end, on hosts made by hand.

host here (10.0.0.1): ranks 0 and 1 of the job        host there (10.0.0.2): ranks that nobody here watches
"""

from __future__ import annotations

import socket

import pytest

from rootwalk.ebpf.inet_diag import Connection
from rootwalk.ebpf.tcp_peers import MAX_HOSTS, Ends, Owned, Peer, Peers, decode_ends
from rootwalk.instrumentation.semconv import TrainingTcpPeer, TrainingTcpPeerScope
from support import diag_messages as made
from support.rank_identities import identity

HERE, THERE, LOOPBACK = "10.0.0.1", "10.0.0.2", "127.0.0.1"
DYNAMIC = 32_768
RANK, LOCAL = Peer(TrainingTcpPeer.RANK), Peer(TrainingTcpPeer.LOCAL)


def ends(local: str, local_port: int, remote: str, remote_port: int) -> Ends:
    family = socket.AF_INET6 if ":" in local else socket.AF_INET
    return Ends(
        socket.inet_pton(family, local), local_port, socket.inet_pton(family, remote), remote_port
    )


def owned(slot: int, found: Ends, namespace: int = 1, dynamic_port: int = DYNAMIC) -> Owned:
    return Owned.of(slot, namespace, dynamic_port, found)


def peers(*connections: Owned, jobs: dict[int, str] | None = None) -> Peers:
    """Ranks 0 and 1 in slots 1 and 2, with all their connections."""
    made_peers = Peers()
    for slot in (1, 2):
        made_peers.meet(slot, identity(slot - 1, (jobs or {}).get(slot, "job")))
    made_peers.update({one.key: one.slot for one in connections}, list(connections))
    return made_peers


def outside(port: int | None, scope: str = "private") -> Peer:
    return Peer(TrainingTcpPeer.OUTSIDE, port=port, scope=TrainingTcpPeerScope(scope))


@pytest.mark.parametrize("address", [HERE, LOOPBACK, "::1", "fd00::1"])
def test_two_ranks_of_one_host(address: str) -> None:
    there = ends(address, 40_000, address, 29_999)
    one, other = owned(1, there), owned(2, there.reversed())
    known = peers(one, other)
    assert known.find(one) == Peer(TrainingTcpPeer.RANK, "1")
    assert known.find(other) == Peer(TrainingTcpPeer.RANK, "0")


def test_loopback_of_another_container_is_another_place() -> None:
    there = ends(LOOPBACK, 40_000, LOOPBACK, 29_999)
    one, other = owned(1, there, namespace=1), owned(2, there.reversed(), namespace=2)
    assert peers(one, other).find(one) == LOCAL


def test_two_containers_of_one_host() -> None:
    there = ends("172.17.0.2", 40_000, "172.17.0.3", 6000)
    one, other = owned(1, there, namespace=1), owned(2, there.reversed(), namespace=2)
    assert peers(one, other).find(one) == Peer(TrainingTcpPeer.RANK, "1")


def test_rank_of_another_job_is_something_local() -> None:
    there = ends(HERE, 40_000, HERE, 29_999)
    one, other = owned(1, there), owned(2, there.reversed())
    assert peers(one, other, jobs={2: "another"}).find(one) == LOCAL


def test_rank_that_talks_to_itself() -> None:
    there = ends(HERE, 40_000, HERE, 41_000)
    one, other = owned(1, there), owned(1, there.reversed())
    assert peers(one, other).find(one) == LOCAL


def test_process_of_this_host_that_is_no_rank() -> None:
    for address in (HERE, LOOPBACK):
        one = owned(1, ends(address, 40_000, address, 8080))
        assert peers(one).find(one) == LOCAL


def test_rank_of_another_host_is_known_by_both_ports() -> None:
    one = owned(1, ends(HERE, 40_000, THERE, 45_000))
    assert peers(one).find(one) == RANK


def test_everything_on_a_host_of_the_job_is_the_jobs() -> None:
    store = owned(1, ends(HERE, 40_000, THERE, 6000))
    between_ranks = owned(2, ends(HERE, 40_001, THERE, 45_000))
    assert peers(store).find(store) == outside(6000)
    assert peers(store, between_ranks).find(store) == RANK
    assert peers(store, between_ranks, jobs={2: "another"}).find(store) == outside(6000)


def test_store_of_the_launcher() -> None:
    one = owned(1, ends(HERE, 40_000, THERE, 29_500))
    assert peers(one).find(one) == RANK


@pytest.mark.parametrize(
    ("address", "scope"),
    [
        ("10.9.9.9", "private"),
        ("192.168.1.1", "private"),
        ("100.64.3.3", "private"),
        ("169.254.169.254", "private"),
        ("52.217.0.1", "public"),
    ],
)
def test_service(address: str, scope: str) -> None:
    one = owned(1, ends(HERE, 40_000, address, 443))
    assert peers(one).find(one) == outside(443, scope)


def test_service_of_version_6() -> None:
    one = owned(1, ends("2600::2", 40_000, "2600::1", 443))
    assert peers(one).find(one) == outside(443, "public")


def test_who_asks_a_rank_is_outside_and_its_port_says_nothing() -> None:
    scraper = owned(1, ends(HERE, 9090, "10.9.9.9", 51_234))
    assert peers(scraper).find(scraper) == outside(None)


@pytest.mark.parametrize("port", [50_010, 50_051])
def test_service_whose_port_lies_among_the_dynamic_ones(port: int) -> None:
    one = owned(1, ends(HERE, 40_000, "10.9.9.9", port))
    assert peers(one).find(one) == outside(port)


def test_host_of_the_job_is_forgotten_with_its_last_rank() -> None:
    store = owned(2, ends(HERE, 40_000, THERE, 6000))
    between_ranks = owned(1, ends(HERE, 40_001, THERE, 45_000))
    known = peers(store, between_ranks)
    known.forget(1)
    assert known.find(store) == RANK
    known.forget(2)
    known.forget(2)
    known.meet(2, identity(1))
    assert known.find(store) == outside(6000)


def test_hosts_are_bounded_and_connections_between_ranks_still_known() -> None:
    many = [
        owned(1, ends(HERE, 40_000, f"10.1.{number // 250}.{number % 250}", 45_000))
        for number in range(MAX_HOSTS + 1)
    ]
    known = peers(*many)
    assert known.find(many[-1]) == RANK
    last = socket.inet_ntop(socket.AF_INET, many[-1].ends.remote_address)
    assert known.find(owned(1, ends(HERE, 40_000, last, 6000))) == outside(6000)


def test_rank_that_has_not_been_introduced() -> None:
    there = ends(HERE, 40_000, HERE, 29_999)
    one, other = owned(7, there), owned(8, there.reversed())
    known = Peers()
    known.update({one.key: 7, other.key: 8}, [one, other])
    assert known.find(one) == RANK


def test_ends() -> None:
    four = Connection(socket.AF_INET, 1, made.identity(1, (HERE, 1), (THERE, 65_535)), 1, None)
    assert decode_ends(four) == ends(HERE, 1, THERE, 65_535)
    mapped = made.identity(1, (f"::ffff:{HERE}", 1), (f"::ffff:{THERE}", 2))
    both = Connection(socket.AF_INET6, 1, mapped, 1, None)
    assert decode_ends(both) == ends(HERE, 1, THERE, 2)
    six = Connection(socket.AF_INET6, 1, made.identity(1, ("fd00::1", 1), ("fd00::2", 2)), 1, None)
    assert decode_ends(six) == ends("fd00::1", 1, "fd00::2", 2)
