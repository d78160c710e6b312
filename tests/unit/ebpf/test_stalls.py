"""Stall spans: merged, filtered, under the phase that they delayed.

us   0     1000        5000        9000
     |------|--forward--|--backward--|     step 0 of rank 0, one phase index each
"""

from __future__ import annotations

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.ebpf.events import EventFlag, Runner, RunnerKind, SchedEvent, ThreadState
from rootwalk.ebpf.stalls import StallCollector
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import ids
from rootwalk.instrumentation.clock import HostClock
from rootwalk.instrumentation.shared_ring import Record, RecordKind
from rootwalk.instrumentation.step_spans import SpanBuilder
from support.otlp_sink import attributes
from support.rings import identity
from support.spans import decode_spans

US = 1_000
HOG, OTHER = (
    Runner(4411, RunnerKind.FOREIGN, 2_000 * US, "hog"),
    Runner(812, RunnerKind.FOREIGN, 500 * US, "sshd"),
)


def phase(name: str, start_us: int, end_us: int, index: int) -> Record:
    return Record(RecordKind.PHASE, 0, name, start_us * US, end_us * US, 0, index, 0, 0, "", "")


def close_step(builder: SpanBuilder) -> None:
    step = Record(RecordKind.STEP, 0, "", 0, 9_000 * US, 0, None, 0, 0, "", "")
    builder.spans([phase("forward", 1_000, 5_000, 0), phase("backward", 5_000, 9_000, 1), step])


def wait(
    start_us: int,
    end_us: int,
    *runners: Runner,
    state: ThreadState = ThreadState.RUNNABLE,
    flags: int = EventFlag.LEADER,
    name: str = "python",
    tid: int = 1000,
) -> SchedEvent:
    return SchedEvent(
        start_us * US, end_us * US, tid, 1000, 1, 2, state, flags, name, (0, 0, 0, 0), runners
    )


@pytest.fixture
def builder() -> SpanBuilder:
    return SpanBuilder(identity(0), HostClock(offset_ns=0, error_ns=0))


@pytest.fixture
def collector(builder: SpanBuilder) -> StallCollector:
    return StallCollector(
        builder, "core", lambda pid: (None, "/noisy" if pid == 4411 else None), WaitDetails()
    )


def spans_of(collector: StallCollector, builder: SpanBuilder, *events: SchedEvent) -> list[Span]:
    for event in events:
        collector.add(event)
    close_step(builder)
    return decode_spans(collector.spans())


def test_stall_under_its_phase_with_its_aggressor(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    (span,) = spans_of(collector, builder, wait(1_500, 4_000, OTHER, HOG))
    assert span.name == "stall.runnable"
    assert span.parent_span_id == ids.phase_id("j1", 0, 0, 0, 0)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_500 * US, 4_000 * US)
    values = attributes(span)
    assert values["training.phase"] == "forward"
    assert values["training.aggressor.pid"] == 4411
    assert values["training.aggressor.name"] == "hog"
    assert values["training.aggressor.cgroup"] == "/noisy"
    assert values["training.aggressor.kind"] == "process"
    assert values["training.aggressor.time"] == pytest.approx(0.002)
    assert values["training.aggressor.pids"] == [4411, 812]
    assert values["training.aggressor.times"] == pytest.approx([0.002, 0.0005])


def test_threads_of_the_same_rank_that_ran_instead_are_told(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    own = [
        Runner(1000, RunnerKind.OWN, ran_us * US, name, tid)
        for ran_us, name, tid in (
            (300, "pt_autograd_0", 1001),
            (900, "OMP", 1002),
            (700, "pt_autograd_0", 1001),
        )
    ]
    (span,) = spans_of(collector, builder, wait(1_500, 4_000, *own))
    values = attributes(span)
    assert values["training.aggressor.kind"] == "own"
    assert values["training.aggressor.threads"] == 2
    assert values["training.aggressor.thread.id"] == 1001
    assert values["training.aggressor.thread.name"] == "pt_autograd_0"
    assert values["training.aggressor.thread.time"] == pytest.approx(0.001)


def test_moving_to_another_cpu_is_one_stall(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    pieces = (wait(5_100, 5_700, HOG), wait(5_700, 6_300, HOG))
    (span,) = spans_of(collector, builder, *pieces)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (5_100 * US, 6_300 * US)
    assert attributes(span)["training.aggressor.times"] == pytest.approx([0.004])


def test_short_waits_are_not_stalls(collector: StallCollector, builder: SpanBuilder) -> None:
    assert spans_of(collector, builder, wait(1_500, 2_499, HOG)) == []


def test_the_longest_of_each_sort_are_told_where_detail_is_lowered(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    collector.max_per_step = 2
    waits = [
        wait(start, start + length, HOG)
        for start, length in ((1_000, 1_100), (3_000, 1_300), (5_000, 1_200))
    ]
    blocked = wait(6_500, 8_900, state=ThreadState.BLOCKED)
    spans = spans_of(collector, builder, *waits, blocked)
    starts = {(span.name, span.start_time_unix_nano // US) for span in spans}
    assert starts == {
        ("stall.runnable", 3_000),
        ("stall.runnable", 5_000),
        ("stall.blocked", 6_500),
    }


def test_stalls_wait_for_their_step(collector: StallCollector, builder: SpanBuilder) -> None:
    collector.add(wait(1_500, 4_000, HOG))
    collector.add(wait(6_000, 8_000, HOG))
    assert collector.spans() == []
    close_step(builder)
    assert len(collector.spans()) == 2
    assert collector.spans() == []


@pytest.mark.parametrize(
    ("flags", "name", "state", "count"),
    [
        (EventFlag.LEADER, "python", ThreadState.BLOCKED, 1),
        (EventFlag.LEADER, "python", ThreadState.STOPPED, 1),
        (0, "pt_gloo_runloop", ThreadState.RUNNABLE, 1),
        (0, "some_thread", ThreadState.RUNNABLE, 0),
        (EventFlag.INHERITED | EventFlag.LEADER, "python", ThreadState.RUNNABLE, 1),
        (EventFlag.INHERITED | EventFlag.LEADER, "python", ThreadState.BLOCKED, 0),
    ],
)
def test_which_threads_count(
    collector: StallCollector,
    builder: SpanBuilder,
    flags: int,
    name: str,
    state: ThreadState,
    count: int,
) -> None:
    event = wait(1_500, 4_000, flags=flags, name=name, state=state)
    assert len(spans_of(collector, builder, event)) == count


def test_idle_cpu_is_an_aggressor_without_process(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    idle = Runner(0, RunnerKind.IDLE, 2_000 * US, "swapper/2")
    values = attributes(spans_of(collector, builder, wait(1_500, 4_000, idle))[0])
    assert values["training.aggressor.kind"] == "idle"
    assert "training.aggressor.pid" not in values
    assert "training.aggressor.pids" not in values


def test_names_that_somebody_gave_a_thread_do_not_leave(
    collector: StallCollector, builder: SpanBuilder
) -> None:
    own = Runner(1000, RunnerKind.OWN, 2_000 * US, "alice-upload")  # its process is gone
    (span,) = spans_of(collector, builder, wait(1_500, 4_000, own, name="sk-live-4eC39"))
    values = attributes(span)
    assert str(values["thread.name"]).startswith("thread-")
    assert str(values["training.aggressor.name"]).startswith("thread-")
    assert "alice" not in str(span)
    assert "sk-live" not in str(span)
