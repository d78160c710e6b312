"""One step of all ranks is one trace, and everybody derives the same ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.shared_ring import Record, RecordFlag, RecordKind
from rootwalk.instrumentation.step_spans import PartitionReader, SpanBuilder, ThreadTimes
from support.rings import Rank, identity
from support.spans import decode_spans

CLOCK = HostClock(offset_ns=1_000_000, error_ns=50)


@dataclass
class Telling:
    """Tells the first thread's times by a function, and the same of the others for every interval."""

    main_times: Callable[[int, int], ThreadTimes | None]
    of_others: ThreadTimes | None = None

    def others_times(self, intervals: Sequence[tuple[int, int]]) -> list[ThreadTimes | None]:
        """Return the same for each."""
        return [self.of_others] * len(intervals)


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

    partition = Telling(
        lambda start, end: ThreadTimes("core", end - start - 30, 20, 15, 5, 0, 10),
        ThreadTimes("core", None, 20, 15, 5, 0, None),
    )
    return rank, builder, build(builder, rank.records(), partition)


def build(
    builder: SpanBuilder, records: Sequence[Record], partition: PartitionReader | None = None
) -> list[Span]:
    return decode_spans(builder.spans(records, partition))


# Everything, as an agent with BPF and a control group with a limit tells.
KNOWING = Telling(lambda start, end: ThreadTimes("core", 1, 2, 1, 1, 0, 40, 30, end - start, 5))


def phase_record(name: str, index: int, gc_ns: int | None = None) -> Record:
    start = 1_000 + 100 * index
    bounds = (start, start + 100, 0)
    return Record(RecordKind.PHASE, 0, name, *bounds, index, 0, 0, "", "", gc_ns=gc_ns)


def step_record(gc_ns: int | None = None) -> Record:
    return Record(RecordKind.STEP, 0, "", 1_000, 1_700, 0, None, 0, 0, "", "", gc_ns=gc_ns)


def gc_record(start: int, index: int | None, flags: int = 0) -> Record:
    phase = "" if index is None else "backward"
    return Record(RecordKind.GC, flags, "", start, start + 90, 0, index, 2, 0, "", phase)


