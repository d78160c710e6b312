"""Signals are held back, told with their sender, and let through again.

Sent to this thread: those sent to the process may go to a thread that a library of another test has started. `run` has
no other thread when it holds signals back; tests/e2e/test_signals.py sends to its process.
"""

from __future__ import annotations

import signal

import pytest

from rootwalk.graph.signal_queue import Arrival, Interrupted, SignalQueue


def test_signals_come_one_by_one_and_say_that_no_terminal_sent_them() -> None:
    with SignalQueue() as signals:
        assert signals.take(0.0) is None
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        taken = {signals.take(0.0), signals.take(0.0)}
        assert taken == {Arrival(signal.SIGUSR1, False), Arrival(signal.SIGTERM, False)}
        assert signals.take(0.0) is None


def test_pause_is_interrupted_by_what_asks_for_the_end_only() -> None:
    with SignalQueue() as signals:
        signal.raise_signal(signal.SIGUSR2)
        signals.pause(0.0)
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(Interrupted, match="SIGHUP"):
            signals.pause(0.0)


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalQueue() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.take(0.0) is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_late_signals_are_dropped_and_the_mask_is_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with SignalQueue():
        signal.raise_signal(signal.SIGTERM)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert not signal.sigpending()
