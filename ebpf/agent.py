"""The host agent: watches the ranks on this machine and sends what it sees as OTLP.

    discovery ──▶ ranks ──▶ scheduler.watch          every 2 s, rings every round
    rings ──▶ records ────────┐
    control groups, children ─┤
    scheduler ──▶ events ─────┴▶ spans with thread times, stalls ──▶ POST /v1/traces  every round (0.5 s)
    other readers, totals, own cost, sensors ──▶ thread ──▶ POST /v1/metrics          every 5 s
    other readers ──▶ events ──▶ POST /v1/logs                                        every round
    stacks, when asked for ──▶ profiles ──▶ POST /v1development/profiles              every 5 s

A ring's cursor moves when the endpoint has acknowledged. While the endpoint is away nothing grows: the rings keep what
they can, the agent keeps one batch a rank. Everything that is lost has a counter.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from rootwalk.ebpf.agent_config import AgentConfig
from rootwalk.ebpf.agent_events import AgentEvents, EventOwner
from rootwalk.ebpf.agent_metrics import (
    AgentMetrics,
    HostState,
    RankState,
    build_host_resource,
    read_resident_bytes,
)
from rootwalk.ebpf.agent_profiles import AgentProfiles
from rootwalk.ebpf.availability import Sensor, Status
from rootwalk.ebpf.cgroups import CgroupReader
from rootwalk.ebpf.delivery import DeliveryWatch
from rootwalk.ebpf.detail import Detail
from rootwalk.ebpf.discovery import Discovery, RankProcess, is_process_alive, read_start_ticks
from rootwalk.ebpf.progress import ProgressWatch
from rootwalk.ebpf.rank_ends import RankEnds
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.rank_streams import RankStreams
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.ring_files import RingFiles
from rootwalk.ebpf.scope import Scope
from rootwalk.ebpf.sensors import probe_sensors, with_torch_of_ranks
from rootwalk.ebpf.stack_taking import open_snapshots
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.ebpf.watched import WatchedRank, WatchedRanks
from rootwalk.instrumentation.export import SpanSender

__all__ = ["Agent", "AgentConfig"]

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 2.0
COST_INTERVAL_S = 2.0
# What an agent that is told to stop waits at most for an endpoint that does not answer.
LAST_SEND_S = 12.0
# The same for one that has never answered: the job's end would wait for an address that is wrong.
LAST_SEND_NEVER_THERE_S = 3.0

T = TypeVar("T")


class Agent:
    """Runs in the thread that calls `run`; `stop` may be called from any thread or signal handler.

    Args:
        config: How to run.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.sensors: list[Sensor] = probe_sensors(config.without)
        self._profiles = AgentProfiles(config.endpoint)
        self._readers = Readers.open(config.without)
        self._sender = SpanSender(config.endpoint)
        self._delivery = DeliveryWatch(config.endpoint)
        self._details = ProcessDetails()
        self._waits = WaitDetails()
        self._discovery = Discovery(config.job)
        self._available = {s.sensor for s in self.sensors if s.status is Status.AVAILABLE}
        cgroups = CgroupReader() if "cgroup" in self._available else None
        self._ranks = WatchedRanks(self._readers, cgroups, self._waits)
        self._scope = Scope(config.parent_pid)
        self._ring_files = RingFiles(config.ring_directories, config.job, self._scope)
        self._ring_files.remove_stale()
        folders = config.ring_directories
        self._detail = Detail(
            config.level,
            config.budget_ratio,
            self._readers,
            folders[0] if folders else None,
            config.profile_hz,
        )
        self._streams = RankStreams(self._ring_files, self._ranks)
        self._events = 0
        self._lost_events = 0
        self._last_read_ns = time.monotonic_ns()
        self._ended_drops = Counter(
            ring_full=0, stalls_full=0, nccl_calls_full=0, partition_full=0, event_rank_gone=0
        )
        self._failed_rounds = 0
        self._is_closed = False
        self._next_scan_s = self._next_cost_s = 0.0
        self._stopping = threading.Event()
        host = build_host_resource(config.job)
        self._metrics = AgentMetrics(config.endpoint, host, self.sensors)
        self._log_events = AgentEvents(config.endpoint, EventOwner(host))
        self._progress = ProgressWatch(open_snapshots(config.without), has_hooks=config.has_hooks)
        self._ends = RankEnds(has_lifecycle="lifecycle" in self._available)

    def run(self) -> None:
        """Work until `stop`; then send what is left and release everything."""
        logger.info("agent started: scheduler by %s", self.scheduler_name)
        if self._config.parent_pid is None and not self._scope.is_whole_machine:
            logger.info(
                'follows host "%s" only, not other containers of this machine; docker: --uts=host',
                socket.gethostname(),
            )
        scheduler = self._readers.scheduler
        interval_s = scheduler.interval_s if scheduler is not None else self._detail.round_s
        try:
            next_send_s = 0.0
            while not self._stopping.wait(interval_s):
                now = time.monotonic()
                if now >= next_send_s:
                    next_send_s = now + self._detail.round_s - interval_s / 2
                    self._guarded(self.round)
                else:
                    self._guarded(self._take_scheduler)
                self._guarded(lambda: self._detail.serve(self._ranks))
                if self._is_orphan:
                    break
            self._finish()
        finally:
            self.close()

    def _guarded(self, turn: Callable[[], T]) -> T | None:
        """Return what it returns, None when it failed."""
        try:
            return turn()
        except Exception:
            # What one rank provokes must not end the others' telemetry.
            if not self._failed_rounds:
                logger.exception("a round of the agent failed; going on")
            self._failed_rounds += 1
            return None

    def stop(self) -> None:
        """Ask `run` to come to its end."""
        self._stopping.set()

    @property
    def _is_orphan(self) -> bool:
        return self._config.parent_pid not in (None, os.getppid())

    @property
    def scheduler_name(self) -> str:
        """Return what tells scheduler times."""
        scheduler = self._readers.scheduler
        return scheduler.sensor if scheduler is not None else "nothing"

    def round(self) -> bool:
        """Do everything that is due once; return whether nothing is left to send."""
        now = time.monotonic()
        self._collect_events()  # before the rings are read: then the step of each is known
        if now >= self._next_scan_s:
            self._next_scan_s = now + SCAN_INTERVAL_S
            self._scan()
        self._open_rings()
        self._detail.apply(self._ranks)
        self._choose_profiles()
        self._streams.each(RankStream.read)
        self._ranks.look()
        self._readers.look()
        self._ranks.take_spells(self._readers.spells())
        self._ranks.take_calls(self._readers.calls())
        self._take_scheduler()
        self._report_ends()
        living = [rank for rank in self._ranks if not rank.is_gone]
        idle = self._guarded(lambda: self._progress.update(living, self._detail.round_s))
        self._log_events.add(idle or [], self._event_owner)
        is_sent = self._send()
        is_sent = self._log_events.send() and is_sent
        is_sent = self._send_profiles() and is_sent
        self._end_streams()
        if now >= self._next_cost_s:
            self._next_cost_s = now + COST_INTERVAL_S
            self._look_at_cost()
        if self._metrics.is_due:
            self._publish()
            self._metrics.send()
        return is_sent

    def close(self) -> None:
        """Send the last metrics and release rings, programs and connections; safe twice."""
        if not self._is_closed:
            self._is_closed = True
            self._guarded(self._look_at_cost)
            self._guarded(self._publish)
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._detail.close()
        self._readers.close()
        self._scope.close()
        self._metrics.close()
        self._log_events.close()
        self._progress.close()
        self._profiles.close()
        self._sender.close()

    def _finish(self) -> None:
        """Send until the rings are empty, or the endpoint does not answer."""
        was_there = self._sender.sent_spans > 0
        is_patient = was_there and not self._is_orphan
        deadline = time.monotonic() + (LAST_SEND_S if is_patient else LAST_SEND_NEVER_THERE_S)
        while not self._guarded(self.round) and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._is_orphan and self._config.job is not None:
            # The run of this job is gone, and nobody else will come for its rings. Its ranks do not miss them.
            for stream in self._streams.values():
                stream.abandon()
        logger.info("agent stopped: sent %d spans", self._sender.sent_spans)

    def _scan(self) -> None:
        population = self._discovery.scan()
        for pid, process in population.ranks.items():
            if self._scope.covers(pid):
                self._ranks.watch(process)
                self._scope.claim(pid)
        self._ranks.follow_helpers(population)
        idle = [rank for rank in self._ranks if not rank.streams]
        ended = [rank for rank in idle if not is_process_alive(rank.pid, rank.start_ticks)]
        if ended:
            # While they are still followed: what the readers know of them, and that they ended.
            self._metrics.set_measurements(self._readers.measurements())
            self._report_ends()
        for rank in ended:
            self._end_rank(rank)

    def _report_ends(self) -> None:
        self._ends.update(self._streams.values(), self._ranks, self._log_events, self._event_owner)

    def _end_rank(self, rank: WatchedRank) -> None:
        self._collect_events()  # its end, while its slot is known
        self._ranks.end(rank)
        self._publish_rank(rank)
        self._metrics.end_rank(rank.slot)
        self._scope.release(rank.pid)
        self._progress.forget(rank.slot, rank.pid)
        self._ends.forget(rank.pid, rank.start_ticks)
        self._ended_drops["partition_full"] += rank.partition.dropped if rank.partition else 0

    def _open_rings(self) -> None:
        for reader in self._ring_files.open_new(self._streams.keys()):
            who = reader.identity
            self._waits.forget(who.pid)
            start_ticks = read_start_ticks(who.pid)
            if reader.start_ticks not in (None, start_ticks):
                start_ticks = None  # another process has its number now
            rank = self._ranks.find(who.pid)
            if rank is None and start_ticks is not None:
                rank = self._ranks.watch(RankProcess(who, start_ticks))
                self._scope.claim(who.pid)
            partition = rank.partition if rank else None
            stream = RankStream(
                reader, partition, self._details.read, self._waits, self._config.level
            )
            self._streams[reader.path] = stream
            if rank is not None:
                rank.identity = who
                rank.streams.append(stream)

    def _take_scheduler(self) -> None:
        scheduler = self._readers.scheduler
        if scheduler is None:
            return
        records = scheduler.read()
        self._events += len(records)
        self._note_losses()
        self._ranks.take(records)

    def _note_losses(self) -> None:
        """Mark the time since the last read as unknown when events were lost in it: it must not count as running."""
        now_ns = time.monotonic_ns()
        scheduler = self._readers.scheduler
        lost = scheduler.losses().get("bpf_ring_full", 0) if scheduler is not None else 0
        if lost > self._lost_events:
            self._ranks.mark_unknown(self._last_read_ns, now_ns)
        self._lost_events, self._last_read_ns = lost, now_ns

    def _collect_events(self) -> None:
        self._log_events.add(self._readers.occurrences(), self._event_owner)

    def _event_owner(self, slot: int) -> EventOwner | None:
        rank = self._ranks.find_slot(slot)
        if rank is None:
            self._ended_drops["event_rank_gone"] += 1
            return None
        if not self._scope.claim(rank.pid):
            return None  # another agent's
        return EventOwner(rank.identity.resource_attributes(), rank.context_of)

    def _send(self) -> bool:
        batches = self._streams.each(RankStream.batch)
        ready = [(stream, batch) for stream, batch in batches if batch is not None]
        if not ready:
            return True
        is_taken = self._sender.send([batch for _, batch in ready])
        self._delivery.note(is_taken=is_taken)
        if is_taken:
            for stream, _ in ready:
                stream.acknowledge()
        return False

    def _choose_profiles(self) -> None:
        """Take stacks of the ranks that they are asked for of, as often as the one that wants most."""
        ranks = {
            rank.slot: (self._detail.profile_hz_of(rank.identity.rank), (rank.pid, *rank.helpers))
            for rank in self._ranks
        }
        hz = max((rate for rate, _ in ranks.values()), default=self._config.profile_hz)
        if not {"bpf", "stacks"}.isdisjoint(self._config.without):
            hz = 0
        self._profiles.choose(hz, self._readers, ranks)

    def _send_profiles(self) -> bool:
        is_last = any(stream.is_finished for stream in self._streams.values())
        is_due = is_last or self._stopping.is_set()
        return self._profiles.send(self._ranks.find_slot, self._detail.rung, is_due=is_due)

    def _end_streams(self) -> None:
        for path, stream in list(self._streams.items()):
            if stream.is_finished:
                self._ended_drops.update(stream.losses())
                self._streams.drop(path)

    def _publish(self) -> None:
        scheduler = self._readers.scheduler
        if scheduler is not None:
            self._ranks.take_totals(scheduler.threads())
        for rank in self._ranks:
            self._publish_rank(rank)
        self._metrics.set_measurements(measured := self._readers.measurements())
        self._ranks.name_devices(measured)
        releases = [stream.identity.release for stream in self._streams.values()]
        self.sensors = with_torch_of_ranks(self.sensors, releases)
        self._metrics.set_sensors(self._readers.states(self.sensors))

    def _look_at_cost(self) -> None:
        self._detail.look(self._ranks)
        state = HostState(
            cpu_s=time.process_time() + self._readers.helper_cpu_s(),
            resident_bytes=read_resident_bytes(),
            program_s={n: ns / 1e9 for n, ns in self._detail.program_ns.items()},
            dropped=self._dropped(),
            events=self._events,
            sent_bytes=self._sender.sent_bytes,
            cost_ratio=self._detail.cost_ratio,
            lowered=self._detail.rung,
        )
        self._metrics.set_host(state)
        self._detail.note_cost(asdict(state))

    def _publish_rank(self, rank: WatchedRank) -> None:
        if not self._scope.claim(rank.pid):
            return
        throttling = rank.throttling.totals() if rank.throttling is not None else None
        sensor = scheduler.sensor if (scheduler := self._readers.scheduler) is not None else None
        level = self._detail.level_of(rank.identity.rank)
        state = RankState(sensor, rank.totals, throttling, level)
        self._metrics.set_rank(rank.slot, rank.identity, state)

    def _dropped(self) -> dict[str, int]:
        counts = Counter(self._ended_drops)
        for stream in self._streams.values():
            counts.update(stream.losses())
        for rank in self._ranks:
            counts["partition_full"] += rank.partition.dropped if rank.partition else 0
        counts["agent_round"] = self._failed_rounds
        counts["export_refused"] = self._sender.refused_spans + self._log_events.refused
        counts["events_full"] = self._log_events.dropped
        counts.update(self._profiles.losses())
        counts.update(self._readers.losses())
        return dict(counts)
