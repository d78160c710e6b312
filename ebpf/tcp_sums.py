"""What the connections of one rank have moved, by who is at the other end: sums that never fall, and what is now.

    look         1          2          3                      the kernel's count of one connection: 10, 25, gone at 27
    sum                10        +15         +2               also when it has ended; the next one begins at 0

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rootwalk.ebpf.inet_diag import Connection, ConnectionInfo, TcpState
from rootwalk.ebpf.tcp_peers import OTHER_RANKS, Peer
from rootwalk.instrumentation.semconv import TrainingTcpPeer

__all__ = ["NOTHING", "Moved", "PeerSums", "RankSums", "RoundTrip", "read_moved"]

# A rank with more peers on its own host than this tells of the first ones, and of the rest together.
MAX_RANKS = 64
# The same for the services outside that a rank talks to.
MAX_SERVICES = 16
# Once the other side has closed, its last sequence number counts as a byte.
OTHER_HAS_CLOSED = frozenset({TcpState.CLOSE_WAIT, TcpState.LAST_ACK, TcpState.CLOSING})
UNKNOWN_RTT = 0xFFFFFFFF


class Moved(NamedTuple):
    """Bytes without those that were sent again, those, their segments, and times in us."""

    sent_bytes: int
    received_bytes: int
    retransmitted_bytes: int
    retransmitted_segments: int
    window_limited_us: int
    buffer_limited_us: int
    busy_us: int

    def grown_to(self, now: Moved) -> Moved:
        """Return the larger of each: what a connection has counted never falls."""
        return Moved(*map(max, self, now))

    def plus(self, other: Moved) -> Moved:
        """Return the sum."""
        return Moved(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: Moved) -> Moved:
        """Return the difference."""
        return Moved(*(one - two for one, two in zip(self, other, strict=True)))


NOTHING = Moved(0, 0, 0, 0, 0, 0, 0)


def read_moved(connection: Connection) -> Moved | None:
    """Return what a connection has moved since its beginning; None for what remains of one that has ended."""
    info = connection.info
    if info is None:
        return None
    received = info.received_bytes
    if received and connection.state in OTHER_HAS_CLOSED:
        received -= 1
    return Moved(
        info.sent_bytes - info.retransmitted_bytes,
        received,
        info.retransmitted_bytes,
        info.retransmitted_segments,
        info.window_limited_us,
        info.buffer_limited_us,
        info.busy_us,
    )


@dataclass(slots=True)
class RoundTrip:
    """Round-trip times of the connections that have sent since the last look, us.

    Attributes:
        high: The largest of their smoothed times.
        floor: The smallest time that any of them has seen: the way without queues. None when none has seen one.
        weighted: Sum of smoothed time times bytes sent.
        weight: Sum of bytes sent.
    """

    high: int
    floor: int | None
    weighted: int
    weight: int

    @property
    def mean(self) -> float:
        """Return the mean over the bytes that were sent."""
        return self.weighted / self.weight


@dataclass(slots=True)
class PeerSums:
    """What one rank has moved to and from one kind of peer.

    Attributes:
        moved: Since the start.
        connections: That there are now.
        round_trip: None when nothing was sent since the last look.
    """

    moved: Moved = NOTHING
    connections: int = 0
    round_trip: RoundTrip | None = None

    def add(self, grown: Moved, info: ConnectionInfo | None) -> None:
        """Add what one connection has moved since the last look.

        Args:
            grown: What it has moved.
            info: As it is now, for its round-trip time; None when it has ended.
        """
        self.moved = self.moved.plus(grown)
        weight = grown.sent_bytes + grown.retransmitted_bytes
        if info is None or not weight or not info.rtt_us:
            return
        floor = info.min_rtt_us if info.min_rtt_us != UNKNOWN_RTT else None
        rtt = info.rtt_us
        known = self.round_trip
        if known is None:
            self.round_trip = RoundTrip(rtt, floor, rtt * weight, weight)
            return
        known.high = max(known.high, rtt)
        floors = [one for one in (known.floor, floor) if one is not None]
        known.floor = min(floors, default=None)
        known.weighted += rtt * weight
        known.weight += weight


@dataclass(slots=True)
class RankSums:
    """The sums of one rank, of at most some eighty kinds of peers."""

    _by_peer: dict[Peer, PeerSums] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[Peer, PeerSums]]:
        return iter(self._by_peer.items())

    def begin_look(self) -> None:
        """Forget what is now."""
        for sums in self._by_peer.values():
            sums.connections = 0
            sums.round_trip = None

    def of(self, peer: Peer) -> PeerSums:
        """Return the sums for a peer; what is one too many shares those of its kind."""
        known = self._by_peer.get(peer)
        if known is None:
            known = self._by_peer.setdefault(self._bounded(peer), PeerSums())
        return known

    def _bounded(self, peer: Peer) -> Peer:
        same = [known for known in self._by_peer if known.kind is peer.kind]
        if peer.kind is TrainingTcpPeer.RANK and peer.rank is not None:
            numbered = [known for known in same if known.rank not in (None, OTHER_RANKS)]
            return peer if len(numbered) < MAX_RANKS else replace(peer, rank=OTHER_RANKS)
        if peer.kind is TrainingTcpPeer.OUTSIDE and peer.port is not None:
            services = [known for known in same if known.port is not None]
            return peer if len(services) < MAX_SERVICES else replace(peer, port=None)
        return peer
