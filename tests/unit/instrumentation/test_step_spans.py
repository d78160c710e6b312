"""One step of all ranks is one trace, and everybody derives the same ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.step_spans import SpanBuilder, ThreadTimes
from rootwalk.instrumentation.tracker import Communicator
from support.rings import Rank, identity

CLOCK = HostClock(offset_ns=1_000_000, error_ns=50)


def one_step(folder: Path, number: int) -> tuple[Rank, SpanBuilder, list[Span]]:
    """Run a step [1000, 1700) with a collective in its backward pass on one rank."""
    rank = Rank(folder, number)
    group = Communicator(rank.tracker, "c0|2|gloo|default_pg")
    rank.phase("forward", 1_000, 1_300)
    rank.clock.now_ns = 1_300
    rank.tracker.begin_phase("backward")
    rank.clock.now_ns = 1_400
    group.begin(0, "all_reduce", 4_096, is_p2p=False)
    rank.clock.now_ns = 1_500
    group.end(0, is_known=True)
    rank.clock.now_ns = 1_600
    rank.tracker.end_phase()
    rank.phase("optimizer", 1_600, 1_700)
    rank.tracker.close()
    builder = SpanBuilder(identity(number), CLOCK)

    def partition(start: int, end: int, is_main: bool) -> ThreadTimes:
        return ThreadTimes("core", end - start - 30, 20, 15, 5, 0, 10 if is_main else None)

    return rank, builder, builder.spans(rank.records(), partition)


def attributes(span: Span) -> dict[str, object]:
    return {
        item.key: getattr(item.value, str(item.value.WhichOneof("value")))
        for item in span.attributes
    }


def test_one_step_is_one_tree(tmp_path: Path) -> None:
    spans = [span for number in (0, 1) for span in one_step(tmp_path, number)[2]]
    assert {span.trace_id for span in spans} == {ids.trace_id("j1", 0, 0)}
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    parents = {
        (span.name, by_id[span.parent_span_id].name if span.parent_span_id else "")
        for span in spans
    }
    assert parents == {
        ("training.step", ""),
        ("training.rank_step", "training.step"),
        ("forward", "training.rank_step"),
        ("backward", "training.rank_step"),
        ("optimizer", "training.rank_step"),
        ("collective.all_reduce", "backward"),
    }


def test_members_link_to_the_same_collective(tmp_path: Path) -> None:
    links = set()
    for number in (0, 1):
        for span in one_step(tmp_path, number)[2]:
            links |= {(link.trace_id, link.span_id) for link in span.links}
    assert len(links) == 1


def test_only_registered_names_leave(tmp_path: Path) -> None:
    kinds = {"str": "string", "int": "int", "float": "double", "bool": "boolean"}
    for span in one_step(tmp_path, 0)[2]:
        name = {
            "training.step": "training.step",
            "training.rank_step": "training.rank_step",
            "collective.all_reduce": "collective",
        }.get(span.name, "training.phase")
        definition = semconv.SPANS[name]
        seen = attributes(span)
        assert definition.required <= seen.keys() <= definition.attributes, span.name
        for key, value in seen.items():
            assert semconv.ATTRIBUTES[key] == kinds[type(value).__name__], key


def test_times_are_unix_and_thread_times_are_seconds(tmp_path: Path) -> None:
    _, _, spans = one_step(tmp_path, 0)
    (forward,) = [span for span in spans if span.name == "forward"]
    assert (forward.start_time_unix_nano, forward.end_time_unix_nano) == (1_001_000, 1_001_300)
    seen = attributes(forward)
    assert seen[semconv.TRAINING_THREAD_RUNNING_TIME] == pytest.approx(270e-9)
    assert seen[semconv.TRAINING_THREAD_RUNNABLE_FOREIGN_TIME] == pytest.approx(15e-9)
    assert seen[semconv.TRAINING_THREAD_SENSOR] == "core"


def test_parent_of_a_moment(tmp_path: Path) -> None:
    _, builder, _ = one_step(tmp_path, 1)
    inside = builder.parent_of(1_350)
    assert inside is not None
    assert (inside.phase, inside.phase_index) == ("backward", 1)
    assert inside.span_id == ids.phase_id("j1", 0, 0, 1, 1)
    assert builder.parent_of(999) is None
    assert builder.parent_of(1_700) is None  # the next step is not closed yet
    assert builder.closed_until_mono_ns() == 1_700
