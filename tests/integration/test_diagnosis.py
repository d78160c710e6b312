"""Known faults in synthetic jobs, through a real store, to the named cause.

The healthy step is 120 ms; a fault of 60 ms on one rank makes it 180 ms (see `support.jobs`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import Band
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_json, to_object
from rootwalk.instrumentation.errors import ConfigError, StoreError
from rootwalk.otel_receiver import store
from support.counters import tell_sensor
from support.jobs import AGGRESSOR_PID, Fault, Job, simulate, write_job, write_rows
from support.verdicts import check_verdict, solve

FAULT_S = 0.060


@pytest.mark.parametrize(
    ("kind", "reason", "rank", "band"),
    [
        ("contention", "CPU_CONTENTION", 1, Band.HIGH),
        ("own", "THREAD_OVERSUBSCRIPTION", 1, Band.HIGH),
        # nobody read the control group's own count
        ("quota", "CPU_QUOTA", 1, Band.MEDIUM),
        ("work", "WORK_IMBALANCE", 1, Band.MEDIUM),
        ("blocked", "UNKNOWN_HOST", 1, Band.MEDIUM),
        ("uniform", "GLOBAL_SLOW", None, Band.MEDIUM),
    ],
)
def test_each_fault_is_named_with_its_seconds(
    tmp_path: Path, kind: str, reason: str, rank: int | None, band: Band
) -> None:
    verdict = solve(tmp_path, Job(faults=(Fault(kind, 1, FAULT_S, 40),)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.confidence.band) == (reason, rank, band)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert verdict.step_s == pytest.approx(0.180)
    assert verdict.healthy_step_s == pytest.approx(0.120)
    assert finding.predicted_step_s == pytest.approx(0.120, abs=0.002)
    assert (verdict.window.first_step, verdict.window.last_step) == (40, 79)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.002)
    assert finding.state == "open"


@pytest.mark.parametrize(
    ("sensors", "band"),
    [
        (("interrupts",), Band.MEDIUM),
        (("interrupts", "cpu_frequency"), Band.HIGH),
    ],
)
def test_more_work_is_sure_only_where_a_clock_was_read(
    tmp_path: Path, sensors: tuple[str, ...], band: Band
) -> None:
    path = write_job(tmp_path / "store.duckdb", Job(faults=(Fault("work", 1, FAULT_S, 40),)))
    for sensor in sensors:
        tell_sensor(path, sensor, "available", host=0)
    (finding,) = check_verdict(diagnose(path)).findings
    assert (finding.reason, finding.confidence.band) == ("WORK_IMBALANCE", band)


def test_the_aggressor_is_named_and_the_victim_counted(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    (finding,) = verdict.findings
    aggressor = finding.subject.aggressor
    assert aggressor is not None
    assert (aggressor.pid, aggressor.name) == (AGGRESSOR_PID, "node_exporter")
    assert finding.subject.node == f"process:host-0/{AGGRESSOR_PID}"
    assert verdict.victims.ranks == (0,)
    assert verdict.victims.waited_s == pytest.approx(FAULT_S, abs=0.001)
    first = render_text(verdict).splitlines()[0]
    assert first.startswith("rank 1 (host-0, CPU 1): CPU contention by 'node_exporter' pid 4411,")
    assert [link.edge for link in finding.chain] == [
        "slowed_by",
        "waits_for",
        "runnable",
        "contends_with",
    ]


def test_a_rank_in_the_way_of_another_is_named_as_one(tmp_path: Path) -> None:
    rank_0 = next(row["pid"] for row in simulate(Job(steps=1)) if row["rank"] == 0)
    fault = Fault("contention", 1, FAULT_S, 40, pid=rank_0, name="python")
    (finding,) = solve(tmp_path, Job(faults=(fault,))).findings
    aggressor = finding.subject.aggressor
    assert aggressor is not None
    assert (aggressor.pid, aggressor.name) == (rank_0, "rank 0 of this job")
    assert "CPUs of its own" in finding.action
    assert "limit" not in finding.action


@pytest.mark.parametrize("seed", range(5))
def test_the_fault_is_found_through_jitter(tmp_path: Path, seed: int) -> None:
    job = Job(
        ranks=4,
        steps=120,
        jitter_ratio=0.1,
        seed=seed,
        faults=(Fault("contention", 2, FAULT_S, 70),),
    )
    verdict = solve(tmp_path, job)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 2)
    assert verdict.step_s is not None
    assert verdict.healthy_step_s is not None
    slowdown = verdict.step_s - verdict.healthy_step_s
    assert finding.seconds.share == pytest.approx(slowdown, rel=0.1)
    assert abs(verdict.unexplained_s or 0.0) < 0.1 * slowdown
    assert abs((verdict.window.first_step or 0) - 70) <= 2


def test_two_causes_share_what_they_cost_together(tmp_path: Path) -> None:
    # Both ranks are about 60 ms late: removing either alone gains nothing, each is half to blame.
    faults = (
        Fault("contention", 0, FAULT_S, 40, pid=500, name="a"),
        Fault("quota", 1, FAULT_S, 40),
    )
    verdict = solve(tmp_path, Job(jitter_ratio=0.02, faults=faults))
    assert {(f.reason, f.subject.rank) for f in verdict.findings} == {
        ("CPU_CONTENTION", 0),
        ("CPU_QUOTA", 1),
    }
    assert [f.seconds.share for f in verdict.findings] == pytest.approx([0.030, 0.030], abs=0.003)
    assert [f.seconds.remove for f in verdict.findings] == pytest.approx([0.0, 0.0], abs=0.003)
    assert [f.seconds.add for f in verdict.findings] == pytest.approx([FAULT_S, FAULT_S], abs=0.003)


def test_a_hidden_fault_beside_a_real_one_is_not_accused(tmp_path: Path) -> None:
    # Rank 0 is 60 ms late; the 30 ms of rank 1 vanish in its wait.
    faults = (
        Fault("contention", 0, FAULT_S, 40),
        Fault("contention", 1, 0.030, 40, pid=500, name="b"),
    )
    verdict = solve(tmp_path, Job(faults=faults))
    shares = {f.subject.rank: f.seconds.share for f in verdict.findings}
    # Rank 1 alone would cost 30 ms, so half of that is fairly its own.
    assert shares[0] == pytest.approx(0.045, abs=0.001)
    assert verdict.findings[0].subject.rank == 0
    assert verdict.findings[0].seconds.remove == pytest.approx(0.030, abs=0.001)


def test_a_closed_episode_is_a_closed_finding(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(steps=100, faults=(Fault("contention", 1, FAULT_S, 40, 59),)))
    (finding,) = verdict.findings
    assert (finding.state, verdict.window.first_step, verdict.window.last_step) == (
        "closed",
        40,
        59,
    )
    assert finding.lost.wall_s == pytest.approx(20 * FAULT_S, rel=0.05)


def test_steps_can_be_chosen(tmp_path: Path) -> None:
    job = Job(steps=100, faults=(Fault("contention", 1, FAULT_S, 40, 59),))
    path = write_job(tmp_path / "s.duckdb", job)
    assert diagnose(path, steps=(70, 90)).outcome == "healthy"
    verdict = diagnose(path, steps=(45, 50))
    assert verdict.findings[0].reason == "CPU_CONTENTION"
    assert (verdict.window.first_step, verdict.window.last_step) == (45, 50)


@pytest.mark.parametrize("phase", ["data_load", "forward", "optimizer"])
def test_the_phase_does_not_matter(tmp_path: Path, phase: str) -> None:
    verdict = solve(
        tmp_path, Job(ranks=3, faults=(Fault("contention", 2, FAULT_S, 40, phase=phase),))
    )
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 2)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


def test_one_rank_has_no_peers_and_still_an_answer(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(ranks=1, faults=(Fault("contention", 0, FAULT_S, 40),)))
    assert (verdict.findings[0].reason, verdict.findings[0].subject.rank) == ("CPU_CONTENTION", 0)
    assert verdict.findings[0].victims.count == 0


@pytest.mark.parametrize("sensor", ["proc", None])
def test_without_the_exact_sensor_the_rank_is_named_and_the_cause_is_not(
    tmp_path: Path, sensor: str | None
) -> None:
    verdict = solve(tmp_path, Job(sensor=sensor, faults=(Fault("contention", 1, FAULT_S, 40),)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank, finding.confidence.band) == (
        "UNKNOWN_HOST",
        1,
        Band.LOW,
    )
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert [m.sensor for m in verdict.missing_sensors] == (["sched"] if sensor is None else [])


def test_a_clock_skew_of_fifty_milliseconds_changes_nothing(tmp_path: Path) -> None:
    faults = (Fault("contention", 2, FAULT_S, 40),)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    straight = solve(tmp_path / "a", Job(ranks=4, hosts=2, faults=faults))
    skewed = solve(tmp_path / "b", Job(ranks=4, hosts=2, faults=faults, skew_s=(0.050, -0.050)))
    for left, right in zip(straight.findings, skewed.findings, strict=True):
        assert (left.id, left.reason, left.subject) == (right.id, right.reason, right.subject)
        assert left.seconds.share == pytest.approx(right.seconds.share, abs=1e-4)
    assert skewed.unexplained_s == pytest.approx(straight.unexplained_s, abs=1e-4)


def test_offsets_in_the_store_do_not_shift_the_second_diagnosis(tmp_path: Path) -> None:
    job = Job(
        ranks=4, hosts=2, faults=(Fault("contention", 2, FAULT_S, 40),), skew_s=(0.050, -0.050)
    )
    path = write_job(tmp_path / "s.duckdb", job)
    first, second = to_object(diagnose(path)), to_object(diagnose(path))
    first.pop("cost")
    second.pop("cost")
    assert json.dumps(first) == json.dumps(second)
    with store.reading(path) as connection:
        rows = connection.execute(
            "SELECT host_id, offset_ns FROM clock_offsets ORDER BY host_id"
        ).fetchall()
    assert rows[0][1] - rows[1][1] == pytest.approx(100_000_000, abs=100_000)


@pytest.mark.parametrize("rank", range(4))
def test_permuting_the_ranks_permutes_the_verdict(tmp_path: Path, rank: int) -> None:
    verdict = solve(tmp_path, Job(ranks=4, faults=(Fault("contention", rank, FAULT_S, 40),)))
    (finding,) = verdict.findings
    assert finding.subject.rank == rank
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=1e-6)
    assert verdict.victims.ranks == tuple(r for r in range(4) if r != rank)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_job(
        tmp_path_factory.mktemp("chain") / "s.duckdb",
        Job(faults=(Fault("contention", 1, FAULT_S, 40),)),
    )
    diagnose(path)
    return path


CHAIN_EDGES = ["slowed_by", "waits_for", "runnable", "contends_with"]
CITED_SIGNALS = [
    "training.step.duration",
    "collective.arrival_lag",
    "training.thread.runnable_time",
    "training.thread.runnable_foreign_time",
    "training.thread.runnable_own_time",
    "training.thread.runnable_idle_time",
    "training.thread.running_time",
    "training.thread.blocked_time",
    "training.aggressor.time",
]
DELETIONS = [("DELETE FROM edges WHERE kind = ? RETURNING 1", kind) for kind in CHAIN_EDGES]
DELETIONS += [
    ("DELETE FROM evidence WHERE signal = ? RETURNING 1", signal) for signal in CITED_SIGNALS
]


@pytest.mark.parametrize(("delete", "what"), DELETIONS, ids=[what for _, what in DELETIONS])
def test_without_an_edge_or_its_evidence_the_finding_falls(
    stored: Path, delete: str, what: str
) -> None:
    with store.writing(stored) as connection:
        investigation = Investigation(connection, None, None)
        assert investigation.key is not None
        whole = investigation.conclude(*graph_store.load_graph(connection, investigation.key))
        connection.execute("BEGIN")
        assert len(connection.execute(delete, [what]).fetchall()) == 1
        damaged = investigation.conclude(*graph_store.load_graph(connection, investigation.key))
        connection.execute("ROLLBACK")
    assert whole.findings[0].confidence.band == Band.HIGH
    assert damaged.findings == () or damaged.findings[0].confidence.band != Band.HIGH
    assert {link.edge for link in whole.findings[0].chain} == set(CHAIN_EDGES)
    assert {row.signal for row in whole.findings[0].evidence} == set(CITED_SIGNALS)


def test_the_path_from_symptom_to_aggressor_can_be_read_by_sql(stored: Path) -> None:
    query = """
        SELECT w.target_id, c.source_id FROM edges s
        JOIN edges w ON w.source_id = s.target_id AND w.kind = 'waits_for'
        JOIN edges c ON c.target_id = w.target_id AND c.kind = 'contends_with'
        WHERE s.source_id = 'job:j1' AND s.kind = 'slowed_by'
    """
    with store.reading(stored) as connection:
        assert connection.execute(query).fetchall() == [
            ("thread:host-0/1001", f"process:host-0/{AGGRESSOR_PID}")
        ]
        (row,) = connection.execute(
            "SELECT reason, rank, onset_step, confidence_band FROM findings"
        ).fetchall()
        assert row == ("CPU_CONTENTION", 1, 40, "high")
        for (sql,) in connection.execute(
            "SELECT query FROM evidence WHERE query IS NOT NULL"
        ).fetchall():
            assert connection.execute(sql).fetchall()


def test_zero_steps_are_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path / "s.duckdb", Job(steps=0))
    assert main(["diagnose", str(path), "--exit-code"]) == 3
    assert "not enough evidence" in capsys.readouterr().out


def test_two_jobs_must_be_told_apart(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "s.duckdb", simulate(Job(name="a")) + simulate(Job(name="b")))
    with pytest.raises(ConfigError, match="saw 2 in the store"):
        diagnose(path)
    assert diagnose(path, job="b").job.id == "b"
    with pytest.raises(ConfigError, match='cannot find job "c"'):
        diagnose(path, job="c")


def test_a_missing_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        diagnose(tmp_path / "none.duckdb")


def test_bad_records_are_counted_and_survived(tmp_path: Path) -> None:
    rows = simulate(Job(faults=(Fault("contention", 1, FAULT_S, 40),), world_size=3))
    phase = next(r for r in rows if r["name"] == "forward" and r["step"] == 50)
    phase["end_unix_ns"] = phase["start_unix_ns"] - 1
    rows = [
        r
        for r in rows
        if not (r["name"] == "collective.all_reduce" and r["step"] == 60 and r["rank"] == 0)
    ]
    rows.append(
        dict(next(r for r in rows if r["name"] == "training.rank_step" and r["step"] == 45))
    )
    verdict = diagnose(write_rows(tmp_path / "s.duckdb", rows))
    codes = {item.code for item in verdict.data_quality}
    assert {"BAD_TIME", "UNEQUAL_MEMBERS", "DUPLICATE_RANK", "RANK_MISSING"} <= codes
    assert verdict.findings[0].reason == "CPU_CONTENTION"
    assert verdict.findings[0].seconds.share == pytest.approx(FAULT_S, abs=0.003)


def test_job_of_whose_ranks_two_share_a_number_is_not_called_healthy(tmp_path: Path) -> None:
    """Only one of both is in the steps: the other may be the slow one."""
    rows = simulate(Job(ranks=2, hosts=1, steps=60))
    other = next(row for row in rows if row["name"] == "training.rank_step" and row["rank"] == 1)
    doubled = {**other, "pid": 99, "step": 7, "span_id": "ffffffffffffffff"}
    assert diagnose(write_rows(tmp_path / "one.duckdb", rows)).outcome == "healthy"
    verdict = diagnose(write_rows(tmp_path / "two.duckdb", [*rows, doubled]))
    assert "DUPLICATE_RANK" in {item.code for item in verdict.data_quality}
    assert verdict.outcome == "insufficient_evidence"


def test_the_command_answers_in_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path / "s.duckdb", Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    assert main(["diagnose", str(path), "--exit-code"]) == 4
    assert "CPU contention by 'node_exporter' pid 4411" in capsys.readouterr().out
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "rootwalk.verdict/1"


@pytest.mark.slow
def test_sixty_four_ranks_take_less_than_thirty_seconds(tmp_path: Path) -> None:
    job = Job(
        ranks=64,
        hosts=8,
        steps=100,
        jitter_ratio=0.05,
        faults=(Fault("contention", 37, FAULT_S, 50),),
    )
    verdict = solve(tmp_path, job)
    assert (verdict.findings[0].subject.rank, verdict.findings[0].subject.host) == (37, "host-4")
    assert verdict.victims.count == 63
    assert verdict.cost.diagnose_s is not None
    assert verdict.cost.diagnose_s < 30.0


def test_json_is_the_same_for_the_same_store(stored: Path) -> None:
    texts = []
    for _ in range(2):
        verdict = json.loads(to_json(diagnose(stored)))
        verdict.pop("cost")
        texts.append(json.dumps(verdict))
    assert texts[0] == texts[1]


def test_a_process_in_a_container_is_named_with_container_and_pod(tmp_path: Path) -> None:
    uid, container = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "0123456789abcdef" * 4
    group = f"/kubepods/burstable/pod{uid}/{container}"
    rows = [
        {**row, "aggressor_cgroup": group} if "aggressor_cgroup" in row else row
        for row in simulate(Job(faults=(Fault("contention", 1, FAULT_S, 40),)))
    ]
    verdict = diagnose(write_rows(tmp_path / "s.duckdb", rows))
    aggressor = verdict.findings[0].subject.aggressor
    assert aggressor is not None
    assert (aggressor.cgroup, aggressor.container, aggressor.pod) == (group, container, uid)
    words = " ".join(render_text(verdict).split())
    assert f"runs in container 0123456789ab, pod {uid}" in words
