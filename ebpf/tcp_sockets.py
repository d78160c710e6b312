"""The TCP connections of watched processes: which there are, what they have moved, who is at the other end.

    descriptors ──▶ inodes ──▶ dump, when some are new ──▶ connections ──▶ sums by rank and peer
                               look-up of the known ones ──▶     │
                               what the kernel tells of ended ones ──▶ their last bytes

Costs nothing for connections of others, but when a watched process opens one: then the kernel lists all of that
network namespace once. What is bounded: connections, namespaces, descriptors a look; what is beyond is counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from rootwalk.ebpf.descriptors import Descriptors
from rootwalk.ebpf.discovery import read_start_ticks
from rootwalk.ebpf.inet_diag import Connection, ConnectionInfo, TcpState
from rootwalk.ebpf.net_namespaces import NetNamespace, can_enter, read_namespace_number
from rootwalk.ebpf.tcp_peers import Owned, Peer, Peers, decode_ends
from rootwalk.ebpf.tcp_sums import NOTHING, Moved, RankSums, read_moved
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.identity import Identity

__all__ = ["TcpSockets"]

# All ranks of a host together: each takes some 7 us of the agent's CPU time a look, twice as much when it moves data.
MAX_FLOWS = 8192
# One a container; a host has as many as it has ranks, at most.
MAX_NAMESPACES = 64
# Looks after which a socket that was no connection is asked for again: it may have been connected since.
DUMP_EVERY = 5
# A work queue of the kernel's hands out last values: after the end, and later where the machine is busy.
LAST_VALUES_S = 1.0
# To look one up costs what it costs to pass over this many others in a dump.
LOOK_UP_COST = 5


@dataclass(slots=True)
class _Process:
    """A watched process.

    Attributes:
        slot: Of its rank.
        is_new: It began after this reader: all that its connections have moved counts.
        namespace: Its network namespace; None before the first look.
        inodes: Of its sockets.
    """

    slot: int
    is_new: bool
    namespace: int | None = None
    inodes: set[int] | None = None


@dataclass(slots=True)
class _Flow:
    """One connection.

    Attributes:
        owned: Whose it is, and its ends.
        connection: As it was last seen.
        counted: What the sums have of it.
        info: What the kernel told then.
        peer: Who is at the other end.
        left_s: When the kernel was first seen not to know it any more, by the monotonic clock; its last values may
            still come. None while it knows it.
    """

    owned: Owned
    connection: Connection
    counted: Moved
    info: ConnectionInfo | None = None
    peer: Peer | None = None
    left_s: float | None = None


@dataclass(slots=True)
class _Space:
    """A network namespace, and what was asked there.

    `passed_over` are sockets that were no connections when they were asked for, or too many.
    """

    net: NetNamespace
    flows: dict[bytes, _Flow]
    passed_over: set[int]
    looks: int = 0
    seen: int = 0


class TcpSockets:
    """Follows the connections of watched processes.

    Attributes:
        namespaces: Process ids by network namespace; the agent's own has `self`.
        can_enter: Whether other namespaces than the agent's own can be read.
        sums: By slot.

    Args:
        proc: Folder that holds the processes.

    Raises:
        UnavailableError: NO_INET_DIAG.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._opened_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        self._own = read_namespace_number("self", proc) or 0
        self._spaces = {self._own: _Space(NetNamespace(self._own, None), {}, set())}
        self.can_enter = can_enter(proc)
        self._descriptors = Descriptors(proc)
        self._processes: dict[int, _Process] = {}
        self._peers = Peers()
        self._known: set[bytes] = set()
        self._ended_inodes: set[int] = set()
        self._losses: dict[str, int] = {}
        self.sums: dict[int, RankSums] = {}

    @property
    def namespaces(self) -> Mapping[int, list[int | str]]:
        """Return process ids by the namespace that they are in."""
        found: dict[int, list[int | str]] = {number: [] for number in self._spaces}
        found[self._own].append("self")
        for pid, process in self._processes.items():
            if process.namespace in found:
                found[process.namespace].append(pid)
        return found

    @property
    def followed(self) -> int:
        """Count the connections that are followed, those whose last values are waited for among them."""
        return sum(len(space.flows) for space in self._spaces.values())

    def meet(self, slot: int, who: Identity) -> None:
        """Learn which rank a slot is."""
        self._peers.meet(slot, who)

    def watch(self, pid: int, slot: int) -> None:
        """Follow a process of a rank; nothing changes when it is followed, unless it has become a rank of its own."""
        known = self._processes.get(pid)
        if known is not None and known.slot == slot:
            return
        self.forget(pid)
        started = read_start_ticks(pid, self._proc)
        # The kernel rounds down, so a process that began in the same tick may look older than it is.
        is_new = started is not None and started + 1 >= self._opened_ticks
        self._processes[pid] = _Process(slot, is_new)
        self._descriptors.watch(pid)
        self.sums.setdefault(slot, RankSums())

    def forget(self, pid: int) -> None:
        """Stop following a process; its rank is forgotten with its last one. Safe when it is not followed."""
        process = self._processes.pop(pid, None)
        if process is None:
            return
        self._descriptors.forget(pid)
        slot = process.slot
        if any(other.slot == slot for other in self._processes.values()):
            return
        self.sums.pop(slot, None)
        self._peers.forget(slot)
        for space in self._spaces.values():
            for cookie in [key for key, flow in space.flows.items() if flow.owned.slot == slot]:
                del space.flows[cookie]

    def look(self) -> None:
        """Bring everything up to date."""
        for sums in self.sums.values():
            sums.begin_look()
        self._look_at_processes()
        self._close_unused()
        for number, space in self._spaces.items():
            self._read_space(space, self._owners(number))
        flows = {
            cookie: flow for space in self._spaces.values() for cookie, flow in space.flows.items()
        }
        if flows.keys() != self._known:
            self._known = set(flows)
            self._find_peers(flows.values())
        for flow in flows.values():
            self._count(flow, flow.connection)
            if flow.peer is not None and flow.left_s is None:
                self.sums[flow.owned.slot].of(flow.peer).connections += 1

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        malformed = sum(space.net.malformed for space in self._spaces.values())
        return {
            **self._losses,
            "tcp_malformed": self._losses.get("tcp_malformed", 0) + malformed,
            "tcp_descriptors_unreadable": self._descriptors.unreadable,
            "tcp_descriptors_full": self._descriptors.dropped,
        }

    def close(self) -> None:
        """Close all sockets; safe twice."""
        for space in self._spaces.values():
            space.net.close()

    def _lose(self, reason: str, count: int = 1) -> None:
        self._losses[reason] = self._losses.get(reason, 0) + count

    def _find_peers(self, flows: Collection[_Flow]) -> None:
        self._peers.update(
            {flow.owned.key: flow.owned.slot for flow in flows}, [flow.owned for flow in flows]
        )
        for flow in flows:
            flow.peer = self._peers.find(flow.owned)

    def _look_at_processes(self) -> None:
        ended, self._ended_inodes = self._ended_inodes, set()
        for pid, inodes in self._descriptors.look(ended).items():
            process = self._processes[pid]
            process.is_new = process.is_new or process.inodes is not None
            process.inodes = inodes
            number = read_namespace_number(pid, self._proc)
            if number is not None:
                process.namespace = number
                if number not in self._spaces:
                    self._enter(pid, number)

    def _enter(self, pid: int, number: int) -> None:
        """Open the network namespace that a process is in."""
        if not self.can_enter:
            self._lose("tcp_namespace_closed")
            return
        if len(self._spaces) >= MAX_NAMESPACES:
            self._lose("tcp_namespaces_full")
            return
        try:
            net = NetNamespace(number, self._proc / str(pid) / "ns/net")
        except (OSError, UnavailableError):
            self._lose("tcp_namespace_closed")
            return
        self._spaces[number] = _Space(net, {}, set())

    def _close_unused(self) -> None:
        """Let go of namespaces that nobody watched is in: our sockets would keep them."""
        used = {process.namespace for process in self._processes.values()} | {self._own}
        for number in self._spaces.keys() - used:
            space = self._spaces.pop(number)
            self._lose("tcp_ended_unseen", len(space.flows))
            self._lose("tcp_malformed", space.net.malformed)
            space.net.close()

    def _owners(self, number: int) -> dict[int, _Process]:
        """Return the sockets of the processes in a namespace: the process that was watched first, by inode."""
        owners: dict[int, _Process] = {}
        for process in self._processes.values():
            if process.namespace == number:
                for inode in process.inodes or ():
                    owners.setdefault(inode, process)
        return owners

    def _read_space(self, space: _Space, owners: Mapping[int, _Process]) -> None:
        """Bring the connections of one namespace up to date."""
        flows = space.flows
        self._end(space, space.net.read_ended())
        known = {flow.connection.inode for flow in flows.values()}
        new = owners.keys() - known
        space.passed_over &= owners.keys()
        space.looks += 1
        is_due = bool(new) and space.looks % DUMP_EVERY == 0
        left = {cookie for cookie, flow in flows.items() if flow.left_s is None}
        if is_due or new - space.passed_over or len(left) * LOOK_UP_COST > space.seen > 0:
            answers = space.net.diag.dump(owners)
            space.seen = answers.seen
            for connection in answers.connections:
                self._take(space, connection, owners)
                left.discard(connection.cookie)
            if answers.is_complete:
                space.passed_over = new - {flow.connection.inode for flow in flows.values()}
            else:
                self._lose("tcp_dump_interrupted")
        asked = [flows[cookie].connection for cookie in left]
        found = space.net.diag.look_up(asked)
        for connection in found.connections:
            self._take(space, connection, owners)
        for index in found.gone:
            self._leave(flows[asked[index].cookie])

    def _take(self, space: _Space, connection: Connection, owners: Mapping[int, _Process]) -> None:
        """Take one connection as it is now."""
        known = space.flows.get(connection.cookie)
        if known is not None:
            if connection.info is None:
                self._leave(known)
            else:
                known.connection = connection
            return
        owner = owners.get(connection.inode)
        moved = read_moved(connection)
        if owner is None or moved is None or connection.state == TcpState.CLOSED:
            return
        if self.followed >= MAX_FLOWS:
            self._lose("tcp_connections_full", connection.inode not in space.passed_over)
            return
        net = space.net
        owned = Owned.of(owner.slot, net.number, net.dynamic_port, decode_ends(connection))
        counted = NOTHING if owner.is_new else moved
        space.flows[connection.cookie] = _Flow(owned, connection, counted)

    def _leave(self, flow: _Flow) -> None:
        """Wait for the last values of a connection that is gone."""
        if flow.left_s is None:
            flow.left_s = time.monotonic()
        self._ended_inodes.add(flow.connection.inode)

    def _end(self, space: _Space, ended: Iterable[Connection]) -> None:
        """Take the last values of connections that have ended, and let go of those whose values have not come."""
        for connection in ended:
            flow = space.flows.pop(connection.cookie, None)
            if flow is None:
                continue
            self._ended_inodes.add(flow.connection.inode)
            moved = read_moved(connection)
            if moved is None or moved.sent_bytes < flow.counted.sent_bytes:
                self._lose("tcp_ended_unseen")  # the kernel wipes one that its owner resets
            self._count(flow, connection, is_over=True)
        too_old_s = time.monotonic() - LAST_VALUES_S
        silent = [key for key, flow in space.flows.items() if (flow.left_s or inf) < too_old_s]
        for cookie in silent:
            del space.flows[cookie]
        self._lose("tcp_ended_unseen", len(silent))

    def _count(self, flow: _Flow, connection: Connection, *, is_over: bool = False) -> None:
        """Add what a connection has moved since the last look to its rank's sums."""
        if is_over:  # the state before the end tells whether the other side had closed
            connection = connection._replace(state=flow.connection.state)
        if connection.info == flow.info or flow.peer is None:
            return  # nothing has happened, as on most connections
        flow.info = connection.info
        moved = read_moved(connection)
        if moved is None:
            return
        now = flow.counted.grown_to(moved)
        info = None if is_over else connection.info
        self.sums[flow.owned.slot].of(flow.peer).add(now.minus(flow.counted), info)
        flow.counted = now
