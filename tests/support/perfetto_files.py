"""Perfetto traces read by other means than ours: the protobuf classes of PyPI's `perfetto`.

They need a newer protobuf than the product does; where it is older, the tests that read traces are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import __version__ as protobuf_version  # type: ignore[import-untyped]

NEEDED_PROTOBUF = (6, 31)
# What can happen to a track, as the format numbers it.
BEGIN, END, INSTANT = 1, 2, 3


@dataclass
class Drawn:
    """A slice, or an instant, whose end is its start; `depth` is how many slices it is inside."""

    process: str
    track: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    is_instant: bool
    depth: int
    arguments: dict[str, Any]
    arrows_from: list[int]
    arrows_to: list[int]


@dataclass
class Trace:
    """A trace as its reader shows it; `tracks` has the names of each process's, in their order."""

    slices: list[Drawn] = field(default_factory=list)
    tracks: dict[str, list[str]] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)

    def of(self, process: str, track: str = "", category: str = "") -> list[Drawn]:
        """Return the slices of tracks that begin like this, by start."""
        found = [
            s
            for s in self.slices
            if s.process.startswith(process)
            and s.track.startswith(track)
            and category in ("", s.category)
        ]
        return sorted(found, key=lambda s: (s.start_ns, s.depth, s.name))


def read_perfetto(path: Path) -> Trace:
    """Return a trace; fail where its packets are not in the order that readers need."""
    if tuple(map(int, protobuf_version.split(".")[:2])) < NEEDED_PROTOBUF:
        pytest.skip(f"protobuf: saw {protobuf_version}; Perfetto's classes need 6.31")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message

    message = Message()
    message.ParseFromString(path.read_bytes())
    trace = Trace()
    names: dict[int, str] = {}
    keys: dict[int, str] = {}
    categories: dict[int, str] = {}
    processes: dict[int, str] = {}
    tracks: dict[int, tuple[str, str]] = {}
    places: dict[int, tuple[int, int]] = {}
    stacks: dict[int, list[Drawn]] = {}
    pids: set[int] = set()
    last_ns = 0
    for packet in message.packet:
        assert packet.trusted_packet_sequence_id == 1
        trace.clocks |= {c.clock_id: c.timestamp for c in packet.clock_snapshot.clocks}
        names |= {e.iid: e.name for e in packet.interned_data.event_names}
        keys |= {e.iid: e.name for e in packet.interned_data.debug_annotation_names}
        categories |= {e.iid: e.name for e in packet.interned_data.event_categories}
        if packet.HasField("track_descriptor"):
            told = packet.track_descriptor
            if told.HasField("process"):
                assert told.process.pid not in pids
                pids.add(told.process.pid)
                processes[told.uuid] = told.process.process_name
                trace.tracks[told.process.process_name] = []
            else:
                process = processes[told.parent_uuid]
                tracks[told.uuid] = process, told.name
                places[told.uuid] = told.parent_uuid, told.sibling_order_rank
                trace.tracks[process].append(told.name)
        elif packet.HasField("track_event"):
            assert packet.timestamp >= last_ns
            last_ns = packet.timestamp
            event = packet.track_event
            stack = stacks.setdefault(event.track_uuid, [])
            if event.type == END:
                stack.pop().end_ns = packet.timestamp
                continue
            arguments = {
                keys[a.name_iid]: getattr(a, str(a.WhichOneof("value")))
                for a in event.debug_annotations
            }
            item = Drawn(
                *tracks[event.track_uuid],
                names[event.name_iid],
                categories[event.category_iids[0]],
                packet.timestamp,
                packet.timestamp,
                event.type == INSTANT,
                len(stack),
                arguments,
                list(event.flow_ids),
                list(event.terminating_flow_ids),
            )
            trace.slices.append(item)
            if event.type == BEGIN:
                stack.append(item)
    assert not any(stacks.values())
    assert len(set(places.values())) == len(places)
    return trace


def arrows_of(trace: Trace) -> list[tuple[Drawn, Drawn]]:
    """Return where each arrow begins and ends; fail where one has another number of ends, or ends before it begins."""
    starts: dict[int, Drawn] = {}
    pairs: dict[int, tuple[Drawn, Drawn]] = {}
    for item in trace.slices:
        for number in item.arrows_from:
            assert number not in starts
            starts[number] = item
        for number in item.arrows_to:
            # An end that nothing has begun is dropped by the trace processor.
            assert number in starts
            assert number not in pairs
            pairs[number] = starts[number], item
    assert starts.keys() == pairs.keys()
    return list(pairs.values())
