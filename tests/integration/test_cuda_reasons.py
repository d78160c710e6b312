"""Calls of CUDA that tell the cause, in synthetic jobs with known seconds; and what looks like them and accuses nobody.

    steps   200 of 120 ms | 200 of 180 ms        rank 1 of four costs 60 ms a step, from 24 s on

What the agent's kernel probes would count is made up here: no GPU was there.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding, Verdict
from rootwalk.otel_receiver import store
from support.counter_cases import FAULT_S, LENGTH_S, ONSET, ONSET_S, STEPS
from support.counters import Told, add_counters, growing, level, tell_sensor
from support.cuda_cases import (
    ALLOCATE,
    BATCH,
    FREE,
    GRAPH,
    INPUT,
    LONG_WAITS,
    LOSS,
    READS,
    SHORT_WAITS,
    SYNC,
    SYNCHRONISES,
    THRASHES,
    USUAL,
    WAITS,
    Calls,
    Rank,
    calls_of,
)
from support.jobs import NS, START_UNIX_NS, Fault, Job, write_job
from support.stores import query_rows
from support.verdicts import check_verdict

LATE, RANKS, HOSTS = 1, 4, 2
FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "none": (),
    "work": (Fault("work", LATE, FAULT_S, ONSET),),
    "device": (Fault("device", LATE, FAULT_S, ONSET, phase="forward"),),
    "pages": (Fault("page_fault", LATE, FAULT_S, ONSET),),
    "all": (Fault("uniform", 0, FAULT_S, ONSET),),
}
WITHOUT = {
    "work": "WORK_IMBALANCE",
    "device": "UNKNOWN_GPU",
    "pages": "UNKNOWN_HOST",
    "all": "GLOBAL_SLOW",
}
Add = Callable[[str, Iterable[Told]], Path]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the store of a job with a fault, to be copied."""
    folder = tmp_path_factory.mktemp("jobs")

    @functools.cache
    def write(fault: str) -> Path:
        simulated = Job(ranks=RANKS, hosts=HOSTS, steps=STEPS, faults=FAULTS[fault])
        return write_job(folder / f"{fault}.duckdb", simulated)

    return write


@pytest.fixture
def add(tmp_path: Path, job: Callable[[str], Path]) -> Add:
    """Returns a store with counters beside a job's records, on hosts whose GPUs are read."""

    def copy(fault: str, told: Iterable[Told]) -> Path:
        path = tmp_path / f"store{len(list(tmp_path.iterdir()))}.duckdb"
        shutil.copy(job(fault), path)
        add_counters(path, tuple(told), LENGTH_S)
        for host in range(HOSTS):
            tell_sensor(path, "nvml", "available", host)
        return path

    return copy


