"""The host agent: watches the ranks on this machine and sends what it sees as OTLP.

    discovery ──▶ ranks ──▶ scheduler.watch          every 2 s, rings every round
    rings ──▶ records ─┐
    scheduler ──▶ events ─┴▶ spans with thread times, stalls ──▶ POST /v1/traces      every round (0.5 s)
    totals, own cost, sensors ──▶ SDK ──▶ POST /v1/metrics                            every 5 s

A ring's cursor moves when the endpoint has acknowledged. While the endpoint is away nothing grows: the rings keep what
they can, the agent keeps one batch a rank. Everything that is lost has a counter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rootwalk.ebpf.agent_metrics import AgentMetrics, HostState
from rootwalk.ebpf.discovery import Discovery, RankProcess, is_process_alive, read_start_ticks
from rootwalk.ebpf.events import SchedEvent, ThreadExit
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.scheduler import SchedulerReader, open_scheduler
from rootwalk.ebpf.sensors import Sensor, probe_sensors
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.thread_totals import RoleTotals
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.export import SpanSender
from rootwalk.instrumentation.identity import Identity, read_host_id
from rootwalk.instrumentation.shared_ring import RingReader, ring_directory

__all__ = ["Agent", "AgentConfig"]

logger = logging.getLogger(__name__)

# A round costs some milliseconds whatever it carries; nobody looks at steps more often than this.
ROUND_S = 0.5
SCAN_INTERVAL_S = 2.0
METRICS_INTERVAL_S = 2.0
# What an agent that is told to stop waits at most for an endpoint that does not answer.
LAST_SEND_S = 12.0
SERVICE_NAME = "rootwalk-agent"


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """How an agent runs.

    Attributes:
        endpoint: OTLP/HTTP base URL.
        job: Follow this job only; None follows all.
        without: Sensors that are switched off.
        level: 0 sends no stalls, 1 sends them.
        parent_pid: Stop when this is no longer the parent; None to stay.
        ring_directories: Where rings lie; None for this user's, and every user's when root.
    """

    endpoint: str
    job: str | None = None
    without: Collection[str] = ()
    level: int = 1
    parent_pid: int | None = None
    ring_directories: Sequence[Path] | None = None


@dataclass(slots=True)
class _Rank:
    """A rank that is watched."""

    slot: int
    identity: Identity
    start_ticks: int
    partition: RankPartition | None
    totals: RoleTotals = field(default_factory=RoleTotals)
    streams: list[RankStream] = field(default_factory=list)


class Agent:
    """Runs in the thread that calls `run`; `stop` may be called from any thread or signal handler.

    Args:
        config: How to run.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.sensors: list[Sensor] = probe_sensors(config.without)
        self._scheduler: SchedulerReader | None = open_scheduler(config.without)
        self._clock = read_host_clock()
        self._sender = SpanSender(config.endpoint)
        self._details = ProcessDetails()
        self._discovery = Discovery(config.job)
        self._ranks: dict[int, _Rank] = {}
        self._rank_by_slot: dict[int, _Rank] = {}
        self._helpers: set[int] = set()
        self._streams: dict[Path, RankStream] = {}
        self._foreign_rings: set[Path] = set()
        self._lost_events = 0
        self._last_read_ns = time.monotonic_ns()
        self._ended_drops = {"ring_full": 0, "stalls_full": 0, "partition_full": 0}
        self._next_slot = 1
        self._failed_rounds = 0
        self._next_scan_s = self._next_metrics_s = 0.0
        self._stopping = threading.Event()
        self._metrics = AgentMetrics(config.endpoint, self._host_resource(), self.sensors)

    def run(self) -> None:
        """Work until `stop`; then send what is left and release everything."""
        logger.info("agent started: scheduler by %s", self.scheduler_name)
        interval_s = min(self._scheduler.interval_s if self._scheduler else ROUND_S, ROUND_S)
        try:
            next_send_s = 0.0
            while not self._stopping.wait(interval_s):
                now = time.monotonic()
                if now >= next_send_s:
                    next_send_s = now + ROUND_S - interval_s / 2
                    self._guarded_round()
                else:
                    self._take_scheduler()
                if self._config.parent_pid not in (None, os.getppid()):
                    break
            self._finish()
        finally:
            self.close()

    def _guarded_round(self) -> None:
        try:
            self.round()
        except Exception:
            # What one rank provokes must not end the others' telemetry.
            if not self._failed_rounds:
                logger.exception("a round of the agent failed; going on")
            self._failed_rounds += 1

    def stop(self) -> None:
        """Ask `run` to come to its end."""
        self._stopping.set()

    @property
    def scheduler_name(self) -> str:
        """Return what tells scheduler times."""
        return self._scheduler.sensor if self._scheduler else "nothing"

    def round(self) -> bool:
        """Do everything that is due once; return whether nothing is left to send."""
        now = time.monotonic()
        if now >= self._next_scan_s:
            self._next_scan_s = now + SCAN_INTERVAL_S
            self._scan()
        self._open_rings()
        for stream in self._streams.values():
            stream.read()
        self._take_scheduler()
        is_sent = self._send()
        self._end_streams()
        if now >= self._next_metrics_s:
            self._next_metrics_s = now + METRICS_INTERVAL_S
            self._publish()
        return is_sent

    def close(self) -> None:
        """Release rings, programs and connections; safe twice."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        if self._scheduler is not None:
            self._scheduler.close()
            self._scheduler = None
        self._metrics.close()
        self._sender.close()

    def _finish(self) -> None:
        """Send until the rings are empty, or the endpoint does not answer."""
        deadline = time.monotonic() + LAST_SEND_S
        while not self.round() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._publish()
        logger.info("agent stopped: sent %d spans", self._sender.sent_spans)

    def _host_resource(self) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            semconv.SERVICE_NAME: SERVICE_NAME,
            semconv.HOST_ID: read_host_id(),
            semconv.HOST_NAME: socket.gethostname(),
        }
        if self._config.job is not None:
            attributes[semconv.TRAINING_JOB_ID] = self._config.job
        return attributes

    def _scan(self) -> None:
        population = self._discovery.scan()
        for pid, process in population.ranks.items():
            self._watch(pid, process)
        for pid, rank_pid in population.rank_by_helper.items():
            rank = self._ranks.get(rank_pid)
            if rank is not None and pid not in self._ranks and pid not in self._helpers:
                self._helpers.add(pid)
                if self._scheduler is not None:
                    self._scheduler.watch(pid, rank.slot, is_child=True)
        for pid in self._helpers - population.rank_by_helper.keys():
            self._helpers.discard(pid)
            if self._scheduler is not None:
                self._scheduler.forget(pid)
        for pid, rank in list(self._ranks.items()):
            if not rank.streams and not is_process_alive(pid, rank.start_ticks):
                self._unwatch(pid)

    def _watch(self, pid: int, process: RankProcess) -> _Rank:
        known = self._ranks.get(pid)
        if known is not None:
            return known
        slot = self._next_slot
        self._next_slot += 1
        partition = None
        if self._scheduler is not None:
            partition = RankPartition(self._scheduler.sensor, time.monotonic_ns())
            self._scheduler.watch(pid, slot)
        rank = _Rank(slot, process.identity, process.start_ticks, partition)
        self._ranks[pid] = self._rank_by_slot[slot] = rank
        logger.info("rank %d of job %s is process %d", rank.identity.rank, rank.identity.job, pid)
        return rank

    def _unwatch(self, pid: int) -> None:
        rank = self._ranks.pop(pid)
        if self._scheduler is not None:
            self._scheduler.forget(pid)
        self._publish_rank(rank)
        self._metrics.end_rank(rank.slot)
        self._ended_drops["partition_full"] += rank.partition.dropped if rank.partition else 0
        del self._rank_by_slot[rank.slot]

    def _ring_directories(self) -> Sequence[Path]:
        if self._config.ring_directories is not None:
            return self._config.ring_directories
        own = ring_directory()
        if os.geteuid() != 0:
            return [own]
        return sorted({own, *own.parent.glob("rootwalk-*")})

    def _open_rings(self) -> None:
        found: set[Path] = set()
        for folder in self._ring_directories():
            with contextlib.suppress(OSError):
                found.update(path for path in folder.iterdir() if path.suffix == ".ring")
        self._foreign_rings &= found
        for path in sorted(found - self._streams.keys() - self._foreign_rings):
            self._open_ring(path)

    def _open_ring(self, path: Path) -> None:
        try:
            reader = RingReader(path)
        except (DecodeError, OSError) as error:
            logger.warning("%s", error)
            self._foreign_rings.add(path)
            return
        who = reader.identity
        if self._config.job not in (None, who.job):
            reader.close()
            self._foreign_rings.add(path)
            return
        start_ticks = read_start_ticks(who.pid)
        if reader.start_ticks not in (None, start_ticks):
            start_ticks = None  # another process has its number now
        rank = self._ranks.get(who.pid)
        if rank is None and start_ticks is not None:
            rank = self._watch(who.pid, RankProcess(who, start_ticks))
        stream = RankStream(
            reader,
            self._clock,
            rank.partition if rank else None,
            self._details.read,
            self._config.level,
        )
        self._streams[path] = stream
        if rank is not None:
            rank.identity = who
            rank.streams.append(stream)

    def _take_scheduler(self) -> None:
        if self._scheduler is None:
            return
        records = self._scheduler.read()
        self._note_losses()
        for record in records:
            rank = self._rank_by_slot.get(record.slot)
            if rank is None:
                continue
            if isinstance(record, ThreadExit):
                rank.totals.add(record.tid, record)
                for stream in rank.streams:
                    stream.end_thread(record.tid)
                continue
            if rank.partition is not None:
                rank.partition.add(record)
            if isinstance(record, SchedEvent):
                for stream in rank.streams:
                    stream.take(record)

    def _note_losses(self) -> None:
        """Mark the time since the last read as unknown when events were lost in it: it must not count as running."""
        now_ns = time.monotonic_ns()
        lost = self._scheduler.losses().get("bpf_ring_full", 0) if self._scheduler else 0
        if lost > self._lost_events:
            for rank in self._ranks.values():
                if rank.partition is not None:
                    rank.partition.mark_unknown(self._last_read_ns, now_ns)
        self._lost_events, self._last_read_ns = lost, now_ns

    def _send(self) -> bool:
        streams = list(self._streams.values())
        batches = [(stream, stream.batch()) for stream in streams]
        ready = [(stream, batch) for stream, batch in batches if batch is not None]
        if not ready:
            return True
        if self._sender.send([batch for _, batch in ready]):
            for stream, _ in ready:
                stream.acknowledge()
        return False

    def _end_streams(self) -> None:
        for path, stream in list(self._streams.items()):
            if stream.is_finished:
                self._ended_drops["ring_full"] += stream.ring_dropped
                self._ended_drops["stalls_full"] += stream.stalls_dropped
                stream.close()
                del self._streams[path]
                rank = self._ranks.get(stream.identity.pid)
                if rank is not None and stream in rank.streams:
                    rank.streams.remove(stream)

    def _publish(self) -> None:
        for thread_id, thread in (self._scheduler.threads() if self._scheduler else {}).items():
            rank = self._rank_by_slot.get(thread.slot)
            if rank is not None:
                rank.totals.add(thread_id, thread)
        for rank in self._ranks.values():
            self._publish_rank(rank)
        run_time_ns = self._scheduler.run_time_ns() if self._scheduler else None
        self._metrics.set_host(
            HostState(
                cpu_s=time.process_time(),
                resident_bytes=_resident_bytes(),
                bpf_s=None if run_time_ns is None else run_time_ns / 1e9,
                dropped=self._dropped(),
            )
        )

    def _publish_rank(self, rank: _Rank) -> None:
        if self._scheduler is not None:
            self._metrics.set_rank(rank.slot, rank.identity, self._scheduler.sensor, rank.totals)

    def _dropped(self) -> dict[str, int]:
        counts = dict(self._ended_drops)
        for stream in self._streams.values():
            counts["ring_full"] += stream.ring_dropped
            counts["stalls_full"] += stream.stalls_dropped
        for rank in self._ranks.values():
            counts["partition_full"] += rank.partition.dropped if rank.partition else 0
        counts["agent_round"] = self._failed_rounds
        counts["export_refused"] = self._sender.refused_spans
        counts.update(self._scheduler.losses() if self._scheduler else {})
        return counts


def _resident_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()
