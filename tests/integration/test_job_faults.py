"""Collections, decoding, CPU limits and what looks like them: from synthetic jobs through a real store to the cause.

Every job has two loader-worker seconds per hundred steps, a collection of 1 ms a step and a watched control group, so
that silence is evidence. The healthy step is 120 ms; faults of 60 ms begin at step 60 of 100 (see `support.jobs`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import Band, Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.otel_receiver import store
from support.jobs import Fault, Job, add_cpu_limit, simulate, write_job, write_rows
from support.verdicts import check_verdict, solve

ONSET, FAULT_S = 60, 0.060
WATCHED = Job(steps=100, loader_s=0.020, gc_s=0.001, has_cgroup=True)


def job_with(*faults: Fault, **changes: object) -> Job:
    return replace(WATCHED, faults=faults, **changes)  # type: ignore[arg-type]


def fault(kind: str, rank: int = 1, **more: object) -> Fault:
    return Fault(kind, rank, FAULT_S, ONSET, **more)  # type: ignore[arg-type]


COLLECTING = Fault("gc", 1, 0.100, ONSET, phase="forward", probability=0.5)
FAULTS = {
    "gc": job_with(COLLECTING),
    "decode": job_with(fault("decode", phase="data_load")),
    "decode behind": job_with(fault("decode_behind")),
    "decode in main": job_with(fault("work", phase="data_load")),
    "quota": job_with(fault("quota")),
    "loader contention": job_with(fault("loader_contention", phase="data_load")),
    "loader quota": job_with(fault("loader_quota", phase="data_load")),
}


@pytest.mark.parametrize("jitter_ratio", [0.0, 0.05])
@pytest.mark.parametrize(
    ("kind", "reason", "edges"),
    [
        ("decode", "DATALOADER_CPU", ["waits_for", "running"]),
        ("decode behind", "DATALOADER_CPU", ["runnable", "contends_with"]),
        ("decode in main", "DATALOADER_CPU", ["running"]),
        ("quota", "CPU_QUOTA", ["runnable", "throttled_by"]),
        ("loader contention", "CPU_CONTENTION", ["waits_for", "runnable", "contends_with"]),
        ("loader quota", "CPU_QUOTA", ["waits_for", "runnable", "throttled_by"]),
    ],
)
def test_each_fault_is_named_with_its_seconds_and_its_chain(
    tmp_path: Path, kind: str, reason: str, edges: list[str], jitter_ratio: float
) -> None:
    verdict = solve(tmp_path, replace(FAULTS[kind], jitter_ratio=jitter_ratio))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == (reason, 1)
    assert (finding.subject.host, finding.confidence.band) == ("host-0", Band.HIGH)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.003)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.004)
    assert abs((verdict.window.first_step or 0) - ONSET) <= 1
    assert [link.edge for link in finding.chain] == ["slowed_by", "waits_for", *edges]
    assert verdict.victims.ranks == (0,)


def mean_of_hits() -> tuple[float, int]:
    """Return the collector's mean per step from its first step on, in seconds, and that step."""
    first = next(step for step in range(ONSET, 100) if COLLECTING.at(step))
    hits = sum(COLLECTING.at(step) for step in range(first, 100))
    return 0.100 * hits / (100 - first), first


@pytest.mark.parametrize(("sensor", "band"), [("core", Band.HIGH), (None, Band.MEDIUM)])
def test_collections_at_random_steps_are_one_episode(
    tmp_path: Path, sensor: str | None, band: Band
) -> None:
    # The hooks alone see the collector: without an agent nobody can say what else was in the way.
    verdict = solve(tmp_path, replace(FAULTS["gc"], sensor=sensor, jitter_ratio=0.02))
    mean_s, first = mean_of_hits()
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.confidence.band) == ("PY_GC", 1, band)
    assert finding.seconds.share == pytest.approx(mean_s, rel=0.05)
    assert (verdict.window.first_step, verdict.window.last_step) == (first, 99)
    assert set(verdict.window.slow_steps) == {s for s in range(first, 100) if COLLECTING.at(s)}
    assert verdict.step_s == pytest.approx(0.120 + mean_s, rel=0.02)
    assert finding.subject.node == "thread:host-0/1001"


