"""The Flight Recorder read in the rank: the ring that waits, within its bound, and never an error for the job."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rootwalk.graph.importers.flight_recorder_format import parse_dump
from rootwalk.instrumentation.flight_dump import (
    MIN_INTERVAL_S,
    MODULE,
    FlightDump,
    read_flight_recorder,
)
from support.flight_dumps import FlightJob

WAIT_S = 60.0


def ring(*states: str, group: str = "0") -> dict[str, Any]:
    """Return a dump of one rank of two with calls in these states."""
    job = FlightJob(2, {group: range(2)})
    for state in states:
        job.call(0, group, state=state)
    return job.dump(0, has_history=True)


def as_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


EMPTY = as_bytes(ring())


def test_without_pytorch_or_with_empty_rings_there_is_nothing() -> None:
    assert read_flight_recorder(None) is None
    assert read_flight_recorder(SimpleNamespace()) is None
    module = SimpleNamespace(
        _dump_nccl_trace_json=lambda *_: EMPTY, _dump_fr_trace_json=lambda *_: EMPTY
    )
    assert read_flight_recorder(module) is None


def test_the_ring_that_waits_is_taken_before_one_that_has_finished() -> None:
    waits = ring("completed", "scheduled")
    rings = {"nccl2": as_bytes(ring("completed")), "gloo": as_bytes(waits)}
    module = SimpleNamespace(
        _dump_nccl_trace_json=lambda *_: EMPTY,
        _dump_fr_trace_json=lambda _all, _active, name="gloo": rings.get(name, EMPTY),
    )
    text = read_flight_recorder(module)
    assert text is not None
    assert json.loads(text) == json.loads(rings["gloo"])
    rings["gloo"] = EMPTY
    assert read_flight_recorder(module) == rings["nccl2"].decode()


def test_versions_that_know_no_backends_are_read() -> None:
    def old(_all: bool, _active: bool) -> bytes:
        return as_bytes(ring("scheduled"))

    assert read_flight_recorder(SimpleNamespace(_dump_fr_trace_json=old)) is not None
    assert read_flight_recorder(SimpleNamespace(_dump_nccl_trace_json=old)) is not None


def test_a_ring_that_fails_or_is_no_json_does_not_hide_another() -> None:
    def fails(*_: object) -> bytes:
        raise RuntimeError("no process group")

    good = as_bytes(ring("scheduled"))
    for bad in (fails, lambda *_: b"{", lambda *_: b"[1]", lambda *_: None):
        module = SimpleNamespace(
            _dump_nccl_trace_json=bad, _dump_fr_trace_json=lambda *_, good=good: good
        )
        assert read_flight_recorder(module) == good.decode()


@pytest.mark.parametrize("limit", [20_000, 5_000, 2_500])
def test_a_long_ring_is_cut_and_means_the_same(limit: int) -> None:
    job = FlightJob(2, {"0": range(2), "1": range(2)})
    job.call(0, "1", state="completed")
    for state in ("completed",) * 100 + ("scheduled",) + ("completed",) * 100 + ("scheduled",):
        job.call(0, "0", state=state)
    whole = as_bytes(job.dump(0, has_history=True))
    text = read_flight_recorder(SimpleNamespace(_dump_nccl_trace_json=lambda *_: whole), limit)
    assert text is not None
    assert len(text) <= limit < len(whole)
    cut, full = parse_dump(text.encode(), 0), parse_dump(whole, 0)
    assert cut.pending == full.pending
    assert [one.issued for one in cut.frontiers] == [one.issued for one in full.frontiers]


def test_a_ring_that_does_not_fit_at_all_is_left_out() -> None:
    module = SimpleNamespace(_dump_nccl_trace_json=lambda *_: as_bytes(ring("scheduled")))
    assert read_flight_recorder(module, 300) is None


def test_asking_returns_at_once_and_reads_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go, done = threading.Event(), threading.Event()
    found: list[str] = []
    clock = [0.0]

    def slow(*_: object) -> bytes:
        go.wait(WAIT_S)
        return as_bytes(ring("scheduled"))

    def deliver(text: str) -> None:
        found.append(text)
        done.set()

    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_dump_nccl_trace_json=slow))
    dump = FlightDump(deliver, lambda: clock[0])
    assert dump.ask()
    clock[0] = 2 * MIN_INTERVAL_S
    assert not dump.ask()  # it still reads
    assert not found
    readers = [one for one in threading.enumerate() if one.name == "rootwalk-flight"]
    assert [one.daemon for one in readers] == [True]
    go.set()
    assert done.wait(WAIT_S)
    # The thread ends a moment later; until then it counts as one that still reads.
    until_s = time.monotonic() + WAIT_S
    while not dump.ask():
        assert time.monotonic() < until_s
        time.sleep(0.001)
    clock[0] += MIN_INTERVAL_S / 2
    assert not dump.ask()  # too early
    assert len(found) >= 1


def test_what_delivering_raises_stays_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    called = threading.Event()

    def deliver(_: str) -> None:
        called.set()
        raise OSError("no room")

    module = SimpleNamespace(_dump_nccl_trace_json=lambda *_: as_bytes(ring("scheduled")))
    monkeypatch.setitem(sys.modules, MODULE, module)
    assert FlightDump(deliver).ask()
    assert called.wait(WAIT_S)
