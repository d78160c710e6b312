"""`rootwalk receive --diagnose` as users run it: a receiver, its watcher, and a job whose steps come in.

The job's steps are written beside the receiver, as another process would: 120 ms each, slow ones 180 ms.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.otel_receiver import store
from support.forward_targets import http_other
from support.growing_store import GrowingStore
from support.jobs import Fault, Job
from support.receiver_process import ReceiverProcess, running_receiver

DEADLINE_S = 60.0
# How long a step takes here, whatever it says: a watcher that has just been started must have the time to see some.
STEP_S = 0.5
FAULT = Fault("contention", 1, 0.060, 60, 99)


class Listener:
    """Reads what a receiver prints while it runs."""

    def __init__(self, receiver: ReceiverProcess) -> None:
        self.lines: list[str] = []
        self._stream = receiver.process.stderr
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with self._stream:
            while line := self._stream.readline():
                self.lines.append(line.rstrip("\n"))

    def findings(self) -> list[str]:
        return [line for line in self.lines if line.startswith("rootwalk: j1: ")]

    def end(self, receiver: ReceiverProcess) -> None:
        receiver.process.send_signal(signal.SIGTERM)
        assert receiver.process.wait(30) == 0
        self._thread.join()


def await_true(claim: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not claim():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def watcher_pid(receiver: ReceiverProcess) -> int | None:
    """Return the process id of a receiver's watcher once it follows its parent under its own name."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, parent = (entry / "stat").read_text().rsplit(")", 1)
        except OSError:
            continue
        is_child = int(parent.split()[1]) == receiver.process.pid
        if is_child and name.endswith("(rootwalk-watch"):
            return int(entry.name)
    return None


def grow_until_slow(growing: GrowingStore, listener: Listener) -> None:
    """Let the job run up to four slow steps, and on until a finding is printed."""
    growing.grow(64)
    while not listener.findings():
        assert growing.next_step < 100, listener.lines
        growing.grow(1)
        time.sleep(STEP_S)


def grow_until_over(growing: GrowingStore, listener: Listener) -> None:
    """Let the job run to the last slow step, and on until a second line is printed."""
    growing.grow(100 - growing.next_step)
    while len(listener.findings()) < 2:
        assert growing.next_step < 200, listener.lines
        growing.grow(1)
        time.sleep(STEP_S)


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    return store.query_store(path, sql)[2]


