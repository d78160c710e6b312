"""The path through a step of a profile: made traces of known seconds, near misses, and any trace at all."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.graph.importers.formats import BrokenPart
from rootwalk.graph.importers.kineto_device import FULL_QUEUE_LAUNCHES, build_device_graph
from rootwalk.graph.importers.kineto_json import TraceFile
from rootwalk.graph.importers.kineto_path import MAX_OPERATIONS, StepPath, walk_steps
from rootwalk.graph.importers.kineto_profile import Profile
from rootwalk.graph.importers.kineto_steps import find_main_thread, measure_steps, sort_steps
from support.device_traces import (
    AUTOGRAD,
    COMMUNICATION,
    NCCL,
    DeviceTrace,
    TrainedJob,
    job_events,
)
from support.examples import examples
from support.profiles import START_MS, Event

PUBLIC = Path(__file__).parents[2] / "data" / "kineto"
MS = 1_000_000


def profile_of(events: list[Event]) -> Profile:
    profile = Profile()
    for one in events:
        # As the parser of a file gives numbers.
        times = {key: Decimal(str(one[key])) for key in ("ts", "dur")}
        profile.add({**one, **times})
    return profile


def walk_profile(profile: Profile, *, is_whole: bool = True) -> list[tuple[int, StepPath | None]]:
    """Return the length and the path of every step, its parts checked against its length."""
    thread = find_main_thread(profile)
    marks = [m for m in sort_steps(profile.steps[thread]) if not isinstance(m, BrokenPart)]
    steps = measure_steps(profile, thread, marks, is_whole=is_whole)
    result = []
    for step, path in zip(steps, walk_steps(profile, thread, steps), strict=True):
        length = step.mark.end_ns - step.mark.start_ns
        if path is not None:
            assert sum(path.ns_by_kind.values()) == length
            assert min(path.ns_by_kind.values()) >= 0
            assert len(path.operations) <= MAX_OPERATIONS
            for one in path.operations:
                assert 0 < one.path_ns <= path.ns_by_kind[one.kind]
                assert one.start_ns < one.end_ns
        result.append((length, path))
    return result


def paths_of(trace: DeviceTrace | list[Event]) -> list[StepPath | None]:
    events = trace.events if isinstance(trace, DeviceTrace) else trace
    return [path for _, path in walk_profile(profile_of(events))]


def kinds_of(trace: DeviceTrace) -> dict[str, float]:
    """Return the milliseconds of each kind that the only step of a trace has."""
    (path,) = paths_of(trace)
    assert path is not None
    return {str(kind): ns / MS for kind, ns in path.ns_by_kind.items() if ns}


def names_of(trace: DeviceTrace) -> list[tuple[str, str, float]]:
    (path,) = paths_of(trace)
    assert path is not None
    return [(str(one.kind), one.name, one.path_ns / MS) for one in path.operations]


def test_a_stream_behind_a_slow_launch_runs_dry_and_the_gap_is_the_hosts() -> None:
    # host     |A|------- aten::nonzero -------|B|          |sync|
    # stream 7 |-- A 10 --|      20 dry         |-- B 10 ---|
    trace = DeviceTrace()
    trace.step(1, 0.0, 40.0)
    trace.launch("A", 0.0, 0.0, 10.0)
    trace.operator("aten::nonzero", 2.0, 28.0)
    trace.launch("B", 29.99, 30.0, 40.0)
    trace.synchronize(31.0, 40.0)
    # A hides behind the host's own way to the launch of B: a faster A would change nothing.
    assert kinds_of(trace) == {"computation": 10.0, "launch_gap": 20.0, "host": 10.0}
    assert names_of(trace)[:3] == [
        ("launch_gap", "aten::nonzero", 18.0),
        ("computation", "B", 10.0),
        ("host", "aten::nonzero", 8.0),
    ]
    assert not any(name == "A" for _, name, _ in names_of(trace))


def test_a_gap_before_what_was_launched_in_time_is_not_the_hosts() -> None:
    # Both are launched at once; 5 ms pass between them on the device.
    trace = DeviceTrace()
    trace.step(1, 0.0, 25.0)
    trace.launch("A", 0.0, 0.0, 10.0)
    trace.launch("B", 0.1, 15.0, 25.0)
    trace.synchronize(0.2, 25.0)
    assert kinds_of(trace) == {"computation": 20.0, "queued": 5.0}


def test_a_collective_that_hides_behind_computation_is_not_on_the_path() -> None:
    # stream 7  |----- A 20 -----|- B 5 -|         B waits for the collective too, which ended before A
    # stream 20 |-- nccl 12 --|
    trace = DeviceTrace()
    trace.step(1, 0.0, 25.0)
    trace.launch("A", 0.0, 0.0, 20.0)
    trace.launch(NCCL, 0.1, 0.1, 12.0, stream=COMMUNICATION)
    trace.stream_waits(0.3, 7, COMMUNICATION, 0.2)
    trace.launch("B", 0.4, 20.0, 25.0)
    trace.synchronize(0.5, 25.0)
    assert kinds_of(trace) == {"computation": 25.0}
    assert [name for _, name, _ in names_of(trace)] == ["A", "B"]


@pytest.mark.parametrize("is_told", [True, False])
def test_an_exposed_collective_is_on_the_path_where_the_trace_tells_who_waits(
    is_told: bool,
) -> None:
    # stream 7  |- A 10 -|                 |- B 5 -|
    # stream 20          |--- nccl 20 -----|
    trace = DeviceTrace()
    trace.step(1, 0.0, 35.0)
    trace.launch("A", 0.0, 0.0, 10.0)
    if is_told:
        trace.stream_waits(0.11, COMMUNICATION, 7, 0.1)
    trace.launch(NCCL, 0.2, 10.0, 30.0, stream=COMMUNICATION)
    if is_told:
        trace.stream_waits(0.31, 7, COMMUNICATION, 0.3)
    trace.launch("B", 0.4, 30.0, 35.0)
    trace.synchronize(0.5, 35.0)
    if is_told:
        assert kinds_of(trace) == {"computation": 15.0, "collective": 20.0}
    else:
        # The collective ran meanwhile; that B waited for it is not told, so it is not said.
        assert kinds_of(trace) == {"computation": 15.0, "unknown": 20.0}
        assert names_of(trace)[0] == ("unknown", NCCL, 20.0)


def test_a_call_waits_for_what_it_names_and_not_for_another_stream() -> None:
    # sync of stream 7 returns at 10; stream 20 ended at 9.9, unasked.
    trace = DeviceTrace()
    trace.step(1, 0.0, 12.0)
    trace.launch("A", 0.0, 0.0, 9.5)
    trace.launch(NCCL, 0.1, 0.1, 9.9, stream=COMMUNICATION)
    trace.synchronize(0.5, 10.0, kind="Stream Sync", stream=7)
    trace.operator("aten::item", 10.0, 12.0)
    # From 9.5 on the device works beside the host, then it is dry.
    assert kinds_of(trace) == {"computation": 9.5, "host": 0.4, "launch_gap": 2.1}


def test_a_call_that_waits_for_an_event_waits_for_what_was_before_it() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 12.0)
    trace.launch("A", 0.0, 0.0, 5.0)
    trace.correlation += 1
    record = trace.correlation
    trace.events.append(
        {
            **trace.events[1],
            "name": "cudaEventRecord",
            "ts": (START_MS + 0.1) * 1000,
            "args": {"correlation": record},
        }
    )
    trace.launch("B", 0.2, 5.0, 12.0)
    told = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": record, "stream": -1}
    trace.synchronize(0.5, 5.0, name="cudaEventSynchronize", kind="Event Sync", **told)
    assert kinds_of(trace) == {"computation": 5.0, "host": 7.0}


def test_the_longer_kernel_is_named_first_and_one_off_the_path_is_not() -> None:
    def trace_of(product: float, beside: float) -> DeviceTrace:
        trace = DeviceTrace()
        trace.step(1, 0.0, product + 6.0)
        trace.launch("gemm", 0.0, 0.0, product)
        trace.launch("beside", 0.05, 0.1, 0.1 + beside, stream=9)
        trace.launch("norm", 0.1, product, product + 6.0)
        trace.synchronize(0.2, product + 6.0, kind="Stream Sync", stream=7)
        return trace

    assert [name for _, name, _ in names_of(trace_of(5.0, 1.0))] == ["norm", "gemm"]
    assert [name for _, name, _ in names_of(trace_of(10.0, 1.0))] == ["gemm", "norm"]
    # Longer than both, in a stream that nobody waits for.
    assert [name for _, name, _ in names_of(trace_of(5.0, 30.0))] == ["norm", "gemm"]


def test_data_loading_on_the_path_is_input() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 40.0)
    trace.load(0.0, 30.0)
    trace.launch("A", 30.0, 30.005, 40.0)
    trace.synchronize(31.0, 40.0)
    # The call returns 5 us after the kernel has begun.
    assert kinds_of(trace) == {"input": 30.0, "launch_gap": 0.005, "computation": 9.995}


def test_a_copy_that_blocks_is_waited_for() -> None:
    # The copy is asked for at 2 and done behind A; the call returns when it is.
    trace = DeviceTrace()
    trace.step(1, 0.0, 12.0)
    trace.launch("A", 0.0, 0.0, 10.0)
    trace.launch("Memcpy DtoH (Device -> Pageable)", 2.0, 10.0, 11.0, call_ms=9.5)
    trace.operator("aten::item", 2.0, 12.0)
    assert kinds_of(trace) == {"computation": 10.0, "copy": 1.0, "launch_gap": 1.0}


def test_an_operation_that_does_not_begin_although_its_stream_is_empty_waits_untold() -> None:
    # B is launched at 1 into an empty stream and begins at 20, when A has ended on another.
    trace = DeviceTrace()
    trace.step(1, 0.0, 25.0)
    trace.launch("A", 0.0, 0.0, 20.0)
    trace.launch("B", 1.0, 20.0, 25.0, stream=9)
    trace.synchronize(2.0, 25.0)
    kinds = kinds_of(trace)
    assert kinds == {"computation": 5.0, "unknown": 18.99, "host": 1.01}
    assert names_of(trace)[0] == ("unknown", "A", 18.99)


def test_a_launch_for_which_the_queue_has_no_room_waits_for_the_device() -> None:
    # Kernels of 100 us, launched every 10 us: from 1,000 on each launch takes as long as a kernel.
    trace = DeviceTrace()
    count, call, start = FULL_QUEUE_LAUNCHES + 200, 0.0, 0.0
    for index in range(count):
        length = 0.1 if index > FULL_QUEUE_LAUNCHES * 10 // 9 else 0.01
        trace.launch(f"k{index % 2}", call, start, start + 0.1, call_ms=length)
        call, start = call + length, start + 0.1
    trace.step(1, 0.0, call)
    kinds = kinds_of(trace)
    assert kinds["computation"] > 0.95 * call
    # With room the same launches are the host's own way.
    short = DeviceTrace()
    for index in range(500):
        short.launch("k", index * 0.03, index * 0.1, index * 0.1 + 0.1, call_ms=0.03)
    short.step(1, 0.0, 15.0)
    assert kinds_of(short) == {"host": 15.0}


def test_backward_s_launches_are_of_the_same_host() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 20.0)
    grad = "autograd::engine::evaluate_function: MmBackward0"
    trace.operator(grad, 0.0, 9.0, AUTOGRAD)
    trace.launch("A", 0.0, 0.0, 5.0, tid=AUTOGRAD)
    trace.synchronize(1.0, 5.0, tid=AUTOGRAD)
    trace.launch("B", 8.99, 9.0, 20.0, tid=AUTOGRAD)
    trace.synchronize(10.0, 20.0)
    # What autograd's thread waits for, the main thread waits for too.
    assert kinds_of(trace) == {"computation": 16.0, "launch_gap": 4.0}
    assert ("launch_gap", grad, 4.0) in names_of(trace)


def test_without_the_call_that_launched_it_a_gap_is_nobodys() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 20.0)
    trace.launch("A", 0.0, 0.0, 5.0)
    trace.launch("B", 0.1, 10.0, 20.0, is_told=False)
    trace.synchronize(0.2, 20.0)
    assert kinds_of(trace) == {"computation": 15.0, "unknown": 5.0}


def test_kernels_that_overlap_in_one_stream_are_counted_once() -> None:
    # |------ A 10 ------|        B lies within A, C begins 2 after A's end
    #     |- B 3 -|          |- C 5 -|
    trace = DeviceTrace()
    trace.step(1, 0.0, 17.0)
    trace.launch("A", 0.0, 0.0, 10.0)
    trace.launch("B", 0.1, 2.0, 5.0)
    trace.launch("C", 0.2, 12.0, 17.0)
    trace.synchronize(0.3, 17.0)
    assert kinds_of(trace) == {"computation": 15.0, "queued": 2.0}
    assert names_of(trace) == [
        ("computation", "A", 7.0),
        ("computation", "C", 5.0),
        ("computation", "B", 3.0),
    ]


def test_microseconds_and_clocks_that_differ_a_little_change_little() -> None:
    # The kernel seems to end 3 us after the call that waited for it, and the next to begin 1 us before the end.
    trace = DeviceTrace()
    trace.step(1, 0.0, 30.0)
    trace.launch("A", 0.0, 0.0, 10.001)
    trace.launch("B", 0.1, 10.0, 30.003)
    trace.synchronize(0.2, 30.0)
    assert kinds_of(trace) == {"computation": 30.0}


def test_what_a_step_before_left_to_the_device_is_cut_at_the_step() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 10.0)
    trace.launch("A", 1.0, 1.0, 25.0)
    trace.step(2, 10.0, 40.0)
    trace.launch("B", 11.0, 25.0, 40.0)
    trace.synchronize(12.0, 40.0)
    first, second = paths_of(trace)
    assert first is not None
    assert second is not None
    # The first step ends on the host, which does not wait.
    assert {str(k): ns / MS for k, ns in first.ns_by_kind.items() if ns} == {
        "host": 9.0,
        "launch_gap": 1.0,
    }
    assert {str(k): ns / MS for k, ns in second.ns_by_kind.items() if ns} == {"computation": 30.0}


def test_a_step_without_a_kernel_is_the_hosts_and_a_profile_without_one_has_no_path() -> None:
    trace = DeviceTrace()
    trace.step(1, 0.0, 10.0)
    trace.launch("A", 1.0, 1.0, 5.0)
    trace.step(2, 10.0, 20.0)
    trace.operator("aten::add", 11.0, 12.0)
    _, second = paths_of(trace)
    assert second is not None
    assert {str(k): ns / MS for k, ns in second.ns_by_kind.items() if ns} == {"launch_gap": 10.0}
    empty = DeviceTrace()
    empty.step(1, 0.0, 10.0)
    empty.operator("aten::add", 1.0, 2.0)
    empty.synchronize(3.0, 4.0)
    assert paths_of(empty) == [None]


def test_a_profile_that_was_cut_off_has_no_path() -> None:
    profile = profile_of(job_events(TrainedJob(), 0))
    assert [path for _, path in walk_profile(profile, is_whole=False)] == [None] * 6


def test_a_job_of_two_ranks_shows_on_each_what_it_waits_for() -> None:
    # Rank 1's products take 10 ms and not 5: rank 0 waits 20 ms for it in the collective.
    job = TrainedJob(gemms_ms=(5.0, 10.0))
    found = []
    for rank in (0, 1):
        *_, path = paths_of(job_events(job, rank))
        assert path is not None
        found.append({str(k): ns / MS for k, ns in path.ns_by_kind.items() if ns})
    usual = {"input": 2.0}
    assert found == [
        {"computation": 24.0, "collective": 23.0, **usual},
        {"computation": 44.0, "collective": 3.0, **usual},
    ]


def test_a_host_that_pauses_in_a_job_is_charged_the_pause() -> None:
    # 50 ms pass on the host from 2.3 on; the device has 15 ms of work until 17, and is dry until 52.3.
    job = TrainedJob(gemms_ms=(5.0, 5.0), pauses_ms=(0.0, 50.0))
    path = paths_of(job_events(job, 1))[0]
    assert path is not None
    times = {str(k): ns / MS for k, ns in path.ns_by_kind.items() if ns}
    assert times["launch_gap"] == pytest.approx(52.3 - 17.0)
    assert times["host"] == pytest.approx(15.0)
    assert path.operations[0].name == "aten::nonzero"


NAMES = st.sampled_from(["gemm", "norm", NCCL, "Memcpy HtoD"])
TIMES = st.integers(0, 400)


@st.composite
def traces(draw: st.DrawFn) -> DeviceTrace:
    """Any calls and operations, also such as cannot be."""
    trace = DeviceTrace()
    for _ in range(draw(st.integers(1, 12))):
        call, start, length = draw(TIMES) / 8, draw(TIMES) / 8, draw(st.integers(0, 80)) / 8
        trace.launch(
            draw(NAMES),
            call,
            start,
            start + length,
            stream=draw(st.sampled_from([7, 20])),
            tid=draw(st.sampled_from([100, 101])),
            call_ms=draw(st.integers(0, 40)) / 8,
            is_told=draw(st.booleans()),
        )
    for _ in range(draw(st.integers(0, 5))):
        start, length = draw(TIMES) / 8, draw(st.integers(0, 80)) / 8
        told: dict[str, Any] = {"kind": "Stream Sync", "stream": 7} if draw(st.booleans()) else {}
        trace.synchronize(start, start + length, **told)
    for _ in range(draw(st.integers(0, 4))):
        streams = draw(st.permutations([7, 20]))
        trace.stream_waits(draw(TIMES) / 8, streams[0], streams[1], draw(TIMES) / 8)
    for _ in range(draw(st.integers(0, 4))):
        start, length = draw(TIMES) / 8, draw(st.integers(0, 80)) / 8
        trace.operator("aten::add", start, start + length, draw(st.sampled_from([100, 101])))
        trace.load(start, start + length / 2)
    bounds = sorted(draw(st.sets(TIMES, min_size=2, max_size=4)))
    for number, (low, high) in enumerate(pairwise(bounds)):
        trace.step(number, low / 8, high / 8)
    return trace


@examples(3)
@given(traces())
def test_the_parts_of_any_path_add_up_to_the_step(trace: DeviceTrace) -> None:
    walk_profile(profile_of(trace.events))


@given(traces(), st.randoms(use_true_random=False))
def test_the_order_of_events_changes_nothing(trace: DeviceTrace, random: Any) -> None:
    first = walk_profile(profile_of(trace.events))
    random.shuffle(trace.events)
    again = walk_profile(profile_of(trace.events))
    assert [path and path.ns_by_kind for _, path in again] == [
        path and path.ns_by_kind for _, path in first
    ]


# Of the public pair, ms: the path of all six steps. The files here are without calls that wait and that copy; all of
# the loading is on it, as the host never waits.
PUBLIC_MS = {
    "num_workers_0-worker0.pt.trace.json.gz": {"input": 415.8, "launch_gap": 105.8, "host": 527.4},
    "num_workers_4-worker0.pt.trace.json.gz": {"input": 8.5, "launch_gap": 224.3, "host": 605.4},
}


@pytest.mark.parametrize("name", PUBLIC_MS)
def test_the_public_pair_has_the_times_that_are_known(name: str) -> None:
    file, profile = TraceFile(PUBLIC / name), Profile()
    assert not [part for part in file.read(profile.add) if isinstance(part, BrokenPart)]
    sums: dict[str, float] = {}
    for _, path in walk_profile(profile, is_whole=file.is_whole):
        assert path is not None
        for kind, ns in path.ns_by_kind.items():
            if ns:
                sums[str(kind)] = sums.get(str(kind), 0.0) + ns / MS
    assert sums == pytest.approx(PUBLIC_MS[name], abs=0.1)


def test_every_operation_has_a_stream_and_one_chain() -> None:
    profile = profile_of(job_events(TrainedJob(), 0))
    graph = build_device_graph(profile, {find_main_thread(profile)})
    assert len(graph.name) == 36
    assert (graph.chain <= range(36)).all()
    # Each step's collective and update wait for another stream; its first product finds a dry one.
    assert (graph.is_told.sum(), graph.is_dry.sum()) == (12, 6)
    assert len(graph.waits.end_ns) == 6
