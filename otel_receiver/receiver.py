"""The receiver's life: journal lock, recovery, threads and servers up in this order, and down in the reverse."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError, StoreError
from rootwalk.otel_receiver.access import BearerTokens, TlsFiles
from rootwalk.otel_receiver.addresses import ListenAddress, raise_descriptor_limit
from rootwalk.otel_receiver.answers import Outcome
from rootwalk.otel_receiver.backlog import DEFAULT_JOURNAL_BYTES, MIN_JOURNAL_BYTES, Backlog
from rootwalk.otel_receiver.counters import IngestCounters, IngestSnapshot
from rootwalk.otel_receiver.drain import JournalDrain
from rootwalk.otel_receiver.forward import ForwardSnapshot
from rootwalk.otel_receiver.forward_target import ForwardTarget
from rootwalk.otel_receiver.forwarding import DEFAULT_QUEUE_BYTES, Forwarding, check_targets
from rootwalk.otel_receiver.group_commit import GroupCommit, JournalPosition
from rootwalk.otel_receiver.grpc_server import GrpcServer
from rootwalk.otel_receiver.http_server import HttpServer, TextServer
from rootwalk.otel_receiver.ingest import Ingest
from rootwalk.otel_receiver.journal import (
    JournalLock,
    check_end,
    choose_identity,
    journal_path,
    list_segments,
    remove_journal,
    remove_segments,
)
from rootwalk.otel_receiver.journal_batches import find_journal_end
from rootwalk.otel_receiver.kernels import switch_kernels
from rootwalk.otel_receiver.memory_gate import MemoryGate, limit_allocator_arenas
from rootwalk.otel_receiver.memory_plan import (
    DEFAULT_MAX_MEMORY_BYTES,
    MIN_MAX_MEMORY_BYTES,
    plan_memory,
)
from rootwalk.otel_receiver.quiet_log import log_loop_errors
from rootwalk.otel_receiver.retention import KEEP_ALL, Retention
from rootwalk.otel_receiver.self_telemetry import PROMETHEUS_CONTENT_TYPE, SelfTelemetry
from rootwalk.otel_receiver.server_options import ServerOptions
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import check_names, load_writer, read_place

__all__ = ["Listening", "Receiver", "ReceiverConfig", "run_receiver"]

logger = logging.getLogger(__name__)

# Records that are stored at once, without waiting for the interval: a row group of DuckDB, which is fast from here on.
DEFAULT_FLUSH_RECORDS: Final = 122_880

DEFAULT_GRPC: Final = ListenAddress("127.0.0.1", 4317)
DEFAULT_HTTP: Final = ListenAddress("127.0.0.1", 4318)


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """What a receiver needs to know.

    Attributes:
        store: The DuckDB file; created if there is none.
        grpc: Where to listen for OTLP/gRPC; default port 4317 on loopback.
        http: Where to listen for OTLP/HTTP; default port 4318 on loopback.
        flush_interval_s: Longest time from acknowledged to readable; default 2.
        flush_records: Spans and points that are stored without waiting for the interval; default 122,880.
        max_memory_bytes: Resident memory above the idle process; default 1 GiB.
        journal_bytes: What may be acknowledged and not stored yet; default 2 GiB.
        tls: Certificates of both servers; None, the default, to speak in the clear.
        token_file: Bearer tokens, one a line; None, the default, lets everyone send.
        cors_origins: Origins whose pages may send from browsers; none by default.
        keepalive_s: Idle time after which a connection is probed or closed; default 120.
        read_timeout_s: Longest time that a sender may take over one body; default 30.
        metrics: Where to show own metrics as Prometheus text; None, the default, for nowhere.
        telemetry_interval_s: How often own metrics are stored when they changed; default 10, 0 for never.
        forward: Other receivers that every accepted request is sent on to; default none.
        forward_queue_bytes: What may wait on disk for each of them; default 1 GiB.
        retention: How long telemetry is kept; for ever by default.
    """

    store: Path
    grpc: ListenAddress = DEFAULT_GRPC
    http: ListenAddress = DEFAULT_HTTP
    flush_interval_s: float = 2.0
    flush_records: int = DEFAULT_FLUSH_RECORDS
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    journal_bytes: int = DEFAULT_JOURNAL_BYTES
    tls: TlsFiles | None = None
    token_file: Path | None = None
    cors_origins: tuple[str, ...] = ()
    keepalive_s: float = 120.0
    read_timeout_s: float = 30.0
    metrics: ListenAddress | None = None
    telemetry_interval_s: float = 10.0
    forward: tuple[ForwardTarget, ...] = ()
    forward_queue_bytes: int = DEFAULT_QUEUE_BYTES
    retention: Retention = KEEP_ALL

    def validate(self) -> None:
        """Check what can be checked before anything starts.

        Raises:
            ConfigError: With the value that cannot be.
        """
        if not 0 < self.flush_interval_s <= 3600:
            raise ConfigError(
                f"cannot flush every {self.flush_interval_s:g} s; needs more than 0 and at most 3600",
                hint="leave --flush-interval at its default of 2s",
            )
        self.retention.validate()
        if self.max_memory_bytes < MIN_MAX_MEMORY_BYTES:
            raise ConfigError(
                f"cannot work in {self.max_memory_bytes} bytes of memory; needs at least {MIN_MAX_MEMORY_BYTES}",
                hint="leave --max-memory-bytes at its default of 1GiB",
            )
        if self.journal_bytes < MIN_JOURNAL_BYTES:
            raise ConfigError(
                f"cannot work with a journal of {self.journal_bytes} bytes; needs at least {MIN_JOURNAL_BYTES}",
                hint="leave --journal-bytes at its default of 2GiB",
            )
        for option, seconds in (
            ("--keepalive", self.keepalive_s),
            ("--read-timeout", self.read_timeout_s),
        ):
            if not 0.1 <= seconds <= 86_400:
                raise ConfigError(
                    f"cannot use {seconds:g} s for {option}; needs from 0.1 s to a day",
                    hint=f"leave {option} at its default",
                )
        check_targets(self.forward, self.forward_queue_bytes)


@dataclass(frozen=True, slots=True)
class Listening:
    """The addresses that a started receiver really listens on."""

    grpc: ListenAddress
    http: ListenAddress
    metrics: ListenAddress | None = None


class Receiver:
    """OTLP in, store out; `start` once, then `stop` once or more, in one event loop."""

    def __init__(self, config: ReceiverConfig) -> None:
        config.validate()
        self._config = config
        self._counters = IngestCounters()
        self._lock: JournalLock | None = None
        self._journal: GroupCommit | None = None
        self._drain: JournalDrain | None = None
        self._servers: list[GrpcServer | HttpServer | TextServer] = []
        self._ingest: Ingest | None = None
        self._telemetry: SelfTelemetry | None = None
        self._forwarding: Forwarding | None = None

    async def start(self) -> Listening:
        """Listen; what an earlier receiver left is stored meanwhile, before anything new.

        Raises:
            StoreError: If the store cannot be used or another receiver writes it.
            ConfigError: If an address cannot be listened on.
        """
        config = self._config
        limit_allocator_arenas()
        raise_descriptor_limit()
        log_loop_errors(asyncio.get_running_loop())
        tokens = None if config.token_file is None else BearerTokens(config.token_file)
        options = ServerOptions(
            config.tls, tokens, config.keepalive_s, config.read_timeout_s, config.cors_origins
        )
        directory = journal_path(config.store)
        self._lock = self._take_lock(directory)
        try:
            check_names(config.store)
            found, position = read_place(config.store)
            identity = choose_identity(directory, found.store_id)
            check_end(directory, position)
            plan = plan_memory(config.max_memory_bytes)
            gate = MemoryGate(plan)
            self._drain = JournalDrain(
                config.store,
                directory,
                self._counters,
                flush_interval_s=config.flush_interval_s,
                flush_records=config.flush_records,
                gate=gate,
                retention=config.retention,
                identity=identity,
            )
            forwarding = Forwarding(directory, config.forward, config.forward_queue_bytes)
            forwarding.hold(max(position[0], *list_segments(directory), 0) + 1)
            self._forwarding = forwarding
            next_segment = _resume(self._drain, directory, position)
            forwarding.open(partial(self._remove_passed_segments, directory, self._drain))
            self._journal = GroupCommit(
                directory,
                next_segment,
                partial(self._extend, self._drain, forwarding),
                identity,
                self._lock.renew,
            )
            self._drain.on_missing(self._journal.keep_in_place)
            switch_kernels(is_allowed=plan.is_compiled)
            backlog = Backlog(config.journal_bytes, self._drain.waiting_bytes)
            self._ingest = Ingest(self._journal, self._counters, gate, backlog)
            self._telemetry = SelfTelemetry(
                self._counters, self._journal, gate, backlog, forwarding.snapshots
            )
            self._drain.start()
            self._journal.start()
            listening = await self._listen(self._ingest, options, self._telemetry)
            forwarding.start([(a.host, a.port) for a in (listening.grpc, listening.http)])
            self._telemetry.start(config.telemetry_interval_s)
            await asyncio.to_thread(load_writer)
            gate.measure_idle()
        except BaseException:
            await self.stop()
            raise
        return listening

    async def _listen(
        self, ingest: Ingest, options: ServerOptions, telemetry: SelfTelemetry
    ) -> Listening:
        config = self._config
        grpc_server = GrpcServer(ingest, config.grpc, options)
        http_server = HttpServer(ingest, config.http, options)
        self._servers = [grpc_server, http_server]
        metrics: ListenAddress | None = None
        if config.metrics is not None:
            metrics_server = TextServer(
                config.metrics,
                "--metrics-address",
                "/metrics",
                PROMETHEUS_CONTENT_TYPE,
                telemetry.render_prometheus,
            )
            self._servers.append(metrics_server)
            metrics = await metrics_server.start()
        return Listening(await grpc_server.start(), await http_server.start(), metrics)

    async def stop(self) -> None:
        """Stop listening, store everything that was acknowledged, and remove the journal."""
        if self._telemetry is not None:
            await self._telemetry.stop()
        for server in self._servers:
            await server.stop()
        self._servers = []
        if self._ingest is not None:
            self._ingest.stop()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.stop)
        ends = [end for end in (self._drain, self._forwarding) if end is not None]
        await asyncio.gather(*(asyncio.to_thread(end.stop) for end in ends))
        if self._lock is not None:
            self._leave_journal(self._lock)
            self._lock.release()
            self._lock = None

    async def accept(self, signal: Signal, body: bytes) -> Outcome:
        """Take in a request from this process, in protobuf, as if a sender had sent it."""
        if self._ingest is None:
            raise RuntimeError("a receiver accepts between start and stop")
        ingest = self._ingest
        return await ingest.answer(signal, "own", lambda held: ingest.accept(signal, body, held))

    def hurry(self, seconds: float) -> None:
        """Make what comes in readable sooner for so long, seconds: somebody waits for it."""
        if self._drain is not None:
            self._drain.hurry(seconds)

    def snapshot(self) -> IngestSnapshot:
        """Return what was counted so far."""
        return self._counters.snapshot()

    def forward_snapshots(self) -> list[ForwardSnapshot]:
        """Return what became of the requests for every target so far."""
        return [] if self._forwarding is None else self._forwarding.snapshots()

    @staticmethod
    def _extend(
        drain: JournalDrain, forwarding: Forwarding, end: JournalPosition, records: int
    ) -> None:
        drain.extend(end, records)
        forwarding.extend(end)

    @staticmethod
    def _remove_passed_segments(directory: Path, drain: JournalDrain) -> None:
        remove_segments(directory, before=drain.stored_segment)

    def _leave_journal(self, lock: JournalLock) -> None:
        is_stored = (
            not list_segments(lock.directory) if self._drain is None else self._drain.is_done()
        )
        if is_stored:
            remove_journal(lock.directory)
        else:
            logger.warning("the next reader of %s stores what is left", self._config.store)

    def _take_lock(self, directory: Path) -> JournalLock:
        lock = JournalLock.try_take(directory, create=True)
        if lock is None:
            raise StoreError(
                f'cannot write the store "{self._config.store}": another receiver writes it; '
                "needs one receiver for each store",
                hint="stop the other receiver, or name another file with --store PATH",
            )
        return lock


def _resume(drain: JournalDrain, directory: Path, position: tuple[int, int]) -> int:
    """Let the drain begin with what an earlier receiver left; return the number of the next segment."""
    end = find_journal_end(directory, position)
    drain.resume(JournalPosition(*position), JournalPosition(*end))
    return max(position[0], *list_segments(directory), 0) + 1


async def run_receiver(
    config: ReceiverConfig,
    on_listening: Callable[[Listening], None],
    companion: Callable[[Receiver], Coroutine[None, None, None]] | None = None,
) -> IngestSnapshot:
    """Receive until SIGTERM or SIGINT, then stop cleanly and return the counts.

    Args:
        config: What to do.
        on_listening: Is told the addresses.
        companion: Runs beside the servers, may send through them, and is cancelled before they stop.

    Raises:
        StoreError: As `Receiver.start`.
        ConfigError: As `Receiver.start`.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    receiver = Receiver(config)
    listening = await receiver.start()
    beside: list[asyncio.Task[None]] = []
    try:
        on_listening(listening)
        if companion is not None:
            beside.append(asyncio.create_task(companion(receiver)))
        await stopping.wait()
    finally:
        for task in beside:
            task.cancel()
        for result in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(result, Exception):
                logger.error("what ran beside the receiver failed", exc_info=result)
        await receiver.stop()
    logger.info("stopped: %s", receiver.snapshot().render())
    return receiver.snapshot()
