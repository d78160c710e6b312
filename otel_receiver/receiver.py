"""The receiver's life: journal lock, recovery, threads and servers up in this order, and down in the reverse."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError, StoreError
from rootwalk.otel_receiver.counters import IngestCounters, IngestSnapshot
from rootwalk.otel_receiver.drain import JournalDrain
from rootwalk.otel_receiver.group_commit import GroupCommit
from rootwalk.otel_receiver.ingest import Ingest
from rootwalk.otel_receiver.journal import JournalLock, journal_path, list_segments, remove_journal
from rootwalk.otel_receiver.server import GrpcServer, HttpServer, ListenAddress
from rootwalk.otel_receiver.store import recover

__all__ = ["Listening", "Receiver", "ReceiverConfig", "run_receiver"]

logger = logging.getLogger(__name__)

# Spans and points that are stored at once, without waiting for the interval: DuckDB is fast from here on.
DEFAULT_FLUSH_RECORDS: Final = 20_000
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
        flush_records: Spans and points that are stored without waiting for the interval; default 20,000.
    """

    store: Path
    grpc: ListenAddress = DEFAULT_GRPC
    http: ListenAddress = DEFAULT_HTTP
    flush_interval_s: float = 2.0
    flush_records: int = DEFAULT_FLUSH_RECORDS

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


@dataclass(frozen=True, slots=True)
class Listening:
    """The addresses that a started receiver really listens on."""

    grpc: ListenAddress
    http: ListenAddress


class Receiver:
    """OTLP in, store out; `start` once, then `stop` once or more, in one event loop."""

    def __init__(self, config: ReceiverConfig) -> None:
        config.validate()
        self._config = config
        self._counters = IngestCounters()
        self._lock: JournalLock | None = None
        self._journal: GroupCommit | None = None
        self._drain: JournalDrain | None = None
        self._servers: list[GrpcServer | HttpServer] = []

    async def start(self) -> Listening:
        """Recover what an earlier receiver left, then listen.

        Raises:
            StoreError: If the store cannot be used or another receiver writes it.
            ConfigError: If an address cannot be listened on.
        """
        config = self._config
        directory = journal_path(config.store)
        self._lock = self._take_lock(directory)
        try:
            next_segment = recover(config.store, self._lock)
            self._drain = JournalDrain(
                config.store,
                directory,
                self._counters,
                flush_interval_s=config.flush_interval_s,
                flush_records=config.flush_records,
            )
            self._journal = GroupCommit(directory, next_segment, self._drain.extend)
            ingest = Ingest(self._journal, self._counters)
            self._drain.start()
            self._journal.start()
            grpc_server = GrpcServer(ingest, config.grpc)
            http_server = HttpServer(ingest, config.http)
            self._servers = [grpc_server, http_server]
            return Listening(await grpc_server.start(), await http_server.start())
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening, store everything that was acknowledged, and remove the journal."""
        for server in self._servers:
            await server.stop()
        self._servers = []
        if self._journal is not None:
            await asyncio.to_thread(self._journal.stop)
        if self._drain is not None:
            await asyncio.to_thread(self._drain.stop)
        if self._lock is not None:
            self._leave_journal(self._lock)
            self._lock.release()
            self._lock = None

    def snapshot(self) -> IngestSnapshot:
        """Return what was counted so far."""
        return self._counters.snapshot()

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


async def run_receiver(
    config: ReceiverConfig, on_listening: Callable[[Listening], None]
) -> IngestSnapshot:
    """Receive until SIGTERM or SIGINT, then stop cleanly and return the counts.

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
    try:
        on_listening(listening)
        await stopping.wait()
    finally:
        await receiver.stop()
    logger.info("stopped: %s", receiver.snapshot().render())
    return receiver.snapshot()
