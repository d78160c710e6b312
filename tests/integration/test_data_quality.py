"""What is wrong with the data reaches the verdict; a test for each code of the contract is here, or named.

CLOCK_UNALIGNED    unit/graph/test_align, integration/test_import_flight_recorder
MISSING_EDGE       integration/test_near_misses
the other codes of steps    integration/test_diagnosis; of dumps    integration/test_import_flight_recorder
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import QualityCode, Verdict, Victims
from rootwalk.graph.score import ScoredFinding
from rootwalk.graph.verdict import slow_verdict
from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.signals import Signal
from support.jobs import Fault, Job, write_job
from support.other_producers import receive
from support.otlp_messages import RANK_RESOURCE, metric, metric_request, span, trace_request

ONE_POINT = metric("queue.size", gauge={"data_points": [{"as_int": 1, "time_unix_nano": 1}]})
SLOW = Job(faults=(Fault("contention", 1, 0.060, 40),))
TESTS = Path(__file__).parents[1]


def codes(verdict: Verdict) -> list[str]:
    return [item.code for item in verdict.data_quality]


@pytest.mark.parametrize("code", [str(code) for code in QualityCode])
def test_every_code_has_a_test(code: str) -> None:
    paths = [*TESTS.glob("unit/graph/*.py"), *TESTS.glob("integration/*.py")]
    assert any(re.search(rf'"{code}"', path.read_text("utf-8")) for path in paths)


def test_what_agents_dropped_is_told(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", SLOW)
    before = diagnose(path)
    with store.writing(path) as connection:
        connection.execute(
            "INSERT INTO metric_states BY NAME SELECT 'rootwalk.dropped' AS name, 'j1' AS job, 'h1' AS host_id,"
            " 'ring_full' AS sensor, '{}' AS attributes, 7 AS value, 7 AS max_value, 1 AS unix_ns"
        )
    verdict = diagnose(path)
    assert codes(verdict) == [*codes(before), "DROPPED"]
    assert (verdict.data_quality[-1].count, verdict.findings) == (7, before.findings)
    assert "ring_full 7" in verdict.data_quality[-1].text


def test_identity_of_another_type_is_told(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", SLOW)
    before = diagnose(path)
    resource = {**RANK_RESOURCE, "training.rank": "1"}  # as OTEL_RESOURCE_ATTRIBUTES makes it
    sent = [span(n, "training.rank_step", attributes={"training.step.number": n}) for n in (1, 2)]
    steps = [span(3, "training.rank_step", attributes={"training.step.number": "7"})]
    own = {**RANK_RESOURCE, "host.id": "host-id-0", "host.name": "host-0", "process.pid": 1001}
    receive(path, Signal.TRACES, [trace_request(sent, resource), trace_request(steps, own)])
    receive(path, Signal.METRICS, [metric_request([ONE_POINT], resource)])
    verdict = diagnose(path)
    assert codes(verdict) == [*codes(before), "RANK_MISSING", "RANK_MISSING"]
    assert [item.count for item in verdict.data_quality[-2:]] == [3, 1]
    assert 'training.rank that is no whole number (such as "1")' in verdict.data_quality[-2].text
    assert verdict.findings == before.findings


def test_a_file_that_could_not_be_imported_is_told_of_steps_as_well(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", SLOW)
    before = diagnose(path)
    broken = tmp_path / "more.jsonl"
    broken.write_text('{"resourceSpans": [')
    assert main(["import", "otlp", str(broken), "--store", str(path), "--quiet"]) == 1
    verdict = diagnose(path)
    assert codes(verdict) == [*codes(before), "BROKEN_FILE"]
    assert "more.jsonl" in verdict.data_quality[-1].text
    assert verdict.findings == before.findings
    other = diagnose(write_job(tmp_path / "other.duckdb", SLOW))
    assert "BROKEN_FILE" not in codes(other)


def test_only_a_broken_file_in_a_store_is_told(tmp_path: Path) -> None:
    path, broken = tmp_path / "s.duckdb", tmp_path / "nothing.jsonl"
    broken.touch()
    assert main(["import", "otlp", str(broken), "--store", str(path), "--quiet"]) == 1
    verdict = diagnose(path)
    assert (verdict.outcome, codes(verdict)) == ("insufficient_evidence", ["BROKEN_FILE"])


def test_a_replay_that_misses_the_steps_accuses_nobody(tmp_path: Path) -> None:
    with store.reading(write_job(tmp_path / "s.duckdb", SLOW)) as connection:
        case = Investigation(connection, None, None)
    case.analyse()
    verdict = case.conclude(case.graph, case.evidence)
    analysis, question = case._analysis, case._question
    assert analysis is not None
    assert question is not None
    assert verdict.step_s is not None
    known = analysis.counterfactual
    claimed = next(i for i, s in enumerate(known.share) if s == max(known.share))
    # A replay a tenth too long, with and without its causes; and a finding that claims a step more than its cause has.
    extra_s = 0.1 * known.simulated_s
    longer = replace(
        known, simulated_s=known.simulated_s + extra_s, ideal_s=known.ideal_s + extra_s
    )
    off = replace(analysis, counterfactual=longer)
    (finding,) = verdict.findings
    share = (finding.seconds.share or 0.0) + verdict.step_s
    more = ScoredFinding(replace(finding, seconds=replace(finding.seconds, share=share)), claimed)
    sound = ScoredFinding(finding, claimed)
    for wrong, scored, code in (
        (analysis, sound, None),
        (off, sound, "REPLAY_ERROR"),
        (analysis, more, "SUM_MISMATCH"),
    ):
        told = slow_verdict(case._data, case._clock, question, wrong, (scored,), Victims(), ())
        assert codes(told) == ([] if code is None else [code])
        assert len(told.findings) == (1 if code is None else 0)
        assert told.outcome == ("finding" if code is None else "insufficient_evidence")
