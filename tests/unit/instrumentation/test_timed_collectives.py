"""Durations of NCCL collectives out of the Flight Recorder ring, through the hooks that a job's process groups get.

No GPU and no NCCL is here: the process group and the dump function are stand-ins, the dump in the format of 2.15.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rootwalk.instrumentation import flight_times, timed_collectives, torch_hooks
from rootwalk.instrumentation.flight_times import is_timing, read_times, ring_entries
from rootwalk.instrumentation.ring_layout import RecordFlag
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.shared_ring import Record, RecordKind, RingReader
from rootwalk.instrumentation.step_spans import SpanBuilder
from support.fake_cuda import FakeCuda
from support.spans import decode_spans

STEP_S = 0.012


def entry(
    number: int, created_ns: int, duration_ms: float | None, **changes: Any
) -> dict[str, Any]:
    """Return one entry of a dump, its keys in PyTorch's order."""
    found = {
        "collective_seq_id": number,
        "duration_ms": duration_ms,
        "input_dtypes": ["Float"],
        "input_sizes": [[1024]],
        "is_p2p": False,
        "op_id": number,
        "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce",
        "record_id": number,
        "retired": True,
        "state": "completed",
        "time_created_ns": created_ns,
        "time_discovered_completed_ns": created_ns + 1,
        "time_discovered_started_ns": created_ns + 1,
    } | changes
    if found["duration_ms"] is None:
        del found["duration_ms"]
    return found


def dumped(entries: list[dict[str, Any]]) -> bytes:
    value = {"comm_lib_version": "2.30.7", "entries": entries, "pg_config": {}, "version": "2.10"}
    return json.dumps(value, separators=(",", ":")).encode()


class Operation(Enum):
    """PyTorch's names of operations."""

    ALLREDUCE = 1


class FakeGroup:
    """A process group as far as our hooks use it; operations end on a device that nobody sees."""

    group_name = "0"

    def __init__(self) -> None:
        self.is_timing = False
        self.entries: list[dict[str, Any]] = []
        self._hooks: list[Callable[[Any], None]] = []

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 4

    def register_pre_hook(self, _: int, hook: Callable[[Any], None]) -> None:
        self._hooks.append(hook)

    register_post_hook = register_pre_hook

    def unregister_pre_hook(self, _: int) -> None:
        self._hooks.clear()

    unregister_post_hook = unregister_pre_hook

    def _enable_collectives_timing(self) -> None:
        self.is_timing = True

    def _get_sequence_number_for_group(self) -> int:
        return len(self.entries)

    def all_reduce(self, duration_ms: float | None) -> None:
        """Issue an operation that the recorder sees as well."""
        number = len(self.entries) + 1
        tensor = SimpleNamespace(nbytes=4096, is_cpu=False)
        call = SimpleNamespace(
            name=Operation.ALLREDUCE,
            op_id=number,
            input_tensors=[tensor],
            output_tensors=[],
            root=-1,
            work=None,
        )
        before, after = self._hooks
        self.entries.append(entry(number, time.time_ns(), duration_ms if self.is_timing else None))
        before(call)
        after(call)


class Training:
    """A job of one rank, through the real patches of the optimiser and of process groups."""

    def __init__(self, backend: str = "nccl") -> None:
        self.runtime = Runtime()
        self.group = FakeGroup()
        hooks: list[Callable[..., None]] = []
        optimizer = SimpleNamespace(
            register_optimizer_step_pre_hook=hooks.append,
            register_optimizer_step_post_hook=hooks.append,
        )
        torch_hooks.patch_optimizer(self.runtime, optimizer)  # type: ignore[arg-type]
        self._before, self._after = hooks
        groups = SimpleNamespace(_new_process_group_helper=lambda *_, **__: (self.group, None))
        torch_hooks.patch_process_groups(self.runtime, groups)  # type: ignore[arg-type]
        groups._new_process_group_helper(4, 0, [], backend)
        tracker = self.runtime.tracker
        assert tracker is not None
        self.tracker = tracker
        self.reader = RingReader(tracker.ring.path)

    def step(self, *durations_ms: float | None) -> None:
        time.sleep(STEP_S)
        for duration_ms in durations_ms:
            self.group.all_reduce(duration_ms)
        self._before()
        self._after()

    def collectives(self) -> list[Record]:
        return [r for r in self.reader.read(100_000) if r.kind is RecordKind.COLLECTIVE]

    def close(self) -> None:
        self.runtime._stop()
        self.reader.close()


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ROOTWALK_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROOTWALK_RING_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("ROOTWALK_KEEP_RING", "1")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "1")  # so that every other step is measured
    monkeypatch.setattr(timed_collectives, "WATCHDOG_NS", 0)
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], bytes]]:
    """What each ring dumps, by the backend's name; `legacy` is the old process group's."""
    rings: dict[str, Callable[[], bytes]] = {}

    def dump(collectives: bool, active: bool, backend: str = "gloo") -> bytes:
        assert (collectives, active) == (True, False)
        return rings.get(backend, lambda: dumped([]))()

    def legacy(collectives: bool, active: bool) -> bytes:
        return dump(collectives, active, "legacy")

    module = SimpleNamespace(_dump_fr_trace_json=dump, _dump_nccl_trace_json=legacy)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    return rings


