"""Somebody removes the journal, the store, or both, while the receiver runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.otel_receiver.addresses import ListenAddress
from rootwalk.otel_receiver.answers import Result
from rootwalk.otel_receiver.journal import JournalLock, journal_path
from rootwalk.otel_receiver.receiver import Receiver, ReceiverConfig
from rootwalk.otel_receiver.signals import Signal
from support.otlp_messages import span, trace_request
from support.stores import query_rows

ANY = ListenAddress("127.0.0.1", 0)


def _run(store: Path, remove: Callable[[], None]) -> tuple[int, list[Result]]:
    """Send 20 spans, remove something, send 20 more, and stop; return the spans acknowledged and all answers."""

    async def run() -> tuple[int, list[Result]]:
        config = ReceiverConfig(store, ANY, ANY, flush_interval_s=3600, telemetry_interval_s=0)
        receiver = Receiver(config)
        await receiver.start()
        results: list[Result] = []
        try:
            for number in range(1, 41):
                if number == 21:
                    remove()
                outcome = await receiver.accept(Signal.TRACES, trace_request([span(number)]))
                results.append(outcome.result)
        finally:
            await receiver.stop()
        return results.count(Result.DURABLE), results

    return asyncio.run(run())


def test_a_removed_journal_loses_nothing_that_is_acknowledged(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        acknowledged, results = _run(store, lambda: shutil.rmtree(journal_path(store)))

    assert query_rows(store, "SELECT count(*) FROM spans") == [(acknowledged,)]
    assert acknowledged >= 20
    assert {r for r in results if r is not Result.DURABLE} <= {Result.UNAVAILABLE}
    assert "was removed or moved while it was written" in caplog.text
    assert not journal_path(store).exists()


def test_a_journal_that_is_removed_with_nothing_after_it_is_put_back_too(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        config = ReceiverConfig(store, ANY, ANY, flush_interval_s=3600, telemetry_interval_s=0)
        receiver = Receiver(config)
        await receiver.start()
        await receiver.accept(Signal.TRACES, trace_request([span(n) for n in range(1, 21)]))
        shutil.rmtree(journal_path(store))
        # What is still in the journal is stored after the servers and the journal's thread have ended.
        receiver.hurry(60)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if receiver._drain is not None and receiver._drain.is_done():
                break
        await receiver.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert query_rows(store, "SELECT count(*) FROM spans") == [(20,)]


def test_a_removed_journal_whose_name_another_receiver_has_ends_the_acknowledgements(
    store: Path,
) -> None:
    others: list[JournalLock] = []

    def remove() -> None:
        shutil.rmtree(journal_path(store))
        lock = JournalLock.try_take(journal_path(store), create=True)
        assert lock is not None
        others.append(lock)

    acknowledged, results = _run(store, remove)
    others[0].release()

    assert acknowledged == 20
    assert set(results[20:]) == {Result.UNAVAILABLE}


def test_a_removed_store_is_said(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        acknowledged, _ = _run(store, store.unlink)

    assert acknowledged == 40
    assert query_rows(store, "SELECT count(*) FROM spans") == [(40,)]
    assert "was removed: what was stored in it is gone" in caplog.text


def test_both_removed(store: Path) -> None:
    def remove() -> None:
        store.unlink()
        shutil.rmtree(journal_path(store))

    acknowledged, _ = _run(store, remove)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(acknowledged,)]
