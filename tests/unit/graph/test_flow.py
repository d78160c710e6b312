"""Jobs of which only communication records exist: who is named, and that nobody is on healthy ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rootwalk.graph.flows.diagnosis import tell_flow
from rootwalk.graph.flows.graph import build_flow_graph
from rootwalk.graph.flows.iterations import find_period, find_rhythm
from rootwalk.graph.flows.store import FlowRecords
from rootwalk.graph.flows.verdict import flow_verdict
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from support.flow_records import records_of
from support.inspector_logs import DDP, TENSOR_DATA, InspectorJob, Late, SlowGroup
from support.verdicts import check_schema


def solve(job: InspectorJob, *, is_verbose: bool = True, dump_s: float = 0.0005) -> Verdict:
    return solve_records(records_of(job.run(is_verbose=is_verbose, dump_s=dump_s)))


def solve_records(records: FlowRecords) -> Verdict:
    story = tell_flow(records)
    verdict = flow_verdict(story, *build_flow_graph(story))
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    if verdict.findings:
        shares_s = sum(finding.seconds.share or 0.0 for finding in verdict.findings)
        assert verdict.step_s is not None
        assert verdict.healthy_step_s is not None
        assert verdict.unexplained_s is not None
        total_s = verdict.step_s - verdict.healthy_step_s
        assert shares_s + verdict.unexplained_s == pytest.approx(total_s, abs=1e-6)
    for finding in verdict.findings:
        assert finding.method == "flow_only"
        assert finding.confidence.band in ("medium", "low")
    return verdict


def named(verdict: Verdict) -> list[tuple[str, int | None]]:
    return [(finding.reason, finding.subject.rank) for finding in verdict.findings]


def codes(verdict: Verdict) -> list[str]:
    return [item.code for item in verdict.data_quality]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_nobody_is_accused_on_healthy_jobs(block: int) -> None:
    draw = np.random.default_rng(block)
    outcomes = []
    for seed in range(25):
        job = InspectorJob(
            ranks=int(draw.choice([2, 4, 8, 16])),
            calls=TENSOR_DATA if seed % 2 else DDP,
            iterations=int(draw.choice([30, 60, 120])),
            jitter=float(draw.choice([0.005, 0.02, 0.05, 0.1])),
            uneven=float(draw.choice([0.0, 0.005, 0.02])),
            seed=1000 * block + seed,
        )
        verdict = solve(
            job, is_verbose=bool(draw.integers(2)), dump_s=float(draw.choice([0.0005, 0.5]))
        )
        assert verdict.findings == ()
        outcomes.append(str(verdict.outcome))
    assert outcomes.count("healthy") >= 24


@pytest.mark.parametrize("is_verbose", [True, False])
@pytest.mark.parametrize(("first", "band"), [(0, "low"), (40, "medium")])
@pytest.mark.parametrize("calls", [DDP, TENSOR_DATA], ids=["ddp", "tensor-data"])
def test_the_rank_that_all_others_wait_for_is_named_with_its_seconds(
    calls: tuple[object, ...], first: int, band: str, is_verbose: bool
) -> None:
    job = InspectorJob(calls=calls, iterations=80, late=(Late(5, 0.04, first),))  # type: ignore[arg-type]
    verdict = solve(job, is_verbose=is_verbose)
    (finding,) = verdict.findings
    assert (finding.reason, finding.layer, finding.owner) == ("UNKNOWN_HOST", None, "unknown")
    assert (finding.subject.rank, finding.subject.host) == (5, "node1")
    assert finding.seconds.share == pytest.approx(0.04, rel=0.1)
    assert finding.confidence.band == band
    assert 5 not in verdict.victims.ranks
    assert verdict.victims.count == 7
    assert verdict.syndrome == "non_communication_slow"
    assert (verdict.window.first_step, finding.onset and finding.onset.step) == (None, None)


def test_neighbours_that_waited_for_it_before_are_not_late() -> None:
    # In a tensor group of eight, seven come late to their data groups with it.
    job = InspectorJob(ranks=32, tensor=8, calls=TENSOR_DATA, iterations=40, late=(Late(11, 0.05),))
    assert named(solve(job)) == [("UNKNOWN_HOST", 11)]


def test_two_late_ranks_share_what_the_latest_costs() -> None:
    job = InspectorJob(iterations=80, late=(Late(3, 0.03, 40), Late(6, 0.05, 40)))
    verdict = solve(job)
    assert named(verdict) == [("UNKNOWN_HOST", 6), ("UNKNOWN_HOST", 3)]
    shares = [finding.seconds.share for finding in verdict.findings]
    assert shares == pytest.approx([0.035, 0.015], rel=0.15)
    assert verdict.findings[0].seconds.remove == pytest.approx(0.02, rel=0.15)
    assert verdict.findings[1].seconds.remove == pytest.approx(0.0, abs=0.003)


def test_late_ranks_of_one_small_group_are_not_told_apart() -> None:
    job = InspectorJob(
        ranks=16, tensor=4, calls=TENSOR_DATA, late=(Late(1, 0.05, 30), Late(2, 0.05, 30))
    )
    verdict = solve(job)
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert "1, 2" in verdict.data_quality[0].text


@pytest.mark.parametrize("first", [0, 40])
def test_transfers_of_one_group_slower_than_its_equals_or_its_history(first: int) -> None:
    job = InspectorJob(
        ranks=16, tensor=4, calls=TENSOR_DATA, iterations=80, slow=(SlowGroup("data", 4, 1, first),)
    )
    verdict = solve(job)
    (finding,) = verdict.findings
    assert (finding.reason, finding.layer, finding.owner) == ("UNKNOWN_NET", "network", "fabric")
    assert finding.subject.communicator == next(
        item["header"]["id"] for item in job.lines[1] if item["header"]["comm_name"] == "data"
    )
    assert finding.seconds.share == pytest.approx(0.03, rel=0.1)
    assert finding.confidence.band == ("medium" if first else "low")
    assert verdict.syndrome == "communication_slow"


def test_a_late_rank_and_slow_transfers_are_both_named() -> None:
    job = InspectorJob(
        ranks=16,
        tensor=4,
        calls=TENSOR_DATA,
        iterations=80,
        late=(Late(1, 0.05, 40),),
        slow=(SlowGroup("data", 5, None, 40),),
    )
    verdict = solve(job)
    assert named(verdict) == [("UNKNOWN_HOST", 1), ("UNKNOWN_NET", None)]
    shares = [finding.seconds.share for finding in verdict.findings]
    assert shares == pytest.approx([0.05, 0.04], rel=0.1)


def test_all_ranks_slower_accuses_nobody() -> None:
    late = tuple(Late(rank, 0.03, 40) for rank in range(8))
    verdict = solve(InspectorJob(iterations=80, late=late))
    assert (verdict.outcome, verdict.kind) == ("insufficient_evidence", "slow")
    assert verdict.findings == ()


@pytest.mark.parametrize("seed", range(6))
def test_permuting_ranks_permutes_the_verdict(seed: int) -> None:
    calls = TENSOR_DATA if seed % 2 else DDP
    late = (Late(seed % 8, 0.04, 40),)
    names = tuple(int(n) for n in np.random.default_rng(seed).permutation(8))
    plain = solve(InspectorJob(calls=calls, iterations=80, seed=seed, late=late))
    moved = solve(InspectorJob(calls=calls, iterations=80, seed=seed, late=late, names=names))
    assert named(plain) == [("UNKNOWN_HOST", seed % 8)]
    assert named(moved) == [("UNKNOWN_HOST", names[seed % 8])]
    assert moved.victims.ranks == tuple(sorted(names[rank] for rank in plain.victims.ranks))
    assert moved.findings[0].seconds == plain.findings[0].seconds
    assert moved.findings[0].confidence == plain.findings[0].confidence
    assert moved.step_s == plain.step_s


@pytest.mark.parametrize("is_verbose", [True, False])
def test_skewed_clocks_change_no_finding(is_verbose: bool) -> None:
    job = InspectorJob(calls=TENSOR_DATA, iterations=80, late=(Late(5, 0.04, 40),))
    records = records_of(job.run(is_verbose=is_verbose))
    skew_s = np.random.default_rng(7).normal(0.0, 0.05, 8)
    moved_s = records.rows.end_s + skew_s[records.rows.rank]
    moved = dataclasses.replace(records, rows=dataclasses.replace(records.rows, end_s=moved_s))
    (plain,), (shifted,) = solve_records(records).findings, solve_records(moved).findings
    assert shifted.subject == plain.subject
    assert shifted.seconds.share == pytest.approx(plain.seconds.share, rel=0.02)
    assert shifted.confidence.band == plain.confidence.band


def test_a_missing_rank_accuses_nobody_and_is_named() -> None:
    # Rank 5 holds up rank 4, which then comes last wherever rank 5's records are missing.
    job = InspectorJob(calls=TENSOR_DATA, iterations=80, late=(Late(5, 0.04, 40),)).run()
    del job.lines[5]
    verdict = solve_records(records_of(job))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert {"RANK_MISSING", "UNEQUAL_MEMBERS"} <= set(codes(verdict))


def test_a_missing_rank_of_a_healthy_job_does_not_read_as_healthy() -> None:
    job = InspectorJob(calls=TENSOR_DATA).run()
    del job.lines[2]
    verdict = solve_records(records_of(job))
    assert verdict.outcome == "insufficient_evidence"


def test_records_twice_are_not_judged() -> None:
    job = InspectorJob(late=(Late(5, 0.04, 30),)).run()
    job.lines[3] = job.lines[3] + job.lines[3]
    verdict = solve_records(records_of(job))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert "DUPLICATE_RANK" in codes(verdict)


def test_a_log_that_breaks_off_is_judged_as_far_as_all_go() -> None:
    job = InspectorJob(iterations=80, late=(Late(5, 0.04, 40),)).run()
    job.lines[2] = job.lines[2][:-9]
    verdict = solve_records(records_of(job))
    assert named(verdict) == [("UNKNOWN_HOST", 5)]
    assert "UNEQUAL_MEMBERS" in codes(verdict)


def test_records_written_at_the_end_say_nothing_of_iterations() -> None:
    job = InspectorJob(late=(Late(5, 0.04),))
    verdict = solve(job, is_verbose=False, dump_s=0.0)
    assert (verdict.outcome, verdict.findings, verdict.step_s) == (
        "insufficient_evidence",
        (),
        None,
    )
    assert "NCCL_INSPECTOR_DUMP_VERBOSE" in verdict.data_quality[0].text


@pytest.mark.parametrize("iterations", [3, 10])
def test_few_iterations_say_who_is_late_with_low_confidence(iterations: int) -> None:
    verdict = solve(InspectorJob(iterations=iterations, late=(Late(5, 0.04),)))
    assert [(one.reason, one.subject.rank) for one in verdict.findings] == [("UNKNOWN_HOST", 5)]
    assert verdict.findings[0].confidence.band == "low"


def test_few_iterations_are_not_healthy() -> None:
    verdict = solve(InspectorJob(iterations=10))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())


def with_messages(records: FlowRecords) -> FlowRecords:
    """Return the records with a send of each rank, as stages of a pipeline have them."""
    rows = records.rows
    first = np.unique(rows.rank, return_index=True)[1]
    added: dict[str, Any] = {
        name: np.concatenate([getattr(rows, name), getattr(rows, name)[first]])
        for name in (
            *("rank", "communicator", "series", "sequence", "size", "size_bytes", "end_s"),
            *("duration_s", "is_end_known", "peer"),
        )
    }
    operation = np.concatenate([rows.operation, np.full(first.size, len(rows.operations))])
    is_message = np.concatenate([rows.is_message, np.ones(first.size, dtype=np.bool_)])
    more = dataclasses.replace(
        rows,
        **added,
        operation=operation,
        is_message=is_message,
        operations=(*rows.operations, "send"),
    )
    return dataclasses.replace(records, rows=more)


# Two data groups as two stages: ranks 0, 2, 4, ... and 1, 3, 5, ...
STAGES = tuple(dataclasses.replace(call, layout="data") for call in DDP)


def test_a_stage_that_works_longer_is_no_late_rank() -> None:
    late = tuple(Late(rank, 0.04) for rank in range(1, 16, 2))
    job = InspectorJob(ranks=16, calls=STAGES, late=late)
    assert solve_records(with_messages(records_of(job.run()))).findings == ()


def test_a_rank_is_late_among_those_of_its_stage() -> None:
    job = InspectorJob(ranks=16, calls=STAGES, iterations=80, late=(Late(5, 0.04, 40),))
    verdict = solve_records(with_messages(records_of(job.run())))
    assert named(verdict) == [("UNKNOWN_HOST", 5)]
    assert verdict.victims.ranks == (1, 3, 7, 9, 11, 13, 15)
    assert verdict.findings[0].confidence.band == "low"


def test_stages_of_one_rank_have_no_peer_and_say_so() -> None:
    job = InspectorJob(late=(Late(5, 0.04),))
    verdict = solve_records(with_messages(records_of(job.run())))
    assert verdict.findings == ()
    assert "8 ranks have no peer" in verdict.data_quality[0].text


def test_periods() -> None:
    word = [1, 1, 2, 3, 1, 4]
    assert find_period(np.array(word * 20)) == 6
    assert find_period(np.array([7] * 30)) == 1
    assert find_period(np.array(word * 2)) is None
    # Two kinds one after the other repeat nothing, although neighbours agree.
    assert find_period(np.array([1] * 100 + [2] * 100)) is None
    assert find_period(np.random.default_rng(1).integers(0, 9, 500)) is None
    # A call that was left out, and one too many.
    damaged = word * 40
    del damaged[100]
    damaged.insert(170, 9)
    assert find_period(np.array(damaged)) == 6


def test_rhythms() -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.001, 120)
    assert find_rhythm(np.tile([0.02, 0.07], 60) + noise) == 2
    assert find_rhythm(np.tile([0.02, 0.02, 0.02, 0.09], 30) + noise) == 4
    assert find_rhythm(0.05 + noise) == 1
    assert find_rhythm(np.repeat([0.05, 0.09], 60) + noise) == 1
