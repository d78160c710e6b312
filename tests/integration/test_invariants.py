"""What may not change a verdict, for every kind of input: clocks, the ranks' numbers, strangers, the order of rows.

Each input of `support.inputs` has one known cause. Of an input whose clocks nothing compares, skewed clocks may also
make the verdict `insufficient_evidence`, or less sure: never another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.verdict import to_object
from support.inputs import FAULT_S, INPUTS, ONSET, Change, Input, add_idle_host
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

every_input = pytest.mark.parametrize("name", INPUTS)
OF_EACH_KIND = (
    "oplog",
    "kineto",
    "flight-recorder",
    "live, contention",
    "live, lost",
    "nccl-inspector",
)
# Clocks are compared by noisy ends: what they shift is a small part of what a cause costs.
SHARE_RATIO, SMALL_S = 0.02, 1e-4


def put(kind: Input, folder: Path, *changes: Change) -> Path:
    """Put the jobs of one input, changed, into one store."""
    store = folder / "store.duckdb"
    for number, change in enumerate(changes):
        files = folder / f"files{number}"
        files.mkdir(parents=True)
        kind.put(store, files, change)
    return store


# Faults of a rank, with counters or without, and the sensors of its threads from the best to none at all.
FAULTS = ("contention", "own", "quota", "work", "blocked", "uniform")
SENSORS = ("core", "proc", None)


def solve(store: Path, job: str | None = None) -> Verdict:
    return check_verdict(diagnose(store, job=job))


def without_cost(verdict: Verdict) -> str:
    return json.dumps({k: v for k, v in to_object(verdict).items() if k != "cost"})


def accused(verdict: Verdict) -> list[tuple[str, tuple[int, ...]]]:
    return [(f.reason, f.subject.ranks) for f in verdict.findings]


def told(finding: Finding) -> tuple[Any, ...]:
    """What a finding says but for numbers that noise may move."""
    return finding.reason, finding.layer, finding.owner, finding.pattern, finding.confidence.band


@every_input
def test_the_cause_is_known(tmp_path: Path, name: str) -> None:
    kind = INPUTS[name]
    assert accused(solve(put(kind, tmp_path, Change()))) == [kind.first]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_EACH_KIND else pytest.mark.variant)
        for name in INPUTS
    ],
)
@pytest.mark.parametrize("skew_s", [0.05, pytest.param(5.0, marks=pytest.mark.variant)])
def test_skewed_clocks_change_no_verdict(tmp_path: Path, name: str, skew_s: float) -> None:
    kind = INPUTS[name]
    plain = solve(put(kind, tmp_path / "plain", Change()))
    skewed = solve(put(kind, tmp_path / "skewed", Change(skew_s=skew_s)))
    if skewed.outcome == "insufficient_evidence":
        assert not kind.can_align
        assert skewed.findings == ()
        return
    assert skewed.outcome == plain.outcome
    for left, right in zip(plain.findings, skewed.findings, strict=True):
        assert right.subject == left.subject
        if not kind.can_align:
            # What hangs is told by counts of calls, which need no clock.
            if plain.kind != "hang":
                assert "high" not in (left.confidence.band, right.confidence.band)
            assert right.reason == left.reason
            assert (right.confidence.score or 0.0) <= (left.confidence.score or 0.0)
            continue
        assert told(right) == told(left)
        assert right.seconds.share == pytest.approx(left.seconds.share, rel=SHARE_RATIO)
        assert right.seconds.remove == pytest.approx(
            left.seconds.remove, rel=SHARE_RATIO, abs=SMALL_S
        )
    if kind.can_align:
        assert skewed.victims.ranks == plain.victims.ranks
        assert skewed.unexplained_s == pytest.approx(plain.unexplained_s, abs=SMALL_S)


@pytest.mark.variant
@pytest.mark.parametrize("name", [name for name, kind in INPUTS.items() if kind.can_renumber])
def test_permuted_ranks_permute_the_verdict(tmp_path: Path, name: str) -> None:
    kind = INPUTS[name]
    # Nobody keeps its number, the one that is to blame and rank 0 among them.
    place = tuple((5 * rank + 3) % kind.ranks for rank in range(kind.ranks))
    place = place if kind.ranks > 2 else (1, 0)
    assert all(new != rank for rank, new in enumerate(place))
    plain = solve(put(kind, tmp_path / "plain", Change()))
    moved = solve(put(kind, tmp_path / "moved", Change(place=place)))
    assert moved.outcome == plain.outcome
    assert (moved.step_s, moved.healthy_step_s) == (plain.step_s, plain.healthy_step_s)
    assert moved.victims.ranks == tuple(sorted(place[rank] for rank in plain.victims.ranks))
    for left, right in zip(plain.findings, moved.findings, strict=True):
        assert right.subject.ranks == tuple(sorted(place[rank] for rank in left.subject.ranks))
        assert told(right) == told(left)
        assert right.seconds == left.seconds
        assert right.confidence == left.confidence


@pytest.mark.variant
@every_input
def test_an_unrelated_job_and_an_idle_host_change_nothing(tmp_path: Path, name: str) -> None:
    kind = INPUTS[name]
    alone = solve(put(kind, tmp_path / "alone", Change()))
    stranger = "live, all slower" if not name.startswith("live") else "kineto"
    store = put(kind, tmp_path / "both", Change())
    add_idle_host(store)
    assert without_cost(solve(store, "j1")) == without_cost(alone)
    (tmp_path / "stranger").mkdir()
    INPUTS[stranger].put(store, tmp_path / "stranger", Change(job="stranger"))
    assert without_cost(solve(store, "j1")) == without_cost(alone)


@pytest.mark.variant
@every_input
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    kind = INPUTS[name]
    first = put(kind, tmp_path / "first", Change())
    verdict = without_cost(solve(first))
    assert without_cost(solve(first)) == verdict
    assert without_cost(solve(put(kind, tmp_path / "second", Change()))) == verdict


@pytest.mark.variant
@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_sensor_nothing_is_surer(tmp_path: Path, fault: str) -> None:
    scores, reasons = [], []
    for sensor in SENSORS:
        (tmp_path / str(sensor)).mkdir()
        job = Job(ranks=4, hosts=2, sensor=sensor, faults=(Fault(fault, 1, FAULT_S, ONSET),))
        verdict = check_verdict(diagnose(write_job(tmp_path / str(sensor) / "s.duckdb", job)))
        reasons.append([finding.reason for finding in verdict.findings])
        scores.append(max((f.confidence.score or 0.0 for f in verdict.findings), default=0.0))
        # Whoever is named without it is the one that was named with it.
        assert {f.subject.rank for f in verdict.findings} <= {1 if fault != "uniform" else None}
    assert reasons[0] != []
    assert scores == sorted(scores, reverse=True)


@pytest.mark.variant
@pytest.mark.parametrize("name", ["nccl-inspector", "flight-recorder", "kineto"])
def test_without_a_ranks_file_nothing_is_surer_and_no_victim_is_accused(
    tmp_path: Path, name: str
) -> None:
    kind = INPUTS[name]
    whole = solve(put(kind, tmp_path / "whole", Change()))
    (first,) = whole.findings
    for lost in (0, *kind.first[1]):
        folder = tmp_path / f"without{lost}"
        verdict = solve(put(kind, folder, Change(lost=lost)))
        for finding in verdict.findings:
            assert (finding.confidence.score or 0.0) <= (first.confidence.score or 0.0)
            assert set(finding.subject.ranks) <= set(first.subject.ranks)
        assert verdict.outcome != "healthy"
        assert verdict.data_quality != () or name == "kineto"


def test_a_rank_slower_by_its_own_clock_is_not_healthy_where_clocks_are_apart(
    tmp_path: Path,
) -> None:
    # The clock of host 1 is 5 s ahead, rank 2 loses 60 ms a step: all its steps seem to end before those of rank 1.
    kind = INPUTS["live, no collectives"]
    verdict = solve(put(kind, tmp_path, Change(skew_s=5.0)))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert [item.code for item in verdict.data_quality] == ["CLOCK_UNALIGNED"] * 2
    assert verdict.data_quality[1].count == 1


def test_equal_ranks_are_healthy_though_clocks_are_apart(tmp_path: Path) -> None:
    job = Job(
        ranks=4, hosts=4, jitter_ratio=0.05, has_collectives=False, skew_s=(0.0, 5.0, -5.0, 1.0)
    )
    assert check_verdict(diagnose(write_job(tmp_path / "s.duckdb", job))).outcome == "healthy"