def test_a_finding_is_printed_stored_and_sent_as_events(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    growing = GrowingStore(path, Job(steps=200, faults=(FAULT,)))
    options = ["--diagnose", "--flush-interval", "200ms"]
    with (
        http_other() as other,
        running_receiver(path, *options, "--forward", other.url) as receiver,
    ):
        listener = Listener(receiver)
        grow_until_slow(growing, listener)
        grow_until_over(growing, listener)
        await_true(lambda: len(query(path, "FROM logs")) == 2, "both events are stored")
        listener.end(receiver)

    cause = "rank 1 (host-0, CPU 1): CPU contention by 'node_exporter' pid 4411, +0.060 s/step"
    assert listener.findings() == [
        f"rootwalk: j1: slow since step 60: {cause}",
        f"rootwalk: j1: over since step 100: {cause}, 40 steps, 2.400 s in all",
    ]
    events = query(
        path,
        "SELECT event_name, severity_text, job, body, attributes, trace_id, span_id FROM logs ORDER BY unix_ns",
    )
    assert [row[:3] for row in events] == [
        ("rootwalk.finding.opened", "ERROR", "j1"),
        ("rootwalk.finding.closed", "INFO", "j1"),
    ]
    assert json.loads(str(events[0][3])) == cause
    attributes = json.loads(str(events[0][4]))
    assert attributes["rootwalk.finding.reason"] == "CPU_CONTENTION"
    assert attributes["training.rank"] == 1
    slow = query(
        path, "SELECT trace_id, span_id FROM steps WHERE rank = 1 AND step BETWEEN 60 AND 99"
    )
    assert all(row[5:] in slow for row in events)
    sent_on = b"".join(body for place, body in other.accepted if place == "/v1/logs")
    assert b"rootwalk.finding.opened" in sent_on
    assert b"rootwalk.finding.closed" in sent_on
    ((finding, state),) = query(path, "SELECT id, state FROM findings")
    assert (attributes["rootwalk.finding.id"], state) == (finding, "closed")
    assert not path.with_name("s.duckdb.wal").exists()


def test_once_a_slowdown_is_seen_what_comes_is_stored_sooner(tmp_path: Path) -> None:
    """Here what the watcher itself sends; hosts' counters, which tell why, come the same way."""
    path = tmp_path / "s.duckdb"
    growing = GrowingStore(path, Job(steps=200, faults=(FAULT,)))
    with running_receiver(path, "--diagnose", "--flush-interval", "10m") as receiver:
        listener = Listener(receiver)
        grow_until_slow(growing, listener)
        await_true(lambda: query(path, "FROM logs") != [], "stored long before its interval")
        listener.end(receiver)


def stop_behind(receiver: ReceiverProcess, growing: GrowingStore, listener: Listener) -> int:
    """Let the job run to step 90 while its watcher does not run, then stop the receiver; return where that began.

    It stands for a machine whose cores all stay busy until the ranks have gone.
    """
    growing.grow(20)
    deadline_s = time.monotonic() + DEADLINE_S
    while not query(growing.path, "FROM metrics WHERE name = 'training.step.duration'"):
        assert time.monotonic() < deadline_s, listener.lines
        if growing.next_step < 40:  # the fault comes later; a busy machine lets the watcher wait
            growing.grow(1)
        time.sleep(STEP_S)
    watcher, step = watcher_pid(receiver), growing.next_step
    assert watcher is not None
    os.kill(watcher, signal.SIGSTOP)
    growing.grow(90 - step)
    receiver.process.send_signal(signal.SIGTERM)
    time.sleep(STEP_S)
    os.kill(watcher, signal.SIGCONT)
    listener.end(receiver)
    return step


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((), id="healthy", marks=pytest.mark.variant),
        pytest.param((FAULT,), id="slow"),
    ],
)
def test_a_watcher_that_had_no_time_while_the_ranks_ran_tells_in_the_end(
    tmp_path: Path, faults: tuple[Fault, ...]
) -> None:
    path = tmp_path / "s.duckdb"
    growing = GrowingStore(path, Job(steps=200, faults=faults))
    options = ["--diagnose", "--flush-interval", "200ms"]
    with (
        http_other() as other,
        running_receiver(path, *options, "--forward", other.url) as receiver,
    ):
        listener = Listener(receiver)
        step = stop_behind(receiver, growing, listener)
    assert watcher_pid(receiver) is None
    counts = (
        "SELECT max((data ->> '$.count')::INT) FROM metrics WHERE name = 'training.step.duration'"
    )
    assert query(path, counts) >= [(90 - step,)]
    told = ["slow since step 60: rank 1 (host-0, CPU 1): CPU contention"][: len(faults)]
    assert [line.partition(" by ")[0] for line in listener.findings()] == [
        f"rootwalk: j1: {words}" for words in told
    ]
    assert query(path, "SELECT reason, state FROM findings") == [
        ("CPU_CONTENTION", "open") for _ in told
    ]
    assert query(path, "SELECT event_name FROM logs") == [
        ("rootwalk.finding.opened",) for _ in told
    ]
    sent_on = b"".join(body for place, body in other.accepted if place == "/v1/logs")
    assert (b"rootwalk.finding.opened" in sent_on) is bool(told)


@pytest.mark.long
def test_a_watcher_that_is_killed_is_started_again_and_tells_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    growing = GrowingStore(path, Job(steps=200, faults=(FAULT,)))
    with running_receiver(path, "--diagnose", "--flush-interval", "200ms") as receiver:
        listener = Listener(receiver)
        grow_until_slow(growing, listener)
        first = watcher_pid(receiver)
        assert first is not None

        os.kill(first, signal.SIGKILL)

        await_true(lambda: watcher_pid(receiver) not in (None, first), "another watcher starts")
        grow_until_over(growing, listener)
        listener.end(receiver)

    assert "over since step 100" in listener.findings()[1]
    assert any("live detection ended (killed by SIGKILL)" in line for line in listener.lines)
    assert len(query(path, "FROM findings")) == 1
    # nothing that the receiver started outlives it
    assert watcher_pid(receiver) is None


def test_without_the_option_nothing_watches(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        assert watcher_pid(receiver) is None
        receiver.stop()