def of_all(late: Rank, others: Rank = USUAL, layer: str = "runtime") -> list[Told]:
    """What every rank calls: the late one, and the others."""
    return [
        one
        for rank in range(RANKS)
        for one in calls_of(rank, rank // 2, late if rank == LATE else others, layer)
    ]


def find(path: Path) -> Verdict:
    """Diagnose a store and check its verdict; what it rests on can be looked at."""
    verdict = check_verdict(diagnose(path))
    for finding in verdict.findings:
        for row in finding.evidence:
            if row.query and "FROM metrics" in row.query:
                assert query_rows(path, row.query)
    return verdict


def only(path: Path) -> Finding:
    (finding,) = find(path).findings
    return finding


def reason_of(path: Path) -> str:
    return str(only(path).reason)


@pytest.mark.parametrize(
    "fault", ["work", *(pytest.param(name, marks=pytest.mark.long) for name in ("device", "pages"))]
)
@pytest.mark.parametrize(
    ("late", "reason", "node"),
    [
        pytest.param(SYNCHRONISES, "ACCIDENTAL_SYNC", "synchronization:host-0/1", id="waits"),
        pytest.param(
            *(READS, "ACCIDENTAL_SYNC", "synchronization:host-0/1"),
            id="copies",
            marks=pytest.mark.long,
        ),
        pytest.param(THRASHES, "ALLOCATOR", "allocator:host-0/1", id="memory"),
    ],
)
def test_rank_that_makes_more_such_calls_is_late_for_them(
    add: Add, fault: str, late: Rank, reason: str, node: str
) -> None:
    # The others wait for it on the device: as long, in as many calls as ever.
    finding = only(add(fault, of_all(late, WAITS)))
    assert (finding.reason, finding.subject.rank, finding.subject.node) == (reason, LATE, node)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert finding.confidence.band == "high"
    rows = {row.signal: row for row in finding.evidence}
    calls, time = rows["training.cuda.calls"], rows["training.cuda.call.time"]
    assert calls.value is not None
    assert calls.history is not None
    assert calls.value >= calls.history + 5
    assert calls.peers == pytest.approx(calls.history, abs=0.5)
    assert time.value == pytest.approx((time.history or 0.0) + FAULT_S, rel=0.2)
    assert reason_of(add(fault, [])) == WITHOUT[fault]


@pytest.mark.parametrize("late", [SYNCHRONISES, THRASHES], ids=["waits", "memory"])
def test_evidence_shows_the_calls_that_count_and_no_others(add: Add, late: Rank) -> None:
    path = add("work", of_all(late))
    rows = [row for row in only(path).evidence if row.signal.startswith("training.cuda.")]
    assert len(rows) == 2
    for row in rows:
        assert row.query is not None
        kinds = {str(values) for values in query_rows(path, row.query)}
        assert any("stream_sync" in one for one in kinds) == (late is SYNCHRONISES)
        assert any("allocate" in one for one in kinds) == (late is THRASHES)
        assert not any("host_to_device" in one for one in kinds)


@pytest.mark.long
@pytest.mark.parametrize("layer", ["driver", "both"])
def test_layers_are_counted_apart_and_either_speaks(add: Add, layer: str) -> None:
    layers = ["runtime", "driver"] if layer == "both" else [layer]
    told = [one for name in layers for one in of_all(SYNCHRONISES, layer=name)]
    finding = only(add("work", told))
    assert finding.reason == "ACCIDENTAL_SYNC"
    (time,) = [row for row in finding.evidence if row.signal == "training.cuda.call.time"]
    assert time.value == pytest.approx(0.0302 + FAULT_S, rel=0.05)


def test_many_more_calls_that_take_next_to_nothing_are_not_the_cause(add: Add) -> None:
    cheap: Rank = {**USUAL, SYNC: Calls((6, 100), (0.077, 0.085))}
    assert reason_of(add("work", of_all(cheap, WAITS))) == "WORK_IMBALANCE"


@pytest.mark.long
@pytest.mark.parametrize(
    ("calls", "reason"),
    [(SYNCHRONISES, "ACCIDENTAL_SYNC"), (THRASHES, "ALLOCATOR"), (WAITS, "GLOBAL_SLOW")],
    ids=["waits", "memory", "a slower device"],
)
def test_what_all_ranks_do_alike_accuses_nobody(add: Add, calls: Rank, reason: str) -> None:
    finding = only(add("all", of_all(calls, calls)))
    assert (finding.reason, finding.subject.rank, finding.pattern) == (reason, None, "uniform")


@pytest.mark.parametrize("count", [RANKS, 1, 0], ids=["of all", "of one", "of nobody"])
def test_one_more_process_on_the_gpus_of_all_ranks_is_a_cotenant(add: Add, count: int) -> None:
    told = [
        Told(
            "training.gpu.processes",
            level(2.0, 3.0 if rank < count else 2.0, ONSET_S),
            rank // 2,
            rank,
            {"hw.id": f"GPU-{rank // 2}"},
        )
        for rank in range(RANKS)
    ]
    finding = only(add("all", told))
    assert finding.reason == ("GPU_COTENANT" if count == RANKS else "GLOBAL_SLOW")
    assert finding.subject.rank is None
    assert finding.pattern == "uniform"


# Memory for the device in every step, as long as ever.
BUSY: Rank = {**USUAL, ALLOCATE: Calls((3, 3), (0.020, 0.020)), FREE: Calls((3, 3), (0.020, 0.020))}
# What the late rank and the others call, where the late rank is late for something else.
NEAR_MISSES: Mapping[str, tuple[Rank, Rank]] = {
    "as always": (USUAL, USUAL),
    "others wait for it": (USUAL, WAITS),
    "all wait longer": (WAITS, WAITS),
    "others make more": (USUAL, SYNCHRONISES),
    "all make more": (SYNCHRONISES, SYNCHRONISES),
    "more that cost nothing": ({**USUAL, SYNC: Calls((2, 20), (0.030, 0.031))}, WAITS),
    "more input": (
        {**SYNCHRONISES, INPUT: Calls((2, 3), (0.0002, 0.0003), (BATCH, 1.5 * BATCH))},
        USUAL,
    ),
    "more graphs": ({**SYNCHRONISES, GRAPH: Calls((4, 6), (0.0004, 0.0006))}, USUAL),
    "longer frees": ({**BUSY, FREE: Calls((3, 3), (0.020, 0.020 + FAULT_S))}, BUSY),
    "all thrash": (THRASHES, THRASHES),
    "memory at no cost": (
        {**USUAL, ALLOCATE: Calls((0, 3), (0, 0.0003)), FREE: Calls((0, 3), (0, 0.0003))},
        USUAL,
    ),
}


# What a rule without the number of calls would take for the cause; the others are in `make test-variants`.
SHORT = ("others wait for it", "more input", "longer frees")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.variant)
        for name in NEAR_MISSES
    ],
)
def test_near_misses_change_nothing(add: Add, name: str) -> None:
    finding = only(add("work", of_all(*NEAR_MISSES[name])))
    assert (finding.reason, finding.subject.rank) == (WITHOUT["work"], LATE)