@pytest.fixture
def job(dumps: dict[str, Callable[[], bytes]]) -> Iterator[Training]:
    made = Training()
    dumps["nccl2"] = lambda: dumped(made.group.entries)
    yield made
    made.close()


@pytest.mark.parametrize("ring", ["nccl2", "nccl", "legacy"])
def test_collectives_of_measured_steps_have_the_device_s_time(
    job: Training, dumps: dict[str, Callable[[], bytes]], ring: str
) -> None:
    dumps.clear()
    dumps[ring] = lambda: dumped(job.group.entries)
    for number in range(12):
        job.step(20.0 + number, 5.0)
    found = job.collectives()
    assert job.group.is_timing
    told = {record.step for record in found if record.device_ns is not None}
    assert len(told) >= 3  # a machine that is busy may measure fewer than every other
    for record in found:
        assert record.flags == RecordFlag.END_UNKNOWN
        assert record.size_bytes == 4096
        if record.step in told:
            wanted_ms = 20.0 + record.step if record.sequence % 2 else 5.0
            assert record.device_ns == pytest.approx(wanted_ms * 1e6, rel=4e-6)
    # The next measured step's are still kept back, and none is lost.
    job.tracker.close()
    assert sorted(record.sequence for record in job.collectives()) == list(range(1, 25))


def test_the_span_of_a_collective_has_the_time(job: Training) -> None:
    for _ in range(6):
        job.step(41.2)
    timed = [record for record in job.collectives() if record.device_ns is not None]
    builder = SpanBuilder(job.reader.identity, job.reader.clock)
    for span in decode_spans(builder.spans(timed)):
        found = {item.key: item.value for item in span.attributes}
        assert found["collective.device_time"].double_value == pytest.approx(0.0412, rel=1e-5)
        assert found["collective.is_end_known"].bool_value is False
    assert timed


@pytest.mark.parametrize(
    "answer", [RuntimeError("no ring"), b"", b"no JSON", b'{"entries": 7}', b"[]"]
)
def test_a_ring_that_cannot_be_read_loses_no_collective(
    job: Training, dumps: dict[str, Callable[[], bytes]], answer: bytes | Exception
) -> None:
    def dump() -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer

    dumps["nccl2"] = dump
    for _ in range(8):
        job.step(5.0)
    job.tracker.close()
    assert job.runtime.failure is None
    found = job.collectives()
    assert sorted(record.sequence for record in found) == list(range(1, 9))
    assert {record.device_ns for record in found} == {None}


def test_another_collective_under_the_same_number_gives_nothing(job: Training) -> None:
    job.group.entries.append(entry(1, time.time_ns() - 10**9, 3.0))  # one that our hooks never saw
    for _ in range(8):
        job.step(5.0)
        job.group.entries[-1]["time_created_ns"] -= 400_000_000
    job.tracker.close()
    assert {record.device_ns for record in job.collectives()} == {None}


def test_operations_that_have_not_ended_are_written_without(job: Training) -> None:
    for _ in range(8):
        job.step(5.0)
        job.group.entries[-1] |= {"state": "started", "retired": False}
    job.tracker.close()
    found = job.collectives()
    assert sorted(record.sequence for record in found) == list(range(1, 9))
    assert {record.device_ns for record in found} == {None}


