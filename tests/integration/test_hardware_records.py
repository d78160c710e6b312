"""What a real H200 and an H100 were recorded to say: dumps with NCCL's timing, watched jobs with known faults."""

from __future__ import annotations

import gzip
import statistics
from pathlib import Path

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from rootwalk.instrumentation.flight_times import Timed, read_times
from support.live_check import note_store
from support.stores import query_rows
from support.verdicts import check_schema

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "hardware_h200"
# Put in: rank 1 keeps its CPU busy before each step.
LATE_RANK, LATE_S = 1, 0.030
# DistributedDataParallel reduces two buckets in a step of this job.
REDUCES_IN_STEP = 2


def solve(tmp_path: Path, format_name: str, *paths: Path) -> tuple[Path, Verdict]:
    """Return a store of recorded files and what it is diagnosed with."""
    store = tmp_path / "store.duckdb"
    names = [str(path) for path in paths]
    assert main(["import", format_name, *names, "--store", str(store), "--quiet"]) == 0
    note_store(store, "true")
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    return store, verdict


def dumps(folder: str) -> list[Path]:
    """Return the dumps of a folder, by rank."""
    return sorted((RECORDED / folder).glob("nccl_*_rank?.json*"))


def times(path: Path, since_unix_ns: int = 0) -> dict[tuple[str, int], Timed]:
    """Return what the hooks read of a dump."""
    data = path.read_bytes()
    return read_times(gzip.decompress(data) if path.suffix == ".gz" else data, since_unix_ns)


@pytest.mark.parametrize("folder", ["dumps_legacy", "dumps_nccl2"])
def test_the_late_rank_is_named_by_dumps_alone(tmp_path: Path, folder: str) -> None:
    _, verdict = solve(tmp_path, "flight-recorder", *dumps(folder))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("UNKNOWN_HOST", LATE_RANK)
    assert (finding.method, verdict.kind, verdict.job.world_size) == ("flow_only", "slow", 2)
    assert finding.seconds.share == pytest.approx(LATE_S, rel=0.15)
    assert verdict.victims.ranks == (0,)
    assert "UNKNOWN_NET" in {item.reason for item in finding.excluded}


def test_nobody_is_accused_by_dumps_that_were_written_before_the_watchdog_looked(
    tmp_path: Path,
) -> None:
    """All ranks joined the last two operations and ended them, which the dumps do not know yet."""
    _, verdict = solve(tmp_path, "flight-recorder", *dumps("dumps_unended"))
    assert (verdict.outcome, verdict.kind) == ("insufficient_evidence", "hang")
    assert verdict.findings == ()
    assert verdict.hang is not None
    assert (verdict.hang.sequence, verdict.hang.absent, verdict.hang.joined) == (1203, (), (0, 1))


@pytest.mark.parametrize(
    ("folder", "ended"), [("dumps_legacy", 512), ("dumps_nccl2", 64), ("dumps_unended", 30)]
)
def test_hooks_read_the_same_durations_out_of_the_ring(folder: str, ended: int) -> None:
    """Of both ranks a step's durations differ by the time for which rank 0 waits."""
    waiting, late = (times(path) for path in dumps(folder))
    assert waiting.keys() == late.keys()
    assert len(waiting) == ended
    keys = sorted(waiting, key=lambda key: key[1])
    assert [number for _, number in keys] == list(range(keys[0][1], keys[0][1] + ended))
    waits_s = [(waiting[key].device_ns - late[key].device_ns) / 1e9 for key in keys]
    steps = [
        sum(waits_s[n : n + REDUCES_IN_STEP])
        for n in range(0, ended - ended % REDUCES_IN_STEP, REDUCES_IN_STEP)
    ]
    assert statistics.median(steps) == pytest.approx(LATE_S, rel=0.15)


def test_hooks_read_no_more_than_was_issued_since() -> None:
    path = dumps("dumps_legacy")[0]
    moments = sorted(one.created_unix_ns for one in times(path).values())
    assert len(times(path, moments[-100])) == 100


SLOW = {("cuda", "SLOW_FUNCTIONS")}
NO_BPF = {("sched", "NO_LIBBPF"), ("stacks", "NO_LIBBPF"), ("instrumentation", "OLD_TORCH")}
NO_BPF |= {(name, "NO_BPF") for name in ("block_io", "cuda", "interrupts", "lifecycle", "memory")}


@pytest.mark.parametrize(
    ("path", "reason", "rank", "onset", "added_s", "near", "missing"),
    [
        # Its own work on the host; a part of what was put in stays unexplained.
        ("h200/late_rank", "WORK_IMBALANCE", LATE_RANK, 300, LATE_S, 0.15, SLOW),
        ("h200/synchronisation", "ACCIDENTAL_SYNC", 1, 111, 0.097, 0.05, SLOW),
        ("h200/cotenant", "GPU_COTENANT", None, 201, 0.0374, 0.05, SLOW),
        ("h100/synchronisation", "ACCIDENTAL_SYNC", 1, 111, 0.1008, 0.05, set()),
        ("h100/cotenant", "GPU_COTENANT", None, 144, 0.0424, 0.05, set()),
        ("h100/allocator", "ALLOCATOR", 1, 111, 0.1215, 0.05, set()),
        ("h100/slow_input", "DATALOADER_CPU", 1, 111, 0.399, 0.05, set()),
        ("h100/slow_input_torch_2_11", "DATALOADER_CPU", 1, 111, 0.600, 0.06, NO_BPF),
    ],
)
def test_a_watched_job_on_one_gpu_names_its_fault(
    tmp_path: Path,
    path: str,
    reason: str,
    rank: int | None,
    onset: int,
    added_s: float,
    near: float,
    missing: set[tuple[str, str]],
) -> None:
    store, verdict = solve(tmp_path, "otlp", DATA / f"hardware_{path}.jsonl.zst")
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == (reason, rank)
    assert finding.onset is not None
    assert finding.onset.step == onset
    assert finding.confidence.band == ("low" if missing == NO_BPF else "medium")
    assert finding.seconds.share == pytest.approx(added_s, rel=near)
    for row in finding.evidence:
        assert query_rows(store, str(row.query))
    everywhere = {("cpu_frequency", "NO_CPU_CLOCK"), ("rdma_counters", "NO_DEVICE")}
    assert {(item.sensor, item.reason) for item in verdict.missing_sensors} == missing | everywhere


def test_the_calls_that_became_longer_are_shown_and_not_those_that_wait_less(
    tmp_path: Path,
) -> None:
    _, verdict = solve(tmp_path, "otlp", DATA / "hardware_h100" / "allocator.jsonl.zst")
    said = " ".join(render_text(verdict).split())
    assert "in calls of CUDA for that 0.144 s/step, before 42 us" in said
