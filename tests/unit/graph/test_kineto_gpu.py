"""What a device did, from PyTorch profiles: every nanosecond of it, by operator, phase and step."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from rootwalk.graph.importers import kineto_gpu, kineto_profile
from rootwalk.instrumentation import ids
from rootwalk.otel_receiver.signals import Signal
from support.profile_rules import find_violations, list_profiles
from support.profiles import (
    FORWARD_MS,
    MadeProfile,
    event,
    events_of,
    read_profile,
    write_profile,
)

PUBLIC = Path(__file__).parents[2] / "data" / "kineto"
DEVICE = {"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
MS = 1_000_000
MADE = MadeProfile(loads_ms=(5.0, 8.0), steps=2)


class Row(NamedTuple):
    """A sample; functions innermost first."""

    functions: tuple[str, ...]
    phase: str | None
    link: tuple[bytes, bytes]
    value_ns: int


def read(path: Path) -> list[Row]:
    """Return the samples of a profile's requests, which keep every rule."""
    requests, broken = read_profile(path, Signal.PROFILES)
    assert not broken
    rows = []
    for one in requests:
        assert find_violations(one.body) == []
        request = ExportProfilesServiceRequest.FromString(one.body)
        found = list(_rows(request))
        assert one.records == len(found)
        rows += found
    return rows


def _rows(request: Any) -> Any:
    tables = request.dictionary
    words = tables.string_table
    for _, profile in list_profiles(request):
        kinds = (profile.sample_type, profile.period_type)
        assert {words[kind.type_strindex] for kind in kinds} == {"gpu_kernel"}
        assert {words[kind.unit_strindex] for kind in kinds} == {"nanoseconds"}
        for sample in profile.samples:
            places = tables.stack_table[sample.stack_index].location_indices
            lines = [line for n in places for line in tables.location_table[n].lines]
            names = [
                words[tables.function_table[one.function_index].name_strindex] for one in lines
            ]
            phases = [
                tables.attribute_table[n].value.string_value for n in sample.attribute_indices
            ]
            link = tables.link_table[sample.link_index]
            (value,) = sample.values
            phase = phases[0] if phases else None
            yield Row(tuple(names), phase, (link.trace_id, link.span_id), value)


def write(path: Path, *events: dict[str, Any]) -> Path:
    """Write a profile of one step with these events."""
    step = event("user_annotation", "ProfilerStep#3", 0.0, 100.0)
    return write_profile(path, MADE, [step, *events])


