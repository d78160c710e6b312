"""Phases with their time in the device's stream, against a stand-in of `torch.cuda`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation import device_marks
from rootwalk.instrumentation.device_hooks import DeviceWatch
from rootwalk.instrumentation.device_marks import PhaseMarks
from rootwalk.instrumentation.ring_layout import pack_duration, unpack_duration
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.shared_ring import RecordKind
from rootwalk.instrumentation.step_spans import SpanBuilder
from rootwalk.instrumentation.tracker import StepTracker
from support.fake_cuda import FakeCuda
from support.rings import Rank
from support.spans import decode_spans

MS = 1_000_000


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def rank(tmp_path: Path, cuda: FakeCuda) -> Iterator[Rank]:
    made = Rank(tmp_path)
    made.tracker.watch_device(PhaseMarks(cuda, made.clock))
    yield made
    made.close()


def phase(rank: Rank, cuda: FakeCuda, name: str, at_ms: int, device_ms: float) -> None:
    """Run a phase of a millisecond that enqueues some work."""
    rank.clock.now_ns = at_ms * MS
    rank.tracker.begin_phase(name)
    cuda.enqueue(device_ms)
    rank.clock.now_ns = (at_ms + 1) * MS
    if name == "optimizer":
        rank.tracker.end_optimizer()
    else:
        rank.tracker.end_phase()


def settle(rank: Rank) -> None:
    marks = rank.tracker.marks
    assert marks is not None
    marks.settle()


def written(rank: Rank) -> list[tuple[str, int | None]]:
    return [
        (record.name or record.kind.name, record.device_ns)
        for record in rank.records()
        if record.kind in (RecordKind.PHASE, RecordKind.STEP)
    ]


def test_phases_wait_for_their_device_and_have_its_time(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "data_load", 10, 0.5)
    phase(rank, cuda, "forward", 11, 30.0)
    phase(rank, cuda, "backward", 12, 60.0)
    settle(rank)
    assert written(rank) == []  # the host is far ahead
    cuda.done = 2
    settle(rank)
    assert written(rank) == [("data_load", 500_000), ("forward", 30 * MS)]
    cuda.catch_up()
    phase(rank, cuda, "optimizer", 13, 4.0)
    phase(rank, cuda, "data_load", 20, 0.0)  # begins the next step, so that the step is written
    cuda.catch_up()
    settle(rank)
    assert written(rank)[2:] == [
        ("backward", 60 * MS),
        ("optimizer", 4 * MS),
        ("STEP", None),
        ("data_load", 1),
    ]


def test_a_derived_forward_lies_between_its_neighbours(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "data_load", 10, 1.0)
    cuda.enqueue(25.0)
    phase(rank, cuda, "backward", 12, 50.0)
    cuda.catch_up()
    settle(rank)
    assert written(rank) == [("data_load", MS), ("forward", 25 * MS), ("backward", 50 * MS)]


def test_events_are_used_again(rank: Rank, cuda: FakeCuda) -> None:
    for step in range(200):
        for number, name in enumerate(("data_load", "backward", "optimizer")):
            phase(rank, cuda, name, 10 * step + number, 3.0 + number)
        cuda.catch_up()
        settle(rank)
    assert cuda.events <= 12
    taken = [(name, ns) for name, ns in written(rank) if name != "STEP"]
    assert len(taken) == 4 * 200
    assert set(taken) == {
        ("data_load", 3 * MS),
        ("forward", 1),
        ("backward", 4 * MS),
        ("optimizer", 5 * MS),
    }


def test_a_device_that_is_stuck_keeps_nothing_back_for_long(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "forward", 10, 5.0)
    rank.clock.now_ns += device_marks.MAX_HELD_NS + 2
    settle(rank)
    assert written(rank) == [("forward", None)]
    for number in range(2 * device_marks.MAX_HELD):
        phase(rank, cuda, "forward", 3000 + number, 5.0)
        settle(rank)
    assert len(written(rank)) >= device_marks.MAX_HELD
    assert cuda.events <= 2 * device_marks.MAX_HELD + 4
    rank.tracker.close()
    assert len([name for name, _ in written(rank) if name == "forward"]) == (
        2 * device_marks.MAX_HELD + 1
    )


def test_nothing_is_asked_while_a_graph_is_captured(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "forward", 10, 5.0)
    cuda.is_capturing = True  # any question would raise now
    phase(rank, cuda, "backward", 12, 5.0)
    settle(rank)
    assert written(rank) == []
    cuda.is_capturing = False
    cuda.catch_up()
    settle(rank)
    assert written(rank) == [("forward", 5 * MS), ("backward", None)]


@pytest.mark.parametrize("when", ["between", "before"])
def test_a_device_that_has_failed_costs_its_times_only(
    rank: Rank, cuda: FakeCuda, when: str
) -> None:
    if when == "between":
        phase(rank, cuda, "forward", 10, 5.0)
    cuda.has_failed = True
    if when == "before":
        phase(rank, cuda, "forward", 10, 5.0)
    phase(rank, cuda, "backward", 12, 5.0)
    settle(rank)
    assert written(rank) == [("forward", None), ("backward", None)]
    marks = rank.tracker.marks
    assert marks is not None
    assert marks.is_broken


def test_what_is_kept_back_is_written_at_the_end(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "forward", 10, 5.0)
    phase(rank, cuda, "optimizer", 12, 5.0)
    cuda.done = 1
    rank.tracker.close()
    assert written(rank) == [("forward", 5 * MS), ("optimizer", None), ("STEP", None)]


def test_the_span_of_a_phase_has_the_time(rank: Rank, cuda: FakeCuda) -> None:
    phase(rank, cuda, "forward", 10, 93.2)
    cuda.catch_up()
    settle(rank)
    (record,) = rank.records()
    (span,) = decode_spans(SpanBuilder(rank.reader.identity, rank.reader.clock).spans([record]))
    found = {item.key: item.value for item in span.attributes}
    assert found["training.device.stream_time"].double_value == pytest.approx(0.0932, rel=1e-5)


class TestRuntime(Runtime):
    """A runtime whose tracker the test made."""

    __test__ = False

    def __init__(self, made: StepTracker | None) -> None:
        super().__init__()
        self._tracker = made


def test_nothing_is_made_before_the_program_uses_the_device(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(tmp_path)
    watch = DeviceWatch(TestRuntime(rank.tracker))
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    watch.look()
    cuda.is_ready = False
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    phase(rank, cuda, "forward", 10, 5.0)
    watch.look()
    assert rank.tracker.marks is None
    assert (cuda.events, cuda.records, cuda.queries) == (0, 0, 0)
    assert written(rank) == [("forward", None)]
    cuda.is_ready = True
    watch.look()
    phase(rank, cuda, "forward", 20, 7.0)
    cuda.catch_up()
    watch.look()
    assert written(rank)[-1] == ("forward", 7 * MS)
    rank.close()


def test_the_user_can_switch_it_off(
    tmp_path: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTWALK_DEVICE_TIMES", "0")
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    rank = Rank(tmp_path)
    DeviceWatch(TestRuntime(rank.tracker)).look()
    assert rank.tracker.marks is None
    rank.close()


@pytest.mark.parametrize("duration_ns", [1, 1000, (1 << 20) - 1, 1 << 20, 41_234_567, 600 * 10**9])
def test_a_duration_is_packed_to_some_millionths(duration_ns: int) -> None:
    packed = pack_duration(duration_ns)
    assert 0 < packed < 1 << 24
    assert unpack_duration(packed) == pytest.approx(duration_ns, rel=4e-6)
    assert unpack_duration(pack_duration(None)) is None
    assert unpack_duration(pack_duration(0)) == 1
