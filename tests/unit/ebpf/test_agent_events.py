"""Events on their way to an endpoint that may be away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rootwalk.ebpf.agent_events import MAX_WAITING, AgentEvents, EventOwner
from rootwalk.ebpf.reader import Occurrence
from support.otlp_sink import OtlpSink, attributes, otlp_sink

HOST = EventOwner({"host.name": "h1"})
END: dict[str, Any] = {"process.pid": 7, "training.process.is_child": False}
RANK = EventOwner({"training.rank": 3}, lambda mono_ns: (b"t" * 16, b"s" * 8))


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    with otlp_sink() as opened:
        yield opened


@pytest.fixture
def events(sink: OtlpSink) -> Iterator[AgentEvents]:
    made = AgentEvents(sink.endpoint, HOST)
    yield made
    made.close()


def happened(text: str, slot: int | None = None, *, is_bad: bool = True) -> Occurrence:
    return Occurrence("training.process.end", 5, text, END, is_bad, slot)


def find_owner(slot: int) -> EventOwner | None:
    return RANK if slot == 1 else None


def test_events_go_to_their_owners_resource(sink: OtlpSink, events: AgentEvents) -> None:
    events.add([happened("a"), happened("b", 1, is_bad=False), happened("c")], find_owner)
    assert events.send()
    told = [(resource, record.body.string_value) for resource, record in sink.events()]
    assert told == [
        ({"host.name": "h1"}, "a"),
        ({"host.name": "h1"}, "c"),
        ({"training.rank": 3}, "b"),
    ]
    _, second, third = (record for _, record in sink.events())
    assert (second.severity_text, third.severity_text) == ("WARN", "INFO")
    assert (second.trace_id, third.trace_id, third.span_id) == (b"", b"t" * 16, b"s" * 8)
    assert second.event_name == "training.process.end"
    assert attributes(second) == END
    assert 0 < second.time_unix_nano < second.observed_time_unix_nano


def test_what_belongs_to_another_agent_is_not_sent(sink: OtlpSink, events: AgentEvents) -> None:
    events.add([happened("a", 2)], find_owner)
    assert events.send()
    assert sink.logs == []


def test_an_endpoint_that_is_away_loses_nothing(sink: OtlpSink, events: AgentEvents) -> None:
    sink.status = 503
    events.add([happened("a")], find_owner)
    assert not events.send()
    assert not events.send()  # waits before it tries again
    sink.status = 200
    events.add([happened("b")], find_owner)
    while not events.send():
        pass
    assert [record.body.string_value for _, record in sink.events()] == ["a", "b"]
    assert (events.dropped, events.refused) == (0, 0)


def test_a_queue_that_is_full_keeps_the_oldest_and_counts(
    sink: OtlpSink, events: AgentEvents
) -> None:
    sink.status = 503
    events.add([happened(str(n)) for n in range(MAX_WAITING + 7)], find_owner)
    events.send()
    assert events.dropped == 7
    sink.status = 200
    while not events.send():
        pass
    texts = [record.body.string_value for _, record in sink.events()]
    assert texts == [str(n) for n in range(MAX_WAITING)]


def test_refused_for_good_is_counted(sink: OtlpSink, events: AgentEvents) -> None:
    sink.status = 400
    events.add([happened("a"), happened("b")], find_owner)
    assert events.send()
    assert events.refused == 2
    assert events.send()


def test_nothing_to_send_is_no_request(sink: OtlpSink, events: AgentEvents) -> None:
    assert events.send()
    assert sink.headers == []
