"""Own threads in a rank's way while all ranks are slower: named where the queue grew beyond that of healthy steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Finding
from rootwalk.graph.queues import MIN_SIGMAS, without_usual_queues
from rootwalk.graph.reasons import Signal
from rootwalk.graph.score import ScoredFinding
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict

ONSET = 60
COMMON_S, QUEUE_S = 0.040, 0.015


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    """What a job comes to whose ranks all work longer, and rank 1 behind threads of its own as well."""
    faults = tuple(Fault("work", rank, COMMON_S, ONSET) for rank in (0, 1))
    job = Job(steps=120, faults=(*faults, Fault("own", 1, QUEUE_S, ONSET)), jitter_ratio=0.02)
    path = write_job(tmp_path_factory.mktemp("job") / "store.duckdb", job)
    return {f.reason: f for f in check_verdict(diagnose(path)).findings}


def test_a_queue_that_was_not_there_before_is_named(found: dict[str, Finding]) -> None:
    assert set(found) == {"GLOBAL_SLOW", "THREAD_OVERSUBSCRIPTION"}
    assert found["THREAD_OVERSUBSCRIPTION"].subject.rank == 1


@pytest.mark.parametrize(
    ("sigmas", "share_s", "is_named"),
    [
        (MIN_SIGMAS - 0.1, QUEUE_S, False),
        (MIN_SIGMAS, QUEUE_S, True),
        (None, QUEUE_S, True),  # nothing to hold it against
        (MIN_SIGMAS - 0.1, 2 * COMMON_S, True),  # more than all ranks lost
    ],
)
def test_a_usual_queue_is_a_part_of_what_all_ranks_lose(
    found: dict[str, Finding], sigmas: float | None, share_s: float, is_named: bool
) -> None:
    common, queue = found["GLOBAL_SLOW"], found["THREAD_OVERSUBSCRIPTION"]
    evidence = tuple(
        replace(view, z=sigmas) if view.signal == Signal.OWN else view for view in queue.evidence
    )
    assert any(view.signal == Signal.OWN for view in evidence)
    queue = replace(queue, evidence=evidence, seconds=replace(queue.seconds, share=share_s))
    scored = (ScoredFinding(common, 0), ScoredFinding(queue, 1))
    assert without_usual_queues(scored) == (scored if is_named else scored[:1])
    assert without_usual_queues(scored[1:]) == scored[1:]  # without anything that all lose
