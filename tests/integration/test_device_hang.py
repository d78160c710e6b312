"""A host that never called, as it waits for its device: dumps, made-up stacks, what NVML and the kernel say of GPUs.

rank 1 of four    its main thread stands in a call of CUDA for 20 s, while the others wait for it; no GPU was there
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.flight_recorder import make_request
from rootwalk.graph.model import Finding
from rootwalk.graph.render.text import render_text
from rootwalk.instrumentation.profiles import Profile, Sample, ValueKind, build_request
from rootwalk.otel_receiver.imports import save_import
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.flight_dumps import START_NS, FlightJob
from support.log_and_profile_messages import log_record, log_request
from support.sampled_jobs import COUNT, CPU, NS, OFF_CPU, PERIOD_NS, made_frame, save
from support.stores import query_rows
from support.verdicts import check_verdict

JOB, RANKS, LATE = "train", 4, 1
STEP = "<module>;main;train_step"
BLOCKED = (
    f"{STEP};synchronize;cudaStreamSynchronize@libcudart;cuStreamSynchronize@libcuda;poll@libc"
)
SPINS = f"{STEP};Tensor.item;cuMemcpyDtoH_v2_ptsz@libcuda"
LAUNCHES = f"{STEP};relu;cudaLaunchKernel@libcudart;futex_wait@vmlinux"
SLEEPS = f"{STEP};Event.wait;futex_wait@vmlinux"
Lost = Mapping[int, float]


def frames(stack: str, spent: int, role: str = "main") -> Sample:
    listed = tuple(made_frame(name) for name in reversed(stack.split(";")))
    return Sample(listed, spent, {"training.thread.role": role}, None)


def of_rank(rank: int) -> dict[str, str | int]:
    return {"training.job.id": JOB, "training.rank": rank, "host.name": "h", "host.id": "host-h"}


def add_point(
    request: ExportMetricsServiceRequest,
    name: str,
    rank: int | None,
    second: float,
    value: float,
    attributes: Mapping[str, str],
) -> None:
    """Add a point of a GPU to a request, of a rank or of its host."""
    resource = of_rank(rank or 0)
    if rank is None:
        del resource["training.rank"]
    of = request.resource_metrics.add()
    for key, told in resource.items():
        one = of.resource.attributes.add(key=key).value
        if isinstance(told, int):
            one.int_value = told
        else:
            one.string_value = told
    metric: Metric = of.scope_metrics.add().metrics.add(name=name)
    point = metric.gauge.data_points.add(
        time_unix_nano=START_NS + round(second * NS), as_double=value
    )
    for key, text in attributes.items():
        point.attributes.add(key=key).value.string_value = text


def tell_gpus(
    path: Path, lost: Lost, answers_s: float = 40.0, known: Sequence[int] = range(RANKS)
) -> None:
    """Say which GPU each rank has, since when some of them do not answer, and when the others last did.

    Args:
        path: The store.
        lost: By rank, s after the hang began.
        answers_s: The same of all others.
        known: Ranks whose GPU is known.
    """
    request = ExportMetricsServiceRequest()
    for rank in known:
        gpu = {"hw.id": f"GPU-{rank}"}
        sm = gpu | {"training.gpu.clock": "sm"}
        add_point(request, "training.gpu.frequency", rank, -20.0, 1.98e9, sm)
        for state in ("ok", "failed"):
            is_failed = rank in lost
            value = float((state == "failed") is is_failed)
            when = lost.get(rank, answers_s)
            add_point(request, "hw.status", None, when, value, gpu | {"hw.state": state})
    record = JournalRecord(Signal.METRICS, 98, request.SerializeToString(), 1, 98)
    save_journal_batch(path, [record])


def say_xid(path: Path, code: int, second: float, device: str = "0000:3b:00") -> None:
    """Let the kernel's log of the host have a line of NVIDIA's driver."""
    line = log_record(
        time_unix_nano=START_NS + round(second * NS),
        event_name="training.kernel.message",
        attributes={
            "training.kernel.message.kind": "gpu_error",
            "training.kernel.message.device": device,
            "training.kernel.message.code": code,
        },
    )
    request = log_request([line], {"host.name": "h", "host.id": "host-h"})
    save_journal_batch(path, [JournalRecord(Signal.LOGS, 99, request, 1, 99)])


def hang(
    path: Path,
    stack: str,
    spun_s: float = 0.0,
    waited_s: float = 20.0,
    late: Sequence[int] = (LATE,),
    also: ValueKind | None = None,
) -> Path:
    """Write a store in which some ranks have not called, and where their main threads were for 20 s."""
    job = FlightJob(RANKS, {"0": range(RANKS)})
    job.call_all([rank for rank in range(RANKS) if rank not in late], "0")
    save_import(path, [make_request(record, JOB, 0) for record in job.records()])
    profiles = []
    for rank, number in itertools.product(late, range(4)):
        span = (START_NS + (1 + 5 * number) * NS, 5 * NS)
        waits = [frames(stack, round(waited_s / 4 * NS))] if waited_s else []
        other = frames(SLEEPS, 5 * NS, "other")
        profiles.append(Profile(of_rank(rank), *span, OFF_CPU, [*waits, other]))
        spins = [frames(stack, round(spun_s / 4 * NS / PERIOD_NS))] if spun_s else []
        profiles.append(Profile(of_rank(rank), *span, COUNT, spins, CPU, PERIOD_NS))
        if also is not None:
            profiles.append(Profile(of_rank(rank), *span, also, waits, also, 1))
    save(path, [build_request(profiles, "test", "1")])
    return path


def solve(path: Path, late: Sequence[int] = (LATE,)) -> Finding:
    """Return the only finding, about the ranks; what it rests on can be looked at."""
    verdict = check_verdict(diagnose(path, job=JOB))
    (finding,) = verdict.findings
    assert finding.subject.ranks == tuple(late)
    assert verdict.victims.ranks == tuple(rank for rank in range(RANKS) if rank not in late)
    for row in finding.evidence:
        assert row.query is None or query_rows(path, row.query), row.signal
    text = " ".join(render_text(verdict).split())
    assert (" its device does not end its work" in text) is (finding.reason == "GPU_HANG")
    assert (" its GPU no longer answers" in text) is (finding.reason == "GPU_LOST")
    assert "a child" not in text
    if finding.reason != "NOT_JOINED":
        assert re.search(r"; in cu\w+ for \d\d s", text)
    for signal, words in (
        ("hw.status", "NVML: GPU-1 failed"),
        (
            "training.kernel.message",
            f"the driver (Xid): {finding.subject.device or 'a GPU of their host'} lost",
        ),
    ):
        assert (words in text) is (signal in {row.signal for row in finding.evidence})
    return finding


def excluded(finding: Finding) -> set[str]:
    return {one.reason for one in finding.excluded}


@pytest.mark.parametrize(
    ("stack", "spun_s", "waited_s", "function"),
    [
        (BLOCKED, 0.0, 20.0, "off_cpu: cudaStreamSynchronize"),
        (SPINS, 20.0, 0.0, "on_cpu: cuMemcpyDtoH_v2_ptsz"),
        (BLOCKED, 8.0, 12.0, "off_cpu: cudaStreamSynchronize"),
    ],
    ids=["asleep", "spinning", "both"],
)
def test_a_host_that_waits_for_its_device_is_held_up_by_that(
    tmp_path: Path, stack: str, spun_s: float, waited_s: float, function: str
) -> None:
    path = hang(tmp_path / "s.duckdb", stack, spun_s, waited_s)
    tell_gpus(path, {})
    finding = solve(path)
    assert (finding.reason, finding.layer) == ("GPU_HANG", "device")
    assert finding.confidence.band == "high"
    (row,) = (row for row in finding.evidence if row.unit == "s")
    assert row.signal == f"profile.frame.{function}"
    assert row.value == pytest.approx(20.0, rel=0.05)
    assert "GPU_LOST" in excluded(finding)


def test_several_ranks_that_wait_for_their_devices_are_one_finding(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED, late=(1, 2))
    assert solve(path, (1, 2)).reason == "GPU_HANG"


def test_what_nobody_reads_is_not_excluded(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    assert "GPU_LOST" not in excluded(solve(path))


def test_a_wait_that_is_told_a_second_time_counts_once(tmp_path: Path) -> None:
    again = ValueKind("collective_wait", "nanoseconds")
    path = hang(tmp_path / "s.duckdb", BLOCKED, waited_s=12.0, also=again)
    assert solve(path).reason == "NOT_JOINED"


@pytest.mark.parametrize(
    ("stack", "waited_s"),
    [(SLEEPS, 20.0), (LAUNCHES, 20.0), (BLOCKED, 12.0)],
    ids=["its own code", "a launch", "not for all of that time"],
)
def test_a_host_that_stands_elsewhere_did_not_join(
    tmp_path: Path, stack: str, waited_s: float
) -> None:
    path = hang(tmp_path / "s.duckdb", stack, waited_s=waited_s)
    tell_gpus(path, {LATE: 0.5})
    say_xid(path, 79, 0.2)
    assert solve(path).reason == "NOT_JOINED"


def test_a_gpu_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    tell_gpus(path, {LATE: 0.5})
    finding = solve(path)
    assert (finding.reason, finding.layer, finding.owner) == ("GPU_LOST", "device", "node")
    (row,) = (row for row in finding.evidence if row.signal == "hw.status")
    assert row.query is not None
    assert len(query_rows(path, row.query)) == 1  # and none that says that it is well
    assert finding.subject.device == f"GPU-{LATE}"
    assert finding.confidence.band == "high"


@pytest.mark.parametrize(
    "lost",
    [{}, {2: 0.5}, {LATE: 15.0}, dict.fromkeys(range(RANKS), 0.5)],
    ids=["none", "another rank's", "while the job is ended", "all of them"],
)
def test_a_gpu_that_answers_hangs(tmp_path: Path, lost: Lost) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    tell_gpus(path, lost)
    finding = solve(path)
    assert finding.reason == "GPU_HANG"
    assert ("GPU_LOST" in excluded(finding)) is (LATE not in lost)


@pytest.mark.parametrize("answers_s", [-50.0, 5.0], ids=["before", "as it began"])
def test_what_answered_before_may_be_lost_since(tmp_path: Path, answers_s: float) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    tell_gpus(path, {}, answers_s)
    finding = solve(path)
    assert finding.reason == "GPU_HANG"
    assert "GPU_LOST" not in excluded(finding)


def test_the_only_gpu_that_is_known_may_be_lost(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    tell_gpus(path, {LATE: 0.5}, known=[LATE])
    assert solve(path).reason == "GPU_LOST"


def test_an_xid_is_of_the_gpu_that_nvml_calls_failed(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    say_xid(path, 79, -2.0)
    tell_gpus(path, {3: 0.5}, -30.0)
    assert solve(path).reason == "GPU_HANG"


def test_the_kernels_log_speaks_of_another_gpu_where_the_ranks_own_answers(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    say_xid(path, 79, 0.2)
    tell_gpus(path, {})
    assert solve(path).reason == "GPU_HANG"


@pytest.mark.parametrize(
    ("whose", "answers_s", "reason"),
    [(LATE, -30.0, "GPU_LOST"), (LATE, 40.0, "GPU_HANG"), (3, -30.0, "GPU_HANG")],
    ids=["its own", "its own, which answers", "another rank's"],
)
def test_an_xid_is_of_the_gpu_at_its_address(
    tmp_path: Path, whose: int, answers_s: float, reason: str
) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    tell_gpus(path, {}, answers_s)
    say_xid(path, 79, 0.2)
    request = ExportMetricsServiceRequest()
    at = {"hw.id": f"GPU-{whose}", "training.gpu.pci.address": "0000:3b:00"}
    add_point(request, "training.gpu.pcie.width", whose, -30.0, 16.0, at)
    record = JournalRecord(Signal.METRICS, 97, request.SerializeToString(), 1, 97)
    save_journal_batch(path, [record])
    finding = solve(path)
    assert finding.reason == reason
    if reason == "GPU_LOST":
        assert (finding.subject.device, finding.confidence.band) == (f"GPU-{LATE}", "high")


def test_a_name_with_a_quote_in_it_breaks_no_query(tmp_path: Path) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    say_xid(path, 79, 0.2, "it's gone")
    assert solve(path).reason == "GPU_LOST"


@pytest.mark.parametrize(
    ("code", "second", "reason"),
    [
        (79, -2.0, "GPU_LOST"),
        (119, 5.0, "GPU_LOST"),
        (79, 15.0, "GPU_HANG"),
        (79, -90.0, "GPU_HANG"),
        (13, 0.2, "GPU_HANG"),
    ],
    ids=["before", "as it is asked", "while the job is ended", "long ago", "another error"],
)
def test_the_kernels_log_tells_a_lost_gpu_as_well(
    tmp_path: Path, code: int, second: float, reason: str
) -> None:
    path = hang(tmp_path / "s.duckdb", BLOCKED)
    say_xid(path, code, second)
    finding = solve(path)
    assert finding.reason == reason
    # It does not say whose GPU that is.
    assert (finding.confidence.band == "medium") is (reason == "GPU_LOST")
