"""PyTorch profiles: what is read of whole ones, and what is said of broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.importers.formats import BrokenPart, ImportOptions, Note, load_importer
from rootwalk.instrumentation.errors import DecodeError
from support.profiles import (
    BASE_NS,
    ELEMENTS,
    START_MS,
    TRANSFER_MS,
    Event,
    MadeProfile,
    document,
    event,
    events_of,
    read_profile,
    without_steps,
    write_profile,
)

MS = 1_000_000


def spans_of(path: Path, *, paths: bool = False) -> list[dict[str, Any]]:
    """Return name, start and end in ms from the base, and attributes of every span of a profile without a fault.

    `paths` takes those of the steps' paths, which have tests of their own; else all others.
    """
    requests, broken = read_profile(path)
    assert not broken
    result = []
    for request in requests:
        message = ExportTraceServiceRequest.FromString(request.body)
        spans = message.resource_spans[0].scope_spans[0].spans
        assert request.records == len(spans)
        for span in spans:
            if span.name.startswith("training.device.") != paths:
                continue
            values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
            result.append(
                {
                    "name": span.name,
                    "start": (span.start_time_unix_nano - BASE_NS) / MS - START_MS,
                    "end": (span.end_time_unix_nano - BASE_NS) / MS - START_MS,
                    **values,
                }
            )
    return result


def resource_of(path: Path) -> dict[str, Any]:
    (request, *_), _ = read_profile(path)
    message = ExportTraceServiceRequest.FromString(request.body)
    attributes = message.resource_spans[0].resource.attributes
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def broken_of(path: Path) -> list[tuple[str, str]]:
    return [(part.place, str(part.error)) for part in read_profile(path)[1]]


def test_a_step_has_its_phases_and_the_seconds_of_device_and_operators(tmp_path: Path) -> None:
    # Step 11: |-- load 40 --|-- forward 20 --|-- backward 40 (20 on the host) --| 5 |-- optimizer 10 --|
    # device:  |10| idle 30   |------------ 60 -----------------------------------| 5 |------- 10 -------|10 -> step 12
    path = write_profile(tmp_path / "p.json", MadeProfile(loads_ms=(40.0,), busy_ms=10.0))
    spans = [span for span in spans_of(path) if span.get("training.step.number") == 11]
    names = [(span["name"], span["start"] - 115.0, span["end"] - 115.0) for span in spans]
    assert names == [
        ("training.step", 0.0, 115.0),
        ("training.rank_step", 0.0, 115.0),
        ("data_load", 0.0, 40.0),
        ("backward", 60.0, 80.0),
        ("optimizer", 105.0, 115.0),
    ]
    step, load = spans[1], spans[2]
    # 10 + 60 + 10; the kernel that goes on into the next step began in this one.
    assert step["training.device.busy_time"] == pytest.approx(0.080)
    assert step["training.device.kernel_time"] == pytest.approx(0.080)
    assert step["training.operator.time"] == pytest.approx(0.020 + 0.010 + 0.005)
    assert step["training.step.outcome"] == "complete"
    assert load["training.device.busy_time"] == pytest.approx(0.010)
    assert load["training.operator.time"] == pytest.approx(0.020)
    assert load["training.loader.is_own"] is True


def test_a_step_says_how_it_kept_the_device_from_computing(tmp_path: Path) -> None:
    # Two ranks load 5 ms each: load 5 | forward 20 | backward 40 | transfer 5 | optimizer 10; kernels but in the load.
    # Of the collective's kernel the last 5 ms have the device alone; a call waits for the device for 4 ms of them.
    made = MadeProfile(loads_ms=(5.0, 5.0))
    sync = event("cuda_runtime", "cudaStreamSynchronize", 80.0 + 66.0, 4.0, correlation=9)
    # 3 ms of operators between two forward kernels that are not there.
    events = [one for one in events_of(made) if one["args"].get("correlation") != 11_000_001]
    path = write_profile(tmp_path / "p.json", made, [*events, sync])
    (step,) = [
        span
        for span in spans_of(path)
        if (span["name"], span.get("training.step.number")) == ("training.rank_step", 11)
    ]
    assert step["training.device.communication_time"] == pytest.approx(0.005)
    assert step["training.device.exposed_time"] == pytest.approx(0.005)
    assert step["training.device.synchronize_time"] == pytest.approx(0.004)
    assert step["training.device.launch_gap_time"] == pytest.approx(0.0025)
    assert step["training.device.queued_time"] == 0.0


@pytest.mark.parametrize(
    ("returned_ms", "queued_s"),
    [(0.0, 0.005), (-2.0, 0.005), (0.01, 0.0), (3.0, 0.0), (None, 0.0)],
    ids=["as the gap began", "before", "in the gap", "late in it", "not told"],
)
def test_a_gap_is_the_hosts_only_where_the_stream_ran_dry(
    tmp_path: Path, returned_ms: float | None, queued_s: float
) -> None:
    # Forward of step 11 is 4 kernels of 5 ms, each with 2.5 ms of operators; of the second nothing ran.
    made = MadeProfile(loads_ms=(5.0,))
    gap_ms = made.step_ms + 5.0 + 5.0
    events = [
        one
        for one in events_of(made)
        if one["args"].get("correlation") not in (11_000_001, 11_000_002)
    ]
    kernel = {"correlation": 11_000_002, "stream": 7}
    events.append(event("kernel", "gemm", gap_ms + 5.0, 5.0, 7, **kernel))
    if returned_ms is not None:
        launch = ("cuda_runtime", "cudaLaunchKernel", gap_ms + returned_ms - 0.01, 0.01)
        events.append(event(*launch, correlation=11_000_002))
    (step,) = [
        span
        for span in spans_of(write_profile(tmp_path / "p.json", made, events))
        if (span["name"], span.get("training.step.number")) == ("training.rank_step", 11)
    ]
    assert step["training.device.queued_time"] == pytest.approx(queued_s)
    launch_gap_s = 0.0 if queued_s else 0.0025
    assert step["training.device.launch_gap_time"] == pytest.approx(launch_gap_s)


def test_old_categories_and_text_for_threads_say_the_same(tmp_path: Path) -> None:
    made = MadeProfile(loads_ms=(40.0,), busy_ms=10.0)
    names = {"user_annotation": "Operator", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    old = [
        {**one, "cat": names.get(one["cat"], one["cat"].capitalize()), "tid": str(one["tid"])}
        for one in events_of(made)
    ]
    new = spans_of(write_profile(tmp_path / "new.json", made))
    assert spans_of(write_profile(tmp_path / "old.json", made, old)) == new


def test_a_collective_is_from_its_call_to_the_end_of_its_kernel(tmp_path: Path) -> None:
    # Step 10 of rank 0: load 5, forward 20, backward 40; called at 25 + 16; both ranks end at 60 + 60 + 5.
    path = write_profile(tmp_path / "p.json", MadeProfile(0, (5.0, 60.0)))
    found = [span for span in spans_of(path) if span["name"] == "collective.all_reduce"]
    assert len(found) == 6
    first = found[0]
    assert (first["start"], first["end"]) == (41.0, 125.0)
    assert first["collective.size"] == 4 * ELEMENTS
    assert first["collective.data_type"] == "Float"
    assert first["collective.communicator.name"] == "default_pg"
    assert first["collective.communicator.size"] == 2
    assert "collective.is_end_known" not in first
    assert [span["collective.sequence"] for span in found[:2]] == [10_000_001, 11_000_001]


def test_a_call_without_a_kernel_ends_when_it_returns(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "p.json", MadeProfile(0, (5.0, 60.0), has_device=False))
    first = next(span for span in spans_of(path) if span["name"] == "collective.all_reduce")
    assert (first["start"], first["end"]) == (41.0, 42.0)
    assert first["collective.is_end_known"] is False
    assert "training.device.busy_time" not in spans_of(path)[2]


def test_a_kernel_without_arguments_is_nobody_elses_collective(tmp_path: Path) -> None:
    made = [MadeProfile(rank, (5.0, 60.0)) for rank in (0, 1)]
    found = []
    for one in made:
        events = [e for e in events_of(one) if e["name"] != "record_param_comms"]
        path = write_profile(tmp_path / f"{one.rank}.json", one, events)
        found.append(next(s for s in spans_of(path) if s["name"] == "collective.all_reduce"))
    assert found[0]["collective.communicator.id"] != found[1]["collective.communicator.id"]
    assert "collective.communicator.size" not in found[0]
    assert (found[0]["start"], found[0]["end"]) == (65.0, 125.0)


@pytest.mark.parametrize("name", ["rank3.json", "run_rank-3.pt.trace.json", "worker3.17.json"])
def test_the_rank_is_the_files_own_then_its_names_then_the_users(tmp_path: Path, name: str) -> None:
    told = write_profile(tmp_path / name, MadeProfile(rank=0))
    assert resource_of(told)["training.rank"] == 0
    silences: tuple[Any, ...] = ({}, {"rank": "0"}, {"rank": -1}, {"rank": True}, None, [])
    for silent in silences:
        untold = document(MadeProfile()) | {"distributedInfo": silent}
        told.write_text(json.dumps(untold))
        assert resource_of(told)["training.rank"] == 3
    plain = told.rename(tmp_path / "profile.json")
    importer = load_importer("kineto", ImportOptions((plain,), ranks=(7,)))
    parts = list(importer.read(plain, "j"))
    assert not any(isinstance(part, BrokenPart | Note) for part in parts)
    # One file alone is rank 0, with a note.
    parts = list(load_importer("kineto", ImportOptions((plain,))).read(plain, "j"))
    assert Note("rank_zero", 1) in parts


def test_the_host_is_that_of_the_name_or_nobodys(tmp_path: Path) -> None:
    named = write_profile(tmp_path / "gpu-12_4411.1700000000.pt.trace.json", MadeProfile())
    assert resource_of(named)["host.name"] == resource_of(named)["host.id"] == "gpu-12"
    plain = write_profile(tmp_path / "rank0.json", MadeProfile())
    assert "host.name" not in resource_of(plain)
    assert (resource_of(plain)["process.pid"], resource_of(plain)["training.job.id"]) == (
        100,
        "kineto",
    )


def test_times_are_exact_and_what_comes_after_the_events_counts(tmp_path: Path) -> None:
    made = document(MadeProfile(steps=3))
    reordered = {"traceEvents": made.pop("traceEvents"), **made}
    text = json.dumps(reordered).replace('"ts": 1000000.0,', '"ts": 1712195495502094.503,', 1)
    path = tmp_path / "p.json"
    path.write_text(text)
    # The first step now begins years after the others: they are in order, and it is alone at the end.
    places = broken_of(path)
    assert [place for place, _ in places] == ["step 10"]
    exact = [event("user_annotation", "ProfilerStep#1", 0.0, 5.0)]
    exact[0] |= {"ts": 1712195495502094.5}
    path.write_text(json.dumps({**made, "traceEvents": exact}).replace("094.5", "094.503"))
    (request,), broken = read_profile(path)
    assert not broken
    spans = ExportTraceServiceRequest.FromString(request.body).resource_spans[0].scope_spans[0]
    assert spans.spans[1].start_time_unix_nano == BASE_NS + 1712195495502094503


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_files_are_the_same(tmp_path: Path, compress: Any) -> None:
    plain = write_profile(tmp_path / "p.json", MadeProfile())
    packed = tmp_path / "p.json.packed"
    packed.write_bytes(compress(plain.read_bytes()))
    assert read_profile(packed) == read_profile(plain)


def test_a_list_of_events_is_a_profile_too(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(list(events_of(MadeProfile()))))
    assert (len(spans_of(path)), read_profile(path)[1]) == (31, [])


def test_a_cut_file_gives_what_came_before_without_the_devices_times(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "p.json", MadeProfile(steps=6))
    whole = path.read_bytes()
    cut = whole.index(b"ProfilerStep#13")
    path.write_bytes(whole[:cut])
    requests, broken = read_profile(path)
    assert [part.place for part in broken] == [f"byte {cut}"]
    assert f"saw its end after {cut} bytes in mid-document" in str(broken[0].error)
    body = requests[0].body
    assert b"training.operator.time" in body
    assert b"training.device.busy_time" not in body
    # 10 to 12 are whole.
    assert sum(request.records for request in requests) == 1 + 3 * 5


@pytest.mark.parametrize("wrong", [b"NaN", b"'", b"}", b"0x1"])
def test_what_is_no_json_is_named_by_its_byte(tmp_path: Path, wrong: bytes) -> None:
    path = write_profile(tmp_path / "p.json", MadeProfile(steps=3))
    whole = path.read_bytes()
    place = whole.index(b'"ProfilerStep#12"')
    path.write_bytes(whole[:place] + wrong + whole[place:])
    (found, text), *rest = broken_of(path)
    assert not rest
    assert place <= int(found.removeprefix("byte ")) <= place + len(wrong)
    assert text.startswith("cannot read the profile: saw ")
    assert "needs JSON with" in text


def test_a_damaged_compressed_file_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "p.json.gz"
    made = json.dumps(document(MadeProfile(steps=400)))
    path.write_bytes(gzip.compress(made.encode())[:-2000])
    requests, broken = read_profile(path)
    assert [part.place.split()[0] for part in broken] == ["byte"]
    assert "cannot decompress" in str(broken[0].error)
    assert requests


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"traceEvents": 5}', '{"nodes": [{"ph": "X"}]}', "3"]
)
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    with pytest.raises(DecodeError, match=r"saw no events in .* needs JSON with \"traceEvents\""):
        read_profile(path)


STEP = event("user_annotation", "ProfilerStep#5", 10.0, 100.0)
BROKEN_EVENTS: dict[str, tuple[Any, str]] = {
    "text for a time": (STEP | {"ts": "soon"}, "saw ts 'soon'; needs microseconds as a number"),
    "no duration": (
        {key: value for key, value in STEP.items() if key != "dur"},
        "saw dur nothing; needs microseconds as a number",
    ),
    "a negative duration": (STEP | {"dur": -3}, "saw dur -3 us; needs 0 or more"),
    "a time of another age": (STEP | {"ts": 10**30}, "needs a time of this age"),
    "an exponent": (STEP | {"ts": 1e300}, "needs microseconds as a number"),
    "a truth for a time": (STEP | {"ts": True}, "saw ts True; needs microseconds"),
    "no name": (STEP | {"name": None}, "saw name nothing; needs text"),
    "a list": ([1, 2], "saw a list; needs an object"),
    "a number": (7, "saw 7; needs an object"),
}


@pytest.mark.parametrize("case", BROKEN_EVENTS)
def test_a_broken_event_is_named_and_the_others_count(tmp_path: Path, case: str) -> None:
    wrong, text = BROKEN_EVENTS[case]
    made = MadeProfile()
    events = list(events_of(made))
    events.insert(3, wrong)
    path = write_profile(tmp_path / "p.json", made, events)
    requests, broken = read_profile(path)
    assert [part.place.split(" before")[0] for part in broken] == ["event 4"]
    assert text in str(broken[0].error)
    assert requests == read_profile(write_profile(path, made))[0]


def test_a_broken_kernel_leaves_the_devices_times_unknown(tmp_path: Path) -> None:
    made = MadeProfile()
    kernel = event("kernel", "gemm", 1.0, -1.0)
    path = write_profile(tmp_path / "p.json", made, [*events_of(made), kernel])
    requests, broken = read_profile(path)
    assert len(broken) == 1
    assert b"training.device.busy_time" not in requests[0].body


def test_a_step_whose_kernels_are_missing_has_no_device_times(tmp_path: Path) -> None:
    made = MadeProfile(steps=3)
    # The profiler stopped before the device had come to step 12.
    late = (START_MS + 2 * made.step_ms) * 1000
    kept = [e for e in events_of(made) if e["cat"] != "kernel" or e["ts"] < late]
    path = write_profile(tmp_path / "p.json", made, kept)
    known = {
        span["training.step.number"]: "training.device.busy_time" in span
        for span in spans_of(path)
        if span["name"] == "training.rank_step"
    }
    assert known == {10: True, 11: True, 12: False}


def test_steps_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    steps = [
        event("user_annotation", "ProfilerStep#1", 0.0, 10.0),
        event("user_annotation", "ProfilerStep#2", 10.0, 10.0),
        event("user_annotation", "ProfilerStep#3", 12.0, 10.0),
        event("user_annotation", "ProfilerStep#2", 30.0, 10.0),
        event("user_annotation", "ProfilerStep#4", 50.0, 10.0),
    ]
    path = write_profile(tmp_path / "p.json", MadeProfile(), steps)
    requests, broken = read_profile(path)
    assert [part.place for part in broken] == ["step 3", "step 2"]
    assert "begin 8.000 ms before step 2 ended" in str(broken[0].error)
    # training.profile; training.step and training.rank_step of 1, 2 and 4.
    assert [request.records for request in requests] == [1 + 3 * 2]


def test_a_step_before_1970_has_no_place(tmp_path: Path) -> None:
    made = document(MadeProfile(steps=1)) | {"baseTimeNanoseconds": 0}
    made["traceEvents"][0]["ts"] = -5.0
    path = tmp_path / "p.json"
    path.write_text(json.dumps(made))
    assert [place for place, _ in broken_of(path)] == ["step 10"]


def test_a_step_in_which_nothing_began_is_not_complete(tmp_path: Path) -> None:
    made = MadeProfile(steps=2)
    last = event("user_annotation", "ProfilerStep#12", 2 * made.step_ms, 0.05)
    path = write_profile(tmp_path / "p.json", made, [*events_of(made), last])
    outcomes = [
        span["training.step.outcome"]
        for span in spans_of(path)
        if span["name"] == "training.rank_step"
    ]
    assert outcomes == ["complete", "complete", "incomplete"]


def test_the_training_loop_is_where_most_of_the_steps_are(tmp_path: Path) -> None:
    made = MadeProfile(steps=2)
    other = event("user_annotation", "ProfilerStep#99", 3.0, 1.0, tid=7)
    device = {**event("gpu_user_annotation", "ProfilerStep#98", 5.0, 1.0), "pid": 0}
    path = write_profile(tmp_path / "p.json", made, [other, device, *events_of(made)])
    assert spans_of(path) == spans_of(write_profile(tmp_path / "q.json", made))


def test_a_profile_without_steps_is_refused(tmp_path: Path) -> None:
    # One process has no collectives either; nor is there a device's time of those that gloo does.
    for made in (MadeProfile(), MadeProfile(loads_ms=(5.0, 5.0), has_device=False)):
        with pytest.raises(DecodeError, match="saw no ProfilerStep#N"):
            read_profile(write_profile(tmp_path / "p.json", made, without_steps(made)))


def test_a_profile_without_steps_has_its_collectives_and_how_long_the_device_was_in_them(
    tmp_path: Path,
) -> None:
    # Rank 1 loads 20 ms less than rank 0, and waits for it on the device: transfer 5 + 20 (see the picture above)
    made = MadeProfile(rank=1, loads_ms=(40.0, 20.0), steps=3)
    spans = spans_of(write_profile(tmp_path / "p.json", made, without_steps(made)))
    assert [span["name"] for span in spans] == ["collective.all_reduce"] * 3
    assert [span["collective.sequence"] for span in spans] == [1, 2, 3]
    assert [span["collective.device_time"] for span in spans] == pytest.approx(
        [(TRANSFER_MS + 20.0) / 1e3] * 3
    )
    assert not any("training.step.number" in span for span in spans)
    again = spans_of(write_profile(tmp_path / "q.json", made, without_steps(made)))
    assert again == spans


def test_backward_is_in_pieces_where_the_main_thread_worked_between(tmp_path: Path) -> None:
    # Two micro-batches: forward, backward, forward, backward.
    grad = "autograd::engine::evaluate_function: MulBackward0"
    events: list[Event] = [event("user_annotation", "ProfilerStep#1", 0.0, 100.0)]
    for start in (0.0, 50.0):
        events.append(event("cpu_op", "aten::mul", start, 10.0))
        events.append(event("cpu_op", grad, start + 20.0, 5.0, tid=101))
        events.append(event("cpu_op", grad, start + 30.0, 5.0, tid=101))
    spans = spans_of(write_profile(tmp_path / "p.json", MadeProfile(), events))
    pieces = [(span["start"], span["end"]) for span in spans if span["name"] == "backward"]
    assert pieces == [(20.0, 35.0), (70.0, 85.0)]


def test_a_phase_within_another_is_part_of_it(tmp_path: Path) -> None:
    marks = [("## forward ##", 10.0, 30.0), ("DistributedDataParallel.forward", 12.0, 20.0)]
    marks += [("## optimizer ##", 60.0, 20.0), ("Optimizer.step#SGD.step", 61.0, 10.0)]
    events = [event("user_annotation", "ProfilerStep#1", 0.0, 100.0)]
    events += [event("user_annotation", *mark) for mark in marks]
    spans = spans_of(write_profile(tmp_path / "p.json", MadeProfile(), events))
    assert [(span["name"], span["start"], span["end"]) for span in spans[3:]] == [
        ("forward", 10.0, 40.0),
        ("optimizer", 60.0, 80.0),
    ]