def test_nothing_is_asked_while_a_graph_is_captured(
    job: Training, dumps: dict[str, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def asking() -> bytes:
        asked.append(1)
        return dumped(job.group.entries)

    dumps["nccl2"] = asking
    cuda = FakeCuda()
    cuda.is_capturing = True
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    for _ in range(6):
        job.step(5.0)
    assert asked == []
    cuda.is_capturing = False
    job.step(5.0)
    job.step(5.0)
    assert asked


def test_a_device_that_has_failed_is_not_asked(
    job: Training, dumps: dict[str, Callable[[], bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    cuda.has_failed = True
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    monkeypatch.setattr(cuda, "is_current_stream_capturing", cuda.check)
    for _ in range(6):
        job.step(5.0)
    job.tracker.close()
    assert job.runtime.failure is None
    assert sorted(record.sequence for record in job.collectives()) == list(range(1, 7))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ENABLE_TIMING", "0"),
        ("ROOTWALK_DEVICE_TIMES", "0"),
        ("TORCH_FR_BUFFER_SIZE", "0"),
        ("TORCH_FR_BUFFER_SIZE", "20000"),  # a dump of it would take half a second
    ],
)
def test_what_is_switched_off_keeps_nothing_back(
    dumps: dict[str, Callable[[], bytes]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    job = Training()
    dumps["nccl2"] = lambda: dumped(job.group.entries)
    for _ in range(6):
        job.step(5.0)
    found = job.collectives()
    assert [record.sequence for record in found] == list(range(1, 7))
    assert {record.device_ns for record in found} == {None}
    job.close()


def test_a_group_of_gloo_is_not_timed(dumps: dict[str, Callable[[], bytes]]) -> None:
    job = Training("gloo")
    job.step(5.0)
    assert not job.group.is_timing
    assert job.tracker.timed is None
    assert not dumps
    job.close()


def test_a_large_ring_is_read_seldom() -> None:
    clock = [0]

    def count_measured(entries: int) -> int:
        timed = timed_collectives.TimedCollectives(
            [lambda: b"{}"], entries, 0, lambda: False, lambda: clock[0]
        )
        measured = 0
        for step in range(1024):
            measured += timed.holds(step)
            clock[0] += 100_000_000
            timed.end_step(step)
        return measured

    # 512 entries take 11 ms, of which 0.3 % of the time is 3.8 s: 38 steps of 0.1 s, so every 64th is measured.
    assert count_measured(512) == 1024 // 64 - 1
    assert count_measured(2000) == 1024 // 256 - 1


def test_only_the_end_of_a_dump_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(number, 1000 * number, 1.0) for number in range(2000)]
    dump = dumped(entries)
    parsed = []
    latest = flight_times._latest

    def counting(data: bytes) -> Iterator[dict[str, Any]]:
        for one in latest(data):
            parsed.append(one["record_id"])
            yield one

    monkeypatch.setattr(flight_times, "_latest", counting)
    assert list(read_times(dump, 1_990_000)) == [("0", number) for number in range(1999, 1989, -1)]
    assert len(parsed) == 11


def test_a_dump_that_is_written_otherwise_is_read_too() -> None:
    entries = [entry(1, 5, 1.0), entry(2, 6, None), entry(3, 7, 2.5), entry(4, 8, 1.0, is_p2p=True)]
    dump = json.dumps({"entries": [dict(reversed(one.items())) for one in entries]}, indent=1)
    assert read_times(dump, 0) == {("0", 1): (5, 1_000_000), ("0", 3): (7, 2_500_000)}


def test_switches_are_read_as_pytorch_reads_them() -> None:
    assert is_timing({"TORCH_NCCL_ENABLE_TIMING": "TRUE"})
    assert is_timing({"NCCL_ENABLE_TIMING": "1"})
    assert not is_timing({"TORCH_NCCL_ENABLE_TIMING": "0", "NCCL_ENABLE_TIMING": "1"})
    assert not is_timing({})
    assert ring_entries({}) == 2000
    assert ring_entries({"TORCH_NCCL_TRACE_BUFFER_SIZE": "64"}) == 64
    assert ring_entries({"TORCH_FR_BUFFER_SIZE": "7", "TORCH_NCCL_TRACE_BUFFER_SIZE": "64"}) == 7
    assert ring_entries({"TORCH_FR_BUFFER_SIZE": "many"}) == 0
