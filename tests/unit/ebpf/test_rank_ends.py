"""How ranks' programs end, as their rings tell it, with real rings and processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.agent_events import AgentEvents, EventOwner
from rootwalk.ebpf.discovery import RankProcess, read_start_ticks
from rootwalk.ebpf.rank_ends import RankEnds
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.readers import Readers
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.ebpf.watched import WatchedRank, WatchedRanks
from rootwalk.instrumentation.ring_layout import COUNTER, START_TICKS_OFFSET
from rootwalk.instrumentation.shared_ring import RingReader, RingWriter
from support.otlp_sink import OtlpSink, attributes, otlp_sink
from support.rings import identity

HOST = EventOwner({"host.name": "h1"})
END, EXCEPTION = "training.process.end", "training.process.exception"


class Bench:
    """A rank whose process is a real one, its ring, and what tells its end."""

    def __init__(self, folder: Path, sink: OtlpSink, *, has_lifecycle: bool) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.who = replace(identity(1), pid=self.process.pid)
        self.ticks = read_start_ticks(self.process.pid)
        self.ring = RingWriter(self.who, folder)
        COUNTER.pack_into(self.ring._map, START_TICKS_OFFSET, self.ticks or 0)
        self.ranks = WatchedRanks(Readers(None, None, []), None)
        self.events = AgentEvents(sink.endpoint, HOST)
        self.ends = RankEnds(has_lifecycle=has_lifecycle)
        self.streams: list[RankStream] = []
        self.sink = sink
        self.unseen: list[float] = []
        self.times: list[int] = []

    def watch(self) -> WatchedRank:
        return self.ranks.watch(RankProcess(self.who, self.ticks or 0))

    def open(self, rank: WatchedRank | None) -> None:
        reader = RingReader(self.ring.path)
        stream = RankStream(reader, None, ProcessDetails().read, WaitDetails(), 1)
        self.streams.append(stream)
        if rank is not None:
            rank.streams.append(stream)

    def look(self) -> list[tuple[str, dict[str, Any]]]:
        """Turn a round; return what was told in it."""
        for stream in self.streams:
            stream.read()
        self.ends.update(self.streams, self.ranks, self.events, self.owner)
        told = len(self.sink.events())
        assert self.events.send()
        new = self.sink.events()[told:]
        assert all(resource["training.rank"] == 1 for resource, _ in new)
        found = [(record.event_name, attributes(record)) for _, record in new]
        self.times = [record.time_unix_nano for _, record in new]
        for _, values in found:
            unseen = values.pop("training.process.unseen_time", None)
            if unseen is not None:
                self.unseen.append(float(str(unseen)))
        return found

    def owner(self, slot: int) -> EventOwner | None:
        rank = self.ranks.find_slot(slot)
        return EventOwner(rank.identity.resource_attributes()) if rank is not None else None

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        self.end()
        for stream in self.streams:
            stream.close()
        self.events.close()


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


@pytest.fixture
def bench(tmp_path: Path, sink: OtlpSink) -> Iterator[Bench]:
    made = Bench(tmp_path, sink, has_lifecycle=False)
    yield made
    made.close()


def end_of(bench: Bench, **more: object) -> tuple[str, dict[str, Any]]:
    return END, {"process.pid": bench.who.pid, "training.process.is_child": False, **more}


def test_an_end_without_bpf_is_told_once(bench: Bench) -> None:
    bench.open(bench.watch())
    assert bench.look() == []
    bench.end()
    assert bench.look() == [end_of(bench, **{"training.process.ran_exit_handlers": False})]
    assert bench.look() == []
    assert len(bench.unseen) == 1  # between two rounds


def test_an_interpreter_that_came_to_its_end_has_closed_its_ring(bench: Bench) -> None:
    bench.open(bench.watch())
    bench.ring.close()
    assert bench.look() == []  # it is still there
    bench.end()
    before_ns = time.time_ns()
    assert bench.look() == [end_of(bench, **{"training.process.ran_exit_handlers": True})]
    assert bench.unseen == []
    assert bench.times[0] < before_ns  # when it said so itself


def test_an_exception_is_told_before_the_end_and_once(bench: Bench) -> None:
    bench.open(bench.watch())
    bench.ring.set_exception(5, "ValueError", ["main (train.py:3)"])
    name, values = bench.look()[0]
    assert name == EXCEPTION
    assert values == {
        "process.pid": bench.who.pid,
        "exception.type": "ValueError",
        "training.stack.frames": ["main (train.py:3)"],
    }
    bench.end()
    assert [name for name, _ in bench.look()] == [END]
    # Another agent that comes later does not tell it again.
    reader = RingReader(bench.ring.path)
    found = reader.exception()
    assert found is not None
    assert found.is_sent
    reader.close()


def test_a_rank_that_was_gone_before_it_was_seen_is_told_by_its_ring(
    bench: Bench, tmp_path: Path
) -> None:
    bench.ring.set_exception(5, "ValueError", [])
    bench.ring.close()
    bench.end()
    bench.open(None)
    assert [name for name, _ in bench.look()] == [EXCEPTION, END]


def test_a_rank_without_a_ring_is_seen_to_be_gone(bench: Bench) -> None:
    bench.watch()
    assert bench.look() == []
    bench.end()
    assert bench.look() == [end_of(bench)]
    assert bench.look() == []
    assert len(bench.unseen) == 1


def test_where_the_lifecycle_program_tells_ends_nothing_is_told_twice(
    tmp_path: Path, sink: OtlpSink
) -> None:
    bench = Bench(tmp_path, sink, has_lifecycle=True)
    bench.open(bench.watch())
    bench.ring.set_exception(5, "ValueError", [])
    bench.end()
    assert [name for name, _ in bench.look()] == [EXCEPTION]
    bench.close()