def test_chosen_steps_of_an_intermittent_episode_are_explained(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", FAULTS["gc"])
    verdict = check_verdict(diagnose(path, steps=(70, 85)))
    assert [f.reason for f in verdict.findings] == ["PY_GC"]
    hits = sum(COLLECTING.at(step) for step in range(70, 86))
    assert verdict.findings[0].seconds.share == pytest.approx(0.100 * hits / 16, rel=0.05)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        # every rank at the same steps, each at its own, and decoding that became heavier for all
        ([replace(COLLECTING, rank=r, probability=1.0) for r in (0, 1)], "PY_GC"),
        ([replace(COLLECTING, rank=r) for r in (0, 1)], "PY_GC"),
        ([fault("decode", r, phase="data_load") for r in (0, 1)], "DATALOADER_CPU"),
    ],
)
def test_what_all_ranks_do_is_no_single_ranks(
    tmp_path: Path, faults: list[Fault], reason: str
) -> None:
    verdict = solve(tmp_path, job_with(*faults))
    assert [(f.reason, f.subject.rank, f.pattern) for f in verdict.findings] == [
        (reason, None, "uniform")
    ]
    assert render_text(verdict).startswith("all ranks: ")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job_with(fault("prefetch")), id="workers work more and nobody waits"),
        pytest.param(job_with(fault("throttled")), id="throttled and not late"),
        pytest.param(
            job_with(replace(COLLECTING, first_step=0, probability=0.2, seconds=0.02)),
            id="it always collected a little",
        ),
    ],
)
def test_near_misses_are_healthy(tmp_path: Path, job: Job) -> None:
    assert solve(tmp_path, job).outcome == "healthy"


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ((fault("own"),), "THREAD_OVERSUBSCRIPTION"),
        # its own threads in the way, and workers that work more for nobody
        ((fault("own"), fault("prefetch")), "THREAD_OVERSUBSCRIPTION"),
        # workers of before in the way: nothing grew
        ((fault("decode_behind", growth_s=0.0),), "THREAD_OVERSUBSCRIPTION"),
        ((fault("contention"), fault("prefetch")), "CPU_CONTENTION"),
        # waited for workers that ran, no longer than before, and nobody held them up
        ((fault("decode", phase="data_load", growth_s=0.0),), "UNKNOWN_HOST"),
        ((fault("work", phase="forward"),), "WORK_IMBALANCE"),
        # everything takes half as long again: no input problem
        (
            (
                Fault("work", 1, 0.005, ONSET, phase="data_load"),
                Fault("work", 1, 0.015, ONSET, phase="forward"),
                Fault("work", 1, 0.025, ONSET),
                Fault("work", 1, 0.010, ONSET, phase="optimizer"),
            ),
            "WORK_IMBALANCE",
        ),
    ],
)
def test_look_alikes_keep_their_own_name(
    tmp_path: Path, faults: tuple[Fault, ...], reason: str
) -> None:
    verdict = solve(tmp_path, job_with(*faults))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [(reason, 1)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_work_that_moves_from_rank_to_rank_is_no_ranks_and_not_everybodys(
    tmp_path: Path, ranks: int
) -> None:
    generator = np.random.default_rng(ranks)
    moving = (
        Fault("work", int(generator.integers(ranks)), FAULT_S, s, s) for s in range(ONSET, 100)
    )
    verdict = solve(tmp_path, job_with(*moving, ranks=ranks))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("WORK_IMBALANCE", None)
    assert finding.pattern == "rotating"
    assert finding.seconds.share == pytest.approx(FAULT_S, rel=0.05)
    text = render_text(verdict)
    assert text.startswith("one rank after another: more work of its own than before, +0.0")
    assert "this rank" not in text
    assert "even them out" in text


@pytest.mark.parametrize("collected_s", [1.18, 0.3])
def test_two_causes_that_ranks_have_in_turn_are_both_named(
    tmp_path: Path, collected_s: float
) -> None:
    # every fourth step one of two ranks in turn makes garbage and collects it
    turns = tuple(
        Fault(kind, rank, seconds, ONSET + 4 * rank, period=8, phase=phase)
        for rank in (0, 1)
        for kind, seconds, phase in (("gc", collected_s, "forward"), ("work", 0.2, "backward"))
    )
    verdict = solve(tmp_path, Job(steps=200, faults=turns, gc_s=0.0))
    named = {one.reason: one for one in verdict.findings}
    assert set(named) == {"PY_GC", "WORK_IMBALANCE"}
    assert {one.pattern for one in verdict.findings} == {"rotating"}
    assert named["PY_GC"].seconds.share == pytest.approx(collected_s / 4, rel=0.1)
    assert named["WORK_IMBALANCE"].seconds.share == pytest.approx(0.05, rel=0.1)


def test_idle_cpus_without_throttling_are_no_limit(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", FAULTS["quota"])
    with store.writing(path) as connection:
        connection.execute(
            "UPDATE span_records SET throttled_ns = 0 WHERE throttled_ns IS NOT NULL"
        )
    verdict = check_verdict(diagnose(path))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("UNKNOWN_HOST", 1)]
    assert verdict.findings[0].seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize(
    ("faults", "shares"),
    [
        # throttled for 60 ms, in 10 of which somebody used the CPU that the rank might not
        ((("quota", 0.050), ("contention", 0.010), ("throttled", 0.010)), {"CPU_QUOTA": 0.060}),
        # throttled for 50 ms, and behind somebody for another 10
        ((("quota", 0.050), ("contention", 0.010)), {"CPU_QUOTA": 0.050, "CPU_CONTENTION": 0.010}),
        # throttled for 60 ms, as often behind somebody; blocked for 5 ms, so 25 of the 31 were throttled for certain
        ((("quota", 0.030), ("contention", 0.031), ("throttled", 0.030)), {"CPU_QUOTA": 0.060}),
        # somebody fills all of the gap, as idle-class work does
        ((("contention", 0.060), ("throttled", 0.060)), {"CPU_QUOTA": 0.060}),
        # a limit that is hardly met does not excuse who competes for 60 ms
        (
            (("contention", 0.060), ("throttled", 0.012)),
            {"CPU_CONTENTION": 0.048, "CPU_QUOTA": 0.012},
        ),
        # blocked for as long: the group may have stood then, for a helper that wanted to run
        (
            (("contention", 0.030), ("read", 0.030), ("throttled", 0.030)),
            {"CPU_CONTENTION": 0.030, "UNKNOWN_HOST": 0.030},
        ),
        # in transfers too, as far as the group stood for longer than the main thread was late
        (
            (("contention", 0.045), ("transfer_foreign", 0.020), ("throttled", 0.055)),
            {"CPU_QUOTA": 0.055, "CPU_CONTENTION": 0.010},
        ),
    ],
    ids=[
        "in the gap",
        "besides",
        "as often behind",
        "all the gap",
        "competitor",
        "helper",
        "in transfers",
    ],
)
def test_who_runs_while_a_rank_is_throttled_is_not_in_its_way(
    tmp_path: Path, faults: tuple[tuple[str, float], ...], shares: dict[str, float]
) -> None:
    found = [replace(fault(kind), seconds=seconds) for kind, seconds in faults]
    verdict = solve(tmp_path, job_with(*found))
    assert {f.reason: f.seconds.share for f in verdict.findings} == pytest.approx(shares, abs=0.002)


def test_a_limit_on_one_rank_does_not_excuse_the_competitor_of_another(tmp_path: Path) -> None:
    verdict = solve(tmp_path, job_with(fault("contention"), fault("throttled", 0)))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("CPU_CONTENTION", 1)]


