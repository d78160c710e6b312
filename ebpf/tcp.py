"""What ranks send and receive over TCP, how well it goes, and to whom: the sensor `tcp`.

Counts, for each rank with its children: bytes without those sent again, those and their segments, the time for which
the receiver's window or the send buffer stood in the way, round-trip times, connections; by who is at the other end.
For each network namespace that a rank is in: TCP's own counters.

Does not count: UDP, InfiniBand and shared memory; a connection that came and went between two looks; what a connection
had moved before the agent began. Bytes count when the kernel sent them, not when they were written.
The mark of a connection's end may count as a byte received.

Reads: NETLINK_SOCK_DIAG, /proc/<pid>/fd, /proc/<pid>/net. No program in any path. Oldest kernel 4.19.
Cost: 14 ms a look for 8 ranks with 2,000 connections, 28 ms when all have moved data; at most a hundredth of a CPU.
Needs: for other users' ranks CAP_SYS_PTRACE, for other network namespaces CAP_SYS_ADMIN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rootwalk.ebpf.availability import TIER_CAPABILITIES, Reason
from rootwalk.ebpf.pace import Pace
from rootwalk.ebpf.reader import Measurement, Place, Reader
from rootwalk.ebpf.tcp_counters import TcpCounters
from rootwalk.ebpf.tcp_peers import Peer
from rootwalk.ebpf.tcp_sockets import TcpSockets
from rootwalk.ebpf.tcp_sums import PeerSums
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.semconv import TrainingTcpLimit

__all__ = ["TcpReader"]

TRANSPORT = "tcp"
TRANSMIT, RECEIVE = "transmit", "receive"
US_PER_S = 1_000_000
# From some 3,000 connections on a look takes more than that share of its 2 s: then there are fewer looks.
MAX_CPU_RATIO = 0.01
USUAL_INTERVAL_S = 2.0

Attributes = dict[str, str | int | float | bool]


class TcpReader(Reader):
    """Reads TCP of ranks.

    Args:
        place: Where to look.
    """

    sensor = "tcp"
    tier = TIER_CAPABILITIES
    backend = "netlink"

    def __init__(self, place: Place) -> None:
        proc = place.root / "proc"
        self.sockets = TcpSockets(proc)
        self._counters = TcpCounters(proc)
        self.degraded = None if self.sockets.can_enter else Reason.OWN_NETWORK_ONLY
        self._pace = Pace(MAX_CPU_RATIO, USUAL_INTERVAL_S)
        self._count_namespaces()

    def meet(self, slot: int, who: Identity) -> None:
        """Learn which rank a slot is."""
        self.sockets.meet(slot, who)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a process of a rank."""
        self.sockets.watch(pid, slot)

    def forget(self, pid: int) -> None:
        """Stop following a process; safe when it is not followed."""
        self.sockets.forget(pid)

    def measurements(self) -> Iterable[Measurement]:
        """Return the sums of all ranks, and the counters of their network namespaces."""
        if self._pace.is_due():
            with self._pace.turn():
                self.sockets.look()
                self._count_namespaces()
        for slot, sums in self.sockets.sums.items():
            for peer, one in sums:
                yield from _measure(slot, peer, one)
        for event, count in self._counters.sums.items():
            yield Measurement(
                semconv.METRIC_TRAINING_TCP_HOST_EVENTS,
                count,
                {semconv.TRAINING_TCP_EVENT: event.value},
            )

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        return self.sockets.losses()

    def close(self) -> None:
        """Close all sockets; safe twice."""
        self.sockets.close()

    def _count_namespaces(self) -> None:
        namespaces = self.sockets.namespaces
        for number, pids in namespaces.items():
            self._counters.look(number, pids)
        self._counters.keep(namespaces)


def _attributes(peer: Peer) -> Attributes:
    attributes: Attributes = {semconv.TRAINING_TCP_PEER: peer.kind.value}
    if peer.rank is not None:
        attributes[semconv.TRAINING_TCP_PEER_RANK] = peer.rank
    if peer.port is not None:
        attributes[semconv.NETWORK_PEER_PORT] = peer.port
    if peer.scope is not None:
        attributes[semconv.TRAINING_TCP_PEER_SCOPE] = peer.scope.value
    return attributes


def _measure(slot: int, peer: Peer, sums: PeerSums) -> Iterator[Measurement]:
    """Yield what a rank has to do with one kind of peer."""
    about = _attributes(peer)
    moved = sums.moved
    both = {**about, semconv.NETWORK_TRANSPORT: TRANSPORT}
    for direction, count in ((TRANSMIT, moved.sent_bytes), (RECEIVE, moved.received_bytes)):
        attributes = {**both, semconv.NETWORK_IO_DIRECTION: direction}
        yield Measurement(semconv.METRIC_PROCESS_NETWORK_IO, count, attributes, slot)
    for limit, limited_us in (
        (TrainingTcpLimit.RECEIVE_WINDOW, moved.window_limited_us),
        (TrainingTcpLimit.SEND_BUFFER, moved.buffer_limited_us),
    ):
        attributes = {**about, semconv.TRAINING_TCP_LIMIT: limit.value}
        seconds = limited_us / US_PER_S
        yield Measurement(semconv.METRIC_TRAINING_TCP_LIMITED_TIME, seconds, attributes, slot)
    values: dict[str, float] = {
        semconv.METRIC_TRAINING_TCP_RETRANSMITTED_IO: moved.retransmitted_bytes,
        semconv.METRIC_TRAINING_TCP_RETRANSMITTED_SEGMENTS: moved.retransmitted_segments,
        semconv.METRIC_TRAINING_TCP_BUSY_TIME: moved.busy_us / US_PER_S,
        semconv.METRIC_TRAINING_TCP_CONNECTIONS: sums.connections,
    }
    trip = sums.round_trip
    if trip is not None:
        values[semconv.METRIC_TRAINING_TCP_RTT_MEAN] = trip.mean / US_PER_S
        values[semconv.METRIC_TRAINING_TCP_RTT_MAX] = trip.high / US_PER_S
        if trip.floor is not None:
            values[semconv.METRIC_TRAINING_TCP_RTT_FLOOR] = trip.floor / US_PER_S
    for metric, value in values.items():
        yield Measurement(metric, value, about, slot)
