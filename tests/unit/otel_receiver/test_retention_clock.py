"""A clock that jumps does not delete everything by its age."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from rootwalk.otel_receiver.counters import IngestCounters
from rootwalk.otel_receiver.drain import JournalDrain
from rootwalk.otel_receiver.journal import JournalRecord, journal_path
from rootwalk.otel_receiver.retention import Retention
from rootwalk.otel_receiver.retention_clock import RetentionClock
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.otlp_messages import span, trace_request
from support.stores import query_rows

HOUR_S = 3600.0


class Clocks:
    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1e9, 50.0
        self.clock = RetentionClock(HOUR_S, lambda: self.wall_s, lambda: self.monotonic_s)

    def pass_time(self, seconds: float, jump_s: float = 0.0) -> float:
        self.monotonic_s += seconds
        self.wall_s += seconds + jump_s
        return self.clock.find_jump()


def test_ages_are_trusted_while_the_clock_goes_on() -> None:
    clocks = Clocks()
    assert [clocks.pass_time(60.0, 0.03) for _ in range(100)] == [0.0] * 100
    assert clocks.clock.may_delete


@pytest.mark.parametrize("jump_s", [2 * HOUR_S, -365 * 24 * HOUR_S])
def test_after_a_jump_what_was_there_has_to_become_that_old(jump_s: float) -> None:
    clocks = Clocks()
    assert clocks.pass_time(60.0, jump_s) == pytest.approx(jump_s)
    assert not clocks.clock.may_delete
    clocks.pass_time(HOUR_S - 1.0)
    assert not clocks.clock.may_delete
    clocks.pass_time(2.0)
    assert clocks.clock.may_delete


def _store_spans(store: Path, received_unix_ns: int, first: int, count: int) -> None:
    body = trace_request([span(number) for number in range(first, first + count)])
    save_journal_batch(store, [JournalRecord(Signal.TRACES, received_unix_ns, body, first, 1)])


def _look(store: Path, wall_jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a drain look what is too old before and after the clock jumped."""
    drain = JournalDrain(
        store,
        journal_path(store),
        IngestCounters(),
        flush_interval_s=1.0,
        flush_records=1,
        retention=Retention(age_s=HOUR_S),
        retention_interval_s=0.0,
    )
    drain._retain_when_due()
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + wall_jump_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + round(wall_jump_s * 1e9))
    drain._retention_clock._wall = time.time
    for _ in range(3):
        drain._retain_when_due()


def test_two_hours_ahead_delete_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _store_spans(store, time.time_ns(), 1, 10)
    with caplog.at_level(logging.WARNING):
        _look(store, 2 * HOUR_S, monkeypatch)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(10,)]
    assert "the clock jumped by +7200 s" in caplog.text


def test_what_is_too_old_still_goes_and_more_than_half_waits(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old_ns = time.time_ns() - round(3 * HOUR_S * 1e9)
    _store_spans(store, old_ns, 1, 2)
    _store_spans(store, time.time_ns(), 100, 10)
    _look(store, 0.0, monkeypatch)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(10,)]

    _store_spans(store, old_ns, 200, 90)
    with caplog.at_level(logging.WARNING):
        _look(store, 0.0, monkeypatch)
    assert query_rows(store, "SELECT count(*) FROM spans") == [(100,)]
    assert sum("more than half" in message for message in caplog.messages) == 1