def test_a_limit_whose_gap_somebody_fills_is_shown_by_the_groups_own_count(tmp_path: Path) -> None:
    (finding,) = solve(tmp_path, job_with(fault("contention"), fault("throttled"))).findings
    assert finding.confidence.band == Band.HIGH
    values = {row.signal: row.value for row in finding.evidence}
    assert values["training.cgroup.throttled_time"] == pytest.approx(FAULT_S, abs=0.001)
    assert values["training.thread.runnable_idle_time"] == 0.0


def test_throttling_explains_runnable_time_that_the_coarse_sensor_cannot_split(
    tmp_path: Path,
) -> None:
    verdict = solve(tmp_path, replace(FAULTS["quota"], sensor="proc"))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_QUOTA", 1)
    assert finding.confidence.band == Band.MEDIUM


def test_part_of_the_growth_explains_part_of_the_wait(tmp_path: Path) -> None:
    # 60 ms more behind workers that work 40 ms more: the rest is the queue for the rank's CPUs
    verdict = solve(tmp_path, job_with(fault("decode_behind", growth_s=0.040)))
    shares = {f.reason: f.seconds.share for f in verdict.findings}
    assert shares == {
        "DATALOADER_CPU": pytest.approx(0.040, abs=0.001),
        "THREAD_OVERSUBSCRIPTION": pytest.approx(0.020, abs=0.001),
    }


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (("transfer_foreign",), "CPU_CONTENTION"),
        (("transfer_own",), "THREAD_OVERSUBSCRIPTION"),
        (("transfer_own", "prefetch"), "DATALOADER_CPU"),
        (("transfer_idle",), "CPU_QUOTA"),
    ],
)
def test_slow_transfers_are_charged_to_what_the_members_threads_stood_behind(
    tmp_path: Path, kinds: tuple[str, ...], reason: str
) -> None:
    verdict = solve(tmp_path, job_with(*(fault(kind) for kind in kinds)))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [(reason, 1)]
    assert verdict.findings[0].seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize(
    ("blocked_s", "shares"),
    [
        (0.015, {"THREAD_OVERSUBSCRIPTION": FAULT_S + 0.015 - 0.020}),
        # It waits no longer for work than that takes: the rest is something else.
        (0.060, {"THREAD_OVERSUBSCRIPTION": FAULT_S, "UNKNOWN_HOST": 0.060 - 0.020}),
    ],
)
def test_work_that_a_rank_gives_to_its_own_threads_is_not_what_it_loses(
    tmp_path: Path, blocked_s: float, shares: dict[str, float]
) -> None:
    # The main thread computes 20 of 25 ms less, and waits 60 ms for a CPU behind its threads, besides being blocked.
    def give(step: int, rank: int, phase: str) -> float:
        return 0.2 if (rank, phase) == (1, "backward") and step >= ONSET else 1.0

    blocked = Fault("blocked", 1, blocked_s, ONSET)
    verdict = solve(tmp_path, job_with(fault("own"), blocked, factor=give))
    found = {f.reason: f.seconds.share for f in verdict.findings if f.subject.rank == 1}
    assert found == {
        reason: pytest.approx(share_s, abs=0.003) for reason, share_s in shares.items()
    }
    assert len(verdict.findings) == len(found)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.004)