def kernel(name: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    return {**event("kernel", name, start, length, 7, stream=7, **arguments), "pid": 0}


def launch(start: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return event("cuda_runtime", name, start, 0.01, correlation=correlation)


def test_made_steps(tmp_path: Path) -> None:
    rows = read(write_profile(tmp_path / "p.json", MADE))
    step, trace = ids.rank_step_id("kineto", 0, 11, 0), ids.trace_id("kineto", 0, 11)
    of_step = [row for row in rows if row.link[0] == trace]
    backward, optimizer = (ids.phase_id("kineto", 0, 11, 0, index) for index in (1, 2))
    linear = ("gemm", "aten::linear")
    # Nothing marks the forward.
    assert Row(linear, None, (trace, step), int(FORWARD_MS * MS)) in of_step
    assert {(row.functions[1:], row.phase, row.link[1]) for row in of_step} == {
        (("aten::linear",), None, step),
        (
            ("autograd::engine::evaluate_function: AddmmBackward0",),
            "backward",
            backward,
        ),
        (
            ("record_param_comms", "autograd::engine::evaluate_function: AddmmBackward0"),
            "backward",
            backward,
        ),
        (("aten::_foreach_add_",), "optimizer", optimizer),
    }


def test_work_belongs_to_where_it_was_asked_for(tmp_path: Path) -> None:
    """Operators within each other; those that are over, or of another thread, asked for nothing."""
    path = write(
        tmp_path / "p.json",
        event("cpu_op", "outer", 1.0, 20.0),
        event("cpu_op", "over", 2.0, 1.0),
        event("cpu_op", "inner", 4.0, 2.0),
        event("cpu_op", "elsewhere", 4.0, 20.0, tid=105),
        launch(5.0, 1),
        launch(10.0, 2, "cudaMemcpyAsync"),
        launch(50.0, 3),
        launch(99.0, 4),
        kernel("late", 500.0, 3.0, correlation=1),
        {**kernel("Memcpy HtoD", 11.0, 2.0, correlation=2), "cat": "gpu_memcpy"},
        kernel("bare", 51.0, 4.0, correlation=3),
        kernel("in the next", 101.0, 4.0, correlation=4),
        kernel("untold", 60.0, 1.0),
        kernel("nobody's", 300.0, 1.0, correlation=77),
    )
    link = ids.trace_id("kineto", 0, 3), ids.rank_step_id("kineto", 0, 3, 0)
    assert set(read(path)) == {
        Row(("late", "inner", "outer"), None, link, 3 * MS),
        Row(("Memcpy HtoD", "outer"), None, link, 2 * MS),
        Row(("bare",), None, link, 4 * MS),
        Row(("in the next",), None, link, 4 * MS),
        Row(("untold",), None, link, 1 * MS),
        Row(("nobody's",), None, (b"", b""), 1 * MS),
    }


def test_many_samples_are_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_profile(tmp_path / "p.json", MADE)
    whole = read(path)
    monkeypatch.setattr(kineto_gpu, "SAMPLES_PER_REQUEST", 3)
    assert len(read_profile(path, Signal.PROFILES)[0]) == -(-len(whole) // 3) > 1
    assert read(path) == whole


def test_names_and_depths_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_profile, "MAX_NAMES", 3)
    monkeypatch.setattr(kineto_gpu, "MAX_OPERATORS", 2)
    operators = [event("cpu_op", f"op{n}", 1.0 + n, 20.0 - n) for n in range(5)]
    run = kernel("k" * 1000, 8.0, 1.0, correlation=1)
    (row,) = read(write(tmp_path / "p.json", *operators, launch(7.0, 1), run))
    assert row.functions == ("other names",) * 3
    monkeypatch.undo()
    (row,) = read(write(tmp_path / "p.json", *operators, launch(7.0, 1), run))
    assert row.functions == ("k" * 300, "op4", "op3", "op2", "op1", "op0")


def test_no_device_is_no_profile(tmp_path: Path) -> None:
    made = MadeProfile(loads_ms=(5.0,), has_device=False)
    assert read(write_profile(tmp_path / "p.json", made)) == []


def test_a_profile_without_steps_has_work_of_no_step(tmp_path: Path) -> None:
    events = [one for one in events_of(MADE) if not one["name"].startswith("ProfilerStep")]
    rows = read(write_profile(tmp_path / "p.json", MADE, events))
    assert {(row.link, row.phase) for row in rows} == {((b"", b""), None)}
    whole = read(write_profile(tmp_path / "p.json", MADE))
    assert _by_function(rows) == _by_function(whole)


def _by_function(rows: list[Row]) -> Counter[tuple[str, ...]]:
    total: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        total[row.functions] += row.value_ns
    return total


@pytest.mark.parametrize(
    "name",
    [
        "num_workers_0-worker0.pt.trace.json.gz",
        "nccl_data.json.gz",
        "sampled_rank-1.json.gz",
        "event_sync_trace.json.gz",
        "backward_thread.json",
    ],
)
def test_of_real_profiles_no_nanosecond_is_lost(name: str) -> None:
    """Against the file itself, read another way."""
    path = PUBLIC / name
    data = path.read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    found = json.loads(text, parse_float=Decimal)
    events = found["traceEvents"] if isinstance(found, dict) else found
    took: Counter[str] = Counter()
    for one in events:
        if one.get("ph") == "X" and one.get("cat") in DEVICE:
            took[one["name"]] += int(one["ts"] * 1000 + one["dur"] * 1000) - int(one["ts"] * 1000)
    rows = read(path)
    told: Counter[str] = Counter()
    for row in rows:
        told[row.functions[0]] += row.value_ns
    assert len(took) > 0
    assert set(told) == {name[:300] for name, value in took.items() if value}
    # Times of microseconds with three decimals are rounded as they are read.
    assert told.total() == pytest.approx(took.total(), abs=2 * len(events))


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "p.json", MADE)
    assert read_profile(path, Signal.PROFILES) == read_profile(path, Signal.PROFILES)
