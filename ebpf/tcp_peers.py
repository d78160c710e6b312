"""Who is at the other end of a rank's connection: another rank, something else on this host, or the world outside.

    the other end is a watched process of this job                   rank, with its number
    a loopback address, or the host's own                            local
    an address that is a host of the job                             rank, number not known
    anything else                                                    outside, with its port and private or public

A host of the job is an address to which a rank has a connection between two ports of which neither is a service's:
that is how gloo and NCCL connect ranks, and how hardly anything else does. The launcher's own store is the job's too.
Not known: peers behind an address translation, which look like whatever their address and port look like; services on
a host of the job, which count as the job. Pure; addresses stay in here.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from rootwalk.ebpf.inet_diag import Connection
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.semconv import TrainingTcpPeer, TrainingTcpPeerScope

__all__ = ["OTHER_RANKS", "Ends", "Owned", "Peer", "Peers", "decode_ends"]

# What PyTorch's rendezvous and store listen on unless told otherwise.
STORE_PORTS = frozenset({29_400, 29_500})
# Services that lie in the kernel's usual range for clients: gRPC's examples, Hadoop 2.
SERVICE_PORTS = frozenset({50_010, 50_020, 50_051, 50_070, 50_075})
# Hosts of all jobs together; beyond it a host is known by its own connections only.
MAX_HOSTS = 4096
OTHER_RANKS = "other"
MAPPED_PREFIX = bytes(10) + b"\xff\xff"  # an IPv4 address in a socket for both


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as far as it may be told.

    Attributes:
        kind: Whose it is.
        rank: The other rank's number, or `other`; None when it is none, or not known.
        port: The service's port, of what is outside; None where it is ours, or not one of a service.
        scope: Of what is outside.
    """

    kind: TrainingTcpPeer
    rank: str | None = None
    port: int | None = None
    scope: TrainingTcpPeerScope | None = None


class Ends(NamedTuple):
    """A connection's two ends: addresses of 4 or 16 bytes, and ports."""

    local_address: bytes
    local_port: int
    remote_address: bytes
    remote_port: int

    def reversed(self) -> Ends:
        """Return the same connection as the other end has it."""
        return Ends(self.remote_address, self.remote_port, self.local_address, self.local_port)


Key = tuple[int, Ends]


def _address(family: int, raw: bytes) -> bytes:
    if family == socket.AF_INET:
        return raw[:4]
    return raw[12:] if raw.startswith(MAPPED_PREFIX) else raw


def decode_ends(connection: Connection) -> Ends:
    """Return the two ends of a connection; IPv4 in a socket for both is IPv4."""
    identity, family = connection.identity, connection.family
    return Ends(
        _address(family, identity[4:20]),
        int.from_bytes(identity[:2], "big"),
        _address(family, identity[20:36]),
        int.from_bytes(identity[2:4], "big"),
    )


@lru_cache(maxsize=4096)
def _is_loopback(address: bytes) -> bool:
    return ipaddress.ip_address(address).is_loopback


@lru_cache(maxsize=4096)
def _scope(address: bytes) -> TrainingTcpPeerScope:
    is_public = ipaddress.ip_address(address).is_global
    return TrainingTcpPeerScope.PUBLIC if is_public else TrainingTcpPeerScope.PRIVATE


@dataclass(frozen=True, slots=True)
class Owned:
    """A connection of a watched process; made by `of`.

    Attributes:
        slot: Of the rank that has it.
        ends: Its ends.
        key: What the other end would look for; loopback addresses mean another place in each namespace.
        other_key: The key of the other end.
        is_on_this_host: The addresses alone say that the other end is here.
        is_service: The other end's port is one of a service.
        is_between_clients: Neither port is.
    """

    slot: int
    ends: Ends
    key: Key
    other_key: Key
    is_on_this_host: bool
    is_service: bool
    is_between_clients: bool

    @classmethod
    def of(cls, slot: int, namespace: int, dynamic_port: int, ends: Ends) -> Owned:
        """Return what the addresses and ports of a connection tell.

        Args:
            slot: Of the rank that has it.
            namespace: Number of its network namespace.
            dynamic_port: The lowest port that is nobody's service there.
            ends: Its ends.
        """
        is_loopback = _is_loopback(ends.remote_address)
        services = [
            port < dynamic_port or port in SERVICE_PORTS
            for port in (ends.local_port, ends.remote_port)
        ]
        return cls(
            slot,
            ends,
            (namespace if _is_loopback(ends.local_address) else 0, ends),
            (namespace if is_loopback else 0, ends.reversed()),
            is_loopback or ends.remote_address == ends.local_address,
            services[1],
            not any(services),
        )


class Peers:
    """What is known of the ranks and of their jobs' hosts."""

    def __init__(self) -> None:
        self._who: dict[int, Identity] = {}
        self._hosts: dict[str, set[bytes]] = {}
        self._slots: Mapping[Key, int] = {}

    def meet(self, slot: int, who: Identity) -> None:
        """Learn which rank a slot is."""
        self._who[slot] = who

    def forget(self, slot: int) -> None:
        """Forget a rank that has ended, and its job's hosts with its last rank; safe when it is not known."""
        who = self._who.pop(slot, None)
        if who is not None and all(other.job != who.job for other in self._who.values()):
            self._hosts.pop(who.job, None)

    def update(self, slots: Mapping[Key, int], owned: list[Owned]) -> None:
        """Take all connections of watched processes as they are now.

        Args:
            slots: Which rank has a connection, by its key.
            owned: The connections.
        """
        self._slots = slots
        for one in owned:
            if one.is_on_this_host:
                continue
            other = slots.get(one.other_key)
            if one.is_between_clients if other is None else self._are_of_one_job(one.slot, other):
                self._note_host(one)

    def find(self, one: Owned) -> Peer:
        """Return who is at the other end of a connection."""
        other = self._slots.get(one.other_key)
        if other is not None and other != one.slot and self._are_of_one_job(one.slot, other):
            who = self._who.get(other)
            return Peer(TrainingTcpPeer.RANK, None if who is None else str(who.rank))
        if other is not None or one.is_on_this_host:
            return Peer(TrainingTcpPeer.LOCAL)
        ends = one.ends
        ports = (ends.local_port, ends.remote_port)
        is_known = ends.remote_address in self._hosts.get(self._job(one.slot), ())
        if is_known or one.is_between_clients or not STORE_PORTS.isdisjoint(ports):
            return Peer(TrainingTcpPeer.RANK)
        port = ends.remote_port if one.is_service else None
        return Peer(TrainingTcpPeer.OUTSIDE, port=port, scope=_scope(ends.remote_address))

    def _note_host(self, one: Owned) -> None:
        if sum(len(hosts) for hosts in self._hosts.values()) < MAX_HOSTS:
            self._hosts.setdefault(self._job(one.slot), set()).add(one.ends.remote_address)

    def _job(self, slot: int) -> str:
        who = self._who.get(slot)
        return who.job if who is not None else ""

    def _are_of_one_job(self, one: int, other: int) -> bool:
        return self._job(one) == self._job(other)