@pytest.mark.parametrize(
    ("wait", "running_s", "reasons"),
    [
        ("blocked", 0.012, ["UNKNOWN_HOST"]),
        ("blocked", 0.030, ["UNKNOWN_HOST", "DATALOADER_CPU"]),
        ("read", 0.012, ["DATALOADER_IO"]),
        ("read", 0.030, ["DATALOADER_IO", "DATALOADER_CPU"]),
    ],
)
def test_input_that_is_waited_for_takes_cpu_time_as_well(
    tmp_path: Path, wait: str, running_s: float, reasons: list[str]
) -> None:
    # a main thread that waits 60 ms longer for its input, unseen by what or for a file, and copies more by hand
    kinds = {wait: FAULT_S, "work": running_s}
    faults = [Fault(kind, 1, s, ONSET, phase="data_load") for kind, s in kinds.items()]
    verdict = solve(tmp_path, job_with(*faults))
    assert [f.reason for f in verdict.findings] == reasons
    assert sum(f.seconds.share or 0.0 for f in verdict.findings) == pytest.approx(
        FAULT_S + running_s, abs=0.002
    )


def test_notes_of_ends_that_come_late_make_no_host_slow_that_nobody_watched(tmp_path: Path) -> None:
    # in two of three steps the main thread takes the interpreter before who notes the end: it is noted 4 ms late
    rows = simulate(job_with(fault("transfer_foreign", -1), sensor="proc"))
    for row in rows:
        if row["name"].startswith("collective") and row["sequence"] % 2 == 0 and row["step"] % 3:
            row["end_unix_ns"] += 4_000_000
    (finding,) = diagnose(write_rows(tmp_path / "late.duckdb", rows)).findings
    assert finding.reason == "UNKNOWN_NET"
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize(
    ("looked_s", "reasons"),
    [(FAULT_S, ["MEM_RECLAIM"]), (0.008, ["BLOCKING_LOG", "MEM_RECLAIM"])],
)
def test_who_looks_for_memory_waits_when_it_writes_files_too(
    tmp_path: Path, looked_s: float, reasons: list[str]
) -> None:
    """A control group at its limit may have few pages that wait to be written."""
    seconds = {"reclaim": looked_s, "write": 0.012}
    faults = [Fault(kind, 1, s, ONSET, phase="forward") for kind, s in seconds.items()]
    verdict = solve(tmp_path, job_with(*faults))
    assert [f.reason for f in verdict.findings] == reasons
    assert sum(f.seconds.share or 0.0 for f in verdict.findings) == pytest.approx(
        looked_s + 0.012, abs=0.002
    )


