"""More work of a rank that talks to the others by messages alone is its pipeline stage's; else it is the rank's.

The jobs are those of `support.jobs`; what they tell as all-reduces is told as messages there and back instead.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding
from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import rebuild_summaries
from support.counter_cases import steal
from support.counters import add_counters, tell_sensor
from support.jobs import HEALTHY_STEP_S, Fault, Job, write_job
from support.verdicts import check_verdict

FAULT_S, STEPS, ONSET = 0.060, 120, 60
EVERYWHERE = "true"


def write_pipeline(
    path: Path, *faults: Fault, messages: str = EVERYWHERE, gone: str = "false"
) -> Path:
    """Write a job whose ranks exchange messages.

    Args:
        path: The store.
        faults: What is done to it.
        messages: Which of its collectives are messages.
        gone: Which of them there are none of.
    """
    write_job(path, Job(ranks=2, hosts=1, steps=STEPS, faults=faults))
    with store.writing(path) as connection:
        connection.execute(
            "UPDATE span_records SET operation = CASE rank WHEN 0 THEN 'send' ELSE 'recv' END"  # noqa: S608
            f" WHERE starts_with(name, 'collective.') AND {messages}"
        )
        connection.execute(
            "UPDATE span_records SET name = 'collective.' || operation"
            " WHERE operation IN ('send', 'recv')"
        )
        connection.execute(
            f"DELETE FROM span_records WHERE starts_with(name, 'collective.') AND {gone}"  # noqa: S608
        )
        rebuild_summaries(connection)
    tell_sensor(path, "instrumentation", "available", 0)
    return path


def find(path: Path) -> list[Finding]:
    return list(check_verdict(diagnose(path)).findings)


WORK = Fault("work", 1, FAULT_S, ONSET)


def test_more_work_of_a_rank_that_only_sends_messages_is_its_stage(tmp_path: Path) -> None:
    (finding,) = find(write_pipeline(tmp_path / "s.duckdb", WORK))
    assert (finding.reason, finding.subject.rank) == ("STAGE_IMBALANCE", 1)
    assert finding.subject.node == "stage:host-0/1"
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert finding.confidence.band == "high"
    assert {item.reason for item in finding.excluded} >= {"CPU_CONTENTION", "CPU_QUOTA"}


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": "false"},  # no pipeline
        {"messages": "sequence % 2 = 0"},  # stages that have peers, which would show the same
        {"gone": f"sequence % 2 = 0 AND step < {ONSET}"},  # other micro-batches, not the same work
    ],
    ids=["no messages", "peers of the stage", "more messages"],
)
def test_else_it_is_the_rank_that_has_more_work(tmp_path: Path, changes: dict[str, str]) -> None:
    (finding,) = find(write_pipeline(tmp_path / "s.duckdb", WORK, **changes))
    assert (finding.reason, finding.subject.rank) == ("WORK_IMBALANCE", 1)


@pytest.mark.parametrize(
    ("much", "reason"),
    [
        (1.0, "CPU_STEAL"),  # all of what the stage is late
        (0.3, "STAGE_IMBALANCE"),  # a third of it
    ],
)
def test_stolen_time_that_explains_little_is_no_rival(
    tmp_path: Path, much: float, reason: str
) -> None:
    path = write_pipeline(tmp_path / "s.duckdb", WORK)
    add_counters(path, steal(0, much, ONSET * HEALTHY_STEP_S), STEPS * (HEALTHY_STEP_S + FAULT_S))
    tell_sensor(path, "cpu", "available", 0)
    (finding,) = find(path)
    assert finding.reason == reason
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


def test_a_stage_on_a_core_that_others_use_is_not_slow_by_its_work(tmp_path: Path) -> None:
    hog = Fault("contention", 1, FAULT_S, ONSET)
    (finding,) = find(write_pipeline(tmp_path / "s.duckdb", hog))
    assert (finding.reason, finding.subject.rank) == ("CPU_CONTENTION", 1)