def program_records() -> list[Record]:
    """A compilation and a step with retries."""
    return [
        Record(RecordKind.COMPILATION, 0, "", 1_310, 1_390, 0, 1, 0, 0, "", "backward"),
        Record(RecordKind.RETRIES, 0, "", 1_000, 1_700, 0, None, 3, 0, "", ""),
    ]


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
    builder = SpanBuilder(identity(), CLOCK)
    records = [gc_record(1_310, 1), phase_record("data_load", 0, 7), step_record(7)]
    told = build(builder, [*records, *program_records()], KNOWING)
    for span in one_step(tmp_path, 0)[2] + told:
        name = {
            "training.step": "training.step",
            "training.rank_step": "training.rank_step",
            "collective.all_reduce": "collective",
            "python.gc": "python.gc",
            "torch.compile": "torch.compile",
            "torch.allocator": "torch.allocator",
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


def test_collection_is_a_child_of_its_phase_or_step() -> None:
    builder = SpanBuilder(identity(1), CLOCK)
    inside, between = build(
        builder, [gc_record(1_350, 1), gc_record(1_250, None, RecordFlag.OTHER_THREAD)]
    )
    assert (inside.name, inside.start_time_unix_nano, inside.end_time_unix_nano) == (
        "python.gc",
        1_001_350,
        1_001_440,
    )
    assert inside.trace_id == ids.trace_id("j1", 0, 0)
    assert inside.parent_span_id == ids.phase_id("j1", 0, 0, 1, 1)
    assert between.parent_span_id == ids.rank_step_id("j1", 0, 0, 1)
    assert inside.span_id != between.span_id
    assert attributes(inside) == {
        semconv.TRAINING_STEP_NUMBER: 0,
        semconv.TRAINING_PHASE: "backward",
        semconv.CPYTHON_GC_GENERATION: 2,
        semconv.TRAINING_THREAD_ROLE: "main",
    }
    assert attributes(between)[semconv.TRAINING_THREAD_ROLE] == "other"
    assert semconv.TRAINING_PHASE not in attributes(between)


def test_collection_time_is_told_where_it_is_known_also_without_an_agent() -> None:
    builder = SpanBuilder(identity(1), CLOCK)
    records = [phase_record("forward", 0, 0), phase_record("backward", 1, 20), step_record(20)]
    seen = [attributes(span).get(semconv.TRAINING_GC_TIME) for span in build(builder, records)]
    assert seen == [0.0, pytest.approx(20e-9), pytest.approx(20e-9)]
    unseen = attributes(build(builder, [step_record(None)])[0])
    assert semconv.TRAINING_GC_TIME not in unseen
    assert semconv.TRAINING_CPU_PROBE_TIME not in unseen


def test_what_the_same_work_took_is_told_of_the_step_that_had_it() -> None:
    record = step_record()._replace(probe_ns=16_400)
    (span,) = build(SpanBuilder(identity(1), CLOCK), [record])
    assert attributes(span)[semconv.TRAINING_CPU_PROBE_TIME] == pytest.approx(16.4e-6)


def test_what_the_agent_knows_is_told_on_the_right_spans() -> None:
    builder = SpanBuilder(identity(1), CLOCK)
    names = ("data_load", "data_load", "forward")
    records = [phase_record(name, index) for index, name in enumerate(names)]
    spans = build(builder, [*records, step_record()], KNOWING)
    wait = semconv.TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME
    running, throttled = (
        semconv.TRAINING_LOADER_RUNNING_TIME,
        semconv.TRAINING_CGROUP_THROTTLED_TIME,
    )
    seen = [
        {
            key: attributes(span)[key]
            for key in (wait, running, throttled)
            if key in attributes(span)
        }
        for span in spans
    ]
    # 30 ns in each data_load phase, 60 ns in the step; the step is 700 ns long
    expected = {wait: 60e-9, running: 700e-9, throttled: 5e-9}
    assert seen == [
        {wait: pytest.approx(30e-9)},
        {wait: pytest.approx(30e-9)},
        {},
        pytest.approx(expected),
    ]


def test_workers_that_waited_for_files_are_told_for_the_step() -> None:
    waited = Telling(
        lambda *_: ThreadTimes("core", 1, 2, 1, 1, 0, 40, 30, 9, blocked_loader_files_ns=20)
    )
    (_, step) = build(
        SpanBuilder(identity(1), CLOCK), [phase_record("data_load", 0), step_record()], waited
    )
    files = semconv.TRAINING_THREAD_BLOCKED_LOADER_FILES_TIME
    assert attributes(step)[files] == pytest.approx(20e-9)


def test_sum_over_phases_of_which_one_is_not_known_is_not_known() -> None:
    """An agent that takes over in the middle of a step has not seen its first phase."""
    wait = semconv.TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME
    builder = SpanBuilder(identity(1), CLOCK)
    (_, first) = build(builder, [phase_record("data_load", 1), step_record()], KNOWING)
    assert wait not in attributes(first)
    # the next one is complete
    (_, second) = build(builder, [phase_record("data_load", 0), step_record()], KNOWING)
    assert attributes(second)[wait] == pytest.approx(30e-9)
    # a part of the interval was lost
    build(builder, [phase_record("data_load", 0)], Telling(lambda *_: None))
    (third,) = build(builder, [step_record()], KNOWING)
    assert wait not in attributes(third)


def test_sensor_that_does_not_follow_workers_tells_nothing_of_them() -> None:
    partition = Telling(lambda *_: ThreadTimes("proc", 1, 2, None, None, None, 4))

    builder = SpanBuilder(identity(1), CLOCK)
    spans = build(builder, [phase_record("data_load", 0), step_record()], partition)
    hidden = {
        semconv.TRAINING_THREAD_BLOCKED_LOADER_RUNNING_TIME,
        semconv.TRAINING_LOADER_RUNNING_TIME,
        semconv.TRAINING_CGROUP_THROTTLED_TIME,
    }
    for span in spans:
        assert not hidden & attributes(span).keys()
