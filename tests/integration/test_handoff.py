"""Hand-off records: what they say of a finding, and when a job is to be moved because of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rootwalk.graph import cli
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.handoff import MoveCosts, Places, handoff_records
from rootwalk.graph.model import Finding, Subject, Verdict
from support.jobs import Fault, Job, write_job
from support.progress_reports import absent, stuck_job, waiting

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "graph" / "handoff-1.schema.json").read_text(encoding="utf-8")
)
RANKS, HOSTS = 8, 8
SHARE_S = 0.1


def exported(
    store: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[list[dict[str, Any]], str]:
    output = store.with_suffix(".jsonl")
    arguments = ["export", str(store), "--format", "handoff", "--output", str(output), "--force"]
    assert cli.main([*arguments, *options]) == 0
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    for record in records:
        jsonschema.Draft202012Validator(SCHEMA).validate(record)
    return records, capsys.readouterr().out


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of eight hosts on which another process takes the CPU."""
    fault = Fault("contention", 3, SHARE_S, 40)
    job = Job(ranks=RANKS, hosts=HOSTS, faults=(fault,))
    return write_job(tmp_path_factory.mktemp("handoff") / "s.duckdb", job)


@pytest.fixture(scope="module")
def verdict(store: Path) -> Verdict:
    return diagnose(store)


PLACES = Places({rank: f"host-{rank}" for rank in range(RANKS)}, {3: "GPU-3"})


def advice_of(verdict: Verdict, places: Places = PLACES, costs: MoveCosts | None = None) -> Any:
    record = handoff_records(verdict, places, costs)[0]
    jsonschema.Draft202012Validator(SCHEMA).validate(record)
    return record["advice"]


def with_finding(verdict: Verdict, **changes: Any) -> Verdict:
    return replace(verdict, findings=(replace(verdict.findings[0], **changes),))


def test_a_slow_node_is_left_at_the_next_checkpoint(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,), said = exported(store, capsys)
    assert (record["reason"], record["ranks"], record["hosts"]) == (
        "CPU_CONTENTION",
        [3],
        ["host-3"],
    )
    assert record["advice"]["do"] == "move_at_next_checkpoint"
    assert "move at next checkpoint: moving pays after" in said
    # By hand: 0.1 s of 0.22 s of each step, of eight devices.
    ratio = record["lost"]["step_s"] / (record["lost"]["step_s"] + 0.12)
    assert record["lost"]["hour_s"] == pytest.approx(3600 * ratio, rel=0.05)
    assert record["lost"]["hour_device_s"] == pytest.approx(RANKS * record["lost"]["hour_s"])
    assert record["moving"]["pays_after_s"] == pytest.approx(390 / ratio, rel=0.05)
    assert {one["kind"] for one in record["evidence"]} == {"timing of the job", "times of threads"}
    assert record["blast_radius"]["hosts_with_this_reason"] == ["host-3"]


def test_two_records_of_one_episode_are_one(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = exported(store, capsys)[0], exported(store, capsys)[0]
    assert [one["id"] for one in first] == [one["id"] for one in second]


def test_a_platform_that_moves_jobs_alive_moves_it_at_once(verdict: Verdict) -> None:
    advice = advice_of(verdict, costs=MoveCosts(migration_s=20.0))
    assert advice["do"] == "move_now"


def test_what_does_not_pay_within_the_horizon_is_not_moved(verdict: Verdict) -> None:
    advice = advice_of(verdict, costs=MoveCosts(restart_s=3600.0, horizon_s=600.0))
    assert advice["do"] == "do_not_move"
    assert "more than it gains" in advice["because"]


@pytest.mark.parametrize(
    ("slow", "hosts", "do"),
    [
        (8, 10, "do_not_move"),
        (3, 10, "do_not_move"),
        (2, 10, "move_at_next_checkpoint"),
        (1, 2, "move_at_next_checkpoint"),
        (2, 2, "do_not_move"),
    ],
)
def test_what_many_nodes_show_is_of_the_fleet(
    verdict: Verdict, slow: int, hosts: int, do: str
) -> None:
    one = verdict.findings[0]
    findings = tuple(
        replace(
            one, id=str(rank), subject=replace(one.subject, rank=rank, ranks=(rank,), host=None)
        )
        for rank in range(slow)
    )
    places = Places({rank: f"host-{rank}" for rank in range(hosts)}, {})
    records = handoff_records(replace(verdict, findings=findings), places)
    assert {record["advice"]["do"] for record in records} == {do}


def nowhere(finding: Finding) -> Subject:
    return replace(finding.subject, rank=None, ranks=(), host=None)


@pytest.mark.parametrize("owner", ["job", "storage", "platform", "unknown"])
def test_what_another_node_does_not_mend_is_not_moved(verdict: Verdict, owner: str) -> None:
    advice = advice_of(with_finding(verdict, owner=owner))
    assert advice["do"] == "do_not_move"
    assert owner in advice["because"]


def test_weak_evidence_does_not_move_a_job(verdict: Verdict) -> None:
    finding = verdict.findings[0]
    alone = tuple(one for one in finding.evidence if one.signal.startswith("training.thread."))
    low = replace(finding.confidence, band="low")
    assert "stands alone" in advice_of(with_finding(verdict, evidence=alone))["because"]
    assert "confidence" in advice_of(with_finding(verdict, confidence=low))["because"]
    assert "over" in advice_of(with_finding(verdict, state="closed"))["because"]
    assert "no host" in advice_of(with_finding(verdict, subject=nowhere(finding)))["because"]


def test_devices_are_named_where_they_are_known(verdict: Verdict) -> None:
    assert handoff_records(verdict, PLACES)[0]["devices"] == ["GPU-3"]


def test_a_job_that_its_own_program_stops_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stuck_job(tmp_path / "s.duckdb", [waiting(), waiting(), absent(), waiting()])
    (record,), _ = exported(store, capsys)
    assert (record["reason"], record["ranks"]) == ("NOT_JOINED", [2])
    assert record["lost"]["hour_device_s"] == 4 * 3600
    assert record["advice"]["do"] == "do_not_move"


def test_a_job_that_a_node_stops_is_moved_at_once(verdict: Verdict) -> None:
    assert advice_of(with_finding(verdict, kind="hang"))["do"] == "move_now"


def test_a_healthy_job_has_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, said = exported(write_job(tmp_path / "s.duckdb", Job()), capsys)
    assert records == []
    assert "no finding, so no record" in said


def test_what_moving_costs_is_an_option(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (moved,), _ = exported(store, capsys, "--migration-time", "20s")
    assert (moved["moving"]["migration_s"], moved["advice"]["do"]) == (20.0, "move_now")
    (left,), _ = exported(store, capsys, "--restart-time", "2h", "--horizon", "30m")
    assert (left["moving"]["restart_s"], left["moving"]["horizon_s"]) == (7200.0, 1800.0)
    assert left["advice"]["do"] == "do_not_move"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "handoff", "--horizon", "soon"], 'cannot use "soon" for --horizon'),
        (["--format", "handoff", "--restart-time", "0s"], "saw one for what moving a job costs"),
        (["--format", "dot", "--horizon", "1h"], "cannot use --horizon: saw another format"),
    ],
)
def test_what_is_no_cost_of_moving_is_said(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    assert cli.main(["export", str(store), "--output", str(tmp_path / "o"), *options]) == 2
    assert words in capsys.readouterr().err