@pytest.mark.variant
@pytest.mark.parametrize("fault", ["device", "pages"])
@pytest.mark.parametrize("name", ["others wait for it", "all wait longer"])
def test_waits_for_a_device_or_a_peer_are_no_accident(add: Add, fault: str, name: str) -> None:
    finding = only(add(fault, of_all(*NEAR_MISSES[name])))
    assert (finding.reason, finding.subject.rank) == (WITHOUT[fault], LATE)


# Every GPU at its clock, all of the time.
CLOCKS = [
    Told(
        *("training.gpu.frequency", level(1.98e9, 1.98e9, 0.0), rank // 2, rank),
        {"hw.id": f"GPU-{rank}", "training.gpu.clock": "sm"},
    )
    for rank in range(RANKS)
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("late", "reason"), [(SYNCHRONISES, "ACCIDENTAL_SYNC"), (WAITS, "GPU_SILENT_SLOW")]
)
def test_slow_device_is_told_from_a_rank_that_waits_for_it_more_often(
    add: Add, late: Rank, reason: str
) -> None:
    finding = only(add("device", [*of_all(late, WAITS), *CLOCKS]))
    assert (finding.reason, finding.subject.rank) == (reason, LATE)


@pytest.mark.parametrize("fault", ["work", pytest.param("pages", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("clocks", "reason"), [(CLOCKS, "GPU_SILENT_SLOW"), ([], "UNKNOWN_GPU")], ids=["NVML", "none"]
)
def test_longer_waits_of_one_rank_alone_are_its_devices(
    add: Add, fault: str, clocks: list[Told], reason: str
) -> None:
    finding = only(add(fault, [*of_all(WAITS), *clocks]))
    assert (finding.reason, finding.layer, finding.subject.rank) == (reason, "device", LATE)
    rows = {row.signal: row for row in finding.evidence}
    time = rows["training.cuda.call.time"]
    assert time.value == pytest.approx((time.history or 0.0) + FAULT_S, rel=0.2)
    assert time.peers == pytest.approx(time.history, rel=0.2)


def fallen(name: str, gpu: int) -> Told:
    """Of a GPU of the late rank's host hardly any is left."""
    return Told(name, level(16.0, 1.0, ONSET_S), LATE // 2, None, {"hw.id": f"GPU-{gpu}"})


@pytest.mark.parametrize(
    ("calls", "gpu", "reason"),
    [
        pytest.param(of_all(WAITS), LATE, "", id="its own"),
        pytest.param(of_all(WAITS), 0, "GPU_SILENT_SLOW", id="another rank's"),
        pytest.param(of_all(USUAL), LATE, "WORK_IMBALANCE", id="it does not wait for it"),
        pytest.param(of_all(WAITS, WAITS), LATE, "WORK_IMBALANCE", id="nor longer than others"),
        pytest.param([], LATE, "WORK_IMBALANCE", id="nobody counts its calls"),
    ],
)
@pytest.mark.parametrize(
    ("name", "told"), [("training.gpu.nvlink.links", "NVLINK"), ("training.gpu.peers", "P2P_OFF")]
)
def test_links_that_its_own_gpu_lost_are_the_cause_where_a_rank_waits_for_it(
    add: Add, name: str, told: str, calls: list[Told], gpu: int, reason: str
) -> None:
    finding = only(add("work", [*calls, *CLOCKS, fallen(name, gpu)]))
    assert (finding.reason, finding.subject.rank) == (reason or told, LATE)


@pytest.mark.parametrize("more", [1.3, 1.0])
def test_a_device_that_is_given_more_is_not_slow(add: Add, more: float) -> None:
    late = {**WAITS, INPUT: Calls((2, 2), (0.0002, 0.0002), (BATCH, more * BATCH))}
    reason = reason_of(add("work", [*of_all(late), *CLOCKS]))
    assert reason == ("GPU_SILENT_SLOW" if more == 1.0 else WITHOUT["work"])


@pytest.mark.parametrize(
    ("late", "others"),
    [(USUAL, USUAL), (WAITS, WAITS), (USUAL, WAITS), (SHORT_WAITS, LONG_WAITS)],
    ids=["as always", "all wait longer", "others wait for it", "it waited least before"],
)
@pytest.mark.parametrize("clocks", [CLOCKS, []], ids=["NVML", "none"])
def test_waits_that_others_have_alike_accuse_no_gpu(
    add: Add, late: Rank, others: Rank, clocks: list[Told]
) -> None:
    assert reason_of(add("work", [*of_all(late, others), *clocks])) == WITHOUT["work"]


@pytest.mark.long
@pytest.mark.parametrize("late", [SYNCHRONISES, THRASHES], ids=["waits", "memory"])
def test_more_such_calls_in_a_healthy_job_are_no_finding(add: Add, late: Rank) -> None:
    assert find(add("none", of_all(late))).outcome == "healthy"


def since_onset(one: Told, before: float | None) -> Told:
    """The same series with a sum that begins at the onset, and before it as it was, or all of the time so much."""

    def value(now: float) -> float:
        if now >= ONSET_S:
            return one.value(now) - one.value(ONSET_S)
        return one.value(now) if before is None else before

    return replace(one, value=value)


@pytest.mark.parametrize(
    ("before", "is_sent"),
    [(None, True), (0.0, True), (0.0, False)],
    ids=["begun again", "not counted until then", "not there until then"],
)
@pytest.mark.parametrize(
    "late",
    [
        pytest.param(WAITS, id="waits", marks=pytest.mark.variant),
        pytest.param(BUSY, id="memory"),
    ],
)
def test_sums_that_begin_at_the_onset_are_no_more_calls(
    add: Add, late: Rank, before: float | None, is_sent: bool
) -> None:
    told = [since_onset(one, before) if one.rank == LATE else one for one in of_all(late, USUAL)]
    path = add("work", told)
    if not is_sent:
        with store.writing(path) as connection:
            connection.execute(
                "DELETE FROM metric_records WHERE rank = ? AND unix_ns < ?",
                [LATE, START_UNIX_NS + round(ONSET_S * NS)],
            )
    # What was counted before, and is longer now, was waited for.
    is_longer = late is WAITS and before is None
    assert reason_of(path) == ("UNKNOWN_GPU" if is_longer else WITHOUT["work"])


def test_a_library_that_is_counted_later_than_another_hides_nothing(add: Add) -> None:
    # The probes of the runtime are attached in the middle of the healthy steps, those of the driver before them.
    begin_s = ONSET_S / 2

    def since(one: Told) -> Told:
        return replace(one, value=lambda now: one.value(now) - one.value(begin_s))

    told = [*of_all(WAITS, layer="driver"), *map(since, of_all(WAITS))]
    path = add("work", told)
    with store.writing(path) as connection:
        connection.execute(
            "DELETE FROM metric_records WHERE contains(CAST(attributes AS VARCHAR), 'runtime') AND unix_ns < ?",
            [START_UNIX_NS + round(begin_s * NS)],
        )
    assert reason_of(path) == "UNKNOWN_GPU"


def earlier(one: Told) -> Told:
    """The same series, half of the healthy time earlier."""
    return replace(one, value=lambda now: one.value(now + ONSET_S / 2))


@pytest.mark.long
@pytest.mark.parametrize("late", [SYNCHRONISES, THRASHES], ids=["waits", "memory"])
def test_more_calls_at_another_time_are_not_the_cause(add: Add, late: Rank) -> None:
    told = [earlier(one) for one in of_all(late)]
    assert reason_of(add("work", told)) == WITHOUT["work"]


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(SYNCHRONISES, id="waits"),
        pytest.param(THRASHES, id="memory", marks=pytest.mark.variant),
    ],
)
def test_sensor_that_is_missing_is_named_and_the_verdict_is_as_before(add: Add, late: Rank) -> None:
    seen, blind = only(add("work", of_all(late))), add("work", [])
    for host in range(HOSTS):
        tell_sensor(blind, "cuda", "unavailable", host, "NO_BTF")
    verdict = find(blind)
    assert [finding.reason for finding in verdict.findings] == [WITHOUT["work"]]
    (missing,) = verdict.missing_sensors
    assert (missing.sensor, missing.hosts) == ("cuda", ("host-0", "host-1"))
    assert seen.reason in missing.would_decide
    assert (verdict.findings[0].confidence.score or 0) <= (seen.confidence.score or 0)


# GPU of the late rank: half as fast again, throttled for its temperature all of the time.
HOT = (
    Told(
        *("training.gpu.frequency", level(1.98e9, 1.32e9, ONSET_S), 0, LATE),
        {"hw.id": "GPU-1", "training.gpu.clock": "sm"},
    ),
    Told(
        *("training.gpu.throttled.time", growing(1.0, ONSET_S), 0, LATE),
        {"hw.id": "GPU-1", "training.gpu.throttle.reason": "thermal"},
    ),
)


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        pytest.param([], "GPU_THERMAL", id="nobody counts its calls"),
        pytest.param(of_all(WAITS), "GPU_THERMAL", id="it waits for its device"),
        pytest.param(of_all(USUAL, WAITS), "WORK_IMBALANCE", id="its own code is slow"),
    ],
)
def test_a_hot_gpu_is_the_cause_where_its_rank_waits_for_it(
    add: Add, calls: list[Told], reason: str
) -> None:
    assert reason_of(add("work", [*calls, *HOT])) == reason


NEVER_WAITS: Rank = {name: one for name, one in USUAL.items() if name not in (SYNC, LOSS)}


def test_a_rank_that_never_waits_by_a_call_may_be_held_up_elsewhere(add: Add) -> None:
    assert reason_of(add("work", [*of_all(NEVER_WAITS, NEVER_WAITS), *HOT])) == "GPU_THERMAL"