def test_words_say_where_and_how_much(tmp_path: Path) -> None:
    path = write_job(tmp_path / "quota.duckdb", FAULTS["quota"])
    add_cpu_limit(path, 1, 0.5)
    first = {
        "limit": render_text(diagnose(path)).splitlines()[0],
        **{
            kind: " ".join(
                render_text(diagnose(write_job(tmp_path / f"{kind}.duckdb", FAULTS[kind]))).split()
            )
            for kind in ("decode", "decode in main", "gc")
        },
    }
    assert first["limit"].startswith("rank 1 (host-0, CPU 1): throttled by its limit of 0.50 CPU,")
    assert "input decoding in loader workers: 0.060 s/step more CPU, +0.060" in first["decode"]
    assert "input decoding in the main process: 0.060 s/step more" in first["decode in main"]
    assert "rank 1 (host-0): Python garbage collection, +0.0" in first["gc"]
    assert "throttled 0.00 s" in first["decode"]


@pytest.mark.parametrize("kind", FAULTS)
def test_without_any_edge_or_row_of_its_chain_a_finding_falls(tmp_path: Path, kind: str) -> None:
    path = write_job(tmp_path / "s.duckdb", FAULTS[kind])
    add_cpu_limit(path, 1, 0.5)
    whole = diagnose(path).findings[0]
    assert whole.confidence.band == Band.HIGH
    deletions = [("edges", "kind", link.edge) for link in whole.chain]
    deletions += [("evidence", "signal", row.signal) for row in whole.evidence]
    with store.writing(path) as connection:
        investigation = Investigation(connection, None, None)
        assert investigation.key is not None
        for table, column, value in sorted(set(deletions)):
            connection.execute("BEGIN")
            delete = f"DELETE FROM {table} WHERE {column} = ? RETURNING 1"  # noqa: S608
            assert connection.execute(delete, [value]).fetchall()
            graph = graph_store.load_graph(connection, investigation.key)
            damaged: Verdict = investigation.conclude(*graph)
            connection.execute("ROLLBACK")
            bands = [f.confidence.band for f in damaged.findings if f.reason == whole.reason]
            assert Band.HIGH not in bands, (table, value)
        queries = connection.execute("SELECT query FROM evidence WHERE query IS NOT NULL")
        for (query,) in queries.fetchall():
            assert connection.execute(query).fetchall(), query
